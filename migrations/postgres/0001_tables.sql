-- tollgate's schema. PUBLIC has no privileges on it: ../grants/postgres.sql gives roles of yours what they need.
--
-- Refuses a database whose encoding lacks characters: one key that it cannot write would fail all requests of its call.
-- SQL_ASCII takes any bytes.
do $$
begin
  if current_setting('server_encoding') not in ('UTF8', 'SQL_ASCII') then
    raise exception 'this database is encoded in %, which has not every character of a key: create database ... encoding ''UTF8'' template template0, and migrate that',
        current_setting('server_encoding')
      using errcode = 'feature_not_supported';
  end if;
  -- An administrator can have created it for a role that cannot.
  if to_regnamespace('tollgate') is null then
    create schema tollgate;
    comment on schema tollgate is 'Exact rate limiting: select * from tollgate.request_token(''my-bucket'')';
  end if;
end
$$;

revoke all on schema tollgate from public;

-- Which of these files have run.
create table if not exists tollgate.migrations (
  version    bigint primary key,
  name       text not null,
  applied_at timestamptz not null default now()
);

-- applied_migrations() -> the versions that have run, for roles that cannot read the table.
create or replace function tollgate.applied_migrations() returns setof bigint
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select m.version from tollgate.migrations m order by m.version
$$;

-- clock() -> now, in nanoseconds since 1970.
--
-- The one clock of every decision: the server's, at this very instant. now() and statement_timestamp() would be
-- older than a wait for a lock, and no setting of a session (TimeZone, search_path) changes this one. A double holds
-- microseconds exactly until the year 2242, and is read three times as fast as the numeric of extract().
create or replace function tollgate.clock() returns bigint
language sql volatile
return (date_part('epoch', pg_catalog.clock_timestamp()) * '1000000'::float8)::bigint * 1000;

-- One row a bucket. To provision one, name the first three columns; the others are the library's.
--
--   insert into tollgate.token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- refill says how tokens come back: all at once at the end of each period ('interval', from the row's making on;
-- 'calendar', in UTC's), one by one ('continuous'), or not at all ('once', whatever refill_seconds says).
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- For 'continuous' a tick is a nanosecond; for the others it is a token, and a step is the whole period, or never.
-- burst to token_ticks are the terms that the state was last written under: the row's own, or an override's.
--
-- No column that a decision writes is indexed, and each page keeps room, so updates are heap-only: a tenth of the page, and what
-- each row gives up at its first decision. A lower fillfactor prunes the page at nearly each decision: batches a fifth slower.
-- A trigger checks the terms: an UPDATE would prepare check constraints and generated columns anew, at four times its cost.
create table if not exists tollgate.token_buckets (
  id             text collate "C" primary key,                      -- 1 to 255 bytes
  capacity       numeric not null,                                  -- tokens, a whole number; a bigint would round in silence
  refill_seconds numeric(19, 9) not null,                           -- from empty to full
  refill         text collate "C" not null default 'interval',      -- how tokens come back
  plan           text collate "C",                                  -- the plan that it follows, if any
  provisioned    boolean not null default true,                     -- false: made by its first request, may be swept
  overridden     boolean not null default false,                    -- whether its state is under an override's terms
  anchor         bigint not null default tollgate.clock(), -- nanoseconds since 1970
  full_at        bigint not null default 0,                         -- ticks: when it is full again
  granted        bigint not null default 0,                         -- tokens, ever
  max_granted_wait   bigint not null default 0,                         -- ticks: the longest that was granted
  burst          bigint not null,                                   -- ticks from empty to full; a trigger gives these four
  step_ns        bigint not null,
  step_ticks     bigint not null,
  token_ticks    bigint not null,
  room           text default repeat(' ', 60)                       -- nothing, and null from the first decision on
)
with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

comment on table tollgate.token_buckets is 'Token buckets. Read them through tollgate.token_bucket_levels';

-- A row a plan: the quota of every bucket that follows it. A changed row rules from the next request on; tokens that
-- are there stay, up to the new capacity.
--
--   insert into tollgate.token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update tollgate.token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. Of a plan, a key's override and token_mode, the nearest to the key that says one rules.
create table if not exists tollgate.token_plans (
  name           text collate "C" primary key,                   -- 1 to 255 bytes
  capacity       numeric not null,                               -- tokens, a whole number; a bigint would round in silence
  refill_seconds numeric(19, 9) not null,                        -- from empty to full
  refill         text collate "C" not null default 'continuous', -- as in token_buckets
  mode           text collate "C",                               -- null: what token_mode says
  mode_reason    text,
  mode_until     timestamptz                                     -- null: until it is changed
);

-- What holds for every key, unless its plan or an override says otherwise. One row; without it the mode is 'enforce'.
--
--   update tollgate.token_mode set mode = 'shadow', reason = 'incident 42', until = now() + interval '2 hours'
--    where one = true;
--
-- 'enforce' limits; 'shadow' takes tokens, and lets requests pass that find none, without a wait; 'off' lets everything
-- pass and touches no bucket; 'block' denies everything.
create table if not exists tollgate.token_mode (
  mode   text collate "C" not null default 'enforce',
  reason text,
  until  timestamptz,                                            -- null: until it is changed
  one    boolean primary key default true check (one)
);

insert into tollgate.token_mode default values on conflict do nothing;

-- What holds for one key instead of its own terms and mode, for a time, and why.
--
--   insert into tollgate.token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', now() + interval '1 day');
create table if not exists tollgate.token_overrides (
  id             text collate "C" primary key,                   -- the bucket; it need not exist yet
  capacity       numeric,                                        -- null: the terms stay, only the mode is another
  refill_seconds numeric(19, 9),
  refill         text collate "C" not null default 'continuous', -- as in token_buckets
  mode           text collate "C",                               -- null: what the plan or token_mode says
  reason         text not null,
  expires_at     timestamptz                                     -- null: until it is deleted; once past, it rules nothing
);

-- A row a grant that must be known again: of a request with an id, so that a repeated one does not pay twice, and of a
-- reservation that was cancelled, refunded or is to be settled.
--
-- As many rows go as come, and vacuum follows before a fiftieth of them is dead.
create table if not exists tollgate.token_receipts (
  id         uuid not null,
  bucket     text collate "C" not null,
  cost       bigint not null,            -- tokens
  granted    bigint not null,            -- the bucket's granted after it
  scheduled_at    bigint not null,            -- when the tokens may be used, in nanoseconds since 1970
  state      text collate "C" not null,  -- 'open', 'cancelled', 'refunded', 'settled'
  expires_at bigint not null,            -- in nanoseconds since 1970; from then on what it says stands
  primary key (id, bucket)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- A sweep asks whether a bucket has any that can be settled still. Those that were settled, refunded or cancelled are far more
-- at times, and of one bucket.
create index if not exists token_receipts_open on tollgate.token_receipts (bucket, expires_at) where state = 'open';

-- A row a sliding window: how many requests were granted in each sub-interval that still counts. The library's own:
-- request_tokens_in_window makes rows, and the sweep deletes those in which nothing counts any more.
--
-- A page keeps room for some rows' next version, so that updates are heap-only: rows grow with what they count.
create table if not exists tollgate.token_windows (
  id            text collate "C" primary key,  -- 1 to 255 bytes
  max_requests          bigint not null,               -- the terms that it was last counted under: requests in any interval
  interval_ns   bigint not null,
  resolution_ns bigint not null,
  ends          bigint[] not null default '{}', -- the sub-intervals' ends, oldest first, in nanoseconds since 1970
  counts        bigint[] not null default '{}', -- granted in each
  granted       bigint not null default 0,     -- requests, ever
  last_wait     bigint not null default 0,     -- nanoseconds: of the request that was counted last
  since         bigint not null default 0,     -- nanoseconds since 1970: what acted before is perhaps not counted any more
  constraint id_has_1_to_255_bytes check (octet_length(id) between 1 and 255),
  constraint id_does_not_begin_with_u0001 check (left(id, 1) <> chr(1)) -- as the receipts' buckets do: see take_window_v1
)
with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- How often keys were denied, in each hour: what services that count their denials have reported. A denial itself
-- writes nothing, so these are the keys that each process denied most, up to its last report.
--
-- A process adds to all of its rows at once: a page keeps room for the next version of each, so that updates are heap-only.
create table if not exists tollgate.token_stats (
  hour           timestamptz not null,
  id             text collate "C" not null,                      -- the bucket; it need not exist any more
  denied         bigint not null,                                -- requests
  last_denied_at timestamptz not null,                           -- when it was last reported
  primary key (hour, id),
  constraint id_has_1_to_255_bytes check (octet_length(id) between 1 and 255),
  constraint id_does_not_begin_with_u0001 check (left(id, 1) <> chr(1))
)
with (fillfactor = 50);

-- How far the sweep has come, for all sessions that sweep. One row: without it, a step waits for another session's first step.
create table if not exists tollgate.token_sweep_position (
  swept_to text collate "C",  -- a table, and behind which of its rows the next step begins; null: it begins anew
  one      boolean primary key default true check (one)
);

insert into tollgate.token_sweep_position default values on conflict do nothing;

revoke all on all tables in schema tollgate from public;
revoke all on all functions in schema tollgate from public;

insert into tollgate.migrations (version, name) values (1, '0001_tables') on conflict do nothing;
