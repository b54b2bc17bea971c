-- token_create_plan: make a plan, or give it another quota. Its mode is left alone.
--
-- Arguments: p_name            1 to 255 bytes
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'continuous', 'interval', 'calendar' or 'once': see token_buckets
-- Errors:    22023 the name · 23514 figures that make no quota
-- Locks:     the plan's row.
create procedure token_create_plan(
  in p_name varchar(256) character set utf8mb4, in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_name varbinary(1024) default cast(p_name as binary);
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;

  call token_check_id_v1('plan name', v_name);
  call token_terms_v1('plan', v_name, p_capacity, p_refill_seconds, p_refill,
                      v_burst, v_step_ns, v_step_ticks, v_token_ticks);
  insert into token_plans (name, capacity, refill_seconds, refill)
  values (v_name, p_capacity, p_refill_seconds, p_refill)
  on duplicate key update capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill;
end
