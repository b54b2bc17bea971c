-- token_decide_many_v1: decide several requests in one call, each for itself: one that fails does not fail the others.
--
-- Arguments: p_requests  a JSON array; a request is [id in hexadecimal, cost, max_wait, keep, capacity, refill_seconds,
--                        refill, plan in hexadecimal, receipt, hold], as token_decide_v1's arguments; what is left out
--                        is null
-- Result:    o_answers   a JSON array, in any order; an answer is an array of token_take_v1's columns, the request's
--                        place, from 1, first
-- Locks:     the buckets' rows, in the order of their ids, so two calls never wait for each other, in one transaction.
--            Requests for one bucket are decided in the order of their places.
create procedure token_decide_many_v1(
  in p_requests longtext character set utf8mb4, out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_done boolean default false;
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(10) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_receipt varchar(36) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_cost, v_max_wait, v_keep, v_capacity, v_hold bigint;
  declare v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, cost, max_wait, keep, capacity, refill_seconds, refill, unhex(plan), receipt, hold
      from json_table(p_requests, '$[*]' columns (
             place for ordinality, id varchar(2048) path '$[0]', cost bigint path '$[1]', max_wait bigint path '$[2]',
             keep bigint path '$[3]', capacity bigint path '$[4]', refill_seconds decimal(19, 9) path '$[5]',
             refill varchar(10) path '$[6]', plan varchar(2048) path '$[7]', receipt varchar(36) path '$[8]',
             hold bigint path '$[9]')) as requests
     order by id, place;
  declare continue handler for not found set v_done = true;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's
  declare exit handler for sqlexception
  begin
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  set o_answers = '[]';
  open v_sorted;
  decide: loop
    fetch v_sorted into v_place, v_id, v_cost, v_max_wait, v_keep, v_capacity, v_refill_seconds, v_refill, v_plan,
                        v_receipt, v_hold;
    if v_done then leave decide; end if;
    call token_decide_v1(convert(v_id using utf8mb4), v_cost, v_max_wait, v_keep, v_capacity, v_refill_seconds,
                         v_refill, convert(v_plan using utf8mb4), v_receipt, v_hold, true, null,
                         v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                         v_step_ticks, v_token_ticks);
    set v_done = false;
    set o_answers = json_array_append(o_answers, '$', json_array(
      v_place, v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks,
      v_token_ticks));
  end loop;
  close v_sorted;
  if v_own then commit and no chain no release; end if;
end
