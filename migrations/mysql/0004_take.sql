-- token_begin: begins a transaction at READ COMMITTED, unless the caller has one.
--
-- Arguments: p_own  true: the connection is the routine's alone. A transaction that was left open is rolled back, and autocommit
--                   does not matter
-- Result:    o_own  whether the transaction is the routine's own, to commit or to roll back. False: it is the caller's
drop procedure if exists token_begin;
create procedure token_begin(in p_own boolean, out o_own boolean)
modifies sql data
sql security definer
begin
  declare continue handler for 1568  -- inside a transaction
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set o_own = false;
    end if;

  set o_own = @@autocommit or p_own;
  if o_own then
    set transaction isolation level read committed;
  end if;
  if o_own then
    start transaction;
  end if;
end;

-- token_claim: enters a grant in the receipts, unless it is there. The caller holds the bucket's lock, if it exists.
--
-- It inserts first and then looks: to look for what is not there would lock a gap in a REPEATABLE READ transaction of
-- the caller's, and two that then both insert there would wait for each other.
-- Arguments: p_receipt as hyphenated text; p_bucket, p_cost, p_granted, p_scheduled_at, p_expires_at: the new row's columns
--            p_now      what expired by then is replaced; 0: nothing is
-- Result:    o_state    what was there; null: nothing, and the new row is; then o_cost, o_granted, o_scheduled_at and
--                       o_expires_at of what is there
-- Errors:    22023 no such id can be
-- Locks:     the receipt
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

-- token_take_v1: decide one request, exactly, or equal ones one after the other. Everything that takes tokens is built on
-- it.
--
-- Arguments: p_id        the bucket
--            p_cost      tokens to take, 1 or more
--            p_max_wait  nanoseconds that the caller would wait for them; the mode 'shadow' ignores it
--            p_min_remaining      tokens that must remain
--            p_capacity, p_refill_seconds, p_refill
--                        terms for a bucket that its first request makes, full, on the calendar's grid; or all null
--            p_plan      or the plan that such a bucket follows; null, too: the bucket must exist, and its own plan or
--                        terms hold
--            p_receipt   the request's id, a UUID: repeated with it, the request takes nothing more; null: it has none
--            p_hold      for how many nanoseconds the id is remembered
--            p_taking    false: take nothing, and say what the request would come to
--            p_own       true: the caller has nothing else on this connection: with autocommit off, too, the routine has
--                        a transaction of its own, before which it rolls back what was left open there
--            io_times    for how many equal requests it stands; more than one neither wait nor have an id
-- Result:    io_times    how many of these its tokens suffice for, the first ones; the rest is about the others, or all
--            o_outcome   'granted' or 'denied'; 'never': cost + keep exceed the capacity; 'unknown': no such bucket;
--                        'unplanned': no such plan; 'conflict': the bucket was provisioned with other terms than given;
--                        'reused': the id is another request's
--            o_mode      what decided instead of the tokens: 'shadow', 'off' or 'block', else null
--            o_now       the instant of the decision, in nanoseconds since 1970
--            o_scheduled_at   when the tokens may be used, if they were granted; if blocked, until when; null: no end
--            and the bucket's columns after it, from which remaining tokens and waits follow. A prepared CALL with a
--            placeholder for each has them as one row.
-- Errors:    22023 arguments out of range · 23514 terms that make no bucket
--            · 40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, first of all, so that the clock can be read when it is held; then the request's receipt.
--            In a transaction of the caller's (or with autocommit off), unless p_own, they stay locked until that ends;
--            else the routine has one of its own.
--
-- token_mode is read when the lock is held: a read that locks nothing opens a REPEATABLE READ snapshot, and
-- MariaDB may refuse (1020) to lock what others changed after that. The clock is token_clock's, in place for speed;
-- no caller can name another instant.
drop procedure if exists token_take_v1;
create procedure token_take_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_min_remaining bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_receipt varchar(36) character set ascii, in p_hold bigint, in p_taking boolean, in p_own boolean,
  inout io_times bigint,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_now bigint, out o_scheduled_at bigint, out o_full_at bigint, out o_granted bigint, out o_burst bigint,
  out o_anchor bigint, out o_step_ns bigint, out o_step_ticks bigint, out o_token_ticks bigint)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_clock, v_max_granted_wait, v_due, v_until bigint;
  declare v_plan varbinary(1024);
  declare v_uuid char(36) character set ascii;
  declare v_ruled boolean;
  declare v_attempt int default 0;
  declare v_times bigint;
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

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  decide: begin
    if (p_cost between 1 and 4611686018427387903 and p_min_remaining between 0 and 4611686018427387903
        and p_max_wait between 0 and 31622400000000000) is not true then
      signal sqlstate '22023' set message_text =
        'tollgate: a take needs a cost of 1 or more, 0 or more to keep, and a wait of 0 to a year';
    elseif (io_times = 1 or io_times > 1 and p_max_wait = 0 and p_receipt is null) is not true then
      signal sqlstate '22023' set message_text =
        'tollgate: a request stands for 1 or more, and where it waits or has an id for 1';
    end if;
    set v_times = io_times, io_times = 0;
    ready: loop
      select full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, max_granted_wait, plan,
             overridden or capacity <> under_capacity or refill_seconds <> under_seconds or refill <> under_refill
             or p_capacity <> capacity or p_refill_seconds <> refill_seconds or p_refill <> refill
        into o_full_at, o_granted, o_burst, o_anchor, o_step_ns, o_step_ticks, o_token_ticks, v_max_granted_wait,
             v_plan, v_ruled
        from token_buckets where id = v_id for update;
      select v_ruled is true or coalesce(max(mode <> 'enforce'), false) or exists (select 1 from token_overrides)
        into v_ruled from token_mode where one = true;
      set v_uuid = uuid();
      set o_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                   - 122192928000000000) * 100;
      set o_scheduled_at = o_now;
      set v_clock = (o_now - o_anchor) div o_step_ns * o_step_ticks;
      -- A bucket under the terms asked for, with nothing else to rule it, needs no more.
      if p_capacity is null and (p_plan is not null or v_plan is not null) and not v_ruled then
        set v_ruled = true;
        select p.mode is not null or not (b.plan <=> p.name)
               or p.capacity <> b.capacity or p.refill_seconds <> b.refill_seconds or p.refill <> b.refill
          into v_ruled
          from token_plans p join token_buckets b on b.id = v_id
         where p.name = coalesce(cast(p_plan as binary), v_plan);
      end if;
      if not v_ruled and (p_capacity is null or v_plan is null)
         and (o_full_at - v_clock <= o_burst + v_max_granted_wait + (1000000000 div o_step_ns + 1) * o_step_ticks
              or p_cost > o_burst div o_token_ticks - p_min_remaining) then
        leave ready;
      end if;
      begin
        declare v_capacity bigint;
        declare v_changed boolean;
        call token_rule(v_id, p_capacity, p_refill_seconds, p_refill, cast(p_plan as binary), o_now, p_cost + p_min_remaining,
                           o_outcome, o_mode, v_until, v_changed, v_capacity);
        -- A bucket that was not there may be by now: then nothing of it has been read yet.
        if v_changed or o_burst is null and o_outcome is null and not o_mode <=> 'off' then
          set v_attempt = v_attempt + 1;
          if v_attempt = 100 then
            begin
              -- As ASCII: in a session of another character set the crate could not read the message.
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
          set o_outcome = 'granted', o_burst = coalesce(o_burst, v_capacity);
          leave decide;
        end if;
      end;
      leave ready;
    end loop;

    if p_receipt is not null then
      begin
        declare v_cost, v_granted, v_scheduled_at, v_expires_at bigint;
        declare v_state varchar(9) character set ascii;
        call token_claim(p_receipt, v_id, p_cost, 0, o_now,
                            o_now + least(greatest(coalesce(p_hold, 0), 0), 31622400000000000), o_now,
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
      if v_due > (o_now + if(o_mode = 'shadow', 0, p_max_wait) - o_anchor) div o_step_ns * o_step_ticks then
        set o_outcome = if(o_mode = 'shadow', 'granted', 'denied');
      else
        if v_due > v_clock then
          -- All of its tokens are of the step in which it acts: what was left of an earlier one is not carried over.
          set v_due = (v_due + o_step_ticks - 1) div o_step_ticks * o_step_ticks;
          set o_scheduled_at = v_due div o_step_ticks * o_step_ns + o_anchor;
        end if;
        -- Each of them finds what the one before has left.
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

    if p_receipt is not null then
      if p_taking and o_outcome = 'granted' and o_mode is null then
        update token_receipts set granted = o_granted, scheduled_at = o_scheduled_at
         where id = unhex(replace(p_receipt, '-', '')) and bucket = v_id;
      else
        delete from token_receipts where id = unhex(replace(p_receipt, '-', '')) and bucket = v_id;
      end if;
    end if;
  end decide;

  if v_own then commit and no chain no release; end if;
end;

insert into token_migrations (version, name) values (4, '0004_take') on duplicate key update applied_at = utc_timestamp(6);
