-- token_take_all_v1: take the same number of tokens from several buckets, from all of them or from none.
--
-- Arguments: p_limits    a JSON array; a limit is [id in hexadecimal, capacity, refill_seconds, refill, plan in
--                        hexadecimal], no bucket twice, each with terms or a plan as for token_decide_v1, or neither
--            p_cost, p_max_wait, p_keep, p_receipt, p_hold: as for token_decide_v1, the same for all
-- Result:    a row a bucket, in any order: its place, then token_take_v1's columns. All are 'granted'; or one or more
--            say why not, and the others are 'spared': they could have been granted, and nothing was taken
-- Errors:    token_decide_v1's
-- Locks:     the rows of all buckets, made if need be, in the order of their ids; then the receipts. In a transaction
--            of its own unless inside the caller's.
--
-- First all are locked and brought to what rules them; then the clock is read, and each is weighed by it; then, if all
-- grant, their tokens are taken. A wait acts when the last bucket's does; each bucket's tokens are taken for when they
-- are there.
create procedure token_take_all_v1(
  in p_limits longtext character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_keep bigint,
  in p_receipt varchar(36) character set ascii, in p_hold bigint)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_done, v_spare boolean default false;
  declare v_all boolean default true;
  declare v_pass int default 1;  -- 1: lock and make ready, 2: weigh, 3: take
  declare v_answers longtext character set utf8mb4;
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(10) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_capacity, v_at bigint;
  declare v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, capacity, refill_seconds, refill, unhex(plan)
      from json_table(p_limits, '$[*]' columns (
             place for ordinality, id varchar(2048) path '$[0]', capacity bigint path '$[1]',
             refill_seconds decimal(19, 9) path '$[2]', refill varchar(10) path '$[3]',
             plan varchar(2048) path '$[4]')) as limits
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
  while v_pass <= 3 do
    set v_answers = '[]', v_done = false;
    open v_sorted;
    decide: loop
      fetch v_sorted into v_place, v_id, v_capacity, v_refill_seconds, v_refill, v_plan;
      if v_done then leave decide; end if;
      call token_decide_v1(convert(v_id using utf8mb4), p_cost, p_max_wait, p_keep, v_capacity, v_refill_seconds,
                           v_refill, convert(v_plan using utf8mb4), if(v_pass = 1, null, p_receipt), p_hold,
                           v_pass = 3, v_at,
                           v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                           v_step_ticks, v_token_ticks);
      set v_done = false;
      set v_spare = v_spare or (v_pass > 1 and v_outcome <> 'granted');
      set v_all = v_all and v_outcome = 'granted';
      set v_answers = json_array_append(v_answers, '$', json_array(
        v_place, v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks,
        v_token_ticks));
    end loop;
    close v_sorted;
    if v_spare and v_pass = 3 then
      rollback to savepoint tollgate_take_all;
      signal sqlstate '40001' set message_text = 'tollgate: what rules the buckets changed meanwhile: call again';
    end if;
    -- What each granted while the others were not locked yet, it grants later, too.
    set v_pass = if(v_spare, 4, if(v_pass = 1 and v_all and p_receipt is null, 3, v_pass + 1));
    if v_pass <= 3 and v_at is null then
      call token_clock_v1(v_at);
    end if;
    if v_pass = 3 then
      savepoint tollgate_take_all;
    end if;
  end while;
  if not v_spare then
    release savepoint tollgate_take_all;
  end if;
  if v_own then commit and no chain no release; end if;

  select entry, if(v_spare and outcome = 'granted', 'spared', outcome) as outcome, mode, now, acts_at, full_at, granted,
         burst, anchor, step_ns, step_ticks, token_ticks
    from json_table(v_answers, '$[*]' columns (
      entry bigint path '$[0]', outcome varchar(10) path '$[1]', mode varchar(7) path '$[2]', now bigint path '$[3]',
      acts_at bigint path '$[4]', full_at bigint path '$[5]', granted bigint path '$[6]', burst bigint path '$[7]',
      anchor bigint path '$[8]', step_ns bigint path '$[9]', step_ticks bigint path '$[10]',
      token_ticks bigint path '$[11]')) as answers;
end
