-- token_adjust_v1: give back, or pay for, what a granted request took; once for each receipt.
--
-- Arguments: p_kind      'cancel': it will not be used, and its time has not passed: what no later request queues behind
--                        is given back; 'refund': p_tokens of it were not used; 'settle': it cost p_tokens in the end,
--                        more or fewer than were taken, if the receipt has not expired
--            p_receipt   the request's id, or one made for this adjustment
--            p_id, p_cost, p_granted, p_acts_at: the bucket, and what the grant answered
--            p_tokens    see p_kind; 0 with 'cancel'
--            A bucket owes a year at most: see token_adjust_many_v1 for less
--            p_own       as token_decide_v1's
-- Result:    one row:
--            outcome     'done'; 'late': its time has passed, or the receipt has expired; 'repeated': it was adjusted
--                        before; 'unknown': no such bucket; nothing changes unless 'done'
--            given_back  tokens; negative: so many more were paid
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt, in a transaction of its own unless inside the caller's.
create procedure token_adjust_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost decimal(40, 20), in p_granted bigint, in p_acts_at bigint,
  in p_tokens decimal(40, 20), in p_own boolean)
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
    call token_not_whole_v1('token_adjust_v1', 'cost', p_cost);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_not_whole_v1('token_adjust_v1', 'tokens', p_tokens);
  end if;
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  call token_adjust_one_v1(p_kind, p_receipt, p_id, p_cost, p_granted, p_acts_at, p_tokens, null, v_outcome,
                           v_given_back);
  if v_own then commit and no chain no release; end if;
  select v_outcome as outcome, v_given_back as given_back;
end
