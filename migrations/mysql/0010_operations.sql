-- token_list_windows: lists a page of the sliding windows that counted a request, as of now.
--
-- Arguments: p_prefix         prefix of the ids; null: all
--            p_after          lists ids after this one, in byte order; null: from the start
--            p_limit          maximum number of rows
-- Result:    one row per window, in id order
--            id
--            max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is
--                             the longest interval since the window was empty
--            counted          requests that count now; above the maximum: promised to requests that wait
--            available        requests that can still be granted; negative: promised
--            granted          requests granted since the creation of the window
--            retry_after_ms   milliseconds until one more request is granted with mode 'enforce'; 0: now
--            id_bytes         the id in UTF-8, with every session character set
-- Errors:    none
-- Locks:     none; reads only
drop procedure if exists token_list_windows;
create procedure token_list_windows(
  in p_prefix varchar(256) character set utf8mb4, in p_after varchar(256) character set utf8mb4,
  in p_limit int unsigned)
reads sql data
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_now bigint;
  declare v_prefix, v_after varbinary(1024) default '';
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_sql_big_selects;
    resignal;
  end;

  set v_prefix = coalesce(cast(p_prefix as binary), ''), v_after = coalesce(cast(p_after as binary), '');
  set p_limit = coalesce(p_limit, 0);
  call token_clock(v_now);
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  select convert(s.id using utf8mb4) as id, s.max_requests, s.interval_ns * 0.000000001 as interval_seconds,
         s.resolution_ns * 0.000000001 as resolution_seconds,
         if(min(s.c) < 0, null, cast(coalesce(sum(if(s.e > s.now - s.interval_ns, s.c, 0)), 0) as signed)) as counted,
         cast(s.max_requests - coalesce(sum(if(s.e > s.now - s.interval_ns, s.c, 0)), 0) as signed) as available, s.granted,
         (greatest(s.now, s.newest - s.resolution_ns,
                   coalesce(cast(max(if(s.so_far > s.max_requests - 1, s.e, null)) as decimal(20)) + s.interval_ns, 0))
          - s.now + 999999)
           div 1000000 as retry_after_ms, s.id as id_bytes
    from (select w.id, w.max_requests, w.interval_ns, w.resolution_ns, w.newest, w.granted, j.e, j.c,
                 sum(j.c) over (partition by w.id order by j.e desc) as so_far,
                 -- After a backward step of the clock, requests counted by the old clock count from now on.
                 if(w.newest - v_now > w.last_wait + w.resolution_ns + 1000000000, w.newest - w.resolution_ns, v_now)
                   as now
            from (select t.id, t.granted, t.newest,
                         -- Values out of bounds become null, so that one row cannot fail the whole page.
                         if(t.sound, t.max_requests, null) as max_requests, if(t.sound, t.interval_ns, 0) as interval_ns,
                         if(t.sound, t.resolution_ns, 0) as resolution_ns, if(t.sound, t.last_wait, 0) as last_wait,
                         if(t.sound, t.counts, '[]') as counts
                    from (select k.*,
                                 json_valid(k.counts) and k.max_requests >= 1
                                 and k.interval_ns between 1 and c_year
                                 and k.resolution_ns between 1 and c_year
                                 and k.last_wait between 0 and c_year
                                 and k.newest between 0 and c_max_counted as sound
                            from token_windows k) t
                   where t.granted <> 0 and t.id > v_after and t.id >= v_prefix
                     and (v_prefix = '' or t.id <= concat(v_prefix, repeat(x'F48FBFBF', 64)))
                   order by t.id limit p_limit) w
            left join json_table(w.counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j on true) s
   group by s.id, s.max_requests, s.interval_ns, s.resolution_ns, s.newest, s.granted, s.now
   order by s.id;
  set sql_big_selects = v_sql_big_selects;
end;

-- token_create_bucket: provisions a bucket. A repeated call with equal values changes nothing.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval', 'calendar', 'continuous' or 'once': see token_buckets
-- Result:    none
-- Errors:    22023 invalid id · 23514 invalid limits
-- Locks:     the bucket's row, in its own transaction unless the caller has one
--
-- With other values, the call changes the limits, with any mode: the bucket keeps its available tokens, up to the new capacity.
-- If the state is under an override's limits, or an UPDATE changed the row's limits, the next request converts the state. A
-- bucket that followed a plan has its own limits from then on.
drop procedure if exists token_create_bucket;
create procedure token_create_bucket(
  in p_id varchar(256) character set utf8mb4, in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(80) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_owns_transaction boolean default false;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_converts boolean;
  declare v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end bigint;
  declare b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_period_end, b_full_at, b_max_granted_wait bigint;

  call token_check_id('bucket id', v_id);
  call token_clock(v_now);
  call token_bucket_limits('bucket', v_id, p_capacity, p_refill_seconds, p_refill, v_now,
                           v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end);
  call token_begin(false, v_owns_transaction);
  begin
    declare exit handler for sqlexception
    begin
      if v_owns_transaction then rollback and no chain no release; end if;
      resignal;
    end;

    call token_clock(v_now);
    insert into token_buckets (id, capacity, refill_seconds, refill, anchor, step_ns, period_end)
    values (v_id, p_capacity, p_refill_seconds, p_refill, coalesce(v_anchor, v_now mod v_step_ns), v_step_ns, v_period_end)
    on duplicate key update id = token_buckets.id;
    -- Reads the clock after the row is locked, because the lock can take time.
    call token_clock(v_now);
    -- False if the state is under an override's limits or an UPDATE changed the row's limits: the next request converts the
    -- state.
    select not overridden and capacity = under_capacity and refill_seconds = under_seconds and refill = under_refill
           and not (under_capacity = p_capacity and under_seconds = p_refill_seconds and under_refill = p_refill),
           burst, step_ns, step_ticks, token_ticks, anchor, period_end, full_at, max_granted_wait
      into v_converts, b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_period_end, b_full_at, b_max_granted_wait
      from token_buckets where id = v_id for update;
    if v_converts then
      call token_convert_state(v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end, false,
                               b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_period_end, b_full_at,
                               b_max_granted_wait);
    end if;
    if exists (select 1 from token_buckets where id = v_id and plan is not null) then
      call token_keep_usage(v_id);
    end if;
    update token_buckets
       set provisioned = true, plan = null, capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill,
           under_capacity = if(v_converts, p_capacity, under_capacity),
           under_seconds = if(v_converts, p_refill_seconds, under_seconds),
           under_refill = if(v_converts, p_refill, under_refill),
           burst = b_burst, step_ns = b_step_ns, step_ticks = b_step_ticks, token_ticks = b_token_ticks,
           anchor = b_anchor, period_end = b_period_end, full_at = b_full_at, max_granted_wait = b_max_granted_wait
     where id = v_id;
    if v_owns_transaction then commit and no chain no release; end if;
  end;
end;

-- token_create_plan: creates a plan, or changes its quota. The mode does not change.
--
-- Arguments: p_name            1 to 255 bytes
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'continuous', 'interval', 'calendar' or 'once': see token_buckets
-- Result:    none
-- Errors:    22023 invalid name · 23514 invalid limits
-- Locks:     the plan's row
drop procedure if exists token_create_plan;
create procedure token_create_plan(
  in p_name varchar(256) character set utf8mb4, in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(80) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_name varbinary(1024) default cast(p_name as binary);
  declare v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end bigint;

  call token_check_id('plan name', v_name);
  call token_clock(v_now);
  call token_bucket_limits('plan', v_name, p_capacity, p_refill_seconds, p_refill, v_now,
                           v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_anchor, v_period_end);
  insert into token_plans (name, capacity, refill_seconds, refill)
  values (v_name, p_capacity, p_refill_seconds, p_refill)
  on duplicate key update capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill;
end;

-- token_create_plan_limit: adds a limit to a plan, or changes its quota. A request under the plan takes from all of its limits,
-- or from none. A new limit has the mode of the first one.
--
-- Arguments: p_plan            an existing plan, whose quota is the first limit
--            p_limit_name      a letter, then up to 31 letters, digits, - and _
--            p_capacity, p_refill_seconds, p_refill: as for token_create_plan
--            p_cost_name       the name of the cost that the limit counts; null: the tokens of the request
-- Result:    none
-- Errors:    45000 no such plan · 22023, 23514 invalid limits or names, or more than 16 limits
-- Locks:     the plan's row, then its limits, in its own transaction unless the caller has one
drop procedure if exists token_create_plan_limit;
create procedure token_create_plan_limit(
  in p_plan varchar(256) character set utf8mb4, in p_limit_name varchar(33) character set utf8mb4,
  in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9), in p_refill varchar(80) character set ascii collate ascii_bin,
  in p_cost_name varchar(33) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_plan varbinary(1024) default cast(p_plan as binary);
  declare v_name varbinary(1024) default concat(v_plan, x'01', cast(p_limit_name as binary));
  declare v_mode varchar(7) character set ascii collate ascii_bin;
  declare v_mode_reason text character set utf8mb4;
  declare v_mode_until datetime(6);
  declare v_known, v_is_first boolean default false;
  declare v_place bigint;
  declare v_owns_transaction boolean default false;
  declare exit handler for sqlexception
  begin
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(false, v_owns_transaction);
  select count(*) > 0, max(mode), max(mode_reason), max(mode_until) into v_known, v_mode, v_mode_reason, v_mode_until
    from token_plans where name = v_plan for update;
  if not v_known then
    signal sqlstate '45000' set message_text =
      'tollgate: there is no such plan: call token_create_plan(name, capacity, refill_seconds, refill), its first limit';
  end if;
  insert ignore into token_plan_limits (plan, place) values (v_plan, 1);
  select max(place) + 1, coalesce(max(place = 1 and limit_name = p_limit_name), false) into v_place, v_is_first
    from token_plan_limits where plan = v_plan for update;
  if v_is_first then
    signal sqlstate '22023' set message_text = 'tollgate: this is the first limit of the plan: call token_create_plan to change it';
  end if;
  select count(*) > 0 into v_known from token_plans where name = v_name for update;
  call token_create_plan(convert(v_name using utf8mb4), p_capacity, p_refill_seconds, p_refill);
  if not v_known then
    update token_plans set mode = v_mode, mode_reason = v_mode_reason, mode_until = v_mode_until where name = v_name;
  end if;
  if exists (select 1 from token_plan_limits where plan = v_plan and limit_name = p_limit_name) then
    update token_plan_limits set cost_name = p_cost_name where plan = v_plan and limit_name = p_limit_name;
  else
    insert into token_plan_limits (plan, place, limit_name, cost_name) values (v_plan, v_place, p_limit_name, p_cost_name);
  end if;
  if v_owns_transaction then commit and no chain no release; end if;
end;

-- token_delete_plan: deletes a plan with its limits. Later requests that name it fail.
--
-- Arguments: p_plan  the plan
-- Result:    one row
--            found   whether it existed
-- Errors:    none
-- Locks:     the plan's rows, then its limits, in its own transaction unless the caller has one
drop procedure if exists token_delete_plan;
create procedure token_delete_plan(in p_plan varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_plan varbinary(1024) default cast(p_plan as binary);
  declare v_found boolean;
  declare v_owns_transaction boolean default false;
  declare exit handler for sqlexception
  begin
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(false, v_owns_transaction);
  select count(*) > 0 into v_found from token_plans where name = v_plan for update;
  delete from token_plans where name = v_plan or name > concat(v_plan, x'01') and name < concat(v_plan, x'02');
  delete from token_plan_limits where plan = v_plan;
  if v_owns_transaction then commit and no chain no release; end if;
  select v_found as found;
end;

-- token_plan_limits_v1: reads the limits of a plan that has several, or one with a name.
--
-- Arguments: p_plan      the plan
-- Result:    one row per limit, in their order: none for a plan with one limit
--            limit_name  null: the first limit has none
--            cost_name   the name of the cost that the limit counts; null: the tokens of the request
-- Errors:    none
-- Locks:     none
drop procedure if exists token_plan_limits_v1;
create procedure token_plan_limits_v1(in p_plan varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  select limit_name, cost_name from token_plan_limits where plan = cast(p_plan as binary) order by place;
end;

-- token_reset_bucket: fills a bucket up to the effective capacity, and empties the sliding window with its key.
--
-- Arguments: p_id   the bucket
-- Result:    one row
--            found  whether the bucket exists, or a window that counted a request
-- Errors:    as for token_take_v1
-- Locks:     the bucket's row, then the window's, in its own transaction unless the caller has one
--
-- A reset counts as a grant of the capacity, so that earlier reservations give nothing back.
drop procedure if exists token_reset_bucket;
create procedure token_reset_bucket(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_owns_transaction boolean default false;
  declare v_now, v_number bigint;
  declare v_times bigint default 1;
  declare v_outcome varchar(10) character set ascii;
  declare v_found boolean;
  declare exit handler for sqlexception
  begin
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(false, v_owns_transaction);

  if exists (select 1 from token_buckets where id = cast(p_id as binary) for update) then
    -- A request that takes nothing converts the bucket's state to the effective limits.
    call token_take_v1(p_id, 1, 0, 0, null, null, null, null, null, 0, false, false, v_times, v_outcome, v_outcome,
                       v_number, v_number, v_number, v_number, v_number, v_number, v_number, v_number, v_number);
  end if;
  call token_clock(v_now);
  update token_buckets
     set full_at = (least(v_now, period_end) - anchor) div step_ns * step_ticks, max_granted_wait = 0,
         recorded = greatest(cast(recorded as decimal(65, 0)) - granted, -c_max_counted)
                    + least(cast(granted as decimal(65, 0)) + burst div token_ticks, c_max_counted),
         granted = least(cast(granted as decimal(65, 0)) + burst div token_ticks, c_max_counted)
   where id = cast(p_id as binary);
  set v_found = row_count() > 0;
  set v_found = v_found or exists (select 1 from token_windows where id = cast(p_id as binary) and granted > 0);
  delete from token_windows where id = cast(p_id as binary);

  if v_owns_transaction then commit and no chain no release; end if;
  select v_found as found;
end;

-- token_delete_bucket: deletes a bucket and the sliding window with its key. If a request creates the bucket again, it starts
-- full.
--
-- Arguments: p_id   the bucket
-- Result:    one row
--            found  whether the bucket existed, or a window that counted a request
-- Errors:    none
-- Locks:     the bucket's row, then the window's, in its own transaction unless the caller has one
drop procedure if exists token_delete_bucket;
create procedure token_delete_bucket(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_owns_transaction boolean default false;
  declare v_found boolean;
  declare exit handler for sqlexception
  begin
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(false, v_owns_transaction);

  -- Deletes no bucket that a request creates after this: its usage would be lost.
  set v_found = exists (select 1 from token_buckets where id = cast(p_id as binary) for update);
  if v_found then
    call token_keep_usage(cast(p_id as binary));
    delete from token_buckets where id = cast(p_id as binary);
  end if;
  set v_found = v_found or exists (select 1 from token_windows where id = cast(p_id as binary) and granted > 0);
  delete from token_windows where id = cast(p_id as binary);

  if v_owns_transaction then commit and no chain no release; end if;
  select v_found as found;
end;

-- token_explain: shows the effective limits and mode of a bucket, their origin, and the outcome of a request for one token.
--
-- Arguments: p_id            the bucket, which can be missing
--            p_plan          plan that the request would name; null: the bucket's own
-- Result:    one row
--            known           whether the bucket exists
--            limits_from     'override', 'plan' or 'bucket'; null: no limits found
--            plan            the plan that the bucket follows
--            capacity, refill_seconds, refill: the limits
--            mode            'enforce', 'shadow', 'off' or 'block'
--            mode_from       'override', 'plan', 'all' or null: the default
--            mode_reason, mode_until
--            override_reason, override_until: of the override in force
--            available       whole tokens; null: the bucket does not exist
--            outcome         'granted', 'denied', 'unknown', 'unplanned' or 'conflict'
--            retry_after_ms  milliseconds until a token is available; 0: now; null: never, or unknown
--            plan_bytes, mode_reason_bytes, override_reason_bytes: in UTF-8, with every session character set
-- Errors:    none
-- Locks:     none; reads only
drop procedure if exists token_explain;
create procedure token_explain(
  in p_id varchar(256) character set utf8mb4, in p_plan varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  declare v_now bigint;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_plan varbinary(1024) default cast(p_plan as binary);

  call token_clock(v_now);
  -- A separate statement: a query within a default or an assignment would wait for the row's lock.
  if v_plan is null then
    select max(b.plan) into v_plan from token_buckets b where b.id = v_id;
  end if;
  select r.known, r.limits_from, r.plan, r.capacity, r.refill_seconds, r.refill, r.mode, r.mode_from, r.mode_reason,
         r.mode_until, r.override_reason, r.override_until,
         r.level div r.token_ticks - (r.level mod r.token_ticks < 0) as available,
         case
           when r.unplanned then 'unplanned'
           when r.mode = 'off' then 'granted'
           when r.limits_from is null or not r.known and not r.planned then 'unknown'
           when r.conflicts then 'conflict'
           when r.mode = 'block' then 'denied'
           when not r.known or r.mode = 'shadow' or r.until = 0 then 'granted'
           else 'denied'
         end as outcome,
         case
           when r.unplanned then null
           when r.mode = 'off' then 0
           when r.limits_from is null or not r.known and not r.planned or r.conflicts then null
           when r.mode = 'block'
             then if(r.mode_until < '2262-01-01',
                     (timestampdiff(microsecond, '1970-01-01', r.mode_until) * 1000 - v_now + 999999) div 1000000, null)
           when not r.known then 0
           else r.until
         end as retry_after_ms,
         v_plan as plan_bytes, cast(r.mode_reason as binary) as mode_reason_bytes,
         cast(r.override_reason as binary) as override_reason_bytes
    from (select b.id is not null as known,
                 case when o.capacity is not null then 'override' when p.name is not null then 'plan'
                      when b.id is not null then 'bucket' end as limits_from,
                 convert(v_plan using utf8mb4) as plan, v_plan is not null and p.name is null as unplanned,
                 p.name is not null as planned,
                 coalesce(b.provisioned and cast(p_plan as binary) <> coalesce(b.plan, ''), false) as conflicts,
                 coalesce(o.capacity, p.capacity, b.capacity) as capacity,
                 coalesce(o.refill_seconds, p.refill_seconds, b.refill_seconds) as refill_seconds,
                 if(o.capacity is not null, o.refill, coalesce(p.refill, b.refill)) as refill,
                 coalesce(o.mode, if(p.in_force, p.mode, null), if(g.in_force, g.mode, null), 'enforce') as mode,
                 case when o.mode is not null then 'override' when p.in_force then 'plan'
                      when g.in_force and g.mode <> 'enforce' then 'all' end as mode_from,
                 case when o.mode is not null then o.reason when p.in_force then p.mode_reason
                      when g.in_force and g.mode <> 'enforce' then g.reason end as mode_reason,
                 case when o.mode is not null then o.expires_at when p.in_force then p.mode_until
                      when g.in_force and g.mode <> 'enforce' then g.until end as mode_until,
                 o.reason as override_reason, o.expires_at as override_until,
                 b.burst - greatest(b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks, 0) as level,
                 b.token_ticks,
                 case
                   when b.step_ns = 9223372036854775807 then if(b.full_at < b.burst, 0, null)
                   -- Also true of a clock that was set back to before its start.
                   when b.full_at - b.burst + b.token_ticks <= (v_now - b.anchor) div b.step_ns * b.step_ticks then 0
                   else (greatest(((b.full_at - b.burst + b.token_ticks) div b.step_ticks
                                   + ((b.full_at - b.burst + b.token_ticks) mod b.step_ticks > 0)) * b.step_ns
                                  + b.anchor - v_now, 0) + 999999) div 1000000
                 end as until
            from (select 1 as one) n
            left join (select m.*, m.until is null
                                   or timestampdiff(microsecond, '1970-01-01', least(m.until, '2262-01-01')) * 1000 > v_now
                                   as in_force
                         from token_mode m) g on true
            left join token_buckets b on b.id = v_id
            left join (select t.*, t.mode is not null
                                   and (t.mode_until is null
                                        or timestampdiff(microsecond, '1970-01-01', least(t.mode_until, '2262-01-01')) * 1000
                                           > v_now)
                                   as in_force
                         from token_plans t) p on p.name = v_plan
            left join token_overrides o
              on o.id = v_id and (o.expires_at is null
                               or timestampdiff(microsecond, '1970-01-01', least(o.expires_at, '2262-01-01')) * 1000 > v_now)) r;
end;

-- token_sweep_step: deletes expired rows in one bounded step, in the caller's transaction.
--
-- Arguments: p_after    end of the last step; null: start
--            p_limit    number of rows to read in all tables: 1 to 1000
-- Result:    o_deleted  number of rows
--            o_next     start of the next step: a table and the row before; null: this step reached the end
-- Errors:    none
-- Locks:     rows that can have expired; skips rows that another session has locked
--
-- Expired are buckets that were not provisioned and windows, after a minute full or empty; receipts, overrides, and denials
-- after two days. A bucket or window stays while one of its requests can be settled. Each table is read by its primary key: an
-- index on expiry would cost every decision an update.
drop procedure if exists token_sweep_step;
create procedure token_sweep_step(
  in p_after varbinary(300), in p_limit bigint, out o_deleted bigint, out o_next varbinary(300))
modifies sql data
sql security definer
begin
  declare v_now, v_unused bigint;
  declare v_table varbinary(300) default coalesce(substring_index(p_after, '/', 1), 'buckets');
  declare v_after varbinary(300) default coalesce(substring(p_after, length(v_table) + 2), '');
  declare v_last varbinary(300);
  declare v_id varbinary(256);
  declare v_receipt, v_from, v_to binary(16) default repeat(x'00', 16);
  declare v_hour datetime;
  declare v_left bigint default least(greatest(coalesce(p_limit, 1000), 1), 1000);
  declare v_count bigint;
  declare v_done boolean default false;
  declare v_buckets cursor for
    select id from token_buckets
     where id > v_after and id <= v_last and not provisioned
       -- After the end of a calendar period, the clock does not know how long the next one lasts: debt in it counts for a period
       -- more.
       and full_at + if(period_end < 9223372036854775807 and full_at > step_ticks, step_ticks, 0)
           <= (v_unused - anchor) div step_ns * step_ticks;
  declare v_windows cursor for
    select id from token_windows where id > v_after and id <= v_last and newest + interval_ns <= v_unused;
  declare v_receipts cursor for
    select id, bucket from token_receipts
     where id >= v_from and (id > v_from or bucket > v_after) and id <= v_to and (id < v_to or bucket <= v_last)
       and expires_at <= v_now;
  declare v_overrides cursor for
    select id from token_overrides
     where id > v_after and id <= v_last
       and timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 <= v_now;
  declare v_stats cursor for  -- every denial of these hours is older than 48 hours
    select hour, id from token_stats
     where hour < timestamp('1970-01-01') + interval v_now div 1000 microsecond - interval 49 hour
     order by hour, id limit v_left;
  declare continue handler for not found set v_done = true;

  call token_clock(v_now);
  -- Deletes what was full or empty then, because most clients return sooner.
  set v_unused = v_now - 60000000000, o_deleted = 0, o_next = null;

  if v_table = 'buckets' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_buckets where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('buckets/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_buckets;
    buckets: loop
      fetch v_buckets into v_id;
      if v_done then leave buckets; end if;
      -- Looks up current receipts one by one, after locking the bucket: a snapshot can hold older ones, and a join could read
      -- all receipts.
      if exists (select 1 from token_buckets where id = v_id for update skip locked)
         and not exists (
               select 1 from token_receipts force index (token_receipts_open)
                where bucket = v_id and state = 'open' and expires_at > v_now limit 1 for update) then
        call token_keep_usage(v_id);
        delete from token_buckets
         where id = v_id and not provisioned
           and full_at + if(period_end < 9223372036854775807 and full_at > step_ticks, step_ticks, 0)
               <= (v_unused - anchor) div step_ns * step_ticks;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_buckets;
    set v_table = 'windows', v_after = '';
  end if;

  if o_next is null and v_table = 'windows' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_windows where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('windows/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_windows;
    windows: loop
      fetch v_windows into v_id;
      if v_done then leave windows; end if;
      if exists (select 1 from token_windows where id = v_id for update skip locked)
         and not exists (
               select 1 from token_receipts force index (token_receipts_open)
                where bucket = concat(x'01', v_id) and state = 'open' and expires_at > v_now limit 1 for update) then
        delete from token_windows where id = v_id and newest + interval_ns <= v_unused;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_windows;
    set v_table = 'receipts', v_after = '';
  end if;

  if o_next is null and v_table = 'receipts' then
    if v_after <> '' then
      set v_from = left(v_after, 16), v_after = substring(v_after, 17);
    end if;
    select count(*), max(concat(id, bucket)) into v_count, v_last
      from (select id, bucket from token_receipts where id >= v_from and (id > v_from or bucket > v_after)
             order by id, bucket limit v_left) as page;
    set o_next = if(v_count = v_left, concat('receipts/', v_last), null), v_left = v_left - v_count, v_done = false;
    set v_to = left(v_last, 16), v_last = substring(v_last, 17);
    open v_receipts;
    receipts: loop
      fetch v_receipts into v_receipt, v_id;
      if v_done then leave receipts; end if;
      if exists (select 1 from token_receipts where id = v_receipt and bucket = v_id for update skip locked) then
        delete from token_receipts where id = v_receipt and bucket = v_id and expires_at <= v_now;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_receipts;
    set v_table = 'overrides', v_after = '';
  end if;

  if o_next is null and v_table = 'overrides' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_overrides where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('overrides/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_overrides;
    overrides: loop
      fetch v_overrides into v_id;
      if v_done then leave overrides; end if;
      if exists (select 1 from token_overrides where id = v_id for update skip locked) then
        delete from token_overrides
         where id = v_id and timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 <= v_now;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_overrides;
  end if;

  if o_next is null then  -- the oldest hours come first, so the scan starts at the first row
    set v_done = false, v_count = 0;
    open v_stats;
    stats: loop
      fetch v_stats into v_hour, v_id;
      if v_done then leave stats; end if;
      if exists (select 1 from token_stats where hour = v_hour and id = v_id for update skip locked) then
        delete from token_stats where hour = v_hour and id = v_id;
        set v_count = v_count + row_count();
      end if;
    end loop;
    close v_stats;
    set o_deleted = o_deleted + v_count, o_next = if(v_count = v_left, 'denials/', null);
  end if;
end;

-- token_sweep_v1: continues the sweep by one bounded step.
--
-- Arguments: p_limit   number of rows to read in all tables: 1 to 1000
-- Result:    one row
--            deleted   number of rows
--            finished  whether this step reached the end, so that the next step starts again. Also true if another session
--                      is sweeping, and this step did nothing
-- Errors:    25001 the caller has a transaction
-- Locks:     the sweep position, then the rows of token_sweep_step, in its own transaction; waits for no lock
--
-- The position contains keys, so it never leaves the server.
drop procedure if exists token_sweep_v1;
create procedure token_sweep_v1(in p_limit bigint)
modifies sql data
sql security definer
begin
  declare v_sql_big_selects boolean default @@sql_big_selects;
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
      set sql_big_selects = v_sql_big_selects;
      rollback and no chain no release;
      resignal;
    end;

    set sql_big_selects = 1;  -- a step can exceed the session's max_join_size
    select swept_to into v_position from token_sweep_position where one = true for update skip locked;
    -- Locked, or not made yet.
    if not v_is_mine and not exists (select 1 from token_sweep_position) then
      insert ignore into token_sweep_position (one) values (true);
      set v_is_mine = row_count() > 0;
    end if;
    if v_is_mine then
      call token_sweep_step(v_position, p_limit, v_deleted, v_position);
      update token_sweep_position set swept_to = v_position where one = true;
    end if;
    set sql_big_selects = v_sql_big_selects;
    commit and no chain no release;
  end;
  select v_deleted as deleted, v_position is null as finished;
end;

-- token_sweep: runs all steps of token_sweep_step, for your scheduler: call token_sweep().
--
-- Result:    one row
--            deleted  number of rows
-- Errors:    25001 the caller has a transaction
-- Locks:     the rows of token_sweep_step, each step in its own transaction
drop procedure if exists token_sweep;
create procedure token_sweep()
modifies sql data
sql security definer
begin
  declare v_sql_big_selects boolean default @@sql_big_selects;
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
        set sql_big_selects = v_sql_big_selects;
        rollback and no chain no release;
        resignal;
      end;
      set sql_big_selects = 1;  -- a step can exceed the session's max_join_size
      call token_sweep_step(v_after, 1000, v_deleted, v_after);
      commit and no chain no release;
    end;
    set v_total = v_total + v_deleted, sql_big_selects = v_sql_big_selects;
  until v_after is null end repeat;
  select v_total as deleted;
end;

-- token_most_denied: denials of the last 24 hours, one row per key, in UTC. Reads only.
--
--   select * from token_most_denied order by denied desc limit 10;
--
--   denied          requests; the true number can be higher
--   last_denied_at  accurate to a few seconds
--   id_bytes        the id in UTF-8, with every session character set
create or replace sql security definer view token_most_denied as
select convert(s.id using utf8mb4) as id, cast(least(greatest(sum(s.denied), -1), 9223372036854775807) as signed) as denied,
       max(s.last_denied_at) as last_denied_at, s.id as id_bytes
  from token_stats s
 cross join token_now n
 where s.hour > timestamp('1970-01-01') + interval n.now div 1000 microsecond - interval 24 hour
 group by s.id
;

-- token_count_denials_v1: adds the denials that a process counted, also to the usage if it is recorded, and deletes rows older
-- than two days.
--
-- Arguments: p_denials  a JSON array of [id in hexadecimal, denied], 1000 at most:
--                       '[["757365723a31", 5], ["757365723a32", 1]]'
-- Result:    none
-- Errors:    22023 arguments out of range
--            1205 another session locked a row for a second
-- Locks:     the rows of these keys in this hour, in id order, so that two calls cannot deadlock; likewise their usage; then up to
--            1000 old rows. The routine has its own transaction, unless the caller has one. No decision reads these rows.
drop procedure if exists token_count_denials_v1;
create procedure token_count_denials_v1(in p_denials longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_owns_transaction boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_now bigint;
  declare v_at datetime(6);
  declare v_hour, v_period_start datetime;

  if (json_valid(p_denials) and json_type(p_denials) = 'ARRAY' and json_length(p_denials) <= 1000
      and json_length(p_denials) = (
        select count(*)
          from json_table(p_denials, '$[*]' columns (
                 id varchar(1024) character set ascii path '$[0]', denied bigint path '$[1]')) as d
         where length(unhex(d.id)) between 1 and 255 and left(unhex(d.id), 1) <> x'01' and locate(x'00', unhex(d.id)) = 0
           and cast(convert(unhex(d.id) using utf8mb4) as binary) <=> unhex(d.id)
           and d.denied between 1 and 1000000000000000)) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: token_count_denials_v1 takes a JSON array of up to 1000 [hex of a valid id, denials]: [["6b", 5]]';
  end if;
  call token_begin(false, v_owns_transaction);

  begin
    declare exit handler for sqlexception
    begin
      set innodb_lock_wait_timeout = v_lock_wait_timeout;
      if v_owns_transaction then rollback and no chain no release; end if;
      resignal;
    end;

    set innodb_lock_wait_timeout = least(v_lock_wait_timeout, 1);
    call token_clock(v_now);
    set v_at = timestamp('1970-01-01') + interval v_now div 1000 microsecond;
    set v_hour = timestamp(date(v_at)) + interval hour(v_at) hour;
    insert into token_stats (hour, id, denied, last_denied_at)
    select v_hour, unhex(d.id), d.denied, v_at
      from json_table(p_denials, '$[*]' columns (
             id varchar(1024) character set ascii path '$[0]', denied bigint path '$[1]')) as d
     order by unhex(d.id)
        on duplicate key update
           denied = least(cast(token_stats.denied as decimal(20, 0)) + values(denied), 9223372036854775807),
           last_denied_at = greatest(token_stats.last_denied_at, v_at);
    select max(period_start) into v_period_start from token_usage_recording;
    if v_period_start is not null then
      insert into token_usage_records (id, period_start, plan, denied)
      select d.id, v_period_start, substring_index(coalesce(b.plan, ''), x'01', 1), d.denied
        from (select unhex(t.id) as id, sum(t.denied) as denied
                from json_table(p_denials, '$[*]' columns (
                       id varchar(1024) character set ascii path '$[0]', denied bigint path '$[1]')) as t
               group by unhex(t.id)) d
        left join token_buckets b on b.id = d.id
       order by d.id
          on duplicate key update
             denied = least(cast(token_usage_records.denied as decimal(20, 0)) + values(denied), 9223372036854775807);
    end if;
    delete from token_stats where hour < v_hour - interval 48 hour order by hour, id limit 1000;
    set innodb_lock_wait_timeout = v_lock_wait_timeout;
    if v_owns_transaction then commit and no chain no release; end if;
  end;
end;

-- token_rules: the modes, plans and overrides in force, in UTC: one row for all keys, one per plan and one per override. Reads
-- only. For one key, call token_explain instead.
--
--   kind       'all', 'plan' or 'override'
--   name       name of the plan, or the key of the override
--   plan       of an override: the plan that its bucket follows; null: no plan, or no bucket yet
--   capacity, refill_seconds, refill: the limits; null: none of its own
--   mode       effective mode; null, for an override: the mode of its plan or of 'all'
--   mode_from  row that chose the mode: 'all', 'plan' or 'override'; null: the default
--   reason     reason of the mode or override
--   until      end of the mode or override; null: no end
create or replace sql security definer view token_rules as
select 'all' as kind, cast(null as char(255)) as name, cast(null as char(255)) as plan, cast(null as signed) as capacity,
       cast(null as decimal(19, 9)) as refill_seconds, cast(null as char(10)) as refill,
       coalesce(a.mode, 'enforce') as mode, if(a.mode is null, null, 'all') as mode_from, a.reason, a.until
  from (select 1 as one) n
  left join token_mode a on a.mode <> 'enforce' and (a.until is null or a.until > utc_timestamp(6))
union all
select 'plan', convert(p.name using utf8mb4), null, p.capacity, p.refill_seconds, p.refill,
       if(p.own, p.mode, coalesce(a.mode, 'enforce')), if(p.own, 'plan', if(a.mode is null, null, 'all')),
       if(p.own, p.mode_reason, a.reason), if(p.own, p.mode_until, a.until)
  from (select t.*, t.mode is not null and (t.mode_until is null or t.mode_until > utc_timestamp(6)) as own
          from token_plans t) p
  left join token_mode a on a.mode <> 'enforce' and (a.until is null or a.until > utc_timestamp(6))
union all
select 'override', convert(o.id using utf8mb4), convert(b.plan using utf8mb4), o.capacity, o.refill_seconds,
       if(o.capacity is null, null, o.refill), o.mode, if(o.mode is null, null, 'override'), o.reason, o.expires_at
  from token_overrides o
  left join token_buckets b on b.id = o.id
 where o.expires_at is null or o.expires_at > utc_timestamp(6)
;

-- token_sizes: size of each table. Reads only the server's estimates. MySQL renews them once a day by default: see
-- information_schema_stats_expiry.
--
--   live_rows   estimate
--   bytes       including indexes
--   free_bytes  allocated but unused
create or replace sql security definer view token_sizes as
select t.table_name as name, t.table_rows as live_rows, t.data_length + t.index_length as bytes,
       t.data_free as free_bytes
  from information_schema.tables t
 where t.table_schema = database() and t.table_type = 'BASE TABLE' and t.table_name like 'token\_%'
;

insert into token_migrations (version, name) values (10, '0010_operations') on duplicate key update applied_at = utc_timestamp(6);
