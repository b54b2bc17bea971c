-- token_hold_back_v1: lower a bucket to what somebody else says of it, never raise it; repeated, it changes nothing.
--
-- Arguments: p_id        the bucket
--            p_remaining no more tokens than these are left; null: not said
--            p_wait      none comes before so many nanoseconds have passed, a year at most; 0: not said. Of an interval
--                        they come with the first period that begins then
--            p_capacity, p_refill_seconds, p_refill, p_plan, p_own: as token_decide_v1's
-- Result:    one row: outcome: 'lowered'; 'unchanged': it held no more, or its mode is 'off'; 'endless': it never
--            refills, and there is a wait; 'unknown', 'unplanned' or 'conflict', as token_decide_v1 answers
-- Errors:    22023 arguments out of range · 23514 terms that make no bucket
--            · 40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, so the clock is read after that, in a transaction of its own unless inside the caller's.
create procedure token_hold_back_v1(
  in p_id varchar(256) character set utf8mb4, in p_remaining bigint, in p_wait bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_own boolean)
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  call token_lower_v1(p_id, p_remaining, p_wait, p_capacity, p_refill_seconds, p_refill, p_plan, p_own, v_outcome);
  select v_outcome as outcome;
end
