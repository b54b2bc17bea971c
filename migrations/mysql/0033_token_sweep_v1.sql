-- token_sweep_v1: one bounded step of sweeping, from where the last one ended.
--
-- Arguments: p_limit  how many rows to look at, of all tables together: 1 to 1000
-- Result:    one row: deleted: rows · finished: whether this step came to the end, so that the next one begins anew. Also
--            true if another session is sweeping: then this one did nothing
-- Errors:    25001 inside a transaction of the caller's
-- Locks:     the position, then token_sweep_step_v1's rows, in a transaction of its own; it waits for none of them.
--
-- The position names keys, so it never leaves the server.
create procedure token_sweep_v1(in p_limit bigint)
modifies sql data
sql security definer
begin
  declare v_deleted bigint default 0;
  declare v_position varbinary(300);
  declare exit handler for 1568
    signal sqlstate '25001' set message_text = 'tollgate: sweeping needs a transaction of its own: commit first';

  set transaction isolation level read committed;
  start transaction;
  begin
    declare v_is_mine boolean default true;
    declare continue handler for not found set v_is_mine = false;
    declare exit handler for sqlexception
    begin
      rollback and no chain no release;
      resignal;
    end;

    select swept_to into v_position from token_sweep_position where one = true for update skip locked;
    -- Locked, or not made yet.
    if not v_is_mine and not exists (select 1 from token_sweep_position) then
      insert ignore into token_sweep_position (one) values (true);
      set v_is_mine = row_count() > 0;
    end if;
    if v_is_mine then
      call token_sweep_step_v1(v_position, p_limit, v_deleted, v_position);
      update token_sweep_position set swept_to = v_position where one = true;
    end if;
    commit and no chain no release;
  end;
  select v_deleted as deleted, v_position is null as finished;
end
