-- Says why there can be no such plan.
create trigger token_plan_made before insert on token_plans for each row
begin
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  call token_rule_checks_v1('plan', new.name, new.mode);
  call token_terms_v1('plan', new.name, new.capacity, new.refill_seconds, new.refill,
                      v_burst, v_step_ns, v_step_ticks, v_token_ticks);
end
