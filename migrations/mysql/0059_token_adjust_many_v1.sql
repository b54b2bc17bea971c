-- token_adjust_many_v1: give back, or pay for, what several granted requests took; once for each receipt.
--
-- Arguments: p_adjustments  a JSON array of [kind, receipt, id in hexadecimal, cost, granted, acts_at, tokens, window,
--                           max_debt]: as token_adjust_v1's; window is 1 where the key's sliding window granted; max_debt, if
--                           it is there, as token_adjust_one_v1's
--            p_own          as token_decide_v1's
-- Result:    o_answers      a JSON array of a text for each, in any order: its place, from 1, and what token_adjust_v1 or
--                           token_adjust_window_v1 answers, with a space between: the same as if it was done one after
--                           the other
-- Errors:    22023 arguments out of range · 22003 a figure that is too large (MariaDB takes the largest instead)
--            · 1205 several keys, and another held one of them for a second. Then nothing is done, if the caller rolls a
--            transaction of its own back
-- Locks:     the buckets' rows in the order of their ids, each and then its receipts, and the windows' likewise, in a
--            transaction of its own unless inside the caller's. Of one key all is done in the order given.
create procedure token_adjust_many_v1(
  in p_adjustments longtext character set utf8mb4, in p_own boolean,
  out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_done boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_place, v_granted, v_acts_at, v_max_debt, v_given_back bigint;
  declare v_cost, v_tokens decimal(40, 20);
  declare v_in_window boolean;
  declare v_kind, v_outcome varchar(10) character set ascii;
  declare v_receipt varchar(40) character set ascii;
  declare v_id varbinary(1024);
  declare v_sorted cursor for
    select place, kind, receipt, unhex(id) as id, cost, granted, acts_at, tokens, in_window, max_debt
      from json_table(p_adjustments, '$[*]' columns (
             place for ordinality, kind varchar(10) character set ascii path '$[0]',
             receipt varchar(40) character set ascii path '$[1]', id varchar(2048) character set ascii path '$[2]',
             cost decimal(40, 20) path '$[3]' error on error, granted bigint path '$[4]' error on error,
             acts_at bigint path '$[5]' error on error, tokens decimal(40, 20) path '$[6]' error on error,
             in_window int path '$[7]', max_debt bigint path '$[8]' error on error)) as adjustments
     order by coalesce(in_window, 0), id, place;
  declare continue handler for not found set v_done = true;
  declare continue handler for 1568  -- inside a transaction of the caller's, or one that was left open
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_own = false;
    end if;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_wait;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  -- Whoever holds one of the keys for long holds up the others no longer than that.
  if (select min(id) < max(id)
        from json_table(p_adjustments, '$[*]' columns (id varchar(2048) character set ascii path '$[2]')) as asked) then
    set innodb_lock_wait_timeout = least(v_wait, 1);
  end if;
  set o_answers = '[';
  open v_sorted;
  adjust: loop
    fetch v_sorted
      into v_place, v_kind, v_receipt, v_id, v_cost, v_granted, v_acts_at, v_tokens, v_in_window,
           v_max_debt;
    if v_done then leave adjust; end if;
    if v_cost <> floor(v_cost) then
      call token_not_whole_v1('token_adjust_many_v1', 'cost', v_cost);
    end if;
    if v_tokens <> floor(v_tokens) then
      call token_not_whole_v1('token_adjust_many_v1', 'tokens', v_tokens);
    end if;
    if v_in_window then
      call token_adjust_one_in_window_v1(v_kind, v_receipt, convert(v_id using utf8mb4), v_cost, v_acts_at, v_tokens,
                                         v_outcome, v_given_back);
    else
      call token_adjust_one_v1(v_kind, v_receipt, convert(v_id using utf8mb4), v_cost, v_granted, v_acts_at, v_tokens,
                               v_max_debt, v_outcome, v_given_back);
    end if;
    set v_done = false;
    set o_answers = concat(o_answers, if(o_answers = '[', '"', ',"'), v_place, ' ', v_outcome, ' ', v_given_back, '"');
  end loop;
  close v_sorted;
  set innodb_lock_wait_timeout = v_wait;
  set o_answers = concat(o_answers, ']');
  if v_own then commit and no chain no release; end if;
end
