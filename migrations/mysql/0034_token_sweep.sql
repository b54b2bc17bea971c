-- token_sweep: all steps of token_sweep_step_v1, from the beginning to the end, for your scheduler: call token_sweep().
--
-- Result: one row: deleted: rows
-- Errors: 25001 inside a transaction of the caller's
-- Locks:  token_sweep_step_v1's rows, each step in a transaction of its own.
create procedure token_sweep()
modifies sql data
sql security definer
begin
  declare v_deleted bigint;
  declare v_total bigint default 0;
  declare v_after varbinary(300);
  declare exit handler for 1568
    signal sqlstate '25001' set message_text = 'tollgate: sweeping needs a transaction of its own: commit first';

  repeat
    set transaction isolation level read committed;
    start transaction;
    begin
      declare exit handler for sqlexception
      begin
        rollback and no chain no release;
        resignal;
      end;
      call token_sweep_step_v1(v_after, 1000, v_deleted, v_after);
      commit and no chain no release;
    end;
    set v_total = v_total + v_deleted;
  until v_after is null end repeat;
  select v_total as deleted;
end
