-- token_sweep_v1: token_sweep_step_v1 with its answer as one row: deleted, next. For the arguments and locks see there.
create procedure token_sweep_v1(in p_after varbinary(300), in p_limit bigint)
modifies sql data
sql security definer
begin
  declare v_deleted bigint;
  declare v_next varbinary(300);
  call token_sweep_step_v1(p_after, p_limit, v_deleted, v_next);
  select v_deleted as deleted, v_next as next;
end
