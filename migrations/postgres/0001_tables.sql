-- tollgate's schema. PUBLIC has no privileges on it; ../grants/postgres.sql grants your roles the privileges that they need.
--
-- Refuses a database whose encoding lacks characters: a key that the database cannot store would fail every request of its
-- call. SQL_ASCII stores any bytes.
do $$
begin
  if current_setting('server_encoding') not in ('UTF8', 'SQL_ASCII') then
    raise exception 'this database is encoded in %, which has not every character of a key: create database ... '
                    'encoding ''UTF8'' template template0, and migrate that', current_setting('server_encoding')
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
--   'calendar month in Europe/Berlin'
--                all at once when a day, week, month or year of a time zone begins: see period_bounds; refill_seconds has no
--                effect
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- With 'continuous', a tick is a nanosecond. With the others, a tick is a token and a step is the whole period, or never ends.
-- The clock of a calendar period knows its own start and end. The first request after period_end starts the next period.
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
  max_granted_wait bigint not null default 0,                  -- ticks: the longest wait that was granted
  burst          bigint not null,                              -- ticks from empty to full; a trigger sets these four
  step_ns        bigint not null,
  step_ticks     bigint not null,
  token_ticks    bigint not null,
  granted_requests bigint,                                     -- requests that the last batch granted: it returns them
  room           text default repeat(' ', 60),                 -- spaces; null from the first update on
  period_end     bigint not null default 9223372036854775807,  -- nanoseconds since 1970: end of the calendar period
  recorded       bigint not null default 0,                    -- the part of granted that is recorded as usage, or is none
  charged        bigint not null default 0,                    -- tokens charged since usage was recorded last
  refunded       bigint not null default 0                     -- tokens given back since usage was recorded last
)
with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

alter table tollgate.token_buckets
  add column if not exists period_end bigint not null default 9223372036854775807,
  add column if not exists recorded bigint not null default 0,
  add column if not exists charged bigint not null default 0,
  add column if not exists refunded bigint not null default 0;

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

-- The limits of a plan that has several, or one with a name: see create_plan_limit. Further limits are rows of token_plans, named
-- after the plan, U+0001 and the limit. A key's bucket for such a limit has the id of the key, U+0001 and the limit.
create table if not exists tollgate.token_plan_limits (
  plan       text collate "C",
  place      bigint,           -- 1: the first limit, which has the name of the plan in token_plans
  limit_name text collate "C", -- null: only the first limit can be without a name
  cost_name  text collate "C", -- the name of the cost that the limit counts; null: the tokens of the request
  primary key (plan, place),
  constraint names_are_words check (
    (limit_name is null and place = 1 or limit_name ~ '^[A-Za-z][A-Za-z0-9_-]{0,31}$')
    and (cost_name is null or cost_name ~ '^[A-Za-z][A-Za-z0-9_-]{0,31}$')),
  constraint has_at_most_16_limits check (place between 1 and 16),
  constraint name_is_used_once unique (plan, limit_name)
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
  id           uuid not null,
  bucket       text collate "C" not null,
  cost         bigint not null,           -- tokens
  granted      bigint not null,           -- the bucket's granted after this grant
  scheduled_at bigint not null,           -- when the tokens can be used, in nanoseconds since 1970
  state        text collate "C" not null, -- 'open', 'cancelled', 'refunded', 'settled'
  expires_at   bigint not null,           -- in nanoseconds since 1970; an expired receipt can no longer be adjusted
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
  max_requests  bigint not null,                -- the limits of the last counted request: requests in any interval
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

-- Whether and how usage is recorded. One row: usage is recorded. No row: it is not.
--
--   insert into tollgate.token_usage_recording (every_seconds) values (86400);
--   update tollgate.token_usage_recording set ending = true, recorded_to = null;  -- records the rest, then no more
create table if not exists tollgate.token_usage_recording (
  every_seconds bigint not null default 3600, -- length of the periods, in UTC: an hour or a day
  keep_days     bigint not null default 400,  -- older periods are deleted
  ending        boolean not null default false, -- true: this round records what was used, and deletes this row
  period_start  timestamptz,                  -- the period that usage is recorded under; null: recording has yet to begin
  recorded_to   text collate "C",             -- the bucket after which the next step continues; null: no round is in progress
  one           boolean primary key default true check (one),
  constraint period_is_an_hour_or_a_day check (every_seconds in (3600, 86400)),
  constraint keeps_1_day_to_100_years check (keep_days between 1 and 36525)
);

-- One row per bucket, plan and period in which it was used. Read the rows through token_usage, which adds the usage that is not
-- recorded yet.
create table if not exists tollgate.token_usage_records (
  id           text collate "C" not null,            -- the bucket, which can be deleted by now
  period_start timestamptz not null,
  plan         text collate "C" not null default '', -- '': no plan
  granted      bigint not null default 0,            -- tokens
  charged      bigint not null default 0,            -- tokens
  refunded     bigint not null default 0,            -- tokens
  denied       bigint not null default 0,            -- requests, as in token_stats
  primary key (id, period_start, plan)
);

-- Reports of one month, and the deletion of old periods.
create index if not exists token_usage_records_by_period on tollgate.token_usage_records (period_start, id);

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
