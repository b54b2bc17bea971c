-- Says why there can be no such mode.
create trigger token_mode_changed before update on token_mode for each row
begin
  call token_rule_checks_v1('mode', 'all', new.mode);
end
