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
-- No column that a decision writes is indexed, and each page keeps room, so updates are heap-only: a tenth of it, and what
-- each row gives up at its first decision. With a larger share kept free by fillfactor instead, PostgreSQL would tidy up the
-- page at nearly each decision and not at every twentieth, which made batches a fifth slower. Terms
-- are checked by a trigger, because check constraints and generated columns are made ready anew by every UPDATE: here
-- they would cost a decision four times what its row does.
create table tollgate.token_buckets (
  id             text collate "C" primary key,                      -- 1 to 255 bytes
  capacity       numeric not null,                                  -- tokens, a whole number; a bigint would round in silence
  refill_seconds numeric(19, 9) not null,                           -- from empty to full
  refill         text collate "C" not null default 'interval',      -- how tokens come back
  plan           text collate "C",                                  -- the plan that it follows, if any
  provisioned    boolean not null default true,                     -- false: made by its first request, may be swept
  overridden     boolean not null default false,                    -- whether its state is under an override's terms
  anchor         bigint not null default tollgate.token_clock_v1(), -- nanoseconds since 1970
  full_at        bigint not null default 0,                         -- ticks: when it is full again
  granted        bigint not null default 0,                         -- tokens, ever
  longest_wait   bigint not null default 0,                         -- ticks: the longest that was granted
  burst          bigint not null,                                   -- ticks from empty to full; a trigger gives these four
  step_ns        bigint not null,
  step_ticks     bigint not null,
  token_ticks    bigint not null,
  room           text default repeat(' ', 60)                       -- nothing, and null from the first decision on
)
with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

revoke all on tollgate.token_buckets from public;

comment on table tollgate.token_buckets is 'Token buckets. Read them through tollgate.token_bucket_levels';
