-- token_sweep: all steps of token_sweep_step_v1, for your scheduler: call token_sweep().
--
-- Result: one row: deleted: rows
create procedure token_sweep()
modifies sql data
sql security definer
begin
  declare v_deleted bigint;
  declare v_total bigint default 0;
  declare v_after varbinary(300);
  repeat
    call token_sweep_step_v1(v_after, 1000, v_deleted, v_after);
    set v_total = v_total + v_deleted;
  until v_after is null end repeat;
  select v_total as deleted;
end
