-- token_keep_usage: records the usage of a bucket, and begins to count anew, in the caller's transaction. Routines call it before
-- they delete a bucket, or let it follow another plan. A further limit counts under its plan.
--
-- Arguments: p_id  the bucket
-- Result:    none
-- Errors:    none
-- Locks:     the bucket's row, then the row of its usage
drop procedure if exists token_keep_usage;
create procedure token_keep_usage(in p_id varbinary(1024))
modifies sql data
sql security definer
begin
  declare v_period_start datetime;
  declare v_plan varbinary(255);
  declare v_granted, v_charged, v_refunded bigint;

  select substring_index(coalesce(plan, ''), x'01', 1),
         least(cast(granted as decimal(65, 0)) - recorded, 9223372036854775807), charged, refunded
    into v_plan, v_granted, v_charged, v_refunded
    from token_buckets where id = p_id for update;
  if v_granted <> 0 or v_charged <> 0 or v_refunded <> 0 then
    -- A separate statement: within the insert, the query would lock the row for other sessions.
    select max(period_start) into v_period_start from token_usage_recording;
    if v_period_start is not null then
      insert into token_usage_records (id, period_start, plan, granted, charged, refunded)
      values (p_id, v_period_start, v_plan, v_granted, v_charged, v_refunded)
          on duplicate key update
             granted = least(cast(granted as decimal(65, 0)) + v_granted, 9223372036854775807),
             charged = least(cast(charged as decimal(65, 0)) + v_charged, 9223372036854775807),
             refunded = least(cast(refunded as decimal(65, 0)) + v_refunded, 9223372036854775807);
    end if;
    update token_buckets set recorded = granted, charged = 0, refunded = 0 where id = p_id;
  end if;
end;

-- token_prepare_bucket: reads the effective limits and mode of a bucket, and prepares the bucket for a decision. The routine
-- creates a missing bucket if its first request can do so. The state is converted to the limits of the override, the plan or the
-- bucket. After a backward step of the clock, the bucket is emptied.
--
-- Arguments: p_id, p_capacity, p_refill_seconds, p_refill, p_plan: as for token_take_v1
--            p_now         nanoseconds since 1970, read after the bucket was locked
--            p_least       tokens that the request needs
-- Result:    o_outcome     null: the bucket is ready; else 'unknown', 'unplanned' or 'conflict', as for token_take_v1
--            o_mode        'shadow', 'off' or 'block'; null: the tokens decide; 'off' creates and converts nothing
--            o_mode_until  end of the mode in nanoseconds since 1970; null: no end
--            o_changed     whether the bucket changed: the caller must read it and call token_prepare_bucket again
--            o_capacity    tokens, of the effective limits
-- Errors:    22023 invalid id · 23514 invalid limits
-- Locks:     the bucket's row; the caller has a transaction, and already holds the lock of an existing bucket
--
-- Variables: b_  columns of the bucket
--            u_  limits that its state is under
--            r_  requested limits, of the request or its plan
--            w_  limits of an override
drop procedure if exists token_prepare_bucket;
create procedure token_prepare_bucket(
  in p_id varbinary(1024), in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(80) character set ascii collate ascii_bin, in p_plan varbinary(1024), in p_now bigint,
  in p_least bigint,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_mode_until bigint, out o_changed boolean, out o_capacity bigint)
modifies sql data
sql security definer
begin
  declare b_capacity, b_anchor, b_period_end, b_full_at, b_max_granted_wait, b_burst, b_step_ns, b_step_ticks, b_token_ticks bigint;
  declare u_capacity, w_capacity bigint;
  declare b_seconds, u_seconds, r_seconds, v_seconds, w_seconds decimal(19, 9);
  declare b_refill, u_refill, r_refill, v_refill, w_refill varchar(80) character set ascii collate ascii_bin;
  declare b_plan, r_plan varbinary(1024);
  declare b_provisioned, b_overridden boolean;
  declare r_capacity bigint default p_capacity;
  declare v_capacity, v_until, v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end bigint;
  declare v_stepped_back boolean default false;
  declare v_mode varchar(7) character set ascii collate ascii_bin;
  declare v_changes_limits boolean default false;

  set o_outcome = null, o_mode = null, o_mode_until = null, o_changed = false, o_capacity = null;
  set r_seconds = p_refill_seconds, r_refill = p_refill;
  rule: begin
    -- A column or a constraint refused the limits: raises the error that names the invalid value. 1048: null; 1264, 1292: out of a
    -- column's range or type; 1690, 1916 (MariaDB): overflow in an expression or cast; 3819, 4025 (MariaDB): a check failed.
    declare exit handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025
    begin
      call token_check_id('bucket id', p_id);
      call token_bucket_limits('bucket', p_id, r_capacity, r_seconds, r_refill, p_now,
                               v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end);
      resignal;
    end;

    select capacity, refill_seconds, refill, plan, provisioned, under_capacity, under_seconds, under_refill,
           overridden, anchor, period_end, full_at, max_granted_wait, burst, step_ns, step_ticks, token_ticks
      into b_capacity, b_seconds, b_refill, b_plan, b_provisioned, u_capacity, u_seconds, u_refill,
           b_overridden, b_anchor, b_period_end, b_full_at, b_max_granted_wait, b_burst, b_step_ns, b_step_ticks,
           b_token_ticks
      from token_buckets where id = p_id for update;

    -- Nanoseconds since 1970 end in 2262: a later time reads as no end.
    select mode, if(until < '2262-01-01', timestampdiff(microsecond, '1970-01-01', until) * 1000, null) into v_mode, v_until
      from token_mode where one = true;
    if v_until is null or v_until > p_now then
      set o_mode = v_mode, o_mode_until = v_until;
    end if;
    if p_capacity is null then
      set r_plan = coalesce(p_plan, b_plan);
    end if;
    if r_plan is not null then
      select capacity, refill_seconds, refill, mode,
             if(mode_until < '2262-01-01', timestampdiff(microsecond, '1970-01-01', mode_until) * 1000, null)
        into r_capacity, r_seconds, r_refill, v_mode, v_until
        from token_plans where name = r_plan;
      if r_capacity is null then
        set o_outcome = 'unplanned', o_mode = null, o_mode_until = null;
        leave rule;
      end if;
      if v_mode is not null and (v_until is null or v_until > p_now) then
        set o_mode = v_mode, o_mode_until = v_until;
      end if;
    end if;
    if r_refill = b_refill and (r_refill = 'once' or r_refill like 'calendar %') then
      set r_seconds = b_seconds;  -- has no effect with these
    end if;
    set v_mode = null;
    select capacity, refill_seconds, refill, mode,
           if(expires_at < '2262-01-01', timestampdiff(microsecond, '1970-01-01', expires_at) * 1000, null)
      into w_capacity, w_seconds, w_refill, v_mode, v_until
      from token_overrides
     where id = p_id
       and (expires_at is null or timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 > p_now);
    if v_mode is not null then
      set o_mode = v_mode, o_mode_until = v_until;
    end if;
    set o_mode = nullif(o_mode, 'enforce');
    set o_capacity = coalesce(w_capacity, r_capacity, b_capacity);

    if o_mode = 'off' then
      leave rule;
    elseif b_capacity is null and r_capacity is null then
      set o_outcome = 'unknown';
      leave rule;
    elseif b_capacity is null then
      -- Without strict mode, the server would truncate a longer id, and a MariaDB session can disable the table's checks.
      call token_check_id('bucket id', p_id);
      call token_bucket_limits('bucket', p_id, r_capacity, r_seconds, r_refill, p_now,
                               v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end);
      insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor, step_ns, period_end)
      values (p_id, r_capacity, r_seconds, r_refill, r_plan, false, coalesce(v_anchor, 0), v_step_ns, v_period_end)
      on duplicate key update id = token_buckets.id;
      set o_changed = true;
      leave rule;
    elseif b_provisioned
           and (if(p_capacity is null, p_plan <> coalesce(b_plan, ''),
                   not (p_capacity = b_capacity and r_seconds = b_seconds and p_refill = b_refill))) then
      set o_outcome = 'conflict';
      leave rule;
    end if;

    -- While an override is in force, the bucket's own limits do not change.
    set v_changes_limits = w_capacity is null and r_capacity is not null
                and not (r_capacity = b_capacity and r_seconds = b_seconds and r_refill = b_refill);
    if v_changes_limits then
      set b_capacity = r_capacity, b_seconds = r_seconds, b_refill = r_refill;
    end if;
    if r_capacity is not null and not b_provisioned and not b_plan <=> r_plan then
      set b_plan = r_plan, v_changes_limits = true;
      call token_keep_usage(p_id);
    end if;
    if v_changes_limits then
      call token_bucket_limits('bucket', p_id, b_capacity, b_seconds, b_refill, p_now,
                               v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end);
      update token_buckets set capacity = b_capacity, refill_seconds = b_seconds, refill = b_refill, plan = b_plan
       where id = p_id;
    end if;

    set v_capacity = coalesce(w_capacity, b_capacity), v_seconds = coalesce(w_seconds, b_seconds),
        v_refill = if(w_capacity is null, b_refill, w_refill);
    set v_stepped_back = b_full_at - (p_now - b_anchor) div b_step_ns * b_step_ticks
                         > b_burst + b_max_granted_wait + (1000000000 div b_step_ns + 1) * b_step_ticks;
    -- After a backward step of the clock, the bucket is emptied once: keys are denied for one refill at most.
    if not (v_capacity = u_capacity and v_seconds = u_seconds and v_refill = u_refill) or b_period_end <= p_now
       or (coalesce(o_mode, '') <> 'block' and p_least <= b_burst div b_token_ticks and v_stepped_back) then
      -- A clock that was set back over the start of a period stays in the period, unless it was set back far.
      call token_bucket_limits('bucket', p_id, v_capacity, v_seconds, v_refill,
                               if(v_stepped_back, p_now, greatest(p_now, b_anchor)),
                               v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end);
      call token_convert_state(p_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end,
                               v_refill = u_refill,
                               b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_period_end, b_full_at,
                               b_max_granted_wait);
      update token_buckets
         set under_capacity = v_capacity, under_seconds = v_seconds, under_refill = v_refill,
             overridden = w_capacity is not null,
             burst = b_burst, step_ns = b_step_ns, step_ticks = b_step_ticks, token_ticks = b_token_ticks,
             anchor = b_anchor, period_end = b_period_end, full_at = b_full_at, max_granted_wait = b_max_granted_wait
       where id = p_id;
      set o_changed = true;
    elseif b_overridden <> (w_capacity is not null) then
      -- The override's limits equal the bucket's own: the state does not change.
      update token_buckets set overridden = not b_overridden where id = p_id;
    end if;
  end rule;
end;

insert into token_migrations (version, name) values (3, '0003_rules') on duplicate key update applied_at = utc_timestamp(6);
