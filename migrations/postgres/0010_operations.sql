-- create_bucket: provisions a bucket. A repeated call with equal values changes nothing.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens, a whole number
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval', 'calendar', 'continuous' or 'once': see token_buckets
-- Result:    none
-- Errors:    23514 invalid limits
-- Locks:     the bucket's row, if it exists and changes
--
-- With other values, the call changes the limits: the bucket keeps its available tokens, up to the new capacity. A bucket that
-- followed a plan has its own limits from then on.
create or replace function tollgate.create_bucket(
  p_id text, p_capacity bigint, p_refill_seconds numeric, p_refill text default 'interval')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if abs(round(p_refill_seconds, 9)) >= 10000000000 then
    -- Exceeds the column: bucket_limits raises the error that the trigger would raise.
    perform tollgate.bucket_limits('bucket ' || quote_nullable(left(p_id, 255)), p_capacity,
                                   round(p_refill_seconds, 9), p_refill, tollgate.clock());
  end if;
  insert into tollgate.token_buckets as b (id, capacity, refill_seconds, refill)
  values (p_id, p_capacity, p_refill_seconds, p_refill)
  on conflict (id) do update
     set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill,
         provisioned = true, plan = null
   where (b.capacity, b.refill_seconds, b.refill, b.provisioned, b.plan)
         is distinct from (excluded.capacity, excluded.refill_seconds, excluded.refill, true, null);
end
$$;

-- create_bucket: the same routine, for drivers that send numbers as double precision.
--
-- Arguments, result, errors and locks: as above · 23514 p_capacity is not a whole number below 2^53
create or replace function tollgate.create_bucket(
  p_id text, p_capacity double precision, p_refill_seconds double precision, p_refill text default 'interval')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tollgate.create_bucket(
    p_id, tollgate.whole_number('bucket ' || quote_nullable(left(p_id, 255)), p_capacity), p_refill_seconds::numeric, p_refill);
end
$$;

-- create_plan: creates a plan, or changes its quota. The mode does not change.
--
-- Arguments: p_name            1 to 255 bytes
--            p_capacity        tokens, a whole number
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'continuous', 'interval', 'calendar' or 'once': see token_buckets
-- Result:    none
-- Errors:    23514 invalid limits
-- Locks:     the plan's row
create or replace function tollgate.create_plan(
  p_name text, p_capacity bigint, p_refill_seconds numeric, p_refill text default 'continuous')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if abs(round(p_refill_seconds, 9)) >= 10000000000 then
    -- Exceeds the column: bucket_limits raises the error that the trigger would raise.
    perform tollgate.bucket_limits('plan ' || quote_nullable(left(p_name, 255)), p_capacity,
                                   round(p_refill_seconds, 9), p_refill, tollgate.clock());
  end if;
  insert into tollgate.token_plans as p (name, capacity, refill_seconds, refill)
  values (p_name, p_capacity, p_refill_seconds, p_refill)
  on conflict (name) do update
     set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill;
end
$$;

-- create_plan: the same routine, for drivers that send numbers as double precision.
--
-- Arguments, result, errors and locks: as above · 23514 p_capacity is not a whole number below 2^53
create or replace function tollgate.create_plan(
  p_name text, p_capacity double precision, p_refill_seconds double precision, p_refill text default 'continuous')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tollgate.create_plan(
    p_name, tollgate.whole_number('plan ' || quote_nullable(left(p_name, 255)), p_capacity), p_refill_seconds::numeric,
    p_refill);
end
$$;

-- create_plan_limit: adds a limit to a plan, or changes its quota. A request under the plan takes from all of its limits, or from
-- none. A new limit has the mode of the first one.
--
-- Arguments: p_plan            an existing plan, whose quota is the first limit
--            p_limit_name      a letter, then up to 31 letters, digits, - and _
--            p_capacity, p_refill_seconds, p_refill: as for create_plan
--            p_cost_name       the name of the cost that the limit counts; null: the tokens of the request
-- Result:    none
-- Errors:    P0002 no such plan · 23514 invalid limits or names, or more than 16 limits
-- Locks:     the plan's row, then its limits
create or replace function tollgate.create_plan_limit(
  p_plan text, p_limit_name text, p_capacity bigint, p_refill_seconds numeric, p_refill text default 'continuous',
  p_cost_name text default null)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_name   constant text := p_plan || chr(1) || p_limit_name;
  v_plan   tollgate.token_plans;
  v_is_new boolean;
begin
  select p.* into v_plan from tollgate.token_plans p where p.name = p_plan for update;
  if not found then
    raise exception 'tollgate: there is no plan %', quote_nullable(left(p_plan, 255))
      using errcode = 'no_data_found', hint = 'Make it with its first limit: select tollgate.create_plan(name, 100, 60);';
  end if;
  insert into tollgate.token_plan_limits (plan, place) values (p_plan, 1) on conflict do nothing;
  if exists (select from tollgate.token_plan_limits l where l.plan = p_plan and l.place = 1 and l.limit_name = p_limit_name) then
    raise exception 'tollgate: % is the first limit of plan %', quote_literal(p_limit_name), quote_literal(p_plan)
      using errcode = 'invalid_parameter_value', hint = 'Change it by create_plan.';
  end if;
  v_is_new := not exists (select from tollgate.token_plans p where p.name = c_name);
  perform tollgate.create_plan(c_name, p_capacity, p_refill_seconds, p_refill);
  if v_is_new then
    update tollgate.token_plans p
       set mode = v_plan.mode, mode_reason = v_plan.mode_reason, mode_until = v_plan.mode_until
     where p.name = c_name;
  end if;
  update tollgate.token_plan_limits l set cost_name = p_cost_name where l.plan = p_plan and l.limit_name = p_limit_name;
  if not found then
    insert into tollgate.token_plan_limits (plan, place, limit_name, cost_name)
    select p_plan, max(l.place) + 1, p_limit_name, p_cost_name from tollgate.token_plan_limits l where l.plan = p_plan;
  end if;
end
$$;

-- delete_plan: deletes a plan with its limits. Later requests that name it fail.
--
-- Arguments: p_plan  the plan
-- Result:    whether it existed
-- Errors:    none
-- Locks:     the plan's row, then its limits
create or replace function tollgate.delete_plan(p_plan text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_found boolean;
begin
  delete from tollgate.token_plans p where p.name = p_plan;
  v_found := found;
  delete from tollgate.token_plans p where p.name = any (tollgate.limit_ids(p_plan, p_plan));
  delete from tollgate.token_plan_limits l where l.plan = p_plan;
  return v_found;
end
$$;

-- plan_limits_v1: reads the limits of a plan that has several, or one with a name.
--
-- Arguments: p_plan      the plan
-- Result:    one row per limit, in their order: none for a plan with one limit
--            limit_name  null: the first limit has none
--            cost_name   the name of the cost that the limit counts; null: the tokens of the request
-- Errors:    none
-- Locks:     none
create or replace function tollgate.plan_limits_v1(p_plan text) returns table (limit_name text, cost_name text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select l.limit_name, l.cost_name from tollgate.token_plan_limits l where l.plan = p_plan order by l.place
$$;

-- reset_bucket: fills a bucket up to the effective capacity, and empties the sliding window with its key.
--
-- Arguments: p_id  the bucket
-- Result:    whether the bucket exists, or a window that counted a request
-- Errors:    as for prepare_bucket
-- Locks:     the bucket's row, then the window's
--
-- A reset counts as a grant of the capacity, so that earlier reservations give nothing back.
create or replace function tollgate.reset_bucket(p_id text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_max_counted constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  v_found      boolean;
  v_window     boolean;
  v_changed    boolean;
  v_now        bigint;
begin
  perform from tollgate.token_buckets b where b.id = p_id for no key update;
  if found then
    -- The change from an override to the bucket's plan takes two steps.
    for v_step in 1 .. 4 loop
      select r.changed into v_changed
        from tollgate.prepare_bucket(p_id, null, null, null, null, tollgate.clock(), true) r;
      exit when v_changed is not true;
    end loop;
  end if;
  v_now := tollgate.clock();
  update tollgate.token_buckets b
     set full_at = tollgate.ticks_at(b.anchor, b.step_ns, b.step_ticks, least(v_now, b.period_end)), max_granted_wait = 0,
         granted = least(b.granted::numeric + b.burst / b.token_ticks, c_max_counted),
         recorded = greatest(b.recorded::numeric - b.granted, -c_max_counted)
                    + least(b.granted::numeric + b.burst / b.token_ticks, c_max_counted)
   where b.id = p_id;
  v_found := found;
  delete from tollgate.token_windows w where w.id = p_id returning w.granted > 0 into v_window;
  return v_found or v_window is true;
end
$$;

-- delete_bucket: deletes a bucket and the sliding window with its key. If a request creates the bucket again, it starts full.
--
-- Arguments: p_id  the bucket
-- Result:    whether the bucket existed, or a window that counted a request
-- Errors:    none
-- Locks:     the bucket's row, then the window's
create or replace function tollgate.delete_bucket(p_id text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_found  boolean;
  v_window boolean;
begin
  delete from tollgate.token_buckets b where b.id = p_id;
  v_found := found;
  delete from tollgate.token_windows w where w.id = p_id returning w.granted > 0 into v_window;
  return v_found or v_window is true;
end
$$;

-- explain: shows the effective limits and mode of a bucket, their origin, and the outcome of a request for one token.
--
-- Arguments: p_id            the bucket, which can be missing
--            p_plan          plan that the request would name; null: the bucket's own
-- Result:    known           whether the bucket exists
--            limits_from      'override', 'plan' or 'bucket'; null: no limits found
--            plan            the plan that the bucket follows
--            capacity, refill_seconds, refill: the limits
--            mode            'enforce', 'shadow', 'off' or 'block'
--            mode_from       'override', 'plan', 'all' or null: the default
--            mode_reason, mode_until
--            override_reason, override_until: of the override in force
--            available       whole tokens; null: the bucket does not exist
--            outcome         'granted', 'denied', 'unknown', 'unplanned' or 'conflict'
--            retry_after_ms  milliseconds until a token is available; 0: now; null: never, or unknown
-- Errors:    none
-- Locks:     none; reads only
create or replace function tollgate.explain(
  p_id text, p_plan text default null,
  out known boolean, out limits_from text, out plan text, out capacity bigint, out refill_seconds numeric,
  out refill text, out mode text, out mode_from text, out mode_reason text, out mode_until timestamptz,
  out override_reason text, out override_until timestamptz, out available bigint, out outcome text,
  out retry_after_ms bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b     tollgate.token_buckets;
  g     tollgate.token_mode;
  o     tollgate.token_overrides;
  p     tollgate.token_plans;
  t     tollgate.taken_v1;
  v_now bigint := tollgate.clock();
begin
  select w.* into b from tollgate.token_buckets w where w.id = p_id;
  known := b.id is not null;
  plan := coalesce(p_plan, b.plan);
  select w.* into p from tollgate.token_plans w where w.name = explain.plan;
  select w.* into o from tollgate.token_overrides w where w.id = p_id and tollgate.in_force(w.expires_at, v_now);
  select w.* into g from tollgate.token_mode w;
  override_reason := o.reason;
  override_until := o.expires_at;

  select w.*
    into limits_from, capacity, refill_seconds, refill
    from (values (1, 'override', o.capacity, o.refill_seconds, o.refill),
                 (2, 'plan', p.capacity, p.refill_seconds, p.refill),
                 (3, 'bucket', b.capacity, b.refill_seconds, b.refill))
         as c (nearness, source, capacity, refill_seconds, refill)
   cross join lateral (select c.source, c.capacity, c.refill_seconds, c.refill) w
   where c.capacity is not null
   order by c.nearness limit 1;
  select w.*
    into mode_from, mode, mode_reason, mode_until
    from (values (1, 'override', o.mode, o.reason, o.expires_at),
                 (2, 'plan', p.mode, p.mode_reason, p.mode_until),
                 (3, 'all', nullif(g.mode, 'enforce'), g.reason, g.until))
         as c (nearness, source, mode, reason, until)
   cross join lateral (select c.source, c.mode, c.reason, c.until) w
   where c.mode is not null and tollgate.in_force(c.until, v_now)
   order by c.nearness limit 1;
  mode := coalesce(mode, 'enforce');

  if plan is not null and p.name is null then
    outcome := 'unplanned';
  elsif mode = 'off' then
    outcome := 'granted';
    retry_after_ms := 0;
  elsif limits_from is null or (not known and p.name is null) then
    outcome := 'unknown';
  elsif b.provisioned and p_plan <> coalesce(b.plan, '') then
    outcome := 'conflict';
  elsif mode = 'block' then
    outcome := 'denied';
    retry_after_ms := (tollgate.end_ns(mode_until) - v_now + 999999) / 1000000;
  elsif not known then
    outcome := 'granted';
    retry_after_ms := 0;
  else
    t := tollgate.evaluate(b, mode, null, 1, 0, 0, v_now);
    outcome := t.outcome;
    retry_after_ms := tollgate.taken_until(t, 1);
  end if;
  if known then
    available := floor((b.burst - greatest(b.full_at - tollgate.bucket_clock(b, v_now), 0))::numeric / b.token_ticks);
  end if;
end
$$;

-- sweep_step: deletes expired rows in one bounded step.
--
-- Arguments: p_after  end of the last step; null: start
--            p_limit  number of rows to read in all tables: 1 to 1000
-- Result:    deleted  number of rows
--            next     start of the next step: a table and the row before; null: this step reached the end
-- Errors:    none
-- Locks:     the rows that the step deletes; skips rows that another session has locked
--
-- Expired are buckets that were not provisioned and windows, after a minute full or empty; receipts, overrides, and denials
-- after two days. A bucket or window stays while one of its requests can be settled. Each table is read by its primary key: an
-- index on expiry would cost every decision an update. Receipts are looked up by index for each row: a join could read them all.
create or replace function tollgate.sweep_step(p_after text, p_limit bigint, out deleted bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  v_now     constant bigint := tollgate.clock();
  v_unused  constant bigint := v_now - 60000000000; -- deletes what was full or empty then, because most clients return sooner
  v_table   text collate "C" := coalesce(split_part(p_after, '/', 1), 'buckets');
  v_after   text collate "C" := coalesce(substr(p_after, length(v_table) + 2), '');
  v_left    bigint := least(greatest(coalesce(p_limit, 1000), 1), 1000);
  v_last    text collate "C";
  v_receipt uuid := '00000000-0000-0000-0000-000000000000';
  v_to      uuid;
  v_count   bigint;
begin
  deleted := 0;
  if v_table = 'buckets' then
    select count(*), max(s.id) into v_count, v_last
      from (select b.id from tollgate.token_buckets b where b.id > v_after order by b.id limit v_left) s;
    delete from tollgate.token_buckets b
     using (select c.id from tollgate.token_buckets c
             where c.id > v_after and c.id <= v_last
               and not c.provisioned
               and tollgate.is_full_since(c.full_at, c.anchor, c.step_ns, c.step_ticks, c.period_end, v_unused)
               and (select true from tollgate.token_receipts r
                     where r.bucket = c.id and r.state = 'open' and r.expires_at > v_now limit 1) is null
             order by c.id for update skip locked) f
     where b.id = f.id and not b.provisioned
       and tollgate.is_full_since(b.full_at, b.anchor, b.step_ns, b.step_ticks, b.period_end, v_unused);
    get diagnostics deleted = row_count;
    if v_count = v_left then
      next := 'buckets/' || v_last;
      return;
    end if;
    v_left := v_left - v_count;
    v_table := 'windows';
    v_after := '';
  end if;

  if v_table = 'windows' then
    select count(*), max(s.id) into v_count, v_last
      from (select w.id from tollgate.token_windows w where w.id > v_after order by w.id limit v_left) s;
    next := case when v_count = v_left then 'windows/' || v_last end;
    v_left := v_left - v_count;
    delete from tollgate.token_windows w
     using (select e.id from tollgate.token_windows e
             where e.id > v_after and e.id <= v_last
               and coalesce(e.ends[array_length(e.ends, 1)], 0) + e.interval_ns <= v_unused
               and (select true from tollgate.token_receipts r
                     where r.bucket = chr(1) || e.id and r.state = 'open' and r.expires_at > v_now limit 1) is null
             order by e.id for update skip locked) e
     where w.id = e.id;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
    v_table := 'receipts';
    v_after := '';
  end if;

  if v_table = 'receipts' then
    if v_after <> '' then
      v_receipt := left(v_after, 36)::uuid;
      v_after := substr(v_after, 37);
    end if;
    select count(*), max(s.id::text collate "C" || s.bucket) into v_count, v_last
      from (select r.id, r.bucket from tollgate.token_receipts r where (r.id, r.bucket) > (v_receipt, v_after)
             order by r.id, r.bucket limit v_left) s;
    next := case when v_count = v_left then 'receipts/' || v_last end;
    v_left := v_left - v_count;
    v_to := left(v_last, 36)::uuid;
    v_last := substr(v_last, 37);
    delete from tollgate.token_receipts r
     using (select e.id, e.bucket from tollgate.token_receipts e
             where (e.id, e.bucket) > (v_receipt, v_after) and (e.id, e.bucket) <= (v_to, v_last)
               and e.expires_at <= v_now
             order by e.id, e.bucket for update skip locked) e
     where r.id = e.id and r.bucket = e.bucket;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
    v_table := 'overrides';
    v_after := '';
  end if;

  if v_table = 'overrides' then
    select count(*), max(s.id) into v_count, v_last
      from (select o.id from tollgate.token_overrides o where o.id > v_after order by o.id limit v_left) s;
    next := case when v_count = v_left then 'overrides/' || v_last end;
    v_left := v_left - v_count;
    delete from tollgate.token_overrides o
     using (select e.id from tollgate.token_overrides e
             where e.id > v_after and e.id <= v_last and not tollgate.in_force(e.expires_at, v_now)
             order by e.id for update skip locked) e
     where o.id = e.id;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
  end if;

  -- Every denial of these hours is older than 48 hours. The oldest hours come first, so the scan starts at the first row.
  delete from tollgate.token_stats s
   using (select e.hour, e.id from tollgate.token_stats e
           where e.hour < to_timestamp(v_now / 1000000000.0) - interval '49 hours'
           order by e.hour, e.id limit v_left for update skip locked) e
   where s.hour = e.hour and s.id = e.id;
  get diagnostics v_count = row_count;
  deleted := deleted + v_count;
  next := case when v_count = v_left then 'denials/' end;
end
$$;

-- sweep_v1: continues the sweep by one bounded step.
--
-- Arguments: p_limit   number of rows to read in all tables: 1 to 1000
-- Result:    deleted   number of rows
--            finished  whether this step reached the end, so that the next step starts again. Also true if another session
--                      is sweeping, and this step did nothing
-- Errors:    25001 the transaction has written: a step needs its own transaction
-- Locks:     the sweep position, then the rows of sweep_step; waits for no lock
--
-- The position contains keys, so it never leaves the server, not even in printed plans, which a session can request. A
-- transaction makes at most one step, so that a long transaction locks no more rows than one step does.
create or replace function tollgate.sweep_v1(p_limit bigint, out deleted bigint, out finished boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set debug_print_parse = off
set debug_print_rewritten = off
set debug_print_plan = off
as $$
declare
  v_from text collate "C";
  v_to   text collate "C";
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'tollgate: sweeping needs a transaction of its own: commit first'
      using errcode = 'active_sql_transaction';
  end if;
  deleted := 0;
  finished := true;
  select p.swept_to into v_from from tollgate.token_sweep_position p for update skip locked;
  if not found then
    -- The row is locked, or was deleted by hand.
    if exists (select from tollgate.token_sweep_position) then
      return;
    end if;
    insert into tollgate.token_sweep_position default values on conflict do nothing;
  end if;
  select s.deleted, s.next into deleted, v_to from tollgate.sweep_step(v_from, p_limit) s;
  finished := v_to is null;
  update tollgate.token_sweep_position set swept_to = v_to where swept_to is distinct from v_to;
end
$$;

-- sweep: runs all steps, for your scheduler: select tollgate.sweep().
--
-- Result:    number of deleted rows
-- Errors:    none
-- Locks:     the rows of sweep_step, until the transaction ends; for short transactions, call sweep_v1 step by step instead
create or replace function tollgate.sweep() returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_step  record;
  v_after text;
  v_total bigint := 0;
begin
  loop
    select s.* into v_step from tollgate.sweep_step(v_after, 1000) s;
    v_total := v_total + v_step.deleted;
    v_after := v_step.next;
    exit when v_after is null;
  end loop;
  return v_total;
end
$$;

-- token_most_denied: denials of the last 24 hours, one row per key. Reads only.
--
--   select * from tollgate.token_most_denied order by denied desc limit 10;
--
--   denied          requests; the true number can be higher
--   last_denied_at  accurate to a few seconds
create or replace view tollgate.token_most_denied as
select s.id, least(greatest(sum(s.denied), -1), 9223372036854775807)::bigint as denied, max(s.last_denied_at) as last_denied_at
  from tollgate.token_stats s
 where s.hour > to_timestamp((tollgate.clock()::numeric / 1000000000::numeric)::float8) - interval '24 hours'
 group by s.id;

comment on view tollgate.token_most_denied is 'Denials of the last 24 hours, by key, as far as services count them';

-- count_denials_v1: adds the denials that a process counted, also to the usage if it is recorded, and deletes rows older than two
-- days.
--
-- Arguments: p_ids     the buckets, 1000 at most; duplicates allowed
--            p_denied  denied requests of each, 1 to 10^15
-- Result:    none
-- Errors:    22023 arguments out of range
-- Locks:     the rows of these keys in this hour, in id order; likewise their usage, unless one stays locked for 100 ms. Then up to
--            1000 old rows, skipping rows that another session has locked. No decision reads these rows.
create or replace function tollgate.count_denials_v1(p_ids text[], p_denied bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  v_lock constant text := current_setting('lock_timeout');
  v_now  constant timestamptz := to_timestamp(tollgate.clock() / 1000000000.0);
  v_hour constant timestamptz := date_trunc('hour', v_now, 'UTC');
begin
  if cardinality(p_ids) is distinct from cardinality(p_denied) or cardinality(p_ids) > 1000
     or exists (select from unnest(p_ids, p_denied) d(id, denied)
                 where (octet_length(d.id) between 1 and 255 and left(d.id, 1) <> chr(1)
                        and d.denied between 1 and 1000000000000000) is not true) then
    raise exception 'tollgate: count_denials takes up to 1000 ids of 1 to 255 bytes that do not begin with U+0001, '
                    'and for each 1 denial or more'
      using errcode = 'invalid_parameter_value';
  end if;
  insert into tollgate.token_stats as s (hour, id, denied, last_denied_at)
  select v_hour, d.id, sum(d.denied), v_now from unnest(p_ids, p_denied) d(id, denied)
   group by d.id order by d.id collate "C"
      on conflict (hour, id) do update
     set denied = least(s.denied::numeric + excluded.denied, 9223372036854775807),
         last_denied_at = greatest(s.last_denied_at, excluded.last_denied_at);
  begin
    perform set_config('lock_timeout', '100ms', true);
    insert into tollgate.token_usage_records as u (id, period_start, plan, denied)
    select d.id, r.period_start, split_part(coalesce(b.plan, ''), chr(1), 1), sum(d.denied)
      from tollgate.token_usage_recording r
     cross join unnest(p_ids, p_denied) d(id, denied)
      left join tollgate.token_buckets b on b.id = d.id
     where r.period_start is not null
     group by d.id, r.period_start, b.plan order by d.id collate "C"
        on conflict (id, period_start, plan) do update
       set denied = least(u.denied::numeric + excluded.denied, 9223372036854775807);
  exception when lock_not_available then
    null;  -- the denials of usage are lower bounds
  end;
  perform set_config('lock_timeout', v_lock, true);
  delete from tollgate.token_stats s
   using (select o.hour, o.id from tollgate.token_stats o where o.hour < v_hour - interval '48 hours'
           order by o.hour, o.id limit 1000 for update skip locked) o
   where s.hour = o.hour and s.id = o.id;
end
$$;

-- token_rules: the modes, plans and overrides in force: one row for all keys, one per plan and one per override. Reads only.
-- For one key, call explain instead.
--
--   kind       'all', 'plan' or 'override'
--   name       name of the plan, or the key of the override
--   plan       of an override: the plan that its bucket follows; null: no plan, or no bucket yet
--   capacity, refill_seconds, refill: the limits; null: none of its own
--   mode       effective mode; null, for an override: the mode of its plan or of 'all'
--   mode_from  row that chose the mode: 'all', 'plan' or 'override'; null: the default
--   reason     reason of the mode or override
--   until      end of the mode or override; null: no end
create or replace view tollgate.token_rules as
with n as (select tollgate.clock() as now),
     a as (select g.mode, g.reason, g.until
             from n, tollgate.token_mode g where g.mode <> 'enforce' and tollgate.in_force(g.until, n.now))
select 'all' as kind, null::text as name, null::text as plan, null::bigint as capacity,
       null::numeric as refill_seconds, null::text as refill, coalesce(a.mode, 'enforce') as mode,
       case when a.mode is not null then 'all' end as mode_from, a.reason, a.until
  from n left join a on true
union all
select 'plan', p.name, null, p.capacity::bigint, p.refill_seconds, p.refill,
       case when o.own then p.mode else coalesce(a.mode, 'enforce') end,
       case when o.own then 'plan' when a.mode is not null then 'all' end,
       case when o.own then p.mode_reason else a.reason end, case when o.own then p.mode_until else a.until end
  from n cross join tollgate.token_plans p
 cross join lateral (select p.mode is not null and tollgate.in_force(p.mode_until, n.now) as own) o
  left join a on true
union all
select 'override', o.id, b.plan, o.capacity::bigint, o.refill_seconds, case when o.capacity is not null then o.refill end,
       o.mode, case when o.mode is not null then 'override' end, o.reason, o.expires_at
  from n cross join tollgate.token_overrides o
  left join tollgate.token_buckets b on b.id = o.id
 where tollgate.in_force(o.expires_at, n.now);

comment on view tollgate.token_rules is 'Modes, plans and overrides in force';

-- token_sizes: size and upkeep of each table. Reads only the server's statistics.
--
--   live_rows, dead_rows: estimates; vacuum removes dead rows
--   bytes      including indexes
--   hot_ratio  share of the updates that wrote no index: near 1, or the table grows; null: no updates yet
create or replace view tollgate.token_sizes as
select s.relname::text as name, s.n_live_tup as live_rows, s.n_dead_tup as dead_rows,
       pg_total_relation_size(s.relid::regclass) as bytes, s.n_tup_upd as updates,
       round(s.n_tup_hot_upd::numeric / nullif(s.n_tup_upd, 0)::numeric, 3) as hot_ratio,
       greatest(s.last_vacuum, s.last_autovacuum) as last_vacuum_at
  from pg_catalog.pg_stat_user_tables s
 where s.schemaname = 'tollgate';

comment on view tollgate.token_sizes is 'Each table: rows, bytes, ratio of updates that wrote no index';

insert into tollgate.migrations (version, name) values (10, '0010_operations') on conflict do nothing;
