-- token_take_many_v1: decide several requests in one call, each for itself: one that fails does not fail the others.
--
-- Arguments: p_requests  a JSON array; a request is [id in hexadecimal, cost, max_wait, keep, capacity, refill_seconds,
--                        refill], as token_decide_v1's arguments; the last three null or all given
-- Result:    a row a request, in any order: its place in the array (from 1), then token_take_v1's columns
-- Locks:     the buckets' rows, in the order of their ids, so two calls never wait for each other, in one transaction.
--            Requests for one bucket are decided in the order given.
create procedure token_take_many_v1(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_joined boolean default not @@autocommit;
  declare v_own boolean default false;
  declare v_done boolean default false;
  declare v_outcomes longtext character set utf8mb4 default '[]';
  declare v_id varbinary(1024);
  declare v_outcome, v_refill varchar(10) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_entry, v_cost, v_max_wait, v_keep, v_asked_capacity bigint;
  declare v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select entry, unhex(id) as id, cost, max_wait, keep, capacity, refill_seconds, refill
      from json_table(p_requests, '$[*]' columns (
             entry for ordinality, id varchar(2048) path '$[0]', cost bigint path '$[1]', max_wait bigint path '$[2]',
             keep bigint path '$[3]', capacity bigint path '$[4]', refill_seconds decimal(19, 9) path '$[5]',
             refill varchar(10) path '$[6]')) as requests
     order by id, entry;
  declare continue handler for not found set v_done = true;
  declare continue handler for 1568 set v_joined = true;  -- inside a transaction of the caller's
  declare exit handler for sqlexception
  begin
    if v_own then rollback; end if;
    resignal;
  end;

  if not v_joined then
    set transaction isolation level read committed;
  end if;
  if not v_joined then
    start transaction;
    set v_own = true;
  end if;
  open v_sorted;
  decide: loop
    fetch v_sorted into v_entry, v_id, v_cost, v_max_wait, v_keep, v_asked_capacity, v_refill_seconds, v_refill;
    if v_done then leave decide; end if;
    call token_decide_v1(convert(v_id using utf8mb4), v_cost, v_max_wait, v_keep,
                         v_asked_capacity, v_refill_seconds, v_refill,
                         v_outcome, v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks,
                         v_token_ticks);
    set v_done = false;
    set v_outcomes = json_array_append(v_outcomes, '$', json_array(
      v_entry, v_outcome, v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks));
  end loop;
  close v_sorted;
  if v_own then commit; end if;

  select * from json_table(v_outcomes, '$[*]' columns (
    entry bigint path '$[0]', outcome varchar(10) path '$[1]', now bigint path '$[2]', full_at bigint path '$[3]',
    granted bigint path '$[4]', capacity bigint path '$[5]', anchor bigint path '$[6]', step_ns bigint path '$[7]',
    step_ticks bigint path '$[8]', token_ticks bigint path '$[9]')) as outcomes;
end
