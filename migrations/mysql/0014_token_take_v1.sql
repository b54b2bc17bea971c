-- token_take_v1: token_decide_v1 with its answer as one row. For the arguments, results and locks see there.
create procedure token_take_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_keep bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_receipt varchar(36) character set ascii, in p_hold bigint)
modifies sql data
sql security definer
begin
  declare v_times bigint default 1;
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;

  call token_decide_v1(p_id, p_cost, p_max_wait, p_keep, p_capacity, p_refill_seconds, p_refill, p_plan, p_receipt,
                       p_hold, true, false, v_times, v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor,
                       v_step_ns, v_step_ticks, v_token_ticks);
  select 1 as entry, v_outcome as outcome, v_mode as mode, v_now as now, v_acts_at as acts_at, v_full_at as full_at,
         v_granted as granted, v_burst as burst, v_anchor as anchor, v_step_ns as step_ns, v_step_ticks as step_ticks,
         v_token_ticks as token_ticks;
end
