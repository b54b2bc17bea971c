-- token_begin: begins a transaction at READ COMMITTED, unless the caller has one.
--
-- Arguments: p_exclusive         true: only the routine uses the connection. An open transaction is rolled back, and autocommit
--                                has no effect
-- Result:    o_owns_transaction  true: the routine must commit or roll back; false: the transaction is the caller's
-- Errors:    none
-- Locks:     none
drop procedure if exists token_begin;
create procedure token_begin(in p_exclusive boolean, out o_owns_transaction boolean)
modifies sql data
sql security definer
begin
  declare continue handler for 1568  -- inside a transaction
    if p_exclusive then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set o_owns_transaction = false;
    end if;

  set o_owns_transaction = @@autocommit or p_exclusive;
  -- SET TRANSACTION fails with 1568 inside a transaction, so this statement probes for one.
  if o_owns_transaction then
    set transaction isolation level read committed;
  end if;
  -- Checked again: after 1568, the handler has cleared o_owns_transaction, unless p_exclusive.
  if o_owns_transaction then
    start transaction;
  end if;
end;

-- token_claim: inserts the receipt of a grant, unless the receipt exists. The caller holds the lock of an existing bucket.
--
-- Arguments: p_receipt  UUID, hyphenated
--            p_bucket, p_cost, p_granted, p_scheduled_at, p_expires_at: columns of the new row
--            p_now      a receipt that expired by then is replaced; 0: none is
-- Result:    o_state    state of the existing receipt; null: the new row was inserted
--            o_cost, o_granted, o_scheduled_at, o_expires_at: columns of the receipt
-- Errors:    22023 p_receipt is not a UUID
-- Locks:     the receipt
--
-- The routine inserts before it reads. A read of a missing row would lock a gap in the caller's REPEATABLE READ transaction,
-- and two sessions that insert into the gap would deadlock.
drop procedure if exists token_claim;
create procedure token_claim(
  in p_receipt varchar(36) character set ascii, in p_bucket varbinary(1024), in p_cost bigint, in p_granted bigint,
  in p_scheduled_at bigint, in p_expires_at bigint, in p_now bigint,
  out o_state varchar(9) character set ascii collate ascii_bin, out o_cost bigint, out o_granted bigint,
  out o_scheduled_at bigint, out o_expires_at bigint)
modifies sql data
sql security definer
begin
  declare v_known boolean default false;
  declare v_id binary(16);
  declare continue handler for 1062 set v_known = true;

  if (length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}') is not true then
    signal sqlstate '22023' set message_text = 'tollgate: a request''s id is a UUID in hexadecimal';
  end if;
  set v_id = unhex(replace(p_receipt, '-', ''));
  insert into token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
  values (v_id, p_bucket, p_cost, p_granted, p_scheduled_at, 'open', p_expires_at);
  if v_known then
    select state, cost, granted, scheduled_at, expires_at into o_state, o_cost, o_granted, o_scheduled_at, o_expires_at
      from token_receipts where id = v_id and bucket = p_bucket for update;
  end if;
  if not v_known or o_expires_at <= p_now then
    set o_state = null, o_cost = p_cost, o_granted = p_granted, o_scheduled_at = p_scheduled_at, o_expires_at = p_expires_at;
  end if;
  if v_known and o_state is null then
    update token_receipts
       set state = 'open', cost = p_cost, granted = p_granted, scheduled_at = p_scheduled_at, expires_at = p_expires_at
     where id = v_id and bucket = p_bucket;
  end if;
end;

-- token_take_v1: decides one request exactly, or equal requests one after the other. Routines for several requests or buckets have
-- statements of their own for cases that only tokens decide. token_take_v1 decides the other cases.
--
-- Arguments: p_id             the bucket
--            p_cost           tokens to take, 1 or more
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  tokens that must remain
--            p_capacity, p_refill_seconds, p_refill
--                             limits of a bucket that its first request creates, full and on the calendar's grid; or all null
--            p_plan           plan of such a bucket; null with null limits: the bucket must exist
--            p_request_id     id of the request, a UUID: a retry with the id is charged once; null: no id
--            p_hold           nanoseconds for which the id is remembered
--            p_taking         false: only evaluates the request, and takes nothing
--            p_exclusive      true: only the routine uses the connection. The routine rolls back an open transaction, and has
--                             its own even if autocommit is off
--            io_times         number of equal requests; more than one have neither a wait nor an id
-- Result:    io_times         number of granted requests, the first ones; the other columns describe the denied rest, or all
--            o_outcome        'granted' or 'denied'
--                             'never': p_cost + p_min_remaining exceeds the capacity
--                             'unknown': no such bucket · 'unplanned': no such plan
--                             'conflict': the bucket was provisioned with other limits or another plan
--                             'reused': the id belongs to another request
--            o_mode           the mode that decided instead of the tokens: 'shadow', 'off' or 'block'; else null
--            o_now            instant of the decision, in nanoseconds since 1970
--            o_scheduled_at   when granted tokens can be used; with 'block', the end of the mode; null: no end
--            o_full_at to o_token_ticks: the bucket's columns after the decision. If mode 'off' decides for a missing bucket,
--                             o_burst is its capacity in tokens, and the others are null. A prepared CALL with a placeholder
--                             for each returns all results as one row
-- Errors:    22023 arguments out of range · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
--            1205 p_exclusive, and another session locked the bucket for a second: the caller tries again while it waits
-- Locks:     the bucket's row, before the clock is read; then the receipt. In the caller's transaction (or with autocommit
--            off), unless p_exclusive, the locks last until it ends. Otherwise the routine has its own transaction. A missing row
--            locks a gap in the caller's REPEATABLE READ transaction: two first uses can deadlock (1213)
--
-- token_mode is read after the bucket is locked. An unlocked read before would open a REPEATABLE READ snapshot, and MariaDB can
-- refuse (1020) to lock rows that changed after it. No caller can pass another instant than token_clock's.
drop procedure if exists token_take_v1;
create procedure token_take_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_min_remaining bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(80) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_request_id varchar(36) character set ascii, in p_hold bigint, in p_taking boolean, in p_exclusive boolean,
  inout io_times bigint,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_now bigint, out o_scheduled_at bigint, out o_full_at bigint, out o_granted bigint, out o_burst bigint,
  out o_anchor bigint, out o_step_ns bigint, out o_step_ticks bigint, out o_token_ticks bigint)
modifies sql data
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_owns_transaction boolean default @@autocommit or p_exclusive;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_clock, v_max_granted_wait, v_period_end, v_due, v_until bigint;
  declare v_plan varbinary(1024);
  declare v_capacity bigint;
  declare v_refill_seconds decimal(19, 9);
  declare v_refill varchar(80) character set ascii collate ascii_bin;
  declare v_has_rules boolean;
  declare v_attempt int default 0;
  declare v_times bigint;
  declare continue handler for 1568  -- inside the caller's transaction, or one that was left open
    if p_exclusive then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_owns_transaction = false;
    end if;
  declare exit handler for sqlexception
  begin
    if p_exclusive then set innodb_lock_wait_timeout = v_lock_wait_timeout; end if;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  -- token_begin, inlined: a nested CALL adds 10 to 20 us to a decision of 100 us. The first statement probes for a transaction.
  if v_owns_transaction then
    set transaction isolation level read committed;
  end if;
  -- Checked again: after 1568, the handler has cleared v_owns_transaction, unless p_exclusive.
  if v_owns_transaction then
    start transaction;
  end if;
  if p_exclusive then set innodb_lock_wait_timeout = least(v_lock_wait_timeout, 1); end if;

  decide: begin
    if (p_cost between 1 and c_max_counted and p_min_remaining between 0 and c_max_counted
        and p_max_wait between 0 and c_year) is not true then
      signal sqlstate '22023' set message_text =
        'tollgate: a take needs a cost of 1 or more, a minimum remaining of 0 or more, and a wait of 0 to a year';
    elseif (io_times = 1 or io_times > 1 and p_max_wait = 0 and p_request_id is null) is not true then
      signal sqlstate '22023' set message_text =
        'tollgate: times is 1 or more, and 1 for a request that waits or has an id';
    end if;
    set v_times = io_times, io_times = 0;
    ready: loop
      select full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, max_granted_wait, period_end, plan, capacity,
             refill_seconds, refill,
             overridden or capacity <> under_capacity or refill_seconds <> under_seconds or refill <> under_refill
             or p_capacity <> capacity or p_refill_seconds <> refill_seconds or p_refill <> refill
        into o_full_at, o_granted, o_burst, o_anchor, o_step_ns, o_step_ticks, o_token_ticks, v_max_granted_wait,
             v_period_end, v_plan, v_capacity, v_refill_seconds, v_refill, v_has_rules
        from token_buckets where id = v_id for update;
      select v_has_rules is true or coalesce(max(mode <> 'enforce'), false)
             or exists (select 1 from token_overrides where id = v_id)
        into v_has_rules from token_mode where one = true;
      call token_clock(o_now);
      set o_scheduled_at = o_now;
      set v_clock = (o_now - o_anchor) div o_step_ns * o_step_ticks;
      -- A bucket under the requested limits needs no call of token_prepare_bucket, unless a mode, an override or a plan applies.
      if p_capacity is null and (p_plan is not null or v_plan is not null) and not v_has_rules then
        set v_has_rules = true;
        select mode is not null or not (v_plan <=> name)
               or capacity <> v_capacity or refill_seconds <> v_refill_seconds or refill <> v_refill
          into v_has_rules
          from token_plans where name = coalesce(cast(p_plan as binary), v_plan);
      end if;
      if not v_has_rules and (p_capacity is null or v_plan is null) and v_period_end > o_now
         and (o_full_at - v_clock <= o_burst + v_max_granted_wait + (1000000000 div o_step_ns + 1) * o_step_ticks
              or p_cost > o_burst div o_token_ticks - p_min_remaining) then
        leave ready;
      end if;
      begin
        declare v_effective_capacity bigint;
        declare v_changed boolean;
        call token_prepare_bucket(v_id, p_capacity, p_refill_seconds, p_refill, cast(p_plan as binary), o_now,
                                  p_cost + p_min_remaining, o_outcome, o_mode, v_until, v_changed, v_effective_capacity);
        -- A bucket that was missing can exist by now, but none of its columns have been read.
        if v_changed or o_burst is null and o_outcome is null and not o_mode <=> 'off' then
          set v_attempt = v_attempt + 1;
          if v_attempt = 100 then
            begin
              -- As ASCII: in a session with another character set, the crate could not read the message.
              declare v_message varchar(128) character set utf8mb4
                default concat('tollgate: bucket ''', regexp_replace(left(p_id, 36), '[^ -~]', '?'),
                               ''' changed during each of 100 attempts: call again');
              signal sqlstate '40001' set message_text = v_message;
            end;
          end if;
          set o_mode = null;
          iterate ready;
        end if;
        if o_outcome is not null then
          leave decide;
        end if;
        if o_mode = 'off' then
          set o_outcome = 'granted', o_burst = coalesce(o_burst, v_effective_capacity);
          leave decide;
        end if;
      end;
      leave ready;
    end loop;

    if p_request_id is not null then
      begin
        declare v_cost, v_granted, v_scheduled_at, v_expires_at bigint;
        declare v_state varchar(9) character set ascii;
        call token_claim(p_request_id, v_id, p_cost, 0, o_now,
                         o_now + least(greatest(coalesce(p_hold, 0), 0), c_year), o_now,
                         v_state, v_cost, v_granted, v_scheduled_at, v_expires_at);
        if v_state is not null then
          set o_outcome = if(v_cost = p_cost and v_state <> 'cancelled', 'granted', 'reused'),
              o_mode = null, o_granted = v_granted, o_scheduled_at = greatest(v_scheduled_at, o_now);
          leave decide;
        end if;
      end;
    end if;

    if o_mode = 'block' then
      set o_outcome = 'denied', o_scheduled_at = v_until;
    elseif p_cost > o_burst div o_token_ticks - p_min_remaining then
      set o_outcome = 'never';
    else
      set v_due = o_full_at + (p_cost + p_min_remaining - o_burst div o_token_ticks) * o_token_ticks;
      if v_due > (least(o_now + if(o_mode = 'shadow', 0, p_max_wait), v_period_end) - o_anchor) div o_step_ns
                 * o_step_ticks then
        set o_outcome = if(o_mode = 'shadow', 'granted', 'denied');
      else
        if v_due > v_clock then
          -- All tokens belong to the step in which the request acts: the rest of an earlier step does not carry over.
          set v_due = (v_due + o_step_ticks - 1) div o_step_ticks * o_step_ticks;
          set o_scheduled_at = v_due div o_step_ticks * o_step_ns + o_anchor;
        end if;
        -- Each request finds the tokens that the one before left.
        set io_times = least(v_times, greatest(
              (o_burst - p_min_remaining * o_token_ticks - greatest(o_full_at - v_clock, 0)) div (p_cost * o_token_ticks), 1));
        if p_taking then
          set o_full_at = greatest(o_full_at, v_clock, v_due) + io_times * p_cost * o_token_ticks,
              o_granted = o_granted + io_times * p_cost;
          update token_buckets
             set full_at = o_full_at, granted = o_granted, max_granted_wait = greatest(v_max_granted_wait, v_due - v_clock)
           where id = v_id;
        end if;
        if io_times = v_times then
          set o_outcome = 'granted', o_mode = null;
        else
          set o_outcome = if(o_mode = 'shadow', 'granted', 'denied');
        end if;
      end if;
    end if;

    if p_request_id is not null then
      if p_taking and o_outcome = 'granted' and o_mode is null then
        update token_receipts set granted = o_granted, scheduled_at = o_scheduled_at
         where id = unhex(replace(p_request_id, '-', '')) and bucket = v_id;
      else
        delete from token_receipts where id = unhex(replace(p_request_id, '-', '')) and bucket = v_id;
      end if;
    end if;
  end decide;

  if p_exclusive then set innodb_lock_wait_timeout = v_lock_wait_timeout; end if;
  if v_owns_transaction then commit and no chain no release; end if;
end;

insert into token_migrations (version, name) values (4, '0004_take') on duplicate key update applied_at = utc_timestamp(6);
