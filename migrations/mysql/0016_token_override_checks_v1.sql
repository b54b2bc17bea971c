-- token_override_checks_v1: refuses an override that can never be, and reckons the terms of one that can.
--
-- Arguments: the override's columns
-- Result:    o_burst, o_step_ns, o_step_ticks, o_token_ticks: null if it leaves the terms as they are
-- Errors:    23514
-- Locks:     the row of token_mode, if this is the first override.
create procedure token_override_checks_v1(
  in p_id varbinary(1024), in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin,
  in p_mode varchar(7) character set ascii collate ascii_bin, in p_expires_at timestamp(6),
  out o_burst bigint, out o_step_ns bigint, out o_step_ticks bigint, out o_token_ticks bigint)
modifies sql data
sql security definer
begin
  declare v_message varchar(128) character set utf8mb4;

  call token_rule_checks_v1('override', p_id, p_mode);
  set v_message = case
    when (p_capacity is null) <> (p_refill_seconds is null)
      then 'give both capacity and refill_seconds, or neither'
    when p_capacity is null and p_mode is null
      then 'it changes nothing: give capacity and refill_seconds, or a mode'
    when unix_timestamp(p_expires_at) * 1000000000 <= token_clock_v1()
      then concat('it expires at ', p_expires_at, ', which is past')
  end;
  if v_message is not null then
    set v_message = left(concat('tollgate: override ''', left(convert(p_id using utf8mb4), 24), ''': ', v_message), 128);
    signal sqlstate '23514' set message_text = v_message;
  end if;
  if p_capacity is not null then
    call token_terms_v1('override', p_id, p_capacity, p_refill_seconds, p_refill,
                        o_burst, o_step_ns, o_step_ticks, o_token_ticks);
  end if;
  update token_mode set overrides = true where not overrides;
end
