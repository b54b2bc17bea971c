begin;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- tollgate's schema. PUBLIC has no privileges on it; ../grants/postgres.sql grants your roles the privileges that they need.
--
-- Refuses a database whose encoding lacks characters: a key that the database cannot store would fail every request of its
-- call. SQL_ASCII stores any bytes.
do $$
begin
  if current_setting('server_encoding') not in ('UTF8', 'SQL_ASCII') then
    raise exception 'this database is encoded in %, which has not every character of a key: create database ... encoding ''UTF8'' template template0, and migrate that',
        current_setting('server_encoding')
      using errcode = 'feature_not_supported';
  end if;
  -- An administrator can create the schema for a role that lacks the privilege.
  if to_regnamespace('tollgate') is null then
    create schema tollgate;
    comment on schema tollgate is 'Exact rate limiting: select * from tollgate.request_token(''my-bucket'')';
  end if;
end
$$;

-- The migrations that have run.
create table if not exists tollgate.migrations (
  version    bigint primary key,
  name       text not null,
  applied_at timestamptz not null default now()
);

-- applied_migrations() -> the versions of the migrations that have run, for roles that cannot read the table.
create or replace function tollgate.applied_migrations() returns setof bigint
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select m.version from tollgate.migrations m order by m.version
$$;

-- clock() -> the current time in nanoseconds since 1970.
--
-- Every decision reads the server's clock at the moment of the call. now() and statement_timestamp() are older after a wait
-- for a lock. Session settings (TimeZone, search_path) do not affect clock(). A double represents microseconds exactly until
-- 2242 and is read three times as fast as the numeric of extract().
create or replace function tollgate.clock() returns bigint
language sql volatile
return (date_part('epoch', pg_catalog.clock_timestamp()) * '1000000'::float8)::bigint * 1000;

-- One row per bucket. To provision a bucket, set the first three columns. tollgate maintains the others.
--
--   insert into tollgate.token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- refill: how tokens come back.
--   'interval'   all at once at the end of each period, counted from the creation of the row
--   'calendar'   all at once at the end of each period of the UTC calendar
--   'continuous' one by one
--   'once'       never; refill_seconds has no effect
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- With 'continuous', a tick is a nanosecond. With the others, a tick is a token and a step is the whole period, or never ends.
-- burst to token_ticks hold the limits under which the state was last written: the row's own limits or an override's.
--
-- Decisions write no indexed column and pages keep free space, so that updates are heap-only. A tenth of each page is free, and
-- each row frees room at its first update. A lower fillfactor prunes pages at most decisions: batches are a fifth slower.
-- A trigger checks the limits: an UPDATE would prepare check constraints and generated columns anew, at four times its cost.
create table if not exists tollgate.token_buckets (
  id             text collate "C" primary key,                 -- 1 to 255 bytes
  capacity       numeric not null,                             -- tokens, a whole number; a bigint would round silently
  refill_seconds numeric(19, 9) not null,                      -- from empty to full
  refill         text collate "C" not null default 'interval', -- how tokens come back
  plan           text collate "C",                             -- the plan that the bucket follows, or null
  provisioned    boolean not null default true,                -- false: created by its first request, can be swept
  overridden     boolean not null default false,               -- whether the state is under an override's limits
  anchor         bigint not null default tollgate.clock(),     -- nanoseconds since 1970
  full_at        bigint not null default 0,                    -- ticks: when the bucket is full again
  granted        bigint not null default 0,                    -- tokens granted since the creation of the row
  max_granted_wait   bigint not null default 0,                -- ticks: the longest wait that was granted
  burst          bigint not null,                              -- ticks from empty to full; a trigger sets these four
  step_ns        bigint not null,
  step_ticks     bigint not null,
  token_ticks    bigint not null,
  granted_requests bigint,                                     -- requests that the last batch granted: it returns them
  room           text default repeat(' ', 60)                  -- spaces; null from the first update on
)
with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

comment on table tollgate.token_buckets is 'Token buckets. Read them through tollgate.token_bucket_levels';

-- One row per plan: the quota of each bucket that follows the plan. A change applies from the next request on. Buckets keep
-- their available tokens, up to the new capacity.
--
--   insert into tollgate.token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update tollgate.token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. An override's mode precedes a plan's mode, and a plan's mode precedes token_mode.
create table if not exists tollgate.token_plans (
  name           text collate "C" primary key,                   -- 1 to 255 bytes
  capacity       numeric not null,                               -- tokens, a whole number; a bigint would round in silence
  refill_seconds numeric(19, 9) not null,                        -- from empty to full
  refill         text collate "C" not null default 'continuous', -- as in token_buckets
  mode           text collate "C",                               -- null: the mode of token_mode
  mode_reason    text,
  mode_until     timestamptz                                     -- null: until the mode is changed
);

-- The mode of every key whose plan and override set none. One row; if the row is missing, the mode is 'enforce'.
--
--   update tollgate.token_mode set mode = 'shadow', reason = 'incident 42', until = now() + interval '2 hours'
--    where one = true;
--
-- 'enforce' applies the limits. 'shadow' takes tokens, and grants requests that find too few, without a wait. 'off' grants
-- every request and touches no bucket. 'block' denies every request.
create table if not exists tollgate.token_mode (
  mode   text collate "C" not null default 'enforce',
  reason text,
  until  timestamptz, -- null: until the mode is changed
  one    boolean primary key default true check (one)
);

insert into tollgate.token_mode default values on conflict do nothing;

-- Limits or a mode that replace one key's own for a time, with a reason.
--
--   insert into tollgate.token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', now() + interval '1 day');
create table if not exists tollgate.token_overrides (
  id             text collate "C" primary key,                   -- the bucket; it need not exist yet
  capacity       numeric,                                        -- null: the limits do not change, only the mode does
  refill_seconds numeric(19, 9),
  refill         text collate "C" not null default 'continuous', -- as in token_buckets
  mode           text collate "C",                               -- null: the mode of the plan or of token_mode
  reason         text not null,
  expires_at     timestamptz                                     -- null: until the row is deleted; an expired row has no effect
);

-- One row per grant that tollgate must remember. A request with an id has a row, so that a retry is not charged twice. So does
-- a reservation that was cancelled or refunded, or that can still be settled.
--
-- Rows are deleted as fast as they are inserted: vacuum runs before a fiftieth of the table is dead.
create table if not exists tollgate.token_receipts (
  id         uuid not null,
  bucket     text collate "C" not null,
  cost       bigint not null,           -- tokens
  granted    bigint not null,           -- the bucket's granted after this grant
  scheduled_at    bigint not null,      -- when the tokens can be used, in nanoseconds since 1970
  state      text collate "C" not null, -- 'open', 'cancelled', 'refunded', 'settled'
  expires_at bigint not null,           -- in nanoseconds since 1970; an expired receipt can no longer be adjusted
  primary key (id, bucket)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The sweep asks whether a bucket has receipts that can still be settled. One bucket can have far more receipts that were
-- settled, refunded or cancelled.
create index if not exists token_receipts_open on tollgate.token_receipts (bucket, expires_at) where state = 'open';

-- One row per sliding window: the number of requests granted in each sub-interval that still counts. tollgate maintains the
-- rows: request_tokens_in_window creates them, and the sweep deletes a row that has been empty for a minute.
--
-- Pages keep free space for new versions of some rows, so that updates are heap-only: a row grows with the number of counts.
create table if not exists tollgate.token_windows (
  id            text collate "C" primary key,   -- 1 to 255 bytes
  max_requests          bigint not null,        -- the limits of the last counted request: requests in any interval
  interval_ns   bigint not null,
  resolution_ns bigint not null,
  ends          bigint[] not null default '{}', -- ends of the sub-intervals, oldest first, in nanoseconds since 1970
  counts        bigint[] not null default '{}', -- requests granted in each sub-interval
  granted       bigint not null default 0,      -- requests granted since the creation of the row
  last_wait     bigint not null default 0,      -- nanoseconds: wait of the last counted request
  since         bigint not null default 0,      -- nanoseconds since 1970: earlier requests can be missing in counts
  constraint id_has_1_to_255_bytes check (octet_length(id) between 1 and 255),
  constraint id_does_not_begin_with_u0001 check (left(id, 1) <> chr(1)) -- the receipts' buckets begin so: see take_window_v1
)
with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Denials per key and hour, as reported by the services that count them. A denial itself writes nothing. So the rows hold the
-- keys that each process denied most, up to its last report.
--
-- A process updates all of its rows at once. Pages keep room for a new version of each row, so that updates are heap-only.
create table if not exists tollgate.token_stats (
  hour           timestamptz not null,
  id             text collate "C" not null, -- the bucket, which can be deleted by now
  denied         bigint not null,           -- requests
  last_denied_at timestamptz not null,      -- when the last denial was reported
  primary key (hour, id),
  constraint id_has_1_to_255_bytes check (octet_length(id) between 1 and 255),
  constraint id_does_not_begin_with_u0001 check (left(id, 1) <> chr(1))
)
with (fillfactor = 50);

-- The position of the sweep, shared by all sessions. One row: without it, a step waits for another session's first step.
create table if not exists tollgate.token_sweep_position (
  swept_to text collate "C", -- a table and the row after which the next step starts; null: the sweep starts again
  one      boolean primary key default true check (one)
);

insert into tollgate.token_sweep_position default values on conflict do nothing;

-- Shows every row where an event trigger or an administrator enables row level security. Without a policy, it hides all rows
-- from operators. Where it is forced, it hides them from the routines too, which then grant blocked keys.
do $$
declare
  v_table record;
begin
  for v_table in
    select c.oid::regclass as name from pg_class c
     where c.relnamespace = 'tollgate'::regnamespace and c.relkind = 'r'
       and not exists (select from pg_policy p where p.polrelid = c.oid and p.polname = 'all_rows')
  loop
    execute format('create policy all_rows on %s using (true)', v_table.name);
  end loop;
end
$$;

insert into tollgate.migrations (version, name) values (1, '0001_tables') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- bucket_limits: converts a quota to a bucket's own units, or raises an error for invalid limits.
--
-- Arguments: p_whose           the bucket or plan, as errors name it
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
-- Result:    burst, step_ns, step_ticks, token_ticks: see token_buckets
-- Errors:    23514 invalid limits
-- Locks:     none
create or replace function tollgate.bucket_limits(
  p_whose text, p_capacity numeric, p_refill_seconds numeric, p_refill text,
  out burst bigint, out step_ns bigint, out step_ticks bigint, out token_ticks bigint)
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_refill_ns constant numeric := p_refill_seconds * 1000000000::numeric;
  v_error     text;
begin
  v_error := case
    when p_capacity is null or p_refill_seconds is null or p_refill is null
      then 'give capacity, refill_seconds and refill'
    when p_capacity < 1
      then pg_catalog.format('a capacity of %s grants nothing: give 1 or more', p_capacity)
    when p_capacity <> trunc(p_capacity)
      then pg_catalog.format('a capacity of %s is not a whole number', p_capacity)
    when p_capacity > 3155760000000000000
      then pg_catalog.format('a capacity of %s is too large: give 3155760000000000000 or less', p_capacity)
    when p_refill not in ('interval', 'calendar', 'continuous', 'once')
      then pg_catalog.format('refill is %L: give ''interval'', ''calendar'', ''continuous'' or ''once''', p_refill)
    -- Values that the tables' columns cannot hold, including NaN.
    when abs(p_refill_seconds) >= 10000000000::numeric
      then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    when p_refill = 'once'
      then null
    when p_refill_seconds <= 0::numeric
      then pg_catalog.format('refill_seconds is %s: give more than 0', p_refill_seconds)
    when p_refill_seconds > 3155760000::numeric
      then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    when v_refill_ns < p_capacity
      then pg_catalog.format('%s tokens in %s s are more than one a nanosecond: count in larger units, 1 for 1000',
                  p_capacity, p_refill_seconds)
  end;
  if v_error is null and p_refill = 'continuous' then
    step_ns := 1;
    step_ticks := 1;
    token_ticks := ceil(v_refill_ns / p_capacity);
    v_error := case
      when token_ticks::numeric * p_capacity > v_refill_ns * 1.001
        then pg_catalog.format('%s tokens in %s s, in whole nanoseconds a token, would be over 0.1 %% slower: '
                    'count in larger units, 1 for 1000', p_capacity, p_refill_seconds)
      when token_ticks::numeric * p_capacity > 3155760000000000000::numeric
        then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    end;
  elsif v_error is null then
    step_ns := case p_refill when 'once' then 9223372036854775807 else v_refill_ns end;
    step_ticks := case p_refill when 'once' then 1 else p_capacity end;
    token_ticks := 1;
  end if;
  if v_error is not null then
    raise exception 'tollgate: %: %', p_whose, v_error using errcode = 'check_violation';
  end if;
  burst := p_capacity * token_ticks;
end
$$;

-- whole_number(p_whose, p_capacity) -> the capacity as a bigint. Raises an error for a fraction, and for 2^53 or more, where
-- a double is not exact. p_whose: see bucket_limits.
create or replace function tollgate.whole_number(p_whose text, p_capacity double precision) returns bigint
language plpgsql immutable
as $$
begin
  if p_capacity <> trunc(p_capacity) then
    raise exception 'tollgate: %: a capacity of % is not a whole number', p_whose, p_capacity
      using errcode = 'check_violation';
  elsif abs(p_capacity) >= 9007199254740992 then
    raise exception 'tollgate: %: a capacity of % as double precision is not exact: pass a bigint', p_whose, p_capacity
      using errcode = 'check_violation';
  end if;
  return p_capacity;
end
$$;

-- bucket_clock(p_bucket, p_now in nanoseconds since 1970) -> the time of the bucket's own clock at p_now, in ticks.
create or replace function tollgate.bucket_clock(p_bucket tollgate.token_buckets, p_now bigint) returns bigint
language sql immutable
return (p_now - p_bucket.anchor) / p_bucket.step_ns * p_bucket.step_ticks;

-- bucket_instant(p_bucket, p_tick) -> the first instant at which the bucket's own clock shows p_tick, in nanoseconds since
-- 1970. If the clock never advances, the result is its start. The inverse of bucket_clock.
create or replace function tollgate.bucket_instant(p_bucket tollgate.token_buckets, p_tick bigint) returns bigint
language sql immutable
return p_bucket.anchor
       + case when p_bucket.step_ns < 9223372036854775807 or p_tick > 0
           then (p_tick / p_bucket.step_ticks + (p_tick % p_bucket.step_ticks > 0)::int) * p_bucket.step_ns
           else 0 end;

-- bucket_step(p_bucket, p_tick, p_clock) -> the first time of the bucket's own clock at or after p_tick, in ticks. The clock
-- now shows p_clock.
create or replace function tollgate.bucket_step(p_bucket tollgate.token_buckets, p_tick bigint, p_clock bigint) returns bigint
language sql immutable
as $$
  select case when p_tick <= p_clock then p_clock
           else (p_tick + p_bucket.step_ticks - 1) / p_bucket.step_ticks * p_bucket.step_ticks end
$$;

-- bucket_max_full_at(p_bucket) -> how far full_at can be ahead of the bucket's clock, in ticks: a burst, the longest granted
-- wait, and a second of difference between clocks. A larger distance means that the clock was set back.
create or replace function tollgate.bucket_max_full_at(p_bucket tollgate.token_buckets) returns bigint
language sql immutable
as $$
  select p_bucket.burst + p_bucket.max_granted_wait
         + (1000000000 / p_bucket.step_ns + 1) * p_bucket.step_ticks
$$;

-- bucket_affords(p_bucket, p_cost, p_min_remaining, p_now) -> how many consecutive requests for p_cost tokens the bucket grants at
-- p_now. p_cost + p_min_remaining must not exceed the capacity.
create or replace function tollgate.bucket_affords(
  p_bucket tollgate.token_buckets, p_cost bigint, p_min_remaining bigint, p_now bigint) returns bigint
language sql immutable
as $$
  select (p_bucket.burst - p_min_remaining * p_bucket.token_ticks
          - greatest(p_bucket.full_at - tollgate.bucket_clock(p_bucket, p_now), 0)) / (p_cost * p_bucket.token_ticks)
$$;

insert into tollgate.migrations (version, name) values (2, '0002_arithmetic') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- in_force(p_until, p_now in nanoseconds since 1970) -> whether an entry that ends at p_until is in force at p_now. null: no
-- end.
create or replace function tollgate.in_force(p_until timestamptz, p_now bigint) returns boolean
language sql immutable
return p_until is null or extract(epoch from p_until)::numeric * 1000000000::numeric > p_now::numeric;

-- end_ns(p_until) -> p_until in nanoseconds since 1970. null: no end, or an end after 2262, which no clock reaches.
create or replace function tollgate.end_ns(p_until timestamptz) returns bigint
language sql immutable
as $$
  select case when p_until < timestamptz '2262-01-01 00:00:00+00'
           then (extract(epoch from p_until)::numeric * 1000000000::numeric)::bigint end
$$;

-- incomplete_quota: raises the error of a request that names only a part of a quota.
--
-- Arguments: p_id        the bucket
--            p_capacity, p_refill_seconds, p_refill: as for take_v1
-- Result:    none
-- Errors:    22023 always
-- Locks:     none
create or replace function tollgate.incomplete_quota(p_id text, p_capacity bigint, p_refill_seconds numeric, p_refill text)
returns void
language plpgsql immutable
as $$
begin
  raise exception 'tollgate: bucket % was given capacity %, refill_seconds % and refill %: give all three, or none',
                  quote_nullable(left(p_id, 255)), coalesce(p_capacity::text, 'null'),
                  coalesce(p_refill_seconds::text, 'null'), coalesce(quote_literal(left(p_refill, 255)), 'null')
    using errcode = 'invalid_parameter_value';
end
$$;

-- rule_checks: trigger that refuses an invalid plan, mode or override.
--
-- Errors:    23514 invalid values
-- Locks:     none
create or replace function tollgate.rule_checks() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_name  text;
  v_error text;
begin
  v_error := case when new.mode not in ('enforce', 'shadow', 'off', 'block')
    then format('mode is %L: give ''enforce'', ''shadow'', ''off'' or ''block''', new.mode) end;
  if tg_table_name = 'token_plans' then
    v_name := 'plan ' || quote_nullable(left(new.name, 255));
    v_error := coalesce(v_error, case
      when (octet_length(new.name) between 1 and 255) is not true
        then format('its name has %s bytes: give 1 to 255', coalesce(octet_length(new.name), 0))
      when left(new.name, 1) = chr(1) then 'its name begins with U+0001: put something before it' end);
    perform tollgate.bucket_limits(v_name, new.capacity, new.refill_seconds, new.refill);
  elsif tg_table_name = 'token_overrides' then
    v_name := 'override of ' || quote_nullable(left(new.id, 255));
    v_error := coalesce(v_error, case
      when (octet_length(new.id) between 1 and 255) is not true
        then format('its id has %s bytes: give 1 to 255', coalesce(octet_length(new.id), 0))
      when left(new.id, 1) = chr(1) then 'its id begins with U+0001, which is reserved: use another prefix'
      when (new.capacity is null) <> (new.refill_seconds is null)
        then 'give both capacity and refill_seconds, or neither'
      when new.capacity is null and new.mode is null
        then 'it changes nothing: give capacity and refill_seconds, or a mode'
    end);
    if v_error is null and new.capacity is not null then
      perform tollgate.bucket_limits(v_name, new.capacity, new.refill_seconds, new.refill);
    end if;
  else
    v_name := 'token_mode';
  end if;
  if v_error is not null then
    raise exception 'tollgate: %: %', v_name, v_error using errcode = 'check_violation';
  end if;
  return new;
end
$$;

create or replace trigger plan_checks before insert or update on tollgate.token_plans
  for each row execute function tollgate.rule_checks();
create or replace trigger mode_checks before insert or update of mode on tollgate.token_mode
  for each row execute function tollgate.rule_checks();
create or replace trigger override_checks before insert or update on tollgate.token_overrides
  for each row execute function tollgate.rule_checks();

-- Also fires for rows that replication tools or data loaders write with session_replication_role = replica.
alter table tollgate.token_plans enable always trigger plan_checks;
alter table tollgate.token_mode enable always trigger mode_checks;
alter table tollgate.token_overrides enable always trigger override_checks;

-- settle: converts a bucket's state to other limits.
--
-- Arguments: p_id              the bucket
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
--            p_overridden      whether the limits are an override's
-- Result:    none
-- Errors:    23514 invalid limits
-- Locks:     the bucket's row; the clock is read after that
--
-- The bucket keeps its available tokens, including fractions, up to the new capacity. If the clock was set back, the bucket
-- becomes empty.
create or replace function tollgate.settle(
  p_id text, p_capacity numeric, p_refill_seconds numeric, p_refill text, p_overridden boolean)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_old       tollgate.token_buckets;
  v_new       tollgate.token_buckets;
  v_now       bigint;
  v_owed      bigint;
  v_available numeric := 0;  -- in ticks of the old limits; negative while grants wait for their tokens
  c_year      constant bigint := 31622400000000000;
begin
  select b.* into v_old from tollgate.token_buckets b where b.id = p_id for no key update;
  if not found then
    return;  -- The sweep deleted the row: the caller reads it again.
  end if;
  v_new := v_old;
  select t.* into v_new.burst, v_new.step_ns, v_new.step_ticks, v_new.token_ticks
    from tollgate.bucket_limits('bucket ' || quote_literal(p_id), p_capacity, p_refill_seconds, p_refill) t;
  if p_refill = 'calendar' then
    v_new.anchor := 0;
  end if;
  if v_old.overridden <> p_overridden
     and (v_new.burst, v_new.step_ns, v_new.step_ticks, v_new.token_ticks, v_new.anchor)
         = (v_old.burst, v_old.step_ns, v_old.step_ticks, v_old.token_ticks, v_old.anchor) then
    -- The override's limits equal the bucket's own: the state does not change.
    update tollgate.token_buckets b set overridden = p_overridden where b.id = p_id;
    return;
  end if;

  v_now := tollgate.clock();
  v_owed := v_old.full_at - tollgate.bucket_clock(v_old, v_now);
  if v_owed <= tollgate.bucket_max_full_at(v_old) then
    v_available := v_old.burst - greatest(v_owed, 0);
  end if;
  v_available := v_available * v_new.token_ticks;
  v_available := div(v_available - case when v_available < 0 then v_old.token_ticks - 1 else 0 end,
                     v_old.token_ticks);
  v_new.full_at := least(
    tollgate.bucket_clock(v_new, v_now) + v_new.burst - least(v_available, v_new.burst),
    tollgate.bucket_clock(v_new, v_now + c_year) + v_new.burst);

  update tollgate.token_buckets b
     set burst = v_new.burst,
         step_ns = v_new.step_ns,
         step_ticks = v_new.step_ticks,
         token_ticks = v_new.token_ticks,
         anchor = v_new.anchor,
         full_at = v_new.full_at,
         max_granted_wait = greatest(v_new.full_at - v_new.burst - tollgate.bucket_clock(v_new, v_now), 0),
         overridden = p_overridden
   where b.id = p_id;
end
$$;

-- apply_new_limits: trigger that sets the derived columns of a new bucket. After an UPDATE of a bucket's own limits, the
-- trigger converts the state to them, unless the state is under an override's limits.
--
-- Errors:    23514 invalid id or limits
-- Locks:     the bucket's row, which the statement already holds
create or replace function tollgate.apply_new_limits() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_limits record;
begin
  if (octet_length(new.id) between 1 and 255) is not true then
    raise exception 'tollgate: bucket %: its id has % bytes: give 1 to 255',
                    quote_nullable(left(new.id, 255)), coalesce(octet_length(new.id), 0)
      using errcode = 'check_violation';
  elsif left(new.id, 1) = chr(1) then
    raise exception 'tollgate: bucket %: its id begins with U+0001, which is reserved: use another prefix',
                    quote_literal(new.id)
      using errcode = 'check_violation';
  end if;
  if tg_op = 'INSERT' then
    select t.* into new.burst, new.step_ns, new.step_ticks, new.token_ticks
      from tollgate.bucket_limits('bucket ' || quote_nullable(new.id), new.capacity, new.refill_seconds, new.refill) t;
    -- The grid of periods contains the creation time and extends to the past, because clocks can be set back.
    new.anchor := case when new.refill = 'calendar' then 0 else new.anchor % new.step_ns end;
    return new;
  end if;
  v_limits := tollgate.bucket_limits('bucket ' || quote_nullable(new.id), new.capacity, new.refill_seconds, new.refill);
  if not new.overridden
     and (v_limits <> row(new.burst, new.step_ns, new.step_ticks, new.token_ticks)
          or new.refill = 'calendar' and new.anchor <> 0) then
    perform tollgate.settle(new.id, new.capacity, new.refill_seconds, new.refill, false);
  end if;
  return null;
end
$$;

-- Before an insert, but after an update: a trigger before updates would lock each row once more. make_batch sets the
-- derived columns of its new rows itself. No role has the privilege to set these columns.
create or replace trigger new_bucket before insert on tollgate.token_buckets
  for each row when (new.burst is null) execute function tollgate.apply_new_limits();

create or replace trigger new_limits after update of capacity, refill_seconds, refill on tollgate.token_buckets
  for each row execute function tollgate.apply_new_limits();

-- Also fires for rows that replication tools or data loaders write with session_replication_role = replica. With triggers
-- disabled, a row without its derived columns violates their not-null constraints.
alter table tollgate.token_buckets enable always trigger new_bucket, enable always trigger new_limits;

-- rule: reads the effective limits and mode of a bucket, and prepares the bucket for a decision. The routine creates a missing
-- bucket if its first request can do so, and converts the state to the limits of the override, of the plan or of the bucket.
--
-- Arguments: p_id, p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
--            p_now       nanoseconds since 1970
--            p_empties   whether to empty a bucket whose clock was set back; false if the request cannot take tokens
-- Result:    outcome     null: the bucket is ready; else 'unknown', 'unplanned' or 'conflict', as for take_v1
--            mode        'shadow', 'off' or 'block'; null: the tokens decide; 'off' creates and converts nothing
--            mode_until  end of the mode in nanoseconds since 1970; null: no end
--            changed     whether the bucket changed: the caller must read it and call rule again
--            capacity    tokens, of the effective limits
-- Errors:    22023 incomplete limits · 23514 invalid limits
-- Locks:     the bucket's row, if it is created or changed
create or replace function tollgate.rule(
  p_id text, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text, p_now bigint, p_empties boolean,
  out outcome text, out mode text, out mode_until bigint, out changed boolean, out capacity bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b        tollgate.token_buckets;
  g        tollgate.token_mode;
  o        tollgate.token_overrides;
  p        tollgate.token_plans;
  v_exists boolean;
  v_until  timestamptz;
  v_plan   text;
  v_quota  constant boolean := p_capacity is not null;
begin
  if (p_capacity is null) <> (p_refill_seconds is null)
     or (p_capacity is null) <> (p_refill is null) then
    perform tollgate.incomplete_quota(p_id, p_capacity, p_refill_seconds, p_refill);
  end if;
  -- Rounded like the column: a value with more decimals would always differ from its own bucket's.
  p_refill_seconds := round(p_refill_seconds, 9);
  changed := false;
  select t.* into b from tollgate.token_buckets t where t.id = p_id;
  v_exists := found;
  select t.* into g from tollgate.token_mode t;
  if tollgate.in_force(g.until, p_now) then
    mode := g.mode;
    v_until := g.until;
  end if;
  if not v_quota and coalesce(p_plan, b.plan) is not null then
    select t.* into p from tollgate.token_plans t where t.name = coalesce(p_plan, b.plan);
    if not found then
      outcome := 'unplanned';
      return;
    end if;
    if p.mode is not null and tollgate.in_force(p.mode_until, p_now) then
      mode := p.mode;
      v_until := p.mode_until;
    end if;
  end if;
  select t.* into o from tollgate.token_overrides t where t.id = p_id and tollgate.in_force(t.expires_at, p_now);
  if o.mode is not null then
    mode := o.mode;
    v_until := o.expires_at;
  end if;
  mode := nullif(mode, 'enforce');
  mode_until := tollgate.end_ns(v_until);
  p_capacity := coalesce(p_capacity, p.capacity);
  p_refill_seconds := coalesce(p_refill_seconds, p.refill_seconds);
  p_refill := coalesce(p_refill, p.refill);
  if p_refill = 'once' and b.refill = 'once' then
    p_refill_seconds := b.refill_seconds;  -- has no effect with 'once'
  end if;
  capacity := coalesce(o.capacity, p_capacity, b.capacity);
  v_plan := case when v_quota and b.provisioned then b.plan else p.name end;

  if mode = 'off' then
    return;
  elsif abs(p_refill_seconds) >= 10000000000 then
    -- Exceeds the column: bucket_limits raises the error that the trigger would raise.
    perform tollgate.bucket_limits('bucket ' || quote_nullable(left(p_id, 255)), p_capacity, p_refill_seconds, p_refill);
  elsif not v_exists and p_capacity is null then
    outcome := 'unknown';
  elsif not v_exists then
    insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor)
    values (p_id, p_capacity, p_refill_seconds, p_refill, p_plan, false, 0)
    on conflict do nothing;
    changed := true;
  elsif b.provisioned and (case when v_quota
          then (p_capacity, p_refill_seconds, p_refill) <> (b.capacity, b.refill_seconds, b.refill)
          else p_plan <> coalesce(b.plan, '') end) then
    outcome := 'conflict';
  elsif o.capacity is not null then
    select not b.overridden
           or (t.burst, t.step_ns, t.token_ticks) <> (b.burst, b.step_ns, b.token_ticks)
           or (o.refill = 'calendar' and b.anchor <> 0)
      into changed
      from tollgate.bucket_limits('override of ' || quote_literal(p_id), o.capacity, o.refill_seconds, o.refill) t;
    if changed then
      perform tollgate.settle(p_id, o.capacity, o.refill_seconds, o.refill, true);
    end if;
    -- The bucket's own limits do not change, but the bucket follows the plan that was named last.
    if p_capacity is not null and b.plan is distinct from v_plan then
      update tollgate.token_buckets t set plan = v_plan where t.id = p_id and t.plan is distinct from v_plan;
      changed := true;
    end if;
  elsif (p_capacity, p_refill_seconds, p_refill) <> (b.capacity, b.refill_seconds, b.refill)
        or (p_capacity is not null and b.plan is distinct from v_plan) then
    update tollgate.token_buckets t
       set capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill, plan = v_plan
     where t.id = p_id
       and ((p_capacity, p_refill_seconds, p_refill) <> (t.capacity, t.refill_seconds, t.refill)
            or t.plan is distinct from v_plan);
    changed := true;
  elsif b.overridden then
    perform tollgate.settle(p_id, b.capacity, b.refill_seconds, b.refill, false);
    changed := true;
  end if;
  if p_empties and outcome is null and not changed and mode is distinct from 'block'
     and b.full_at - tollgate.bucket_clock(b, p_now) > tollgate.bucket_max_full_at(b) then
    -- After a backward step of the clock, the bucket is emptied once: keys are denied for one refill at most.
    -- Reads the clock again: compared with p_now, grants during a wait for the row would look like a backward step.
    update tollgate.token_buckets t
       set full_at = tollgate.bucket_clock(t, tollgate.clock()) + t.burst, max_granted_wait = 0
     where t.id = p_id
       and t.full_at - tollgate.bucket_clock(t, tollgate.clock()) > tollgate.bucket_max_full_at(t);
    changed := true;
  end if;
end
$$;

insert into tollgate.migrations (version, name) values (3, '0003_rules') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- taken_v1: the result of take_v1. A named type, because each call would describe OUT parameters anew.
do $$
begin
  if to_regtype('tollgate.taken_v1') is null then
    create type tollgate.taken_v1 as (
      outcome     text,
      mode        text,
      now         bigint,
      scheduled_at     bigint,
      full_at     bigint,
      granted     bigint,
      burst       bigint,
      anchor      bigint,
      step_ns     bigint,
      step_ticks  bigint,
      token_ticks bigint
    );
  end if;
end
$$;

-- take_v1: decides one request exactly. All routines that take tokens are built on take_v1.
--
-- Arguments: p_id             the bucket
--            p_cost           tokens to take, 1 or more
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  tokens that must remain
--            p_capacity, p_refill_seconds, p_refill
--                             limits of a bucket that its first request creates, full and on the calendar's grid; or all null
--            p_plan           plan of such a bucket; null with null limits: the bucket must exist
--            p_receipt        id of the request: a retry with the id is charged once; null: no id
--            p_hold           nanoseconds for which the id is remembered
-- Result:    outcome          'granted' or 'denied'
--                             'never': p_cost + p_min_remaining exceeds the capacity
--                             'unknown': no such bucket · 'unplanned': no such plan
--                             'conflict': the bucket was provisioned with other limits or another plan
--                             'reused': the id belongs to another request
--            mode             the mode that decided instead of the tokens: 'shadow', 'off' or 'block'; else null
--            now              instant of the decision, in nanoseconds since 1970
--            scheduled_at     when granted tokens can be used; with 'block', the end of the mode; null: no end
--            full_at to token_ticks: the bucket's columns after the decision
-- Errors:    22023 arguments out of range, or incomplete limits · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, if the request is granted or has an id; then the receipt. A denied request without an id
--            writes nothing and waits for no lock, once the bucket exists.
--
-- Without an id, the first read is unlocked, so that a denial costs no write. The UPDATE checks the tokens again under the row's
-- lock. If they are gone or the limits changed, the attempt starts again. A decision counts from the moment its row is locked:
-- if the clock has advanced since, a grant moves to the later instant. No attempt that holds the lock starts again for time.
create or replace function tollgate.take_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_min_remaining bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text, p_receipt uuid, p_hold bigint)
returns tollgate.taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b         tollgate.token_buckets;
  r         tollgate.token_receipts;
  v_ruled   boolean;
  v_rule    record;
  v_now     bigint;
  v_scheduled_at bigint;
  v_clock   bigint;
  v_latest  bigint;  -- ticks: the latest full_at at which the tokens are available, now or within the wait
  v_outcome text;
  v_mode    text;
  v_wait    bigint;  -- p_max_wait, or 0 with mode 'shadow'
  c_stale   constant bigint := 2000000;
begin
  p_hold := least(greatest(coalesce(p_hold, 0), 0), 31622400000000000);
  if (p_cost between 1 and 4611686018427387903 and p_min_remaining between 0 and 4611686018427387903
      and p_max_wait between 0 and 31622400000000000
      and (p_capacity is null) = (p_refill_seconds is null) and (p_capacity is null) = (p_refill is null)) is not true then
    if (p_capacity is null) <> (p_refill_seconds is null)
       or (p_capacity is null) <> (p_refill is null) then
      perform tollgate.incomplete_quota(p_id, p_capacity, p_refill_seconds, p_refill);
    end if;
    raise exception 'tollgate: take_v1 needs a cost of 1 or more, a minimum remaining of 0 or more, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  -- Rounded like the column.
  p_refill_seconds := round(p_refill_seconds, 9);
  for v_attempt in 1 .. 100 loop
    if p_receipt is null then
      select t.* into b from tollgate.token_buckets t where t.id = p_id;
    else
      -- All routines lock the bucket before the receipt, so that they cannot deadlock.
      select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
    end if;
    -- Null if the row of token_mode is missing; null leads to the call of rule.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = p_id)
      into v_ruled from tollgate.token_mode g;
    -- Read after the row: other sessions can only have taken more since, so a denial holds at this instant.
    v_now := tollgate.clock();
    v_scheduled_at := v_now;
    -- A bucket under the requested limits needs no call of rule, unless a mode, an override or a plan applies.
    if not v_ruled and p_capacity is null and (p_plan is not null or b.plan is not null) then
      v_ruled := true;
      select p.mode is not null or b.plan is distinct from p.name
             or p.capacity <> b.capacity or p.refill_seconds <> b.refill_seconds or p.refill <> b.refill
        into v_ruled
        from tollgate.token_plans p where p.name = coalesce(p_plan, b.plan);
    end if;
    if b.id is null or v_ruled is not false or b.overridden or (p_capacity is not null and b.plan is not null)
       or p_capacity <> b.capacity or p_refill_seconds <> b.refill_seconds or p_refill <> b.refill then
      select t.* into v_rule
        from tollgate.rule(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, false) t;
      -- The bucket changed, or another session created it since the read.
      continue when v_rule.changed
                    or (b.id is null and v_rule.outcome is null and v_rule.mode is distinct from 'off');
      v_outcome := v_rule.outcome;
      v_mode := v_rule.mode;
      exit when v_outcome is not null;
      if v_mode = 'off' then
        v_outcome := 'granted';
        b.burst := coalesce(b.burst, v_rule.capacity);
        exit;
      end if;
    else
      v_mode := null;
    end if;
    v_wait := case v_mode when 'shadow' then 0 else p_max_wait end;

    if p_receipt is not null then
      delete from tollgate.token_receipts t where t.id = p_receipt and t.bucket = p_id and t.expires_at <= v_now;
      select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = p_id;
      if found then
        v_outcome := case when r.cost = p_cost and r.state <> 'cancelled' then 'granted' else 'reused' end;
        v_mode := null;
        b.granted := r.granted;
        v_scheduled_at := greatest(r.scheduled_at, v_now);
        exit;
      end if;
    end if;

    if v_mode = 'block' then
      v_outcome := 'denied';
      v_scheduled_at := v_rule.mode_until;
      exit;
    elsif p_cost > b.burst / b.token_ticks - p_min_remaining then
      v_outcome := 'never';
      exit;
    end if;

    v_clock := tollgate.bucket_clock(b, v_now);
    v_latest := tollgate.bucket_clock(b, v_now + v_wait) + b.burst - (p_cost + p_min_remaining) * b.token_ticks;
    if (b.full_at > v_latest or v_wait > 0) and b.full_at - v_clock > tollgate.bucket_max_full_at(b) then
      perform tollgate.rule(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, true);
      continue;
    elsif b.full_at > v_latest then
      v_outcome := case v_mode when 'shadow' then 'granted' else 'denied' end;
      exit;
    end if;

    if v_wait = 0 then
      update tollgate.token_buckets t
         set room = null,
             granted = t.granted + p_cost,
             full_at = greatest(t.full_at, v_clock) + p_cost * b.token_ticks
       where t.id = p_id and t.full_at <= v_latest
         and t.anchor = b.anchor and t.burst = b.burst and t.step_ns = b.step_ns and t.token_ticks = b.token_ticks
      returning t.full_at, t.granted into b.full_at, b.granted;
    else
      -- With a wait: all tokens belong to the step in which the request acts.
      update tollgate.token_buckets t
         set room = null,
             granted = t.granted + p_cost,
             max_granted_wait = greatest(
               t.max_granted_wait,
               tollgate.bucket_step(t, t.full_at + (p_cost + p_min_remaining) * t.token_ticks - t.burst, v_clock) - v_clock),
             full_at = greatest(
               t.full_at,
               tollgate.bucket_step(t, t.full_at + (p_cost + p_min_remaining) * t.token_ticks - t.burst, v_clock))
               + p_cost * t.token_ticks
       where t.id = p_id and t.full_at <= v_latest
         and t.anchor = b.anchor and t.burst = b.burst and t.step_ns = b.step_ns and t.token_ticks = b.token_ticks
      returning t.full_at, t.granted into b.full_at, b.granted;
    end if;

    if found then
      v_outcome := 'granted';
      v_mode := null;
      if p_receipt is null and tollgate.clock() - v_now > c_stale then
        v_now := tollgate.clock();
        if b.full_at < tollgate.bucket_clock(b, v_now) + p_cost * b.token_ticks then
          b.full_at := tollgate.bucket_clock(b, v_now) + p_cost * b.token_ticks;
          update tollgate.token_buckets t set full_at = b.full_at where t.id = p_id;
        end if;
      end if;
      v_scheduled_at := v_now;
      if v_wait > 0 and b.full_at + p_min_remaining * b.token_ticks - b.burst > tollgate.bucket_clock(b, v_now) then
        v_scheduled_at := greatest(v_now, tollgate.bucket_instant(b, b.full_at + p_min_remaining * b.token_ticks - b.burst));
      end if;
      if p_receipt is not null then
        insert into tollgate.token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
        values (p_receipt, p_id, p_cost, b.granted, v_scheduled_at, 'open', v_now + p_hold);
      end if;
      exit;
    end if;
  end loop;

  if v_outcome is null then
    raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
      using errcode = 'serialization_failure', hint = 'Call again.';
  end if;
  return (v_outcome, v_mode, v_now, v_scheduled_at, b.full_at, b.granted, b.burst, b.anchor, b.step_ns, b.step_ticks,
          b.token_ticks)::tollgate.taken_v1;
end
$$;

insert into tollgate.migrations (version, name) values (4, '0004_take') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- answers_v1: the results of requests with the same outcome. Building, sending and reading one row per request takes a third as
-- long as the decision.
do $$
begin
  if to_regtype('tollgate.answers_v1') is null then
    create type tollgate.answers_v1 as (
      entries     bigint[],  -- positions of the requests among those of the call, from 1
      -- The others have one element per entry, or one that stands for all entries.
      times       bigint[],  -- number of equal requests of each entry; the state is that after the last one
      outcome     text,      -- the columns of taken_v1
      mode        text,
      now         bigint[],
      scheduled_at     bigint[],  -- null: the values of now
      full_at     bigint[],
      granted     bigint[],
      burst       bigint[],
      anchor      bigint[],
      step_ns     bigint[],
      step_ticks  bigint[],
      token_ticks bigint[]
    );
  end if;
end
$$;

-- answers_of(p_entry, p_times, p_taken) -> answers_v1 of one entry.
create or replace function tollgate.answers_of(p_entry bigint, p_times bigint, p_taken tollgate.taken_v1)
returns tollgate.answers_v1
language sql immutable
as $$
  select array[p_entry], array[p_times], p_taken.outcome, p_taken.mode, array[p_taken.now], array[p_taken.scheduled_at],
         array[p_taken.full_at], array[p_taken.granted], array[p_taken.burst], array[p_taken.anchor],
         array[p_taken.step_ns], array[p_taken.step_ticks], array[p_taken.token_ticks]
$$;

-- one_if_equal(p_values) -> p_values with one element if all are equal.
create or replace function tollgate.one_if_equal(p_values bigint[]) returns bigint[]
language sql immutable
return case when p_values[1] = all (p_values) then p_values[1:1] else p_values end;

-- value_at(p_values, p_nth) -> the value of the entry: the only one, or that at its position.
create or replace function tollgate.value_at(p_values bigint[], p_nth bigint) returns bigint
language sql immutable
return p_values[case when cardinality(p_values) = 1 then 1 else p_nth end];

-- shortened(p_answers) -> p_answers with one element for the usually equal values of all entries. It takes less time to send.
create or replace function tollgate.shortened(p_answers tollgate.answers_v1) returns tollgate.answers_v1
language sql immutable
return row(p_answers.entries, tollgate.one_if_equal(p_answers.times), p_answers.outcome, p_answers.mode, p_answers.now,
           p_answers.scheduled_at, p_answers.full_at, p_answers.granted, tollgate.one_if_equal(p_answers.burst),
           tollgate.one_if_equal(p_answers.anchor), tollgate.one_if_equal(p_answers.step_ns),
           tollgate.one_if_equal(p_answers.step_ticks), tollgate.one_if_equal(p_answers.token_ticks))::tollgate.answers_v1;

-- answers_each(p_answers) -> one row per entry of answers_v1.
create or replace function tollgate.answers_each(p_answers tollgate.answers_v1)
returns table (entry bigint, times bigint, taken tollgate.taken_v1)
language sql immutable
as $$
  select i.entry, tollgate.value_at(p_answers.times, i.nth),
         (p_answers.outcome, p_answers.mode, tollgate.value_at(p_answers.now, i.nth),
          tollgate.value_at(coalesce(p_answers.scheduled_at, p_answers.now), i.nth),
          tollgate.value_at(p_answers.full_at, i.nth), tollgate.value_at(p_answers.granted, i.nth),
          tollgate.value_at(p_answers.burst, i.nth), tollgate.value_at(p_answers.anchor, i.nth),
          tollgate.value_at(p_answers.step_ns, i.nth), tollgate.value_at(p_answers.step_ticks, i.nth),
          tollgate.value_at(p_answers.token_ticks, i.nth))::tollgate.taken_v1
    from unnest(p_answers.entries) with ordinality i (entry, nth)
$$;

-- follows_plan(p_bucket) -> whether the bucket has the limits of its plan, and the plan has no mode.
create or replace function tollgate.follows_plan(p_bucket tollgate.token_buckets) returns boolean
language sql stable
return exists (
  select from tollgate.token_plans p
   where p.name = p_bucket.plan and p.mode is null and p.capacity = p_bucket.capacity
     and p.refill_seconds = p_bucket.refill_seconds and p.refill = p_bucket.refill);

-- has_limits(p_bucket, p_capacity, p_refill_seconds, p_refill, p_plan) -> whether the state is under these limits, which are
-- those of p_plan unless p_plan is null. All null: under the bucket's own limits, or those of its plan.
create or replace function tollgate.has_limits(
  p_bucket tollgate.token_buckets, p_capacity numeric, p_refill_seconds numeric, p_refill text, p_plan text) returns boolean
language sql stable
return not p_bucket.overridden
       and case when p_capacity is not null
                  then p_bucket.plan is not distinct from p_plan and p_bucket.capacity = p_capacity
                       and p_bucket.refill_seconds = p_refill_seconds and p_bucket.refill = p_refill
                when p_refill_seconds is null and p_refill is null and p_plan is null
                  then p_bucket.plan is null or tollgate.follows_plan(p_bucket)
                else false end;

-- decided: the result of grant_batch, deny_batch and make_batch.
do $$
begin
  if to_regtype('tollgate.decided') is null then
    create type tollgate.decided as (
      answers tollgate.answers_v1,  -- the entries with an answer: number of requests, and the state after the last one
      partial bigint[],             -- the entries among them with fewer answers than requests; null: none
      late    bigint[]              -- the entries to compute at a later instant, because their rows were locked more than
                                    -- 2 ms after theirs, or were created and are empty; null: none
    );
  end if;
end
$$;

-- grant_batch: grants requests for different buckets that only the tokens decide, as many as each bucket affords.
--
-- Arguments: p_ids, p_times, p_costs, p_min_remainings, p_rules: the entries, as for take_batch_v1
--            p_capacities, p_refill_seconds, p_refills, p_plans
--                         the rules, as for has_limits
--            p_overrides  whether any override exists
--            p_done       numbers of entries to skip
-- Result:    see decided. An entry that is not listed was denied or needs another routine
-- Errors:    none
-- Locks:     the rows of granted requests, in the order of p_ids: the settings of the routine forbid plans with another order
create or replace function tollgate.grant_batch(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_rules bigint[], p_capacities numeric[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_overrides boolean, p_done bigint[])
returns tollgate.decided
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_decided tollgate.decided;
begin
  -- One statement, which computes from the locked row: values read before the lock would grant too much. So SET repeats the
  -- number of grants. The clock is read for each row when the plan reaches the row, so that the duration of the statement moves
  -- no instant.
  with chosen as (
    update tollgate.token_buckets t
       set room = null,
           granted_requests = least(u.times, tollgate.bucket_affords(t, u.cost, u.keep, c.now)),
           granted = t.granted + u.cost * least(u.times, tollgate.bucket_affords(t, u.cost, u.keep, c.now)),
           full_at = greatest(t.full_at, tollgate.bucket_clock(t, c.now))
                     + u.cost * t.token_ticks * least(u.times, tollgate.bucket_affords(t, u.cost, u.keep, c.now))
      from (
             -- The planner expects one row of this limit. Otherwise a plan that was made for a few buckets could begin with all
             -- buckets, and be kept while their number grows.
             select * from unnest(p_ids, p_times, p_costs, p_min_remainings, p_rules) with ordinality
                        as i (id, times, cost, keep, rule, place)
              limit cardinality(p_ids)) u
           cross join lateral (select tollgate.clock() as now where u.id is not null) c
     where t.id = u.id
       and tollgate.has_limits(t, p_capacities[u.rule], p_refill_seconds[u.rule], p_refills[u.rule], p_plans[u.rule])
       and (not p_overrides or not exists (select from tollgate.token_overrides o where o.id = u.id))
       and u.place not in (select d.place from unnest(p_done) d (place))
       and case when u.cost <= t.burst / t.token_ticks - u.keep  -- within the capacity
             then tollgate.bucket_affords(t, u.cost, u.keep, c.now) >= 1 end
    returning u.place, u.times as wanted, t.granted_requests as times,
              tollgate.clock() - c.now > 2000000 as late, c.now, t.full_at, t.granted, t.burst, t.anchor, t.step_ns,
              t.step_ticks, t.token_ticks)
  select (array_agg(d.place), array_agg(d.times), 'granted', null, array_agg(d.now), null, array_agg(d.full_at),
          array_agg(d.granted), array_agg(d.burst), array_agg(d.anchor), array_agg(d.step_ns), array_agg(d.step_ticks),
          array_agg(d.token_ticks))::tollgate.answers_v1,
         array_agg(d.place) filter (where d.times < d.wanted), array_agg(d.place) filter (where d.late)
    into v_decided
    from chosen d;
  return v_decided;
end
$$;

-- deny_batch: finds the requests that the tokens deny. Writes nothing and waits for no lock.
--
-- Arguments: as for grant_batch
-- Result:    see decided: the denied entries, with all of their requests
-- Errors:    none
-- Locks:     none
create or replace function tollgate.deny_batch(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_rules bigint[], p_capacities numeric[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_overrides boolean, p_done bigint[])
returns tollgate.decided
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set jit = off
as $$
declare
  v_decided tollgate.decided;
begin
  -- Each clock is read after its row: other sessions can only have taken more since, so a denial holds at this instant.
  select (array_agg(u.place), array_agg(u.times), 'denied', null, array_agg(c.now), null, array_agg(t.full_at),
          array_agg(t.granted), array_agg(t.burst), array_agg(t.anchor), array_agg(t.step_ns), array_agg(t.step_ticks),
          array_agg(t.token_ticks))::tollgate.answers_v1,
         null, null
    into v_decided
    from (
      -- As in grant_batch.
      select * from unnest(p_ids, p_times, p_costs, p_min_remainings, p_rules) with ordinality
                 as i (id, times, cost, keep, rule, place)
       limit cardinality(p_ids)) u
    join tollgate.token_buckets t on t.id = u.id
   cross join lateral (select tollgate.clock() as now where t.id is not null) c
   where tollgate.has_limits(t, p_capacities[u.rule], p_refill_seconds[u.rule], p_refills[u.rule], p_plans[u.rule])
     and (not p_overrides or not exists (select from tollgate.token_overrides o where o.id = u.id))
     and u.place not in (select d.place from unnest(p_done) d (place))
     -- False if the clock was set back.
     and t.full_at - tollgate.bucket_clock(t, c.now) <= tollgate.bucket_max_full_at(t)
     and case when u.cost <= t.burst / t.token_ticks - u.keep  -- within the capacity
           then tollgate.bucket_affords(t, u.cost, u.keep, c.now) < 1 end;
  return v_decided;
end
$$;

-- make_batch: creates the missing buckets of requests, and grants what a full bucket holds.
--
-- Arguments: as for grant_batch
-- Result:    see decided. An entry that is not listed has a bucket by now, or cannot create it
-- Errors:    23514 invalid limits
-- Locks:     the rows that the routine creates, in id order
create or replace function tollgate.make_batch(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_rules bigint[], p_capacities numeric[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_overrides boolean, p_done bigint[])
returns tollgate.decided
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_nestloop = off  -- the generic plan expects few entries to join
set jit = off
as $$
declare
  v_decided tollgate.decided;
begin
  with new as materialized (
    select distinct on (u.id collate "C")
           u.id, u.place, u.cost, u.rule, u.times as wanted,
           least(u.times, (p_capacities[u.rule]::bigint - u.keep) / u.cost) as times
      from unnest(p_ids, p_times, p_costs, p_min_remainings, p_rules) with ordinality
           as u (id, times, cost, keep, rule, place)
     where octet_length(u.id) between 1 and 255 and left(u.id, 1) <> chr(1) and u.cost <= p_capacities[u.rule] - u.keep
       and p_refill_seconds[u.rule] is not null and p_refills[u.rule] is not null
       and u.place not in (select d.place from unnest(p_done) d (place))
       and (not p_overrides or not exists (select from tollgate.token_overrides o where o.id = u.id))
       and (select t.id from tollgate.token_buckets t where t.id = u.id) is null  -- a join would read the whole table
     order by u.id collate "C", u.place
  ), limits as materialized (  -- once for each rule
    select n.rule, x.burst, x.step_ns, x.step_ticks, x.token_ticks
      from (select m.rule, min(m.id) as id from new m group by m.rule) n
     cross join lateral tollgate.bucket_limits(
       'bucket ' || quote_literal(n.id), p_capacities[n.rule], round(p_refill_seconds[n.rule], 9), p_refills[n.rule]) x
  ), made as (
    insert into tollgate.token_buckets as t
      (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted, burst, step_ns, step_ticks,
       token_ticks)
    select n.id, p_capacities[n.rule], p_refill_seconds[n.rule], p_refills[n.rule], p_plans[n.rule], false, 0,
           c.now / n.step_ns * n.step_ticks + n.times * n.cost * n.token_ticks, n.times * n.cost, n.burst, n.step_ns,
           n.step_ticks, n.token_ticks
      from (select n.*, l.burst, l.step_ns, l.step_ticks, l.token_ticks
              from new n join limits l on l.rule = n.rule order by n.id collate "C") n
     -- Read for each row after the sort, when the row is inserted.
     cross join lateral (select tollgate.clock() as now where n.id is not null) c
    on conflict do nothing
    returning t.*, tollgate.clock() as now)
  select (array_agg(n.place), array_agg(n.times), 'granted', null, array_agg(m.now), null, array_agg(m.full_at),
          array_agg(m.granted), array_agg(m.burst), array_agg(m.anchor), array_agg(m.step_ns), array_agg(m.step_ticks),
          array_agg(m.token_ticks))::tollgate.answers_v1,
         array_agg(n.place) filter (where n.times < n.wanted),
         -- Entries that waited for another session's row, whose insert was rolled back, and those that emptied their bucket.
         array_agg(n.place) filter (
           where n.times < n.wanted
                 or (m.now - 2000000) / m.step_ns * m.step_ticks > m.full_at - m.granted * m.token_ticks)
    into v_decided
    from made m
    join new n on n.id = m.id;
  return v_decided;
end
$$;

-- take_each_v1: decides several requests one by one, with everything that take_v1 offers. A request that is refused does not
-- affect the others, but an error fails the call.
--
-- Arguments: p_entries  the numbers of the requests in the answers
--            p_times    number of equal requests of each entry, decided one after the other
--            the others: as for take_v1, one array each, all of one length
-- Result:    rows that together answer all requests; the answers to one entry are in the order of the rows
-- Errors:    as for take_v1
--            22023 p_times below 1, or not one for each id
--            55P03 the call names several buckets, and one was locked for longer than 100 ms: nothing was taken
-- Locks:     as for take_v1, in id order. Requests for one bucket are decided in the order given
create or replace function tollgate.take_each_v1(
  p_entries bigint[], p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_max_waits bigint[],
  p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[], p_receipts uuid[], p_holds bigint[])
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_lock    text := current_setting('lock_timeout');
  v_limited boolean := p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms');
  v_nth     bigint;
  v_left    bigint;
  v_times   bigint;
  v_taken   tollgate.taken_v1;
begin
  if (1 <= all (p_times) and cardinality(p_ids) = cardinality(p_times)) is not true then
    raise exception 'tollgate: take_each_v1 needs times of 1 or more for every id' using errcode = 'invalid_parameter_value';
  end if;
  if v_limited then
    perform set_config('lock_timeout', '100ms', true);
  end if;
  for v_nth in select i.nth from unnest(p_ids) with ordinality i (id, nth) order by i.id collate "C", i.nth loop
    v_left := p_times[v_nth];
    while v_left > 0 loop
      v_taken := tollgate.take_v1(
        p_ids[v_nth], p_costs[v_nth], p_max_waits[v_nth], p_min_remainings[v_nth], p_capacities[v_nth],
        p_refill_seconds[v_nth], p_refills[v_nth], p_plans[v_nth], p_receipts[v_nth], p_holds[v_nth]);
      -- If nothing was taken, or the request has an id, the equal requests that follow get the same answer.
      v_times := case when v_taken.outcome = 'granted' and v_taken.mode is null and p_receipts[v_nth] is null
                   then 1 else v_left end;
      v_left := v_left - v_times;
      return next tollgate.answers_of(p_entries[v_nth], v_times, v_taken);
    end loop;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

-- take_batch_v1: decides several requests in one call, each by itself. None waits or has an id.
--
-- Arguments: p_ids             the buckets, in order, each once
--            p_times           number of equal requests of each entry, decided one after the other
--            p_costs, p_min_remainings: of each entry, as for take_v1
--            p_rules           number of the rule of each entry, from 1
--            p_capacities, p_refill_seconds, p_refills, p_plans: the rules, as for take_v1; a null array: all null
-- Result:    rows that together answer all requests, with the numbers of the entries, from 1; the answers to one entry are in
--            the order of the rows
-- Errors:    as for take_v1
--            22023 times below 1, an id is null, or lengths that differ
--            55P03 one of several buckets was locked for longer than 100 ms: nothing was taken
-- Locks:     in id order the rows of granted requests, then in id order the rows that the call creates, then in id order the
--            rows that take_v1 decides. Two calls can deadlock only if a later row of one is an earlier one of the other
--
-- Three statements decide: one grants, one denies and one creates buckets. The first bucket tells in which order they run,
-- because the buckets of a batch are usually alike. take_v1 decides the rest: small batches, buckets with a mode, an override or
-- other limits, and buckets that changed between the statements. After a wait for a lock, one statement moves the grants to the
-- later instant, and grants what the locked rows afford then.
create or replace function tollgate.take_batch_v1(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[],
  p_rules bigint[], p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  v_lock       text := current_setting('lock_timeout');
  v_limited    boolean := cardinality(p_ids) > 1 and (v_lock = '0' or v_lock::interval > interval '100 ms');
  c_few        constant bigint := 6;           -- up to this many requests, take_v1 is faster than the statements for many rows
  v_capacities numeric[] := p_capacities;      -- the limits of each rule
  v_seconds    numeric[] := p_refill_seconds;
  v_refills    text[] := p_refills;
  v_together   boolean;                        -- whether the requests are many, and no mode applies to all buckets
  v_overrides  boolean;                        -- whether any override exists
  b            tollgate.token_buckets;         -- the first bucket
  v_steps      text[] := '{}';
  v_step       text;
  v_part       tollgate.decided;
  v_answers    tollgate.answers_v1;
  v_now        bigint;
  v_done       bigint[] := '{}';               -- the entries that are answered
  v_left       bigint[];                       -- the entries for take_v1, with the number of requests of each
  v_rest       bigint[];
begin
  if (1 <= all (p_times) and 1 <= all (p_costs) and 4611686018427387903 >= all (p_costs)
      and 0 <= all (p_min_remainings) and 4611686018427387903 >= all (p_min_remainings) and array_position(p_ids, null) is null
      and cardinality(p_ids) = all (array[cardinality(p_times), cardinality(p_costs), cardinality(p_min_remainings),
                                          cardinality(p_rules)])) is not true then
    raise exception 'tollgate: take_batch_v1 needs times and costs of 1 or more, minimum remainings of 0 or more, and one of '
                    'each for every id' using errcode = 'invalid_parameter_value';
  end if;
  if v_limited then
    perform set_config('lock_timeout', '100ms', true);
  end if;
  select not exists (select from tollgate.token_mode g where g.mode <> 'enforce')
         and (cardinality(p_ids) > c_few or (select sum(t.times) from unnest(p_times) t (times)) > c_few),
         exists (select from tollgate.token_overrides)
    into v_together, v_overrides;

  if v_together then
    if array_remove(p_plans, null) <> '{}' then
      -- With null limits for an unknown plan, for a plan with a mode, and beside limits: then take_v1 decides.
      select array_agg(case when r.plan is null then r.capacity else p.capacity end order by r.nth),
             array_agg(case when r.plan is null then r.seconds else p.refill_seconds end order by r.nth),
             array_agg(case when r.plan is null then r.refill else p.refill end order by r.nth)
        into v_capacities, v_seconds, v_refills
        from unnest(v_capacities, v_seconds, v_refills, p_plans) with ordinality r (capacity, seconds, refill, plan, nth)
        left join tollgate.token_plans p
          on p.name = r.plan and p.mode is null and num_nonnulls(r.capacity, r.seconds, r.refill) = 0;
    end if;
    select t.* into b from tollgate.token_buckets t where t.id = p_ids[1];
    -- Rows that exist are locked before others are created, as in every call. A denial locks nothing.
    v_steps := case
      when b.id is null
        then array['grant', 'make', 'deny']
      when case when p_costs[1] <= b.burst / b.token_ticks - p_min_remainings[1]
             then tollgate.bucket_affords(b, p_costs[1], p_min_remainings[1], tollgate.clock()) < 1 end
        then array['deny', 'grant', 'make']
      else array['grant', 'deny', 'make'] end;
  end if;

  foreach v_step in array v_steps loop
    exit when cardinality(v_done) = cardinality(p_ids);
    if v_step = 'grant' then
      v_part := tollgate.grant_batch(p_ids, p_times, p_costs, p_min_remainings, p_rules, v_capacities, v_seconds, v_refills,
                                     p_plans, v_overrides, v_done);
    elsif v_step = 'deny' then
      v_part := tollgate.deny_batch(p_ids, p_times, p_costs, p_min_remainings, p_rules, v_capacities, v_seconds, v_refills,
                                    p_plans, v_overrides, v_done);
    else
      v_part := tollgate.make_batch(p_ids, p_times, p_costs, p_min_remainings, p_rules, v_capacities, v_seconds, v_refills,
                                    p_plans, v_overrides, v_done);
    end if;
    v_answers := v_part.answers;
    continue when v_answers.entries is null;
    v_done := v_done || v_answers.entries;

    if v_part.late is not null then
      v_now := tollgate.clock();
      with moved as (
        update tollgate.token_buckets t
           set (granted_requests, granted, full_at) = (
                 select m.times, t.granted + (m.times - d.times) * d.cost,
                        greatest(t.full_at, tollgate.bucket_clock(t, v_now) + d.times * d.cost * t.token_ticks)
                        + (m.times - d.times) * d.cost * t.token_ticks
                   from (select least(d.wanted, d.times + tollgate.bucket_affords(t, d.cost, d.keep, v_now),
                                      (t.burst / t.token_ticks - d.keep) / d.cost) as times) m)
          from (select u.place, u.times, p_times[u.place] as wanted, p_costs[u.place] as cost,
                       p_min_remainings[u.place] as keep
                  from unnest(v_answers.entries, v_answers.times) u (place, times)
                 where u.place = any (v_part.late)) d
         where t.id = p_ids[d.place]
           and (d.times < d.wanted or t.full_at < tollgate.bucket_clock(t, v_now) + d.times * d.cost * t.token_ticks)
        returning d.place, t.granted_requests as times, t.full_at, t.granted)
      select array_agg(coalesce(m.times, d.times) order by d.nth),
             array_agg(case when d.place = any (v_part.late) then v_now else d.now end order by d.nth),
             array_agg(coalesce(m.full_at, d.full_at) order by d.nth),
             array_agg(coalesce(m.granted, d.granted) order by d.nth)
        into v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted
        from unnest(v_answers.entries, v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted) with ordinality
             as d (place, times, now, full_at, granted, nth)
        left join moved m on m.place = d.place;
    end if;
    return next tollgate.shortened(v_answers);

    if v_part.partial is not null then
      return query
        select array_agg(d.place), array_agg(p_times[d.place] - d.times), 'denied', null, array_agg(d.now),
               null::bigint[], array_agg(d.full_at), array_agg(d.granted), array_agg(d.burst), array_agg(d.anchor),
               array_agg(d.step_ns), array_agg(d.step_ticks), array_agg(d.token_ticks)
          from unnest(v_answers.entries, v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted,
                      v_answers.burst, v_answers.anchor, v_answers.step_ns, v_answers.step_ticks, v_answers.token_ticks)
               as d (place, times, now, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks)
         where d.times < p_times[d.place]
        having count(*) > 0;
    end if;
  end loop;

  if cardinality(v_done) < cardinality(p_ids) then
    select array_agg(u.place), array_agg(u.times)
      into v_left, v_rest
      from unnest(p_times) with ordinality u (times, place) where u.place <> all (v_done);
    return query
      select t.*
        from (select array_agg(p_ids[l.place]) as ids, array_agg(p_costs[l.place]) as costs,
                     array_agg(p_min_remainings[l.place]) as keeps, array_agg(p_capacities[p_rules[l.place]]) as capacities,
                     array_agg(p_refill_seconds[p_rules[l.place]]) as seconds,
                     array_agg(p_refills[p_rules[l.place]]) as refills, array_agg(p_plans[p_rules[l.place]]) as plans,
                     array_agg(0::bigint) as zeros
                from unnest(v_left) l (place)) l
       cross join lateral tollgate.take_each_v1(
         v_left, l.ids, v_rest, l.costs, l.keeps, l.zeros, l.capacities, l.seconds, l.refills, l.plans, null, l.zeros) t;
  end if;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

-- take_equal_v1: decides equal requests for one bucket, one after the other, in one update of its row.
--
-- Arguments: p_id, p_cost, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
--            p_times: number of requests, 1 or more
-- Result:    as for take_batch_v1, with one entry
-- Errors:    as for take_v1
-- Locks:     the bucket's row, if any request is granted
--
-- Several times faster than a batch of one entry, because a statement for many rows takes longer to start than to change a row.
-- All requests are granted if the locked row affords them, and fewer if the row is unchanged since the read. Otherwise the
-- attempt starts again. take_each_v1 decides buckets with a mode, an override or other limits.
create or replace function tollgate.take_equal_v1(
  p_id text, p_cost bigint, p_min_remaining bigint, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text,
  p_times bigint)
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b          tollgate.token_buckets;
  v_capacity numeric := p_capacity;  -- the limits of the request, or of its plan
  v_seconds  numeric := round(p_refill_seconds, 9);
  v_refill   text := p_refill;
  v_ruled    boolean;
  v_now      bigint;
  v_clock    bigint;
  v_granted  bigint;
  v_more     bigint;
  v_full_at  bigint;
  c_stale    constant bigint := 2000000;
begin
  for v_attempt in 1 .. 3 loop
    exit when (p_cost between 1 and 4611686018427387903 and p_min_remaining between 0 and 4611686018427387903
               and p_times >= 1 and num_nulls(p_capacity, p_refill_seconds, p_refill) in (0, 3)) is not true;
    -- Null if the row of token_mode is missing; null leads to take_each_v1.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = p_id)
      into v_ruled from tollgate.token_mode g;
    exit when v_ruled is not false;
    if p_plan is not null then
      exit when p_capacity is not null;
      select p.capacity, p.refill_seconds, p.refill into v_capacity, v_seconds, v_refill
        from tollgate.token_plans p where p.name = p_plan and p.mode is null;
      exit when not found;
    end if;
    select t.* into b from tollgate.token_buckets t where t.id = p_id and not t.overridden;
    v_now := tollgate.clock();  -- read after the row, as in take_v1
    if b.id is null and v_capacity is not null then
      perform from tollgate.rule(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, false);
      continue;
    end if;
    exit when b.id is null;
    -- has_limits in the query would prepare a search for the plan each time.
    if v_capacity is not null then
      exit when b.plan is distinct from p_plan or (b.capacity, b.refill_seconds, b.refill) <> (v_capacity, v_seconds, v_refill);
    elsif b.plan is not null then
      exit when not tollgate.follows_plan(b);
    end if;
    v_clock := tollgate.bucket_clock(b, v_now);
    exit when p_cost > b.burst / b.token_ticks - p_min_remaining or b.full_at - v_clock > tollgate.bucket_max_full_at(b);
    v_granted := least(p_times, tollgate.bucket_affords(b, p_cost, p_min_remaining, v_now));
    if v_granted < 1 then
      return next tollgate.answers_of(1, p_times, ('denied', null, v_now, v_now, b.full_at, b.granted, b.burst, b.anchor,
                                                   b.step_ns, b.step_ticks, b.token_ticks));
      return;
    end if;
    update tollgate.token_buckets t
       set room = null,
           granted = t.granted + v_granted * p_cost,
           full_at = greatest(t.full_at, v_clock) + v_granted * p_cost * b.token_ticks
     where t.id = p_id
       and case when (t.anchor, t.burst, t.step_ns, t.token_ticks) = (b.anchor, b.burst, b.step_ns, b.token_ticks)
             then t.full_at = b.full_at
                  or v_granted = p_times and tollgate.bucket_affords(t, p_cost, p_min_remaining, v_now) >= p_times end
    returning t.full_at, t.granted into b.full_at, b.granted;
    continue when not found;

    if tollgate.clock() - v_now > c_stale then
      -- The row had to be waited for: the grants move to the later instant, at which the row can afford more.
      v_now := tollgate.clock();
      v_full_at := b.full_at;
      b.full_at := greatest(b.full_at, tollgate.bucket_clock(b, v_now) + v_granted * p_cost * b.token_ticks);
      v_more := least(p_times - v_granted, tollgate.bucket_affords(b, p_cost, p_min_remaining, v_now));
      v_granted := v_granted + v_more;
      b.full_at := b.full_at + v_more * p_cost * b.token_ticks;
      b.granted := b.granted + v_more * p_cost;
      if b.full_at > v_full_at then
        update tollgate.token_buckets t set full_at = b.full_at, granted = b.granted where t.id = p_id;
      end if;
    end if;
    return next tollgate.answers_of(1, v_granted, ('granted', null, v_now, v_now, b.full_at, b.granted, b.burst, b.anchor,
                                                   b.step_ns, b.step_ticks, b.token_ticks));
    if p_times > v_granted then
      return next tollgate.answers_of(1, p_times - v_granted, ('denied', null, v_now, v_now, b.full_at, b.granted, b.burst,
                                                               b.anchor, b.step_ns, b.step_ticks, b.token_ticks));
    end if;
    return;
  end loop;
  return query
    select t.*
      from tollgate.take_each_v1(
             array[1::bigint], array[p_id], array[p_times], array[p_cost], array[p_min_remaining], array[0::bigint],
             array[p_capacity], array[p_refill_seconds], array[p_refill], array[p_plan], array[null::uuid], array[0::bigint]) t;
end
$$;

insert into tollgate.migrations (version, name) values (5, '0005_take_batch') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- evaluate: evaluates a request against the current state of a bucket. Takes nothing.
--
-- Arguments: p_bucket
--            p_mode, p_mode_until: as in the result of rule
--            p_cost, p_max_wait, p_min_remaining: as for take_v1
--            p_now: nanoseconds since 1970
-- Result:    as for take_v1
-- Errors:    none
-- Locks:     none
create or replace function tollgate.evaluate(
  p_bucket tollgate.token_buckets, p_mode text, p_mode_until bigint,
  p_cost bigint, p_max_wait bigint, p_min_remaining bigint, p_now bigint)
returns tollgate.taken_v1
language plpgsql immutable
as $$
declare
  t     tollgate.taken_v1;
  v_due   bigint;
  v_clock bigint;
begin
  t.now := p_now;
  t.scheduled_at := p_now;
  t.mode := p_mode;
  t.full_at := p_bucket.full_at;
  t.granted := p_bucket.granted;
  t.burst := p_bucket.burst;
  t.anchor := p_bucket.anchor;
  t.step_ns := p_bucket.step_ns;
  t.step_ticks := p_bucket.step_ticks;
  t.token_ticks := p_bucket.token_ticks;
  if p_mode = 'off' then
    t.outcome := 'granted';
  elsif p_mode = 'block' then
    t.outcome := 'denied';
    t.scheduled_at := p_mode_until;
  elsif p_cost > p_bucket.burst / p_bucket.token_ticks - p_min_remaining then
    t.outcome := 'never';
  else
    v_due := p_bucket.full_at - p_bucket.burst + (p_cost + p_min_remaining) * p_bucket.token_ticks;
    if v_due <= tollgate.bucket_clock(p_bucket, p_now + case p_mode when 'shadow' then 0 else p_max_wait end) then
      t.outcome := 'granted';
      t.mode := null;
      v_clock := tollgate.bucket_clock(p_bucket, p_now);
      if v_due > v_clock then
        t.scheduled_at := greatest(
          p_now, tollgate.bucket_instant(p_bucket, tollgate.bucket_step(p_bucket, v_due, v_clock)));
      end if;
    else
      t.outcome := case p_mode when 'shadow' then 'granted' else 'denied' end;
    end if;
  end if;
  return t;
end
$$;

-- lock_all: locks the rows of buckets, and creates missing buckets that the first place naming them can create.
--
-- Arguments: p_ids, p_capacities, p_refill_seconds, p_refills, p_plans: as for take_all_v1, but an id can occur several times
-- Result:    none
-- Errors:    as for rule
-- Locks:     the rows of all buckets, in id order; missing rows are created in that order
--
-- If a bucket is missing, each row is locked or created before the next one. Otherwise, a session that creates the missing
-- bucket at the same time could take from later buckets, too, and the two sessions would deadlock.
create or replace function tollgate.lock_all(
  p_ids text[], p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  v_first record;
begin
  perform from tollgate.token_buckets l
    where l.id = any (p_ids)
      and not exists (select from unnest(p_ids) m (id)
                       where not exists (select from tollgate.token_buckets x where x.id = m.id))
    order by l.id for no key update;
  if found then
    return;
  end if;
  if array_remove(p_plans, null) = '{}'
     and not exists (select from tollgate.token_mode g where g.mode <> 'enforce')
     and not exists (select from tollgate.token_overrides o where o.id = any (p_ids))
     and not exists (select from unnest(p_ids, p_capacities, p_refill_seconds, p_refills)
                              as i (id, capacity, refill_seconds, refill)
                      where (i.capacity is not null and i.refill is not null
                             and i.refill_seconds between 0 and 9999999999) is not true) then
    -- All missing buckets can be created, with limits that fit the columns. An existing row is only locked, never updated.
    insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor)
    select distinct on (i.id collate "C") i.id, i.capacity, i.refill_seconds, i.refill, false, 0
      from unnest(p_ids, p_capacities, p_refill_seconds, p_refills) with ordinality
           as i (id, capacity, refill_seconds, refill, place)
     order by i.id collate "C", i.place
        on conflict (id) do update set room = null where false;
    return;
  end if;
  for v_first in
    select distinct on (i.id collate "C") i.*
      from unnest(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans) with ordinality
           as i (id, capacity, refill_seconds, refill, plan, place)
     order by i.id collate "C", i.place
  loop
    perform from tollgate.token_buckets l where l.id = v_first.id for no key update;
    if not found then
      perform tollgate.rule(v_first.id, v_first.capacity, v_first.refill_seconds, v_first.refill, v_first.plan,
                               tollgate.clock(), false);
      perform from tollgate.token_buckets l where l.id = v_first.id for no key update;
    end if;
  end loop;
end
$$;

-- take_all_v1: takes tokens from all of several buckets, or from none.
--
-- Arguments: p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans
--                        one bucket per position, each bucket once; as for take_v1
--            p_max_wait, p_receipt, p_hold: as for take_v1, for all buckets
-- Result:    one row per bucket: its position in the arrays, from 1, then the columns of take_v1. Either all are 'granted'. Or
--            some have another outcome, the rest are 'spared' (could have been granted), and nothing was taken
-- Errors:    as for take_v1 · 22023 no bucket, or a bucket twice
-- Locks:     the rows of all buckets, in id order; missing rows are created in that order
--
-- The clock is read when the rows are locked. A request with a wait acts when its last bucket has the tokens. Each bucket is
-- debited for the time at which its own tokens are available.
create or replace function tollgate.take_all_v1(
  p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[], p_refill_seconds numeric[],
  p_refills text[], p_plans text[], p_max_wait bigint, p_receipt uuid, p_hold bigint)
returns table (entry bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  v_order   bigint[];                  -- the positions in id order
  v_buckets tollgate.token_buckets[];  -- the existing buckets, in id order
  v_taken   tollgate.taken_v1[];
  v_taking  text[];
  t         tollgate.taken_v1;
  b         tollgate.token_buckets;
  r         tollgate.token_receipts;
  v_refused  text;    -- columns of the result of rule
  v_mode     text;
  v_until    bigint;
  v_made     boolean;
  v_capacity bigint;
  v_place   bigint;
  v_next    bigint;
  v_there   bigint;                    -- the number of existing buckets
  v_now     bigint;
  v_ruled   boolean;
  v_changed boolean;
  v_known   boolean;
  c_needs   constant text := 'tollgate: take_all_v1 needs distinct buckets, costs of 1 or more, minimum remainings of 0 or '
                             'more, and a wait of 0 to a year';
begin
  p_hold := least(greatest(coalesce(p_hold, 0), 0), 31622400000000000);
  if (1 <= all (p_costs) and 4611686018427387903 >= all (p_costs) and cardinality(p_costs) = cardinality(p_ids)
      and 0 <= all (p_min_remainings) and 4611686018427387903 >= all (p_min_remainings) and cardinality(p_min_remainings) = cardinality(p_ids)
      and p_max_wait between 0 and 31622400000000000) is not true then
    raise exception '%', c_needs using errcode = 'invalid_parameter_value';
  end if;

  -- One statement decides if only the tokens count, all buckets exist and all grant. Each bucket is evaluated when its row is
  -- locked, and affords at least as much when all rows are locked, which is when the clock is read.
  if p_receipt is null and array_remove(p_plans, null) = '{}' then
    return query
      with locked as materialized (
        select l as b, i.*
          from unnest(p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills)
               as i (id, cost, keep, capacity, refill_seconds, refill)
          join tollgate.token_buckets l on l.id = i.id
         where not exists (select from unnest(p_ids) m (id)
                            where not exists (select from tollgate.token_buckets x where x.id = m.id))
         order by l.id for no key update of l
      ), fit as materialized (
        select count(distinct (x.b).id) = cardinality(p_ids) and bool_and(
                 (x.b).plan is null and not (x.b).overridden
                 and (x.capacity is null and x.refill_seconds is null and x.refill is null
                      or (x.capacity, x.refill_seconds, x.refill) = ((x.b).capacity, (x.b).refill_seconds, (x.b).refill))
                 and case when x.cost <= (x.b).burst / (x.b).token_ticks - x.keep
                       then (x.b).full_at - ((x.b).burst - (x.cost + x.keep) * (x.b).token_ticks)
                            <= tollgate.bucket_clock(x.b, tollgate.clock() + p_max_wait)
                       else false end
                 and (x.b).full_at - tollgate.bucket_clock(x.b, tollgate.clock())
                     <= tollgate.bucket_max_full_at(x.b)) as fits,
               tollgate.clock() as now
          from locked x
         where not exists (select from tollgate.token_mode g where g.mode <> 'enforce')
           and not exists (select from tollgate.token_overrides o where o.id = any (p_ids))
      )
      update tollgate.token_buckets l
         set room = null,
             granted = l.granted + i.cost,
             max_granted_wait = greatest(
               l.max_granted_wait,
               tollgate.bucket_step(
                 l, l.full_at - (l.burst - (i.cost + i.keep) * l.token_ticks), tollgate.bucket_clock(l, f.now))
                 - tollgate.bucket_clock(l, f.now)),
             full_at = greatest(
               l.full_at,
               tollgate.bucket_step(
                 l, l.full_at - (l.burst - (i.cost + i.keep) * l.token_ticks), tollgate.bucket_clock(l, f.now)))
               + i.cost * l.token_ticks
        from fit f, unnest(p_ids, p_costs, p_min_remainings) with ordinality as i (id, cost, keep, place)
       where f.fits and l.id = i.id
      returning i.place,
                ('granted', null, f.now,
                 case when l.full_at - (l.burst - i.keep * l.token_ticks) > tollgate.bucket_clock(l, f.now)
                   then greatest(f.now, tollgate.bucket_instant(l, l.full_at - (l.burst - i.keep * l.token_ticks)))
                   else f.now end,
                 l.full_at, l.granted, l.burst, l.anchor, l.step_ns, l.step_ticks, l.token_ticks)::tollgate.taken_v1;
    if found then
      return;
    end if;
  end if;

  select array_agg(i.place order by i.id collate "C"), count(distinct i.id), count(l.id) into v_order, v_next, v_there
    from unnest(p_ids) with ordinality as i (id, place) left join tollgate.token_buckets l on l.id = i.id;
  if v_next is distinct from cardinality(p_ids) or v_next = 0 then
    raise exception '%', c_needs using errcode = 'invalid_parameter_value';
  end if;
  if v_there < v_next then
    perform tollgate.lock_all(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans);
  end if;

  for v_attempt in 1 .. 100 loop
    select array_agg(l.b) into v_buckets
      from (select x as b from tollgate.token_buckets x where x.id = any (p_ids) order by x.id for no key update) l;
    v_now := tollgate.clock();
    -- Null if the row of token_mode is missing; null leads to the call of rule.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = any (p_ids))
      into v_ruled from tollgate.token_mode g;
    v_taken := array_fill(null::tollgate.taken_v1, array[cardinality(p_ids)]);
    v_taking := '{}';
    v_next := 1;
    v_changed := false;
    delete from tollgate.token_receipts k where k.id = p_receipt and k.expires_at <= v_now;
    foreach v_place in array v_order loop
      b := v_buckets[v_next];
      if b.id = p_ids[v_place] then
        v_next := v_next + 1;
      else
        b := null;
      end if;
      v_refused := null;
      v_mode := null;
      v_capacity := null;
      if v_ruled is not false or b.id is null or p_plans[v_place] is not null or b.plan is not null or b.overridden
         or p_capacities[v_place] <> b.capacity or p_refill_seconds[v_place] <> b.refill_seconds
         or p_refills[v_place] <> b.refill
         or num_nulls(p_capacities[v_place], p_refill_seconds[v_place], p_refills[v_place]) in (1, 2)
         or b.full_at - tollgate.bucket_clock(b, v_now) > tollgate.bucket_max_full_at(b) then
        select w.outcome, w.mode, w.mode_until, w.changed, w.capacity
          into v_refused, v_mode, v_until, v_made, v_capacity
          from tollgate.rule(p_ids[v_place], p_capacities[v_place], p_refill_seconds[v_place],
                                p_refills[v_place], p_plans[v_place], v_now,
                                p_costs[v_place] <= b.burst / b.token_ticks - p_min_remainings[v_place]) w;
        -- Another session created the bucket since the rows were locked: it has to be locked, too.
        v_made := v_made or (b.id is null and v_refused is null and v_mode is distinct from 'off');
        v_changed := v_changed or v_made;
        continue when v_made;
      end if;
      if v_refused is not null then
        t := null;
        t.outcome := v_refused;
        t.now := v_now;
      else
        t := tollgate.evaluate(b, v_mode, v_until, p_costs[v_place], p_max_wait, p_min_remainings[v_place], v_now);
        t.burst := coalesce(t.burst, v_capacity);
      end if;
      v_known := false;
      if p_receipt is not null and v_refused is null and v_mode is distinct from 'off' then
        select k.* into r from tollgate.token_receipts k where k.id = p_receipt and k.bucket = p_ids[v_place];
        v_known := found;
      end if;
      if v_known then
        t.outcome := case when r.cost = p_costs[v_place] and r.state <> 'cancelled' then 'granted' else 'reused' end;
        t.mode := null;
        t.granted := r.granted;
        t.scheduled_at := greatest(r.scheduled_at, v_now);
      elsif t.outcome = 'granted' and t.mode is null then
        v_taking := v_taking || p_ids[v_place];
      end if;
      v_taken[v_place] := t;
    end loop;
    exit when not v_changed;
  end loop;
  if v_changed then
    raise exception 'tollgate: buckets changed during each of 100 attempts'
      using errcode = 'serialization_failure', hint = 'Call again.';
  end if;

  if not exists (select from unnest(v_taken) w where w.outcome <> 'granted') then
    update tollgate.token_buckets l
       set room = null,
           granted = l.granted + i.cost,
           max_granted_wait = greatest(
             l.max_granted_wait,
             tollgate.bucket_step(
               l, l.full_at + (i.cost + i.keep) * l.token_ticks - l.burst, tollgate.bucket_clock(l, v_now))
               - tollgate.bucket_clock(l, v_now)),
           full_at = greatest(
             l.full_at,
             tollgate.bucket_step(
               l, l.full_at + (i.cost + i.keep) * l.token_ticks - l.burst, tollgate.bucket_clock(l, v_now)))
             + i.cost * l.token_ticks
      from unnest(p_ids, p_costs, p_min_remainings) as i (id, cost, keep)
     where l.id = i.id and l.id = any (v_taking);
    insert into tollgate.token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
    select p_receipt, p_ids[w.place], p_costs[w.place], w.granted + p_costs[w.place], w.scheduled_at, 'open', v_now + p_hold
      from unnest(v_taken) with ordinality
           as w (outcome, mode, now, scheduled_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, place)
     where p_receipt is not null and p_ids[w.place] = any (v_taking);
    return query
      select w.place, (w.outcome, w.mode, w.now, w.scheduled_at, coalesce(l.full_at, w.full_at),
                       case when l.id = any (v_taking) then l.granted else w.granted end, w.burst, w.anchor, w.step_ns,
                       w.step_ticks, w.token_ticks)::tollgate.taken_v1
        from unnest(v_taken) with ordinality
             as w (outcome, mode, now, scheduled_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, place)
        left join tollgate.token_buckets l on l.id = p_ids[w.place];
    return;
  end if;
  return query
    select w.place, (case w.outcome when 'granted' then 'spared' else w.outcome end, w.mode, w.now, w.scheduled_at, w.full_at,
                     w.granted, w.burst, w.anchor, w.step_ns, w.step_ticks, w.token_ticks)::tollgate.taken_v1
      from unnest(v_taken) with ordinality
           as w (outcome, mode, now, scheduled_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, place);
end
$$;

-- take_all_batch_v1: decides several requests in one call. Each takes from all of its buckets, or from none.
--
-- Arguments: p_requests  the number of the request of each position, from 1, ascending.
--            p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans
--                        one bucket per position, each bucket once per request; as for take_all_v1, without a wait
-- Result:    standing    true: the state is that before the call; granted requests take their tokens in order
--                        false: the state is that after the request
--            answers     as for take_all_v1, with positions in the arrays, from 1; for all buckets of a request, or for none
-- Errors:    as for take_all_v1 · 55P03 a bucket was locked for longer than 100 ms: nothing was taken
-- Locks:     the rows of all buckets, in id order; missing rows are created in that order. Then the rows that only a later
--            request can create.
--
-- The clock is read when the rows are locked. Requests that the locked buckets cannot grant are denied. A request is granted if
-- each of its buckets affords all requests that remain; one UPDATE debits the buckets. take_all_v1 decides the others in order,
-- as it does with a mode, an override or other limits. The answers are those of deciding the requests one after the other.
create or replace function tollgate.take_all_batch_v1(
  p_requests bigint[], p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns table (standing boolean, answers tollgate.answers_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  v_lock      text := current_setting('lock_timeout');
  v_limited   boolean := false;
  v_made      boolean := false;  -- whether missing buckets are created, where possible
  v_missing   boolean;
  v_enforced  boolean;
  v_overrides boolean;
  v_left      bigint[] := '{}';  -- the positions of the requests for take_all_v1
  v_part      record;
begin
  if (1 <= all (p_costs) and 4611686018427387903 >= all (p_costs)
      and 0 <= all (p_min_remainings) and 4611686018427387903 >= all (p_min_remainings)) is not true then
    raise exception 'tollgate: take_all_batch_v1 needs costs of 1 or more, and minimum remainings of 0 or more'
      using errcode = 'invalid_parameter_value';
  end if;
  if v_lock = '0' or v_lock::interval > interval '100 ms' then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;
  v_enforced := not exists (select from tollgate.token_mode g where g.mode <> 'enforce');
  v_overrides := exists (select from tollgate.token_overrides);

  loop
    v_missing := false;
    for v_part in
      with locked as materialized (
        select l.* from tollgate.token_buckets l
         where l.id = any (p_ids)
           and (v_made or not exists (select from unnest(p_ids) m (id)
                                       where not exists (select from tollgate.token_buckets x where x.id = m.id)))
         order by l.id for no key update
      ), clock as materialized (
        select tollgate.clock() as now, l.n = 0 and not v_made as missing from (select count(*) as n from locked) l
      ), evaluated as materialized (
        select i.request, i.place, i.id, i.cost, i.keep, c.now, c.missing, l.full_at, l.granted, l.burst, l.anchor,
               l.step_ns, l.step_ticks, l.token_ticks, l.burst / l.token_ticks - i.keep as most,
               (l.burst - greatest(l.full_at - tollgate.bucket_clock(l, c.now), 0)) / l.token_ticks - i.keep as left,
               -- Whether only the tokens decide.
               coalesce(
                 v_enforced
                 and case
                       when i.plan is null
                         then tollgate.has_limits(l, i.capacity, i.refill_seconds, i.refill, null)
                       else num_nonnulls(i.capacity, i.refill_seconds, i.refill) = 0 and not l.overridden
                            and i.plan = l.plan and tollgate.follows_plan(l)
                     end
                 and (not v_overrides or not exists (select from tollgate.token_overrides o where o.id = i.id))
                 and l.full_at - tollgate.bucket_clock(l, c.now) <= tollgate.bucket_max_full_at(l),
                 false) as plain
          from unnest(p_requests, p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans)
               with ordinality as i (request, id, cost, keep, capacity, refill_seconds, refill, plan, place)
          left join locked l on l.id = i.id
         cross join clock c
      ), demand as (
        select w.id, bool_and(w.plain) as plain,
               -- The demand of the requests that the bucket could grant by themselves, and their largest minimum remaining.
               sum(w.cost) filter (where w.cost <= w.left) as cost, max(w.keep) filter (where w.cost <= w.left) as keep
          from evaluated w group by w.id
      ), decided as (
        select w.request,
               case when not bool_and(d.plain) then 'left'
                 when not bool_and(w.cost <= w.left) then 'denied'
                 when bool_and(d.cost + d.keep <= w.left + w.keep) then 'granted'
                 else 'left' end as word
          from evaluated w join demand d on d.id = w.id
         group by w.request
      ), answered as (
        select w.*,
               case when w.missing then 'missing'
                 when d.word <> 'denied' then d.word
                 when w.cost <= w.left then 'spared'
                 when w.cost <= w.most then 'denied'
                 else 'never' end as word
          from evaluated w join decided d on d.request = w.request
      )
      select t.word, array_agg(t.id) as ids, array_agg(t.cost) as costs,
             (array_agg(t.place), array_agg(1::bigint), t.word, null, array_agg(t.now), null, array_agg(t.full_at),
              array_agg(t.granted), array_agg(t.burst), array_agg(t.anchor), array_agg(t.step_ns),
              array_agg(t.step_ticks), array_agg(t.token_ticks))::tollgate.answers_v1 as answers
        from answered t group by t.word
    loop
      answers := v_part.answers;
      if v_part.word = 'missing' then
        v_missing := true;
        continue;
      elsif v_part.word = 'left' then
        v_left := answers.entries;
        continue;
      elsif v_part.word = 'granted' then
        update tollgate.token_buckets l
           set room = null,
               granted = l.granted + g.cost,
               full_at = greatest(l.full_at, tollgate.bucket_clock(l, answers.now[1])) + g.cost * l.token_ticks
          from (select i.id, sum(i.cost)::bigint as cost from unnest(v_part.ids, v_part.costs) i (id, cost) group by i.id) g
         where l.id = g.id;
      end if;
      standing := true;
      return next;
    end loop;
    exit when not v_missing;
    -- Locks in id order, with the rows that exist already.
    perform tollgate.lock_all(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans);
    v_made := true;
  end loop;

  for v_part in
    select min(x.place) as first, max(x.place) as last
      from unnest(v_left) x (place) group by p_requests[x.place] order by 1
  loop
    return query
      select false, tollgate.answers_of(v_part.first + t.entry - 1, 1, t.taken)
        from tollgate.take_all_v1(
               p_ids[v_part.first:v_part.last], p_costs[v_part.first:v_part.last],
               p_min_remainings[v_part.first:v_part.last], p_capacities[v_part.first:v_part.last],
               p_refill_seconds[v_part.first:v_part.last], p_refills[v_part.first:v_part.last],
               p_plans[v_part.first:v_part.last], 0, null, 0) t;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

insert into tollgate.migrations (version, name) values (6, '0006_take_all') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- window_is_sound(p_window) -> whether the window's values are within bounds, so that computing with them cannot overflow.
create or replace function tollgate.window_is_sound(p_window tollgate.token_windows) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select p_window.max_requests >= 1 and p_window.interval_ns between 1 and 31622400000000000
         and p_window.resolution_ns between 1 and 31622400000000000
         and p_window.last_wait between 0 and 31622400000000000
         and cardinality(p_window.ends) = cardinality(p_window.counts)
         and not exists (select from unnest(p_window.ends, p_window.counts) as u (e, c)
                          where (u.e between 0 and 4611686018427387903 and u.c between 0 and 1000000000000000) is not true)
$$;

-- window_earliest: computes the earliest time at which at most p_room granted requests count. The result is never before the
-- time of a granted request.
--
-- Arguments: p_window
--            p_interval  nanoseconds
--            p_room      requests
--            p_now       nanoseconds since 1970
-- Result:    nanoseconds since 1970
-- Errors:    none
-- Locks:     none
create or replace function tollgate.window_earliest(
  p_window tollgate.token_windows, p_interval bigint, p_room bigint, p_now bigint)
returns bigint
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_last    constant int := coalesce(pg_catalog.array_length(p_window.ends, 1), 0);
  v_from    bigint := p_now;
  v_counted bigint := 0;
begin
  if v_last > 0 then
    v_from := greatest(p_now, p_window.ends[v_last] - p_window.resolution_ns);
  end if;
  for v_place in reverse v_last .. 1 loop
    v_counted := v_counted + p_window.counts[v_place];
    if v_counted > p_room then
      return greatest(v_from, p_window.ends[v_place] + p_interval);
    end if;
  end loop;
  return v_from;
end
$$;

-- window_count: counts requests in a window at an instant, and drops the counts that have expired.
--
-- Arguments: p_window
--            p_interval, p_resolution: nanoseconds
--            p_cost       requests
--            p_now, p_at: nanoseconds since 1970
-- Result:    the window
-- Errors:    none
-- Locks:     none
--
-- A window holds at most 2000 sub-intervals. Beyond, a past sub-interval is merged into the next one, so that its requests
-- count for longer: the one with the smallest delay in relation to its age. The window keeps the newest resolution.
create or replace function tollgate.window_count(
  p_window tollgate.token_windows, p_interval bigint, p_resolution bigint, p_cost bigint, p_now bigint, p_at bigint)
returns tollgate.token_windows
language plpgsql immutable
as $$
declare
  v_end  constant bigint := (p_at / p_resolution + 1) * p_resolution;
  v_kept constant bigint := greatest(p_interval, p_window.interval_ns);
  v_last int;
  v_join int;
begin
  p_window.since := greatest(
    p_window.since, (select max(e) from unnest(p_window.ends) as u (e) where e <= p_now - v_kept));
  select coalesce(pg_catalog.array_agg(e order by e), '{}'), coalesce(pg_catalog.array_agg(c order by e), '{}')
    into p_window.ends, p_window.counts
    from unnest(p_window.ends, p_window.counts) as u (e, c)
   where e > p_now - v_kept;
  v_last := coalesce(pg_catalog.array_length(p_window.ends, 1), 0);
  if v_last > 0 and p_window.ends[v_last] >= v_end then
    p_window.counts[v_last] := p_window.counts[v_last] + p_cost;
  else
    p_window.ends := pg_catalog.array_append(p_window.ends, v_end);
    p_window.counts := pg_catalog.array_append(p_window.counts, p_cost);
    p_window.resolution_ns := p_resolution;
  end if;
  if array_length(p_window.ends, 1) > 2000 then
    select k.place into v_join
      from (select place, lag(e) over (order by place) as before, lead(e) over (order by place) as after
              from unnest(p_window.ends) with ordinality as u (e, place)
             where e <= p_now) k
     where k.before is not null and k.after is not null
     order by (p_now - k.before) / (k.after - k.before) desc, k.place limit 1;
    if found then
      p_window.counts[v_join + 1] := p_window.counts[v_join + 1] + p_window.counts[v_join];
      p_window.ends := p_window.ends[:v_join - 1] || p_window.ends[v_join + 1:];
      p_window.counts := p_window.counts[:v_join - 1] || p_window.counts[v_join + 1:];
    end if;
  end if;
  p_window.granted := p_window.granted + p_cost;
  p_window.last_wait := p_at - p_now;
  -- The longer interval applies until this request's counts are the only ones.
  p_window.interval_ns := case when v_last = 0 then p_interval else v_kept end;
  return p_window;
end
$$;

-- window_step_back: adapts a window to a clock that was set back.
--
-- Arguments: p_window
--            p_now  nanoseconds since 1970
-- Result:    the window
-- Errors:    none
-- Locks:     none
--
-- Requests counted by the old clock count from now on: keys are denied for one interval at most. An adjustment gives back
-- nothing of a request that acted by the old clock.
create or replace function tollgate.window_step_back(p_window tollgate.token_windows, p_now bigint)
returns tollgate.token_windows
language plpgsql immutable
as $$
declare
  v_back constant bigint := p_window.ends[pg_catalog.array_length(p_window.ends, 1)] - p_now - p_window.resolution_ns;
begin
  p_window.since := greatest(p_window.since, p_window.ends[pg_catalog.array_length(p_window.ends, 1)]);
  p_window.ends := array(select e - v_back from pg_catalog.unnest(p_window.ends) as u (e) order by e);
  return p_window;
end
$$;

-- window_taken_v1: the result of take_window_v1.
do $$
begin
  if to_regtype('tollgate.window_taken_v1') is null then
    create type tollgate.window_taken_v1 as (
      outcome       text,
      mode          text,
      now           bigint,
      scheduled_at       bigint,
      ends          bigint[],
      counts        bigint[],
      resolution_ns bigint
    );
  end if;
end
$$;

-- take_window_v1: decides one request under a sliding window exactly, or counts the request unconditionally.
--
-- Arguments: p_id             the window; its first request creates it
--            p_cost           requests, 1 or more; 0 with p_counting: only reads
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  requests that must remain for others
--            p_max_requests   maximum in any interval
--            p_interval, p_resolution: nanoseconds; the resolution divides the interval into 1 to 1000 parts
--            p_receipt        id of the request: a retry with the id is counted once; null: no id
--            p_hold           nanoseconds for which the id is remembered
--            p_counting       true: counts the request now, even beyond the maximum
-- Result:    outcome          'granted' or 'denied'; a wait that needs more than 1000 sub-intervals ahead is denied, too
--                             'never': p_cost + p_min_remaining exceeds the maximum
--                             'reused': the id belongs to another request
--            mode             the mode that decided instead of the counts: 'shadow', 'off' or 'block'; else null
--            now              instant of the decision, in nanoseconds since 1970
--            scheduled_at     when the request acts; with 'block', the end of the mode; null: no end
--            ends, counts, resolution_ns: the window's columns after the decision
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt. A denied request writes nothing, once the window exists.
create or replace function tollgate.take_window_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_min_remaining bigint, p_max_requests bigint, p_interval bigint, p_resolution bigint,
  p_receipt uuid, p_hold bigint, p_counting boolean)
returns tollgate.window_taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  w         tollgate.token_windows;
  r         tollgate.token_receipts;
  v_now     bigint := tollgate.clock();
  v_scheduled_at bigint;
  v_outcome text := 'granted';
  v_mode    text;
  v_until   timestamptz;
  c_year    constant bigint := 31622400000000000;
  -- A bucket and a window with one key have separate receipts: no bucket id starts with U+0001.
  c_bucket  constant text := chr(1) || p_id;
begin
  p_hold := least(greatest(coalesce(p_hold, 0), 0), c_year);
  if (p_id is not null
      and p_cost between case when p_counting then 0 else 1 end
                     and case when p_counting then 1000000000000 else 4611686018427387903 end
      and p_min_remaining between 0 and 4611686018427387903
      and p_max_wait between 0 and c_year and p_max_requests between 1 and 1000000000000
      and p_resolution between 1000 and p_interval and p_interval <= c_year
      and (p_interval - 1) / p_resolution < 1000) is not true then
    raise exception 'tollgate: take_window_v1 needs a cost of 1 or more, a maximum of 1 to 10^12, an interval of a year '
                    'or less, and a resolution of a microsecond or more that divides it into 1 to 1000 parts'
      using errcode = 'invalid_parameter_value';
  end if;
  loop
    select nullif(coalesce(o.mode, case when tollgate.in_force(g.until, v_now) then g.mode end), 'enforce'),
           case when o.mode is null then g.until else o.expires_at end
      into v_mode, v_until
      from (values (p_id)) k (id)
      left join tollgate.token_mode g on true
      left join tollgate.token_overrides o on o.id = k.id and tollgate.in_force(o.expires_at, v_now);
    -- Reads the mode again after locking the row, because the lock can take time.
    exit when v_mode = 'off' or w.id is not null;
    loop
      select t.* into w from tollgate.token_windows t where t.id = p_id for no key update;
      exit when found;
      insert into tollgate.token_windows (id, max_requests, interval_ns, resolution_ns, since)
      values (p_id, p_max_requests, p_interval, p_resolution, v_now)
      on conflict do nothing;
    end loop;
    v_now := tollgate.clock();
  end loop;
  if v_mode = 'off' then
    -- The answer shows the counts, but the routine locks and creates nothing.
    select t.* into w from tollgate.token_windows t where t.id = p_id;
    if not found then
      w.ends := '{}';
      w.counts := '{}';
      w.resolution_ns := p_resolution;
    end if;
  else
    if w.ends[array_length(w.ends, 1)] - v_now > w.last_wait + w.resolution_ns + 1000000000 then
      w := tollgate.window_step_back(w, v_now);
      update tollgate.token_windows t set ends = w.ends, since = w.since where t.id = p_id;
    end if;
    if p_receipt is not null then
      delete from tollgate.token_receipts t where t.id = p_receipt and t.bucket = c_bucket and t.expires_at <= v_now;
      select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = c_bucket;
    end if;
  end if;
  if v_mode = 'shadow' then
    p_max_wait := 0;
  end if;
  v_scheduled_at := v_now;

  if v_mode = 'off' then
    null;
  elsif r.id is not null then
    v_outcome := case when r.cost = p_cost and r.state <> 'cancelled' then 'granted' else 'reused' end;
    v_mode := null;
    v_scheduled_at := greatest(r.scheduled_at, v_now);
  elsif v_mode = 'block' then
    v_outcome := 'denied';
    v_scheduled_at := tollgate.end_ns(v_until);
  elsif not p_counting and p_cost > p_max_requests - p_min_remaining then
    v_outcome := 'never';
  else
    v_scheduled_at := tollgate.window_earliest(w, p_interval, p_max_requests - p_cost - p_min_remaining, v_now);
    if v_scheduled_at > v_now and w.ends[array_length(w.ends, 1) - 999] > v_now
       and w.ends[array_length(w.ends, 1)] < (v_scheduled_at / p_resolution + 1) * p_resolution then
      v_scheduled_at := 9223372036854775807;
    end if;
    if p_counting then
      v_scheduled_at := v_now;
    elsif v_scheduled_at > v_now + p_max_wait then
      v_outcome := case v_mode when 'shadow' then 'granted' else 'denied' end;
    else
      v_mode := null;
    end if;
    if p_cost > 0 and (p_counting or v_scheduled_at <= v_now + p_max_wait) then
      w := tollgate.window_count(
        w, p_interval, p_resolution, p_cost, v_now,
        case when p_counting then greatest(v_now, w.ends[array_length(w.ends, 1)] - w.resolution_ns) else v_scheduled_at end);
      update tollgate.token_windows t
         set ends = w.ends, counts = w.counts, granted = w.granted, last_wait = w.last_wait,
             max_requests = p_max_requests, interval_ns = w.interval_ns, resolution_ns = w.resolution_ns, since = w.since
       where t.id = p_id;
      if p_receipt is not null then
        insert into tollgate.token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
        values (p_receipt, c_bucket, p_cost, 0, v_scheduled_at, 'open', v_now + p_hold);
      end if;
    else
      v_scheduled_at := v_now;
    end if;
  end if;
  return (v_outcome, v_mode, v_now, v_scheduled_at, w.ends, w.counts, w.resolution_ns)::tollgate.window_taken_v1;
end
$$;

insert into tollgate.migrations (version, name) values (7, '0007_windows') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- adjust_v1: cancels, refunds or settles a granted request, once per receipt.
--
-- Arguments: p_kind          'cancel': the tokens will not be used, and their time has not passed. Gives back the tokens that
--                            no later request queues behind
--                            'refund': p_tokens were not used
--                            'settle': the request cost p_tokens in the end, more or fewer than were taken
--            p_receipt       id of the request, or an id of this adjustment
--            p_id            the bucket
--            p_cost, p_granted, p_scheduled_at: of the grant
--            p_tokens        see p_kind; 0 with 'cancel'
--            p_max_debt      'settle': longest wait for the next token, in nanoseconds; at least the wait of an empty bucket;
--                            null: one year, the maximum
-- Result:    outcome         'done'; with other outcomes, nothing changes
--                            'late': the time has passed, or the receipt expired
--                            'repeated': already adjusted · 'unknown': no such bucket
--            given_back      tokens; negative: tokens charged in addition
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt
--
-- An adjustment is remembered for a day and until p_scheduled_at, but for 366 days at most.
create or replace function tollgate.adjust_v1(
  p_kind text, p_receipt uuid, p_id text, p_cost bigint, p_granted bigint, p_scheduled_at bigint, p_tokens bigint,
  p_max_debt bigint default null, out outcome text, out given_back bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b       tollgate.token_buckets;
  r       tollgate.token_receipts;
  v_known boolean;
  v_now   bigint;
  v_clock bigint;
  v_later bigint;
  c_year  constant bigint := 31622400000000000;
  c_day   constant bigint := 86400000000000;
  c_most  constant bigint := 4611686018427387903;  -- so that adding a later grant cannot overflow
begin
  if (p_kind in ('cancel', 'refund', 'settle') and p_receipt is not null and p_id is not null
      and p_cost between 1 and 3155760000000000000 and p_granted >= 0 and p_scheduled_at is not null
      and p_tokens between 0 and 3155760000000000000
      and coalesce(p_max_debt, 0) >= 0) is not true then
    raise exception 'tollgate: adjust_v1 takes ''cancel'', ''refund'' or ''settle'', a receipt, a bucket, a cost of 1 or '
                    'more, 0 tokens or more and a debt of 0 or more' using errcode = 'invalid_parameter_value';
  end if;
  given_back := 0;
  select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
  v_now := tollgate.clock();
  select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = p_id for update;
  v_known := found;
  if v_known then
    -- The receipt takes precedence over the caller's arguments.
    p_granted := r.granted;
    p_scheduled_at := r.scheduled_at;
  end if;
  v_later := b.granted - p_granted;
  outcome := case
    when p_kind = 'cancel' and v_now > p_scheduled_at then 'late'
    when p_kind = 'settle' and (not v_known or r.expires_at <= v_now) then 'late'
    when v_known and (r.state <> 'open' or r.cost <> p_cost) then 'repeated'
    when b.id is null then 'unknown'
    when p_kind = 'cancel' and v_later < 0 then 'late'
    else 'done'
  end;
  if outcome <> 'done' then
    return;
  end if;

  insert into tollgate.token_receipts as t (id, bucket, cost, granted, scheduled_at, state, expires_at)
  values (p_receipt, p_id, p_cost, p_granted, p_scheduled_at,
          case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
          least(greatest(p_scheduled_at, v_now + c_day), v_now + c_year))
  on conflict (id, bucket) do update
     set state = excluded.state, expires_at = greatest(t.expires_at, excluded.expires_at);
  v_clock := tollgate.bucket_clock(b, v_now);
  if p_kind = 'cancel' then
    given_back := greatest(p_cost - v_later, 0);
    b.granted := greatest(b.granted - case when v_later = 0 then p_cost else 0 end, 0);
  else
    given_back := case p_kind when 'refund' then least(p_tokens, p_cost) else p_cost - p_tokens end;
  end if;
  if given_back >= 0 then
    -- Can exceed the capacity: a debt can be older than a lower capacity.
    b.full_at := greatest(b.full_at - given_back::numeric * b.token_ticks, -b.burst);
    b.granted := least(b.granted, c_most);
  else
    if b.full_at - v_clock > tollgate.bucket_max_full_at(b) then
      -- The clock was set back: the bucket is empty from now on, as a request would find it.
      b.full_at := v_clock + b.burst;
      b.max_granted_wait := 0;
    end if;
    b.full_at := greatest(b.full_at, least(
      greatest(b.full_at, v_clock)::numeric - given_back::numeric * b.token_ticks,
      greatest(v_clock, tollgate.bucket_clock(b, v_now + least(p_max_debt, c_year) - 1) + 1 - b.token_ticks)::numeric
        + b.burst));
    b.granted := least(b.granted::numeric - given_back, c_most);
  end if;
  update tollgate.token_buckets t
     set full_at = b.full_at, granted = b.granted,
         max_granted_wait = greatest(b.max_granted_wait, case when given_back < 0 then b.full_at - v_clock - t.burst end)
   where t.id = p_id;
end
$$;

-- adjust_window_v1: cancels, refunds or settles a granted request of a sliding window, once per receipt.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens: as for adjust_v1
-- Result:    outcome, given_back: as for adjust_v1
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt
create or replace function tollgate.adjust_window_v1(
  p_kind text, p_receipt uuid, p_id text, p_cost bigint, p_scheduled_at bigint, p_tokens bigint,
  out outcome text, out given_back bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  w       tollgate.token_windows;
  r       tollgate.token_receipts;
  v_known boolean;
  v_now   bigint;
  v_place int;
  c_year  constant bigint := 31622400000000000;
  c_day   constant bigint := 86400000000000;
  c_bucket constant text := chr(1) || p_id;  -- see take_window_v1
begin
  if (p_kind in ('cancel', 'refund', 'settle') and p_receipt is not null and p_id is not null
      and p_cost between 1 and 1000000000000
      and p_scheduled_at >= 0 and p_tokens between 0 and 3155760000000000000) is not true then
    raise exception 'tollgate: adjust_window_v1 takes ''cancel'', ''refund'' or ''settle'', a receipt, a window, a cost of '
                    '1 or more and 0 requests or more' using errcode = 'invalid_parameter_value';
  end if;
  given_back := 0;
  select t.* into w from tollgate.token_windows t where t.id = p_id for no key update;
  v_now := tollgate.clock();
  select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = c_bucket for update;
  v_known := found;
  if v_known then
    p_scheduled_at := r.scheduled_at;
  end if;
  if p_kind = 'cancel' and v_now > p_scheduled_at then
    outcome := 'late';
  elsif p_kind = 'settle' and (not v_known or r.expires_at <= v_now) then
    outcome := 'late';
  elsif v_known and (r.state <> 'open' or r.cost <> p_cost) then
    outcome := 'repeated';
  elsif w.id is null then
    outcome := 'unknown';
  end if;
  if outcome is not null then
    return;
  end if;

  insert into tollgate.token_receipts as t (id, bucket, cost, granted, scheduled_at, state, expires_at)
  values (p_receipt, c_bucket, p_cost, 0, p_scheduled_at,
          case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
          least(greatest(p_scheduled_at, v_now + c_day), v_now + c_year))
  on conflict (id, bucket) do update
     set state = excluded.state, expires_at = greatest(t.expires_at, excluded.expires_at);
  outcome := 'done';
  given_back := case p_kind when 'cancel' then p_cost when 'refund' then least(p_tokens, p_cost)
                else p_cost - least(p_tokens, 1000000000000) end;
  if given_back < 0 then
    if w.ends[array_length(w.ends, 1)] - v_now > w.last_wait + w.resolution_ns + 1000000000 then
      w := tollgate.window_step_back(w, v_now);
    end if;
    w := tollgate.window_count(w, w.interval_ns, w.resolution_ns, -given_back, v_now,
                                  greatest(v_now, w.ends[array_length(w.ends, 1)] - w.resolution_ns));
  else
    -- Requests of a dropped sub-interval cannot be given back in another one. Otherwise, their sub-interval is the first one
    -- that ends after they act, or a later one.
    select u.place into v_place
      from unnest(w.ends) with ordinality as u (e, place)
     where u.e > p_scheduled_at and p_scheduled_at >= w.since
     order by u.place limit 1;
    if v_place is null and p_kind = 'cancel' then
      given_back := 0;
    elsif v_place is not null then
      if p_kind = 'cancel' then
        given_back := least(given_back, w.counts[v_place]);
      end if;
      w.granted := w.granted - least(given_back, w.counts[v_place]);
      w.counts[v_place] := greatest(w.counts[v_place] - given_back, 0);
      -- Deletes empty sub-intervals: no request queues behind them.
      select coalesce(array_agg(e order by e), '{}'), coalesce(array_agg(c order by e), '{}') into w.ends, w.counts
        from unnest(w.ends, w.counts) as u (e, c) where c > 0;
    end if;
  end if;
  update tollgate.token_windows t
     set ends = w.ends, counts = w.counts, granted = w.granted, last_wait = w.last_wait,
         interval_ns = w.interval_ns, resolution_ns = w.resolution_ns, since = w.since
   where t.id = p_id;
end
$$;

-- adjust_batch_v1: cancels, refunds or settles several granted requests, once per receipt.
--
-- Arguments: p_kinds, p_receipts, p_ids, p_costs, p_granted, p_scheduled_at, p_tokens: as for adjust_v1, one array each, all of
--                            one length
--            p_in_window     true: the key's sliding window granted the request; null: false for all
--            p_max_debts     as for adjust_v1
-- Result:    outcomes, given_back: as for adjust_v1 and adjust_window_v1, in the order given, as if done one after the other
-- Errors:    22023 arguments out of range
--            55P03 the call names several keys, and one was locked for longer than 100 ms: nothing was done
-- Locks:     the buckets' rows in id order, each followed by its receipts; then the windows' rows likewise. Adjustments of one
--            key are done in the order given.
create or replace function tollgate.adjust_batch_v1(
  p_kinds text[], p_receipts uuid[], p_ids text[], p_costs bigint[], p_granted bigint[], p_scheduled_at bigint[],
  p_tokens bigint[], p_in_window boolean[], p_max_debts bigint[] default null, out outcomes text[], out given_back bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  v_lock       text := current_setting('lock_timeout');
  v_limited    boolean := false;
  v_one        record;
  v_outcome    text;
  v_given_back bigint;
begin
  if p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms') then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;
  outcomes := array_fill(null::text, array[coalesce(cardinality(p_ids), 0)]);
  given_back := array_fill(null::bigint, array[coalesce(cardinality(p_ids), 0)]);
  for v_one in
    select u.*
      from unnest(p_kinds, p_receipts, p_ids, p_costs, p_granted, p_scheduled_at, p_tokens, p_in_window,
                  p_max_debts) with ordinality
           as u (kind, receipt, id, cost, granted, scheduled_at, tokens, in_window, max_debt, place)
     order by u.in_window is true, u.id collate "C", u.place
  loop
    if v_one.in_window then
      select a.outcome, a.given_back into v_outcome, v_given_back
        from tollgate.adjust_window_v1(v_one.kind, v_one.receipt, v_one.id, v_one.cost, v_one.scheduled_at, v_one.tokens) a;
    else
      select a.outcome, a.given_back into v_outcome, v_given_back
        from tollgate.adjust_v1(v_one.kind, v_one.receipt, v_one.id, v_one.cost, v_one.granted, v_one.scheduled_at,
                                v_one.tokens, v_one.max_debt) a;
    end if;
    outcomes[v_one.place] := v_outcome;
    given_back[v_one.place] := v_given_back;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

-- throttle_v1: lowers a bucket to the limit that an upstream reports. Never raises it. A repeated call changes nothing.
--
-- Arguments: p_id         the bucket
--            p_remaining  tokens that are left at most; null: unknown
--            p_wait       nanoseconds until the next token at the earliest, one year at most; 0: unknown. With 'interval', the
--                         tokens come with the first period that starts after the wait
--            p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
-- Result:    'lowered'; 'unchanged': the bucket held no more, or its mode is 'off'
--            'endless': there is a wait, but the bucket never refills
--            'unknown', 'unplanned' or 'conflict': as for take_v1
-- Errors:    22023 arguments out of range, or incomplete limits · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row; the clock is read after that
create or replace function tollgate.throttle_v1(
  p_id text, p_remaining bigint, p_wait bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b         tollgate.token_buckets;
  v_rule    record;
  v_now     bigint;
  v_clock   bigint;
  v_full_at bigint;
  v_before  bigint;
  v_lowered boolean;
begin
  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and p_wait between 0 and 31622400000000000) is not true then
    raise exception 'tollgate: throttle_v1 takes a bucket, 0 tokens or more, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  for v_attempt in 1 .. 100 loop
    select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
    v_now := tollgate.clock();
    select t.* into v_rule
      from tollgate.rule(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, false) t;
    -- The bucket changed, or another session created it since the read.
    continue when v_rule.changed
                  or (b.id is null and v_rule.outcome is null and v_rule.mode is distinct from 'off');
    if v_rule.outcome is not null then
      return v_rule.outcome;
    elsif v_rule.mode = 'off' then
      return 'unchanged';
    elsif p_wait > 0 and b.step_ns = 9223372036854775807 then
      return 'endless';
    end if;

    v_clock := tollgate.bucket_clock(b, v_now);
    v_before := b.full_at;
    if b.full_at - v_clock > tollgate.bucket_max_full_at(b) then
      -- The clock was set back: the bucket is empty.
      b.full_at := v_clock + b.burst;
      b.max_granted_wait := 0;
    end if;
    -- A missing argument yields null, which greatest() ignores.
    v_full_at := greatest(
      b.full_at,
      v_clock,
      case when p_remaining is not null
        then v_clock + b.burst - least(p_remaining, b.burst / b.token_ticks) * b.token_ticks end,
      case when p_wait > 0
        then tollgate.bucket_clock(b, v_now + p_wait - 1) + 1 + b.burst - b.token_ticks end);
    v_lowered := v_full_at > greatest(b.full_at, v_clock);
    if v_lowered then
      b.full_at := v_full_at;
      b.max_granted_wait := greatest(b.max_granted_wait, v_full_at - v_clock - b.burst);
    end if;
    if b.full_at <> v_before then
      update tollgate.token_buckets t
         set room = null, full_at = b.full_at, max_granted_wait = b.max_granted_wait
       where t.id = p_id;
    end if;
    return case when v_lowered then 'lowered' else 'unchanged' end;
  end loop;
  raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
    using errcode = 'serialization_failure', hint = 'Call again.';
end
$$;

insert into tollgate.migrations (version, name) values (8, '0008_adjust') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

-- token_bucket_levels: the state of each bucket in tokens and timestamps, as of now. Reads only; locks nothing.
--
--   capacity, refill_seconds, refill: the limits that the last request used
--   overridden      whether the limits are an override's
--   available       whole tokens; negative: promised to requests that wait for them
--   full_at         when the bucket is full again; null: full, or never
--   next_refill_at  when the next token comes; null: full, or never
--
-- available is null if the row's values are out of bounds, so that one row cannot fail the whole read.
create or replace view tollgate.token_bucket_levels as
select b.id, b.burst / nullif(b.token_ticks, 0) as capacity,
       case when l.clock is not null
            then floor((b.burst - greatest(b.full_at - l.clock, 0))::numeric / b.token_ticks::numeric)::bigint
       end as available,
       -- The units of the state show the limits of an override that was changed or deleted.
       case when not b.overridden then b.refill_seconds
            when o.id is not null then o.refill_seconds
            else round(case b.step_ns when 1 then b.burst when 9223372036854775807 then 0 else b.step_ns end::numeric
                       / 1000000000::numeric, 9) end as refill_seconds,
       case when not b.overridden then b.refill
            when o.id is not null then o.refill
            else case b.step_ns when 1 then 'continuous' when 9223372036854775807 then 'once' else 'interval' end
       end as refill,
       b.plan, b.provisioned, b.overridden, b.granted,
       case when b.full_at > l.clock and b.step_ns < 9223372036854775807
            then to_timestamp((tollgate.bucket_instant(b, b.full_at)::numeric / 1000000000::numeric)::float8)
       end as full_at,
       case when b.full_at > l.clock and b.step_ns < 9223372036854775807
            then to_timestamp((tollgate.bucket_instant(
                   b, b.full_at - (b.full_at - l.clock - 1) / b.token_ticks * b.token_ticks)::numeric
                   / 1000000000::numeric)::float8)
       end as next_refill_at
  from (select tollgate.clock() as now) n
 cross join tollgate.token_buckets b
  left join tollgate.token_overrides o
    on o.id = b.id and b.overridden and o.capacity is not null
       -- The bounds are checked first, because bucket_limits raises an error for limits out of bounds.
       and case when o.capacity between 1 and 3155760000000000000 and o.capacity = trunc(o.capacity)
                     and o.refill in ('interval', 'calendar', 'continuous', 'once')
                     and abs(o.refill_seconds) < 10000000000
                     and (o.refill = 'once'
                          or o.refill_seconds > 0 and o.refill_seconds <= 3155760000
                             and o.refill_seconds * 1000000000 >= o.capacity
                             and (o.refill <> 'continuous'
                                  or ceil(o.refill_seconds * 1000000000 / greatest(o.capacity, 1)) * o.capacity
                                     <= least(o.refill_seconds * 1001000000, 3155760000000000000)))
                then tollgate.bucket_limits('override of ' || quote_literal(o.id), o.capacity, o.refill_seconds, o.refill)
                     = row(b.burst, b.step_ns, b.step_ticks, b.token_ticks) end
 cross join lateral (
   select case when b.burst between 1 and 4611686018427387903 and b.token_ticks >= 1
                    and b.step_ticks between 1 and b.step_ns and b.anchor between 0 and 4611686018427387903
                    and b.full_at >= -4611686018427387904
               then case when b.step_ns = 9223372036854775807
                              or b.full_at / b.step_ticks + (b.full_at % b.step_ticks > 0)::int
                              <= (9223372036854775807 - b.anchor) / b.step_ns
                         then tollgate.bucket_clock(b, n.now) end
          end as clock) l;

comment on view tollgate.token_bucket_levels is 'Each bucket: capacity, tokens available now, full at, next refill';

-- token_window_levels: the state of each sliding window that counted a request, as of now. Reads only; locks nothing.
--
--   max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is the longest
--                   interval since the window was empty
--   counted         requests that count now; above the maximum: promised to requests that wait
--   available       requests that can still be granted; negative: promised
--   granted         requests granted since the creation of the window
--   retry_after_ms  milliseconds until one more request is granted with mode 'enforce'; 0: now
--
-- counted is null if the row's values are out of bounds, so that one row cannot fail the whole read.
create or replace view tollgate.token_window_levels as
select w.id, w.max_requests, w.interval_ns * 0.000000001 as interval_seconds,
       w.resolution_ns * 0.000000001 as resolution_seconds, c.counted, w.max_requests - c.counted as available, w.granted,
       case when c.counted is not null
            then (tollgate.window_earliest(w, w.interval_ns, w.max_requests - 1, n.now) - n.now + 999999) / 1000000
       end as retry_after_ms
  from (select tollgate.clock() as clock) k
 cross join tollgate.token_windows w
 -- After a backward step of the clock, requests counted by the old clock count from now on.
 cross join lateral (
   select case when not tollgate.window_is_sound(w) then null
               when w.ends[array_length(w.ends, 1)] - k.clock > w.last_wait + w.resolution_ns + 1000000000
               then w.ends[array_length(w.ends, 1)] - w.resolution_ns else k.clock end as now) n
 cross join lateral (
   select case when n.now is not null
               then coalesce(sum(u.c) filter (where u.e > n.now - w.interval_ns), 0)::bigint end as counted
     from unnest(w.ends, w.counts) as u (e, c)) c
 where w.granted <> 0;

comment on view tollgate.token_window_levels is 'Each sliding window: its limits, the current count, and when the next request passes';

-- taken_clock(p_taken) -> the time of the bucket's own clock at the decision, in ticks.
create or replace function tollgate.taken_clock(p_taken tollgate.taken_v1) returns bigint
language sql immutable
as $$
  select (p_taken.now - p_taken.anchor) / p_taken.step_ns * p_taken.step_ticks
$$;

-- taken_remaining(p_taken) -> the whole tokens that remain.
create or replace function tollgate.taken_remaining(p_taken tollgate.taken_v1) returns bigint
language sql immutable
as $$
  select greatest((p_taken.burst - greatest(p_taken.full_at - tollgate.taken_clock(p_taken), 0))
                  / p_taken.token_ticks, 0)
$$;

-- taken_until(p_taken, p_tokens) -> milliseconds from the decision until p_tokens tokens are available, rounded up; null:
-- never.
create or replace function tollgate.taken_until(p_taken tollgate.taken_v1, p_tokens bigint) returns bigint
language plpgsql immutable
as $$
declare
  v_tick bigint;
begin
  if p_tokens > p_taken.burst / p_taken.token_ticks then
    return null;
  end if;
  v_tick := greatest(p_taken.full_at, tollgate.taken_clock(p_taken))
            + (p_tokens * p_taken.token_ticks - p_taken.burst);
  if p_taken.step_ns = 9223372036854775807 then
    return case when v_tick <= 0 then 0 end;
  end if;
  -- Also true of a clock that was set back to before its start.
  if v_tick <= tollgate.taken_clock(p_taken) then
    return 0;
  end if;
  -- Computes in integers: numeric division rounds, and over years the error exceeds a nanosecond.
  return (greatest(
    p_taken.anchor + (v_tick + p_taken.step_ticks - 1) / p_taken.step_ticks * p_taken.step_ns - p_taken.now, 0)
    + 999999) / 1000000;
end
$$;

-- request_tokens_v1: takes tokens from a provisioned bucket, or from one that follows a plan. Takes all or none.
--
-- Arguments: p_id             the bucket
--            p_tokens         tokens to take, 1 or more; this and the next two are whole numbers, tokens below 2^53
--            p_max_wait_ms    longest wait in milliseconds; 0: no wait
--            p_min_remaining  tokens that must remain for others
--            p_plan           plan of a bucket that its first request creates; null: the bucket exists
--            p_request        id of the request: a retry with the id within a day is charged once
-- Result:    granted          whether the tokens were taken
--            remaining        whole tokens left
--            wait_ms          milliseconds until you can use the tokens: 0, or up to p_max_wait_ms
--            retry_after_ms   milliseconds until an equal request would be granted; 0: now; null: never, or unknown
--            reset_after_ms   milliseconds until the bucket is full; null: never
-- Errors:    22023 arguments out of range, or more tokens than the bucket can hold · P0002 no such bucket or plan
-- Locks:     as for take_v1. In your transaction, the bucket stays locked until the end, and a rollback gives the tokens back.
create or replace function tollgate.request_tokens_v1(
  p_id text, p_tokens double precision, p_max_wait_ms double precision, p_min_remaining double precision, p_plan text,
  p_request uuid,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t         tollgate.taken_v1;
  v_tokens  bigint;
  v_min_remaining    bigint;
  c_day     constant bigint := 86400000000000;
  c_year_ms constant bigint := 31622400000;
  c_beyond  constant double precision := 9007199254740992;
begin
  if (p_id is not null and p_tokens >= 1 and p_tokens < c_beyond and p_tokens = trunc(p_tokens)
      and p_max_wait_ms between 0 and 'infinity' and p_max_wait_ms = trunc(p_max_wait_ms)
      and p_min_remaining >= 0 and p_min_remaining < c_beyond and p_min_remaining = trunc(p_min_remaining)) is not true then
    raise exception 'tollgate: request_tokens(%, %, %, %): give a bucket''s id, 1 token or more, and a maximum wait '
                    'and a minimum remaining of 0 or more, as whole numbers; tokens below 2^53',
                    quote_nullable(left(p_id, 255)), p_tokens, p_max_wait_ms, p_min_remaining
      using errcode = 'invalid_parameter_value';
  end if;
  v_tokens := p_tokens;
  v_min_remaining := p_min_remaining;

  t := tollgate.take_v1(p_id, v_tokens, least(p_max_wait_ms, c_year_ms)::bigint * 1000000, v_min_remaining, null, null, null,
                        p_plan, p_request, c_day);
  case t.outcome
    when 'unknown' then
      raise exception 'tollgate: there is no bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Provision it: select tollgate.create_bucket(%L, 100, 60); -- 100 tokens a minute',
                            left(p_id, 255));
    when 'unplanned' then
      raise exception 'tollgate: there is no plan for bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Make it: select tollgate.create_plan(%L, 100, 60); -- 100 tokens a minute',
                            left(coalesce(p_plan, (select b.plan from tollgate.token_buckets b where b.id = p_id), 'free'),
                                 255));
    when 'conflict' then
      raise exception 'tollgate: bucket % is provisioned with another limit', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Ask without a plan, or use another id.';
    when 'reused' then
      raise exception 'tollgate: the id % belongs to another request', p_request
        using errcode = 'invalid_parameter_value', hint = 'Give each request an id of its own.';
    when 'never' then
      raise exception 'tollgate: bucket % holds % tokens: a cost of % plus a minimum remaining of % can never be granted',
                      quote_literal(p_id), t.burst / t.token_ticks, v_tokens, v_min_remaining
        using errcode = 'invalid_parameter_value', hint = 'Ask for fewer tokens, or give the bucket a larger capacity.';
    else
      null;
  end case;

  granted := t.outcome = 'granted';
  wait_ms := case when granted then (t.scheduled_at - t.now + 999999) / 1000000 else 0 end;
  if t.token_ticks is null then
    -- The mode is 'off', and the bucket does not exist.
    remaining := t.burst;
    retry_after_ms := 0;
    reset_after_ms := 0;
    return;
  end if;
  remaining := tollgate.taken_remaining(t);
  retry_after_ms := tollgate.taken_until(t, v_tokens + v_min_remaining);
  if t.outcome = 'denied' and t.mode = 'block' then
    retry_after_ms := (t.scheduled_at - t.now + 999999) / 1000000;
  end if;
  reset_after_ms := tollgate.taken_until(t, t.burst / t.token_ticks);
end
$$;

-- request_tokens: calls the current version, request_tokens_v1.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
create or replace function tollgate.request_tokens(
  p_id text, p_tokens double precision default 1, p_max_wait_ms double precision default 0,
  p_min_remaining double precision default 0, p_plan text default null, p_request uuid default null,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, p_plan, p_request)
$$;

-- request_token: takes one token from a provisioned bucket, without a wait.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
create or replace function tollgate.request_token(
  p_id text,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  select t.granted, t.remaining, t.wait_ms, t.retry_after_ms, t.reset_after_ms
    into granted, remaining, wait_ms, retry_after_ms, reset_after_ms
    from tollgate.request_tokens_v1(p_id, 1, 0, 0, null, null) t;
end
$$;

-- request_tokens_many: takes tokens from several provisioned buckets in one call, each by itself.
--
-- Arguments: p_ids           the buckets
--            p_tokens        tokens to take from each, whole numbers below 2^53
-- Result:    one row per request, in the order given
--            id              the bucket
--            outcome         'granted', 'denied', or another outcome of take_v1
--            remaining, retry_after_ms: as for request_tokens_v1; null: undecided
-- Errors and locks: as for take_each_v1
create or replace function tollgate.request_tokens_many(p_ids text[], p_tokens double precision[])
returns table (id text, outcome text, remaining bigint, retry_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_none constant bigint[] := array_fill(0::bigint, array[coalesce(cardinality(p_ids), 0)]);
  v_once constant bigint[] := array_fill(1::bigint, array[coalesce(cardinality(p_ids), 0)]);
begin
  if p_ids is null or p_tokens is null or cardinality(p_ids) <> cardinality(p_tokens)
     or array_position(p_ids, null) is not null or array_position(p_tokens, null) is not null
     or 1 > any (p_tokens) or 9007199254740992 <= any (p_tokens)
     or exists (select from unnest(p_tokens) x where x <> trunc(x)) then
    raise exception 'tollgate: request_tokens_many needs as many numbers of tokens, each a whole number of 1 or more below '
                    '2^53, as bucket ids'
      using errcode = 'invalid_parameter_value';
  end if;
  return query
    select p_ids[t.entry], (t.taken).outcome,
           case when (t.taken).outcome in ('granted', 'denied') then tollgate.taken_remaining(t.taken) end,
           case when (t.taken).outcome = 'denied' and (t.taken).mode = 'block'
                then ((t.taken).scheduled_at - (t.taken).now + 999999) / 1000000
                when (t.taken).outcome in ('granted', 'denied')
                then tollgate.taken_until(t.taken, p_tokens[t.entry]::bigint) end
      from tollgate.take_each_v1(
             array(select generate_series(1, cardinality(p_ids))), p_ids, v_once, p_tokens::bigint[], v_none, v_none, null, null,
             null, null, null, null) a,
           lateral tollgate.answers_each(a) t
     order by t.entry;
end
$$;

-- rate_limiting_request: takes one token from a bucket that its first request creates, full, with continuous refill.
--
-- Arguments: p_rate_id         the bucket
--            p_refill_per_sec  tokens per second
--            p_window_seconds  seconds' worth of tokens that the bucket holds; both are whole numbers
-- Result:    the tokens left, or -1 if the request is denied; a denied call changes nothing
-- Errors:    22023, 23514 invalid limits · 22023 the bucket was provisioned with other limits
-- Locks:     as for take_v1
create or replace function tollgate.rate_limiting_request(
  p_rate_id text, p_refill_per_sec double precision default 2, p_window_seconds double precision default 60)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t tollgate.taken_v1;
begin
  if p_rate_id is null or p_refill_per_sec is null or p_window_seconds is null
     or p_refill_per_sec not between 1 and 1000000000 or p_refill_per_sec <> trunc(p_refill_per_sec)
     or p_window_seconds not between 1 and 3155760000 or p_window_seconds <> trunc(p_window_seconds) then
    raise exception 'tollgate: rate_limiting_request(%, %, %): give an id, a rate of 1 to 10^9 tokens a second and a '
                    'window of 1 second to a century, in whole numbers',
                    quote_nullable(left(p_rate_id, 255)), p_refill_per_sec, p_window_seconds
      using errcode = 'invalid_parameter_value';
  end if;
  t := tollgate.take_v1(p_rate_id, 1, 0, 0, p_refill_per_sec::bigint * p_window_seconds::bigint,
                        p_window_seconds::bigint, 'continuous', null, null, null);
  if t.outcome = 'conflict' then
    raise exception 'tollgate: bucket % was provisioned with other limits', quote_literal(p_rate_id)
      using errcode = 'invalid_parameter_value',
            hint = 'Take its tokens with tollgate.request_token, or use an id of its own here.';
  elsif t.outcome = 'denied' then
    return -1;
  end if;
  return coalesce(tollgate.taken_remaining(t), t.burst);
end
$$;

-- request_tokens_in_window_v1: grants at most p_max_requests requests in any interval, whenever the interval starts.
--
-- Arguments: p_id                  the window; its first request creates it
--            p_max_requests        maximum in any interval; a whole number, like p_tokens and p_max_wait_ms
--            p_interval_seconds    up to one year, fractions allowed
--            p_resolution_seconds  length of the 1 to 1000 parts of the interval; a request counts until one interval after the
--                                  end of its part
--            p_tokens              requests that this one stands for
--            p_max_wait_ms         longest wait in milliseconds
-- Result:    granted               whether you can proceed
--            remaining             requests that can still be granted
--            wait_ms               milliseconds until you can proceed: 0, or up to p_max_wait_ms
--            retry_after_ms        milliseconds until an equal request would be granted; 0: now; null: unknown
--            reset_after_ms        milliseconds until no request counts
-- Errors:    22023 arguments out of range, or more tokens than the maximum
-- Locks:     the window's row. In your transaction, the row stays locked until the end, and a rollback removes the request.
create or replace function tollgate.request_tokens_in_window_v1(
  p_id text, p_max_requests double precision, p_interval_seconds double precision,
  p_resolution_seconds double precision, p_tokens double precision, p_max_wait_ms double precision,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t          tollgate.window_taken_v1;
  w          tollgate.token_windows;
  v_interval bigint;
  v_most     bigint;
  v_tokens   bigint;
  v_last     int;
begin
  if (p_max_requests between 0 and 1000000000000 and p_max_requests = trunc(p_max_requests)
      and p_tokens < 9007199254740992 and p_tokens = trunc(p_tokens) and p_max_wait_ms = trunc(p_max_wait_ms)
      and p_interval_seconds > 0 and p_interval_seconds <= 31622400 and p_resolution_seconds > 0
      and p_resolution_seconds <= p_interval_seconds and p_max_wait_ms between 0 and 31622400000
      and p_tokens >= 1) is not true then
    raise exception 'tollgate: request_tokens_in_window(%, %, %, %, %, %): give an interval of up to a year, a resolution '
                    'of up to that, at most 10^12 requests, 1 token or more and a maximum wait of 0 or more, in whole numbers',
                    quote_nullable(left(p_id, 255)), p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens,
                    p_max_wait_ms
      using errcode = 'invalid_parameter_value';
  end if;
  v_interval := p_interval_seconds::numeric * 1000000000;
  v_most := p_max_requests;
  v_tokens := p_tokens;
  t := tollgate.take_window_v1(p_id, v_tokens, p_max_wait_ms::bigint * 1000000, 0, v_most,
                               v_interval, (p_resolution_seconds::numeric * 1000000000)::bigint, null, 0, false);
  if t.outcome = 'never' then
    raise exception 'tollgate: the window of % allows at most % requests, fewer than %', quote_literal(p_id),
                    v_most, v_tokens using errcode = 'invalid_parameter_value';
  end if;
  w.ends := t.ends;
  w.counts := t.counts;
  w.resolution_ns := t.resolution_ns;
  v_last := array_length(t.ends, 1);
  granted := t.outcome = 'granted';
  remaining := greatest(v_most - coalesce((
    select sum(c) from unnest(t.ends, t.counts) as u (e, c) where e > t.now - v_interval), 0), 0);
  wait_ms := case when granted then (t.scheduled_at - t.now + 999999) / 1000000 else 0 end;
  retry_after_ms := (case
    when t.mode = 'block' then t.scheduled_at
    else tollgate.window_earliest(w, v_interval, v_most - v_tokens, t.now) end - t.now + 999999) / 1000000;
  reset_after_ms := coalesce((greatest(t.ends[v_last] + v_interval - t.now, 0) + 999999) / 1000000, 0);
end
$$;

-- request_tokens_in_window: calls the current version, request_tokens_in_window_v1.
--
-- Arguments, result, errors and locks: as for request_tokens_in_window_v1
create or replace function tollgate.request_tokens_in_window(
  p_id text, p_max_requests double precision, p_interval_seconds double precision,
  p_resolution_seconds double precision, p_tokens double precision default 1, p_max_wait_ms double precision default 0,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_in_window_v1(
    p_id, p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens, p_max_wait_ms)
$$;

-- throttle: throttle_v1 in milliseconds, for a provisioned bucket or one that follows a plan.
--
-- Arguments: p_id              the bucket
--            p_remaining       tokens that are left at most; null: unknown
--            p_retry_after_ms  milliseconds until the next token at the earliest; null: unknown
--            p_max_wait_ms     upper bound of p_retry_after_ms. Default: one hour
--            p_plan            plan of a bucket that its first request creates; null: the bucket exists
-- Result:    whether the bucket held more
-- Errors:    22023 arguments out of range, or a wait for a bucket that never refills · P0002 no such bucket or plan
-- Locks:     as for throttle_v1. In your transaction, the bucket stays locked until the end.
create or replace function tollgate.throttle(
  p_id text, p_remaining double precision default null, p_retry_after_ms double precision default null,
  p_max_wait_ms double precision default 3600000, p_plan text default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_outcome text;
begin
  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and coalesce(p_retry_after_ms, 0) >= 0 and p_max_wait_ms >= 0
      and coalesce(p_remaining, p_retry_after_ms) is not null
      and coalesce(p_remaining, 0) < 9007199254740992 and greatest(p_retry_after_ms, p_max_wait_ms) <= 'infinity'
      and coalesce(p_remaining = trunc(p_remaining), true) and coalesce(p_retry_after_ms = trunc(p_retry_after_ms), true)
      and p_max_wait_ms = trunc(p_max_wait_ms)) is not true then
    raise exception 'tollgate: throttle(%, %, %, %): give a bucket''s id, and a number of tokens, a wait in '
                    'milliseconds, or both, of 0 or more, in whole numbers; of tokens, below 2^53',
                    quote_nullable(left(p_id, 255)), p_remaining, p_retry_after_ms, p_max_wait_ms
      using errcode = 'invalid_parameter_value';
  end if;
  v_outcome := tollgate.throttle_v1(
    p_id, p_remaining::bigint, least(coalesce(p_retry_after_ms, 0), p_max_wait_ms, 31622400000)::bigint * 1000000,
    null, null, null, p_plan);
  case v_outcome
    when 'unknown' then
      raise exception 'tollgate: there is no bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Provision it: select tollgate.create_bucket(%L, 100, 60); -- 100 tokens a minute',
                            left(p_id, 255));
    when 'unplanned' then
      raise exception 'tollgate: there is no plan for bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Make it: select tollgate.create_plan(%L, 100, 60); -- 100 tokens a minute',
                            left(coalesce(p_plan, (select b.plan from tollgate.token_buckets b where b.id = p_id), 'free'),
                                 255));
    when 'conflict' then
      raise exception 'tollgate: bucket % is provisioned with another limit', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Ask without a plan, or use another id.';
    when 'endless' then
      raise exception 'tollgate: bucket % never refills, so it cannot be throttled for a time', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Say how many tokens are left.';
    else
      null;
  end case;
  return v_outcome = 'lowered';
end
$$;

-- peek: reads the row of one bucket in token_bucket_levels.
--
-- Arguments: p_id  the bucket
-- Result:    one row; none if the bucket does not exist
-- Errors:    none
-- Locks:     none
--
-- Serves roles that can read a bucket whose name they know, but that cannot list buckets.
create or replace function tollgate.peek(p_id text) returns setof tollgate.token_bucket_levels
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select l.* from tollgate.token_bucket_levels l where l.id = p_id
$$;

-- peek_window: reads one sliding window as of now.
--
-- Arguments: p_id             the window
-- Result:    one row; none if the window does not exist
--            max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is
--                             the longest interval since the window was empty
--            counted          requests that count now; above the maximum: promised to requests that wait
--            granted          requests granted since the creation of the window
--            retry_after_ms   milliseconds until one more request is granted with mode 'enforce'; 0: now
-- Errors:    none
-- Locks:     none
create or replace function tollgate.peek_window(p_id text)
returns table (
  max_requests bigint, interval_seconds numeric, resolution_seconds numeric, counted bigint, granted bigint,
  retry_after_ms bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  w     tollgate.token_windows;
  v_now bigint;
begin
  select t.* into w from tollgate.token_windows t where t.id = p_id and t.granted <> 0;
  if not found then
    return;
  end if;
  if not tollgate.window_is_sound(w) then
    -- The row's values are out of bounds: the answer is unknown.
    return query select null::bigint, null::numeric, null::numeric, null::bigint, null::bigint, null::bigint;
    return;
  end if;
  v_now := tollgate.clock();
  if w.ends[array_length(w.ends, 1)] - v_now > w.last_wait + w.resolution_ns + 1000000000 then
    -- After a backward step of the clock, requests counted by the old clock count from now on.
    v_now := w.ends[array_length(w.ends, 1)] - w.resolution_ns;
  end if;
  return query
    select w.max_requests, w.interval_ns * 0.000000001, w.resolution_ns * 0.000000001,
           coalesce(sum(u.c) filter (where u.e > v_now - w.interval_ns), 0)::bigint, w.granted,
           (tollgate.window_earliest(w, w.interval_ns, w.max_requests - 1, v_now) - v_now + 999999) / 1000000
      from unnest(w.ends, w.counts) as u (e, c);
end
$$;

insert into tollgate.migrations (version, name) values (9, '0009_requests') on conflict do nothing;

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

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
                              round(p_refill_seconds, 9), p_refill);
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
                              round(p_refill_seconds, 9), p_refill);
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

-- reset_bucket: fills a bucket up to the effective capacity, and empties the sliding window with its key.
--
-- Arguments: p_id  the bucket
-- Result:    whether the bucket exists, or a window that counted a request
-- Errors:    as for rule
-- Locks:     the bucket's row, then the window's
--
-- A reset counts as a grant of the capacity, so that earlier reservations give nothing back.
create or replace function tollgate.reset_bucket(p_id text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_found   boolean;
  v_window  boolean;
  v_changed boolean;
begin
  perform from tollgate.token_buckets b where b.id = p_id for no key update;
  if found then
    -- The change from an override to the bucket's plan takes two steps.
    for v_step in 1 .. 4 loop
      select r.changed into v_changed
        from tollgate.rule(p_id, null, null, null, null, tollgate.clock(), true) r;
      exit when v_changed is not true;
    end loop;
  end if;
  update tollgate.token_buckets b
     set full_at = tollgate.bucket_clock(b, tollgate.clock()), max_granted_wait = 0,
         granted = least(b.granted::numeric + b.burst / b.token_ticks, 4611686018427387903)
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
               and not c.provisioned and c.full_at <= tollgate.bucket_clock(c, v_unused)
               and (select true from tollgate.token_receipts r
                     where r.bucket = c.id and r.state = 'open' and r.expires_at > v_now limit 1) is null
             order by c.id for update skip locked) f
     where b.id = f.id and not b.provisioned and b.full_at <= tollgate.bucket_clock(b, v_unused);
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

-- count_denials_v1: adds the denials that a process counted, and deletes rows older than two days.
--
-- Arguments: p_ids     the buckets, 1000 at most; duplicates allowed
--            p_denied  denied requests of each, 1 to 10^15
-- Result:    none
-- Errors:    22023 arguments out of range
-- Locks:     the rows of these keys in this hour, in id order; then up to 1000 old rows, skipping rows that another session has
--            locked. No decision reads these rows.
create or replace function tollgate.count_denials_v1(p_ids text[], p_denied bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
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

do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;

commit;
