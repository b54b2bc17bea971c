-- Gives an override the columns that follow from its terms, or says why there can be none.
create trigger token_override_changed before update on token_overrides for each row
begin
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  call token_override_checks_v1(new.id, new.capacity, new.refill_seconds, new.refill, new.mode, new.expires_at,
                                v_burst, v_step_ns, v_step_ticks, v_token_ticks);
  set new.burst = v_burst, new.step_ns = v_step_ns, new.step_ticks = v_step_ticks, new.token_ticks = v_token_ticks;
end
