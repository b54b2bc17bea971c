-- token_adjust: cancels, refunds or settles a granted request, or charges a bucket, in the caller's transaction. token_adjust_v1
-- and token_adjust_batch_v1 call it.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_granted, p_scheduled_at, p_tokens: as for token_adjust_v1
--            p_max_debt    'settle', 'charge': longest wait for the next token, in nanoseconds; at least the wait of an empty
--                          bucket; null: one year, the maximum
-- Result:    o_outcome, o_given_back: as the columns of token_adjust_v1
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt; with 'settle', a missing receipt locks a gap, as for token_take_v1
drop procedure if exists token_adjust;
create procedure token_adjust(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_granted bigint, in p_scheduled_at bigint,
  in p_tokens bigint, in p_max_debt bigint, out o_outcome varchar(10) character set ascii, out o_given_back bigint)
modifies sql data
sql security definer
adjust: begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_day bigint default 86400000000000;  -- one day in nanoseconds
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_receipt binary(16);
  declare v_state varchar(9) character set ascii;
  declare v_new boolean default false;
  declare v_now, v_clock, v_debt_end, v_max_owed, v_full_at, v_max_granted_wait, v_granted, v_burst bigint;
  declare v_anchor, v_period_end, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_known_cost, v_known_granted, v_known_scheduled_at, v_expires_at bigint;
  declare v_owed decimal(65, 0);

  if (p_kind in ('cancel', 'refund', 'settle', 'charge')
      and (length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}'
           or p_receipt is null and p_kind = 'charge')
      and length(v_id) between 1 and 255 and p_cost between 1 and 3155760000000000000
      and p_granted >= 0 and p_scheduled_at is not null
      and p_tokens between 0 and 3155760000000000000 and coalesce(p_max_debt, 0) >= 0) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: adjust takes cancel, refund, settle or charge, a UUID, a bucket, a cost above 0, tokens and a debt of 0 or more';
  end if;
  set v_receipt = unhex(replace(p_receipt, '-', ''));
  set o_outcome = 'done', o_given_back = 0;

  select full_at, granted, burst, anchor, period_end, step_ns, step_ticks, token_ticks, max_granted_wait
    into v_full_at, v_granted, v_burst, v_anchor, v_period_end, v_step_ns, v_step_ticks, v_token_ticks, v_max_granted_wait
    from token_buckets where id = v_id for update;
  call token_clock(v_now);
  if p_kind = 'settle' then
    select state, cost, expires_at into v_state, v_known_cost, v_expires_at
      from token_receipts where id = v_receipt and bucket = v_id for update;
    if v_state is null or v_expires_at <= v_now then
      set o_outcome = 'late';
      leave adjust;
    end if;
  elseif p_receipt is not null then
    call token_claim(p_receipt, v_id, p_cost, p_granted, p_scheduled_at,
                     least(greatest(p_scheduled_at, v_now + c_day), v_now + c_year), 0,
                     v_state, v_known_cost, v_known_granted, v_known_scheduled_at, v_expires_at);
    -- The receipt takes precedence over the caller's arguments.
    set v_new = v_state is null, p_granted = v_known_granted, p_scheduled_at = v_known_scheduled_at;
  end if;
  if p_kind = 'cancel' and v_now > p_scheduled_at then
    set o_outcome = 'late';
  elseif p_kind = 'charge' and v_state is not null and v_known_granted <> 0 then
    set o_outcome = 'reused';
  elseif v_state <> 'open' or v_known_cost <> p_cost or p_kind = 'charge' and v_state is not null then
    set o_outcome = 'repeated';
  elseif v_burst is null then
    set o_outcome = 'unknown';
  elseif p_kind = 'cancel' and v_granted < p_granted then
    set o_outcome = 'late';
  end if;
  if o_outcome <> 'done' then
    if v_new then
      delete from token_receipts where id = v_receipt and bucket = v_id;
    end if;
    leave adjust;
  end if;

  set o_given_back = case p_kind
    when 'cancel' then greatest(p_cost - (v_granted - p_granted), 0)
    when 'refund' then least(p_tokens, p_cost)
    when 'charge' then -p_tokens
    else p_cost - p_tokens
  end;
  if p_kind = 'cancel' and v_granted = p_granted then
    set v_granted = greatest(v_granted - p_cost, 0);
  end if;
  if o_given_back < 0 and v_period_end <= v_now then
    -- Starts the current calendar period, with any mode, under the limits that the state is under.
    begin
      declare u_capacity, n_burst, n_step_ns, n_step_ticks, n_token_ticks, n_anchor, n_period_end bigint;
      declare u_seconds decimal(19, 9);
      declare u_refill varchar(80) character set ascii collate ascii_bin;
      select under_capacity, under_seconds, under_refill into u_capacity, u_seconds, u_refill
        from token_buckets where id = v_id for update;
      call token_bucket_limits('bucket', v_id, u_capacity, u_seconds, u_refill, v_now,
                               n_burst, n_step_ns, n_step_ticks, n_token_ticks, n_anchor, n_period_end);
      call token_convert_state(v_now, n_burst, n_step_ns, n_step_ticks, n_token_ticks, n_anchor, n_period_end, true,
                               v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end, v_full_at,
                               v_max_granted_wait);
      update token_buckets
         set step_ns = v_step_ns, anchor = v_anchor, period_end = v_period_end, full_at = v_full_at,
             max_granted_wait = v_max_granted_wait
       where id = v_id;
    end;
  end if;
  set v_clock = (least(v_now, v_period_end) - v_anchor) div v_step_ns * v_step_ticks,
      v_debt_end = (least(v_now + least(coalesce(p_max_debt, c_year), c_year) - 1, v_period_end) - v_anchor)
                   div v_step_ns * v_step_ticks + 1 - v_token_ticks,
      v_max_owed = v_burst + v_max_granted_wait + (1000000000 div v_step_ns + 1) * v_step_ticks;
  if o_given_back >= 0 then
    -- Can exceed the capacity: a debt can be older than a lower capacity. The maximum of granted leaves room for later grants.
    set v_full_at = greatest(v_full_at - cast(o_given_back as decimal(65, 0)) * v_token_ticks, -v_burst),
        v_granted = least(v_granted, c_max_counted);
  else
    -- The clock was set back: the bucket is empty from now on, as a request would find it.
    if v_full_at - v_clock > v_max_owed then
      set v_full_at = v_clock + v_burst, v_max_granted_wait = 0;
    end if;
    set v_owed = greatest(v_full_at, v_clock) - cast(o_given_back as decimal(65, 0)) * v_token_ticks;
    set v_full_at = greatest(v_full_at, least(v_owed, greatest(v_clock, v_debt_end) + cast(v_burst as decimal(65, 0)))),
        v_granted = least(cast(v_granted as decimal(65, 0)) - o_given_back, c_max_counted);
  end if;
  update token_buckets
     set full_at = v_full_at,
         recorded = greatest(cast(recorded as decimal(65, 0)) - granted + v_granted, v_granted - c_max_counted),
         granted = v_granted,
         max_granted_wait = greatest(v_max_granted_wait, if(o_given_back < 0, v_full_at - v_clock - v_burst, 0)),
         charged = least(cast(charged as decimal(65, 0)) - least(o_given_back, 0), c_max_counted),
         refunded = least(cast(refunded as decimal(65, 0)) + greatest(o_given_back, 0), c_max_counted)
   where id = v_id;
  update token_receipts
     set state = case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
         expires_at = greatest(expires_at, least(greatest(scheduled_at, v_now + c_day), v_now + c_year))
   where id = v_receipt and bucket = v_id;
end adjust;

-- token_adjust_v1: cancels, refunds or settles a granted request, once per receipt.
--
-- Arguments: p_kind        'cancel': the tokens will not be used, and their time has not passed. Gives back the tokens that no
--                          later request queues behind
--                          'refund': p_tokens were not used
--                          'settle': the request cost p_tokens in the end, more or fewer than were taken.
--                          'charge': p_tokens were used without a grant
--            p_receipt     id of the request, or an id of this adjustment; null: a charge that is not remembered
--            p_id          the bucket
--            p_cost, p_granted, p_scheduled_at: of the grant
--            p_tokens      see p_kind; 0 with 'cancel'
--            p_exclusive   as for token_take_v1
-- Result:    one row
--            outcome       'done'; with other outcomes, nothing changes
--                          'late': the time has passed, or the receipt expired
--                          'repeated': already adjusted · 'unknown': no such bucket
--                          'reused': the id of a charge is that of a request
--            given_back    tokens; negative: tokens charged in addition
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt, in its own transaction unless the caller has one
--
-- A bucket owes one year at most: see token_adjust_batch_v1 for a lower maximum.
drop procedure if exists token_adjust_v1;
create procedure token_adjust_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost decimal(40, 20), in p_granted bigint, in p_scheduled_at bigint,
  in p_tokens decimal(40, 20), in p_exclusive boolean)
modifies sql data
sql security definer
begin
  declare v_owns_transaction boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_outcome varchar(10) character set ascii;
  declare v_given_back bigint;
  declare exit handler for sqlexception
  begin
    if p_exclusive then set innodb_lock_wait_timeout = v_lock_wait_timeout; end if;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  if p_cost <> floor(p_cost) then
    call token_require_whole_number('token_adjust_v1', 'cost', p_cost);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('token_adjust_v1', 'tokens', p_tokens);
  end if;
  call token_begin(p_exclusive, v_owns_transaction);
  if p_exclusive then set innodb_lock_wait_timeout = least(v_lock_wait_timeout, 1); end if;
  call token_adjust(p_kind, p_receipt, p_id, p_cost, p_granted, p_scheduled_at, p_tokens, null, v_outcome,
                    v_given_back);
  if p_exclusive then set innodb_lock_wait_timeout = v_lock_wait_timeout; end if;
  if v_owns_transaction then commit and no chain no release; end if;
  select v_outcome as outcome, v_given_back as given_back;
end;

-- token_adjust_window: cancels, refunds or settles a granted request of a sliding window, in the caller's transaction.
-- token_adjust_window_v1 and token_adjust_batch_v1 call it.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens: as for token_adjust_v1
-- Result:    o_outcome, o_given_back: as the columns of token_adjust_window_v1
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt; with 'settle', a missing receipt locks a gap, as for token_take_v1
drop procedure if exists token_adjust_window;
create procedure token_adjust_window(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_scheduled_at bigint, in p_tokens bigint,
  out o_outcome varchar(10) character set ascii, out o_given_back bigint)
modifies sql data
sql security definer
adjust: begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_day bigint default 86400000000000;  -- one day in nanoseconds
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_receipt binary(16);
  declare v_state varchar(9) character set ascii;
  declare v_counts longtext character set ascii;
  declare v_found bigint default 0;
  declare v_new boolean default false;
  declare v_now, v_newest, v_interval, v_resolution, v_last_wait, v_since, v_end bigint;
  declare v_known_cost, v_known_granted, v_scheduled_at, v_expires_at bigint;

  if (p_kind in ('cancel', 'refund', 'settle')
      and length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}'
      and length(v_id) between 1 and 255 and p_cost between 1 and 1000000000000 and p_scheduled_at >= 0
      and p_tokens between 0 and 3155760000000000000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: adjust takes cancel, refund or settle, a UUID, a window, a cost of 1 or more and 0 requests or more';
  end if;
  set v_receipt = unhex(replace(p_receipt, '-', ''));
  set o_outcome = 'done', o_given_back = 0;

  select counts, newest, interval_ns, resolution_ns, last_wait, since
    into v_counts, v_newest, v_interval, v_resolution, v_last_wait, v_since
    from token_windows where id = v_id for update;
  call token_clock(v_now);
  if p_kind = 'settle' then
    select state, cost, expires_at, scheduled_at into v_state, v_known_cost, v_expires_at, v_scheduled_at
      from token_receipts where id = v_receipt and bucket = concat(x'01', v_id) for update;
    if v_state is null or v_expires_at <= v_now then
      set o_outcome = 'late';
      leave adjust;
    end if;
  else
    call token_claim(p_receipt, concat(x'01', v_id), p_cost, 0, p_scheduled_at,
                     least(greatest(p_scheduled_at, v_now + c_day), v_now + c_year), 0,
                     v_state, v_known_cost, v_known_granted, v_scheduled_at, v_expires_at);
    set v_new = v_state is null;
  end if;
  set o_outcome = case
    when p_kind = 'cancel' and v_now > v_scheduled_at then 'late'
    when v_state <> 'open' or v_known_cost <> p_cost then 'repeated'
    when v_counts is null then 'unknown'
    else 'done'
  end;
  if o_outcome <> 'done' then
    if v_new then
      delete from token_receipts where id = v_receipt and bucket = concat(x'01', v_id);
    end if;
    leave adjust;
  end if;

  update token_receipts
     set state = case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
         expires_at = greatest(expires_at, least(greatest(scheduled_at, v_now + c_day), v_now + c_year))
   where id = v_receipt and bucket = concat(x'01', v_id);
  set o_given_back = case p_kind
    when 'cancel' then p_cost when 'refund' then least(p_tokens, p_cost) else p_cost - least(p_tokens, 1000000000000) end;
  if o_given_back < 0 then
    set v_end = v_newest;
    call token_window_step_back(v_last_wait, v_resolution, v_now, v_counts, v_newest);
    if v_newest < v_end then
      update token_windows set since = greatest(since, v_end) where id = v_id;
    end if;
    call token_window_count(v_id, null, v_interval, v_resolution, -o_given_back, v_now,
                            greatest(v_now, v_newest - v_resolution), v_counts, v_newest, v_resolution);
    leave adjust;
  end if;
  -- Requests of a dropped sub-interval cannot be given back in another one. Otherwise, their sub-interval is the first one that
  -- ends after they act, or a later one.
  select min(e) into v_end
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
   where e > v_scheduled_at and v_scheduled_at >= v_since;
  select coalesce(sum(c), 0) into v_found
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j where e = v_end;
  set v_found = least(v_found, o_given_back);
  if p_kind = 'cancel' then
    set o_given_back = v_found;
  end if;
  -- Deletes empty sub-intervals: no request queues behind them.
  select coalesce(json_arrayagg(json_array(e, c)), '[]'), coalesce(max(e), 0) into v_counts, v_newest
    from (select e, if(e = v_end, c - v_found, c) as c
            from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as s
   where c > 0;
  update token_windows set counts = v_counts, newest = v_newest, granted = granted - v_found where id = v_id;
end adjust;

-- token_adjust_window_v1: cancels, refunds or settles a granted request of a sliding window, once per receipt.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens, p_exclusive: as for token_adjust_v1
-- Result:    one row: outcome, given_back: as for token_adjust_v1
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt, in its own transaction unless the caller has one
drop procedure if exists token_adjust_window_v1;
create procedure token_adjust_window_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost decimal(40, 20), in p_scheduled_at bigint, in p_tokens decimal(40, 20),
  in p_exclusive boolean)
modifies sql data
sql security definer
begin
  declare v_owns_transaction boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_outcome varchar(10) character set ascii;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_given_back bigint;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
        sql_big_selects = v_sql_big_selects;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  if p_cost <> floor(p_cost) then
    call token_require_whole_number('token_adjust_window_v1', 'cost', p_cost);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('token_adjust_window_v1', 'tokens', p_tokens);
  end if;
  call token_begin(p_exclusive, v_owns_transaction);
  -- MariaDB truncates a longer array silently. A join can exceed the session's max_join_size.
  set innodb_lock_wait_timeout = if(p_exclusive, least(v_lock_wait_timeout, 1), v_lock_wait_timeout),
      group_concat_max_len = 1000000000, sql_big_selects = 1;
  call token_adjust_window(p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens, v_outcome, v_given_back);
  set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
      sql_big_selects = v_sql_big_selects;
  if v_owns_transaction then commit and no chain no release; end if;
  select v_outcome as outcome, v_given_back as given_back;
end;

-- token_adjust_batch_v1: cancels, refunds or settles several granted requests, once per receipt.
--
-- Arguments: p_adjustments  a JSON array of [kind, receipt, id in hexadecimal, cost, granted, scheduled_at, tokens, window,
--                           max_debt], as for token_adjust_v1. window: 1 if the key's sliding window granted the request.
--                           max_debt: optional, as for token_adjust
--            p_exclusive    as for token_take_v1
-- Result:    o_answers      a JSON array with one text per adjustment, in any order: its position from 1 and the columns of
--                           token_adjust_v1 or token_adjust_window_v1, with spaces between. The answers are those of
--                           adjusting one after the other
-- Errors:    22023 arguments out of range · 22003 a number that is too large (MariaDB takes the largest instead)
--            1205 the call names several keys, and another session locked one for a second: nothing is done, if the caller
--            rolls back its transaction
-- Locks:     the buckets' rows in id order, each followed by its receipts; then the windows' rows likewise. Adjustments of one
--            key are done in the order given. The routine has its own transaction, unless the caller has one.
drop procedure if exists token_adjust_batch_v1;
create procedure token_adjust_batch_v1(
  in p_adjustments longtext character set utf8mb4, in p_exclusive boolean,
  out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_owns_transaction boolean default false;
  declare v_done boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_place, v_granted, v_scheduled_at, v_max_debt, v_given_back bigint;
  declare v_cost, v_tokens decimal(40, 20);
  declare v_in_window boolean;
  declare v_kind, v_outcome varchar(10) character set ascii;
  declare v_receipt varchar(40) character set ascii;
  declare v_id varbinary(1024);
  declare v_sorted cursor for
    select place, kind, receipt, unhex(id) as id, cost, granted, scheduled_at, tokens, in_window, max_debt
      from json_table(p_adjustments, '$[*]' columns (
             place for ordinality, kind varchar(10) character set ascii path '$[0]',
             receipt varchar(40) character set ascii path '$[1]', id varchar(2048) character set ascii path '$[2]',
             cost decimal(40, 20) path '$[3]' error on error, granted bigint path '$[4]' error on error,
             scheduled_at bigint path '$[5]' error on error, tokens decimal(40, 20) path '$[6]' error on error,
             in_window int path '$[7]', max_debt bigint path '$[8]' error on error)) as adjustments
     order by coalesce(in_window, 0), id, place;
  declare continue handler for not found set v_done = true;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
        sql_big_selects = v_sql_big_selects;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_exclusive, v_owns_transaction);
  -- MariaDB truncates a longer array silently. A join can exceed the session's max_join_size.
  set group_concat_max_len = 1000000000, sql_big_selects = 1;
  -- A session that holds a key delays the others by a second at most.
  if p_exclusive or (select min(id) < max(id)
        from json_table(p_adjustments, '$[*]' columns (id varchar(2048) character set ascii path '$[2]')) as requested) then
    set innodb_lock_wait_timeout = least(v_lock_wait_timeout, 1);
  end if;
  set o_answers = '[';
  open v_sorted;
  adjust: loop
    fetch v_sorted
      into v_place, v_kind, v_receipt, v_id, v_cost, v_granted, v_scheduled_at, v_tokens, v_in_window,
           v_max_debt;
    if v_done then leave adjust; end if;
    if v_cost <> floor(v_cost) then
      call token_require_whole_number('token_adjust_batch_v1', 'cost', v_cost);
    end if;
    if v_tokens <> floor(v_tokens) then
      call token_require_whole_number('token_adjust_batch_v1', 'tokens', v_tokens);
    end if;
    if v_in_window then
      call token_adjust_window(v_kind, v_receipt, convert(v_id using utf8mb4), v_cost, v_scheduled_at, v_tokens,
                               v_outcome, v_given_back);
    else
      call token_adjust(v_kind, v_receipt, convert(v_id using utf8mb4), v_cost, v_granted, v_scheduled_at, v_tokens,
                        v_max_debt, v_outcome, v_given_back);
    end if;
    set v_done = false;
    set o_answers = concat(o_answers, if(o_answers = '[', '"', ',"'), v_place, ' ', v_outcome, ' ', v_given_back, '"');
  end loop;
  close v_sorted;
  set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
      sql_big_selects = v_sql_big_selects;
  set o_answers = concat(o_answers, ']');
  if v_owns_transaction then commit and no chain no release; end if;
end;

-- token_throttle_v1: lowers a bucket to the limit that an upstream reports. Never raises it. A repeated call changes nothing.
--
-- Arguments: p_id         the bucket
--            p_remaining  tokens that are left at most; null: unknown
--            p_wait       nanoseconds until the next token at the earliest, one year at most; 0: unknown. With 'interval', the
--                         tokens come with the first period that starts after the wait
--            p_capacity, p_refill_seconds, p_refill, p_plan, p_exclusive: as for token_take_v1
-- Result:    o_outcome    'lowered'; 'unchanged': the bucket held no more, or its mode is 'off'
--                         'endless': there is a wait, but the bucket never refills
--                         'unknown', 'unplanned' or 'conflict': as for token_take_v1
-- Errors:    22023 arguments out of range · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, before the clock is read, in its own transaction unless the caller has one
drop procedure if exists token_throttle_v1;
create procedure token_throttle_v1(
  in p_id varchar(256) character set utf8mb4, in p_remaining bigint, in p_wait bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(80) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_exclusive boolean, out o_outcome varchar(10) character set ascii)
modifies sql data
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_owns_transaction boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_mode varchar(7) character set ascii collate ascii_bin;
  declare v_now, v_until, v_capacity, v_clock, v_before, v_to bigint;
  declare v_full_at, v_max_granted_wait, v_burst, v_anchor, v_period_end, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_changed boolean;
  declare v_attempt int default 0;
  declare exit handler for sqlexception
  begin
    if p_exclusive then set innodb_lock_wait_timeout = v_lock_wait_timeout; end if;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and p_wait between 0 and c_year) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: throttling takes a bucket, 0 tokens or more, and a wait of 0 to a year';
  end if;
  call token_begin(p_exclusive, v_owns_transaction);
  if p_exclusive then set innodb_lock_wait_timeout = least(v_lock_wait_timeout, 1); end if;

  throttle: begin
    ready: loop
      set v_burst = null;
      select full_at, max_granted_wait, burst, anchor, period_end, step_ns, step_ticks, token_ticks
        into v_full_at, v_max_granted_wait, v_burst, v_anchor, v_period_end, v_step_ns, v_step_ticks, v_token_ticks
        from token_buckets where id = v_id for update;
      call token_clock(v_now);
      -- p_least exceeds every capacity, so that the routine skips the check for a clock that was set back. The check is below.
      call token_prepare_bucket(v_id, p_capacity, p_refill_seconds, p_refill, cast(p_plan as binary), v_now,
                                c_max_counted, o_outcome, v_mode, v_until, v_changed, v_capacity);
      -- A bucket that was missing can exist by now, but none of its columns have been read.
      if v_changed or v_burst is null and o_outcome is null and not v_mode <=> 'off' then
        set v_attempt = v_attempt + 1;
        if v_attempt = 100 then
          signal sqlstate '40001' set message_text =
            'tollgate: the bucket changed during each of 100 attempts: call again';
        end if;
        iterate ready;
      end if;
      leave ready;
    end loop;
    if o_outcome is not null then
      leave throttle;
    elseif v_mode = 'off' then
      set o_outcome = 'unchanged';
      leave throttle;
    elseif p_wait > 0 and v_step_ns = 9223372036854775807 then
      set o_outcome = 'endless';
      leave throttle;
    end if;

    set v_clock = (v_now - v_anchor) div v_step_ns * v_step_ticks, v_before = v_full_at;
    if v_full_at - v_clock > v_burst + v_max_granted_wait + (1000000000 div v_step_ns + 1) * v_step_ticks then
      -- The clock was set back: the bucket is empty.
      set v_full_at = v_clock + v_burst, v_max_granted_wait = 0;
    end if;
    set v_to = greatest(v_full_at, v_clock);
    if p_remaining is not null then
      set v_to = greatest(v_to, v_clock + v_burst - least(p_remaining, v_burst div v_token_ticks) * v_token_ticks);
    end if;
    if p_wait > 0 then
      set v_to = greatest(v_to, (least(v_now + p_wait - 1, v_period_end) - v_anchor) div v_step_ns * v_step_ticks + 1
                                + v_burst - v_token_ticks);
    end if;
    set o_outcome = if(v_to > greatest(v_full_at, v_clock), 'lowered', 'unchanged');
    if o_outcome = 'lowered' then
      set v_full_at = v_to, v_max_granted_wait = greatest(v_max_granted_wait, v_to - v_clock - v_burst);
    end if;
    if v_full_at <> v_before then
      update token_buckets set full_at = v_full_at, max_granted_wait = v_max_granted_wait where id = v_id;
    end if;
  end throttle;

  if p_exclusive then set innodb_lock_wait_timeout = v_lock_wait_timeout; end if;
  if v_owns_transaction then commit and no chain no release; end if;
end;

insert into token_migrations (version, name) values (8, '0008_adjust') on duplicate key update applied_at = utc_timestamp(6);
