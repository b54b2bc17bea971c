-- token_adjust_window_v1: give back, or pay for, what a request under a sliding window took; once for each receipt.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_acts_at, p_tokens, p_own: as token_adjust_v1's
-- Result:    one row: outcome, given_back: as token_adjust_v1's
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt, in a transaction of its own unless inside the caller's.
create procedure token_adjust_window_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost decimal(40, 20), in p_acts_at bigint, in p_tokens decimal(40, 20),
  in p_own boolean)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_outcome varchar(10) character set ascii;
  declare v_given_back bigint;
  declare continue handler for 1568  -- inside a transaction of the caller's, or one that was left open
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_own = false;
    end if;
  declare exit handler for sqlexception
  begin
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if p_cost <> floor(p_cost) then
    call token_not_whole_v1('token_adjust_window_v1', 'cost', p_cost);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_not_whole_v1('token_adjust_window_v1', 'tokens', p_tokens);
  end if;
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  call token_adjust_one_in_window_v1(p_kind, p_receipt, p_id, p_cost, p_acts_at, p_tokens, v_outcome, v_given_back);
  if v_own then commit and no chain no release; end if;
  select v_outcome as outcome, v_given_back as given_back;
end
