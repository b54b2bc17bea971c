-- token_decide_many_v1: decide several requests in one transaction, each for itself: one that fails does not fail the
-- others.
--
-- Arguments: p_requests  a JSON array; a request is [id, cost, max_wait, keep, capacity, refill_seconds, refill], as
--                        token_decide_v1's arguments; a wait and a number to keep that are left out are 0, and so are
--                        terms null, the last three or none of them
-- Result:    o_answers   a JSON array; an answer is [place of the request, from 1, and token_decide_v1's results], in
--                        the order in which they were decided
-- Errors:    those of token_decide_v1
-- Locks:     the buckets' rows, in the order of their ids, so two calls never wait for each other, in one transaction.
--            Requests for one bucket are decided in the order given.
create procedure token_decide_many_v1(
  in p_requests longtext character set utf8mb4, out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_done boolean default false;
  declare v_id varchar(256) character set utf8mb4;
  declare v_outcome, v_refill varchar(10) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_entry, v_cost, v_max_wait, v_keep, v_asked_capacity bigint;
  declare v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select entry, left(id, 256) as id, cost, coalesce(max_wait, 0), coalesce(keep, 0), capacity, refill_seconds, refill
      from json_table(p_requests, '$[*]' columns (
             entry for ordinality, id text path '$[0]', cost bigint path '$[1]', max_wait bigint path '$[2]',
             keep bigint path '$[3]', capacity bigint path '$[4]', refill_seconds decimal(19, 9) path '$[5]',
             refill varchar(10) path '$[6]')) as requests
     order by cast(id as binary), entry;
  declare continue handler for not found set v_done = true;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback; end if;
      resignal;
    end;

    set o_answers = '[]';
    open v_sorted;
    decide: loop
      fetch v_sorted into v_entry, v_id, v_cost, v_max_wait, v_keep, v_asked_capacity, v_refill_seconds, v_refill;
      if v_done then leave decide; end if;
      call token_decide_v1(v_id, v_cost, v_max_wait, v_keep, v_asked_capacity, v_refill_seconds, v_refill,
                           v_outcome, v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks,
                           v_token_ticks);
      set v_done = false;
      set o_answers = json_array_append(o_answers, '$', json_array(
        v_entry, v_outcome, v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks));
    end loop;
    close v_sorted;
    if v_own then commit; end if;
  end;
end
