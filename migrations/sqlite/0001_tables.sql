-- The migrations that have run.
create table if not exists token_migrations (
  version    integer not null primary key,
  name       text not null,
  applied_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ'))
) strict;

-- One row per bucket. To provision a bucket, set the first three columns. tollgate maintains the others.
--
--   insert into token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- To change the limits of a bucket, call tollgate::create_bucket, which keeps the available tokens. A plain UPDATE of the
-- limits computes the level anew.
--
-- refill: how tokens come back.
--   'interval'   all at once at the end of each period, counted from the creation of the row
--   'calendar'   all at once at the end of each period of the UTC calendar
--   'continuous' one by one
--   'once'       never; refill_seconds has no effect
--   'calendar month in Europe/Berlin'
--                all at once when a day, week, month or year of a time zone begins; refill_seconds has no effect. The text after
--                'calendar ' is that of tollgate::model::CalendarPeriod
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- With 'continuous', a tick is a nanosecond. With the others, a tick is a token and a step is the whole period, or never ends.
-- The clock of a calendar period knows its own start and end. The first request after period_end starts the next period.
--
-- Uses julianday, because other clients from SQLite 3.38 on also run defaults and views. unixepoch('subsec') needs 3.42.
create table if not exists token_buckets (
  id             text not null primary key,
  capacity       integer not null,                 -- tokens
  refill_seconds real not null,                    -- from empty to full
  refill         text not null default 'interval', -- how tokens come back
  plan           text,                             -- the plan that the bucket follows, or null
  provisioned    integer not null default true,    -- false: created by its first request, can be swept
  over_capacity  integer,                          -- the limits of an override that the state is under, or null
  over_refill_ns integer,
  over_refill    text,
  anchor         integer not null                  -- nanoseconds since 1970
                 default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000000),
  full_at        integer not null default 0,       -- ticks: when the bucket is full again
  granted        integer not null default 0,       -- tokens granted since the creation of the row
  max_granted_wait integer not null default 0,     -- ticks: the longest wait that was granted
  period_end     integer,                          -- nanoseconds since 1970: end of the calendar period; null: unknown yet
  recorded       integer not null default 0,       -- the part of granted that is recorded as usage, or is none
  charged        integer not null default 0,       -- tokens charged since usage was recorded last
  refunded       integer not null default 0,       -- tokens given back since usage was recorded last
  refill_ns      integer as (cast(round(refill_seconds * 1e9) as integer)),
  step_ns        integer as (
                   case coalesce(over_refill, refill)
                     when 'continuous' then 1 when 'once' then 9223372036854775807
                     when 'interval' then coalesce(over_refill_ns, refill_ns)
                     when 'calendar' then coalesce(over_refill_ns, refill_ns)
                     else coalesce(period_end - anchor, 31556952000000000) end),
  step_ticks     integer as (
                   case when coalesce(over_refill, refill) in ('continuous', 'once') then 1
                     else coalesce(over_capacity, capacity) end),
  token_ticks    integer as (
                   case coalesce(over_refill, refill) when 'continuous'
                     then (coalesce(over_refill_ns, refill_ns) + coalesce(over_capacity, capacity) - 1)
                          / coalesce(over_capacity, capacity)
                     else 1 end),
  burst          integer as (coalesce(over_capacity, capacity) * token_ticks), -- ticks from empty to full
  constraint id_has_1_to_255_bytes_and_no_nul check (
    length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1)), -- windows' receipts begin so
  constraint capacity_is_1_or_more check (capacity >= 1),
  constraint capacity_is_at_most_as_many_as_a_century_has_nanoseconds check (capacity <= 3155760000000000000),
  constraint refill_has_a_valid_form check (
    refill in ('interval', 'calendar', 'continuous', 'once')
    or refill like 'calendar day%' or refill like 'calendar week%' or refill like 'calendar month%'
    or refill like 'calendar year%'),
  constraint refill_seconds_is_above_0 check (refill_ns >= 1 or refill = 'once' or refill like 'calendar %'),
  constraint refill_seconds_is_a_century_or_less check (
    refill = 'once' or refill like 'calendar %'
    or (refill_seconds <= 3155760000 and (
      refill <> 'continuous' or (refill_ns + capacity - 1) / capacity * capacity <= 3155760000000000000))),
  constraint refill_is_at_most_1_token_a_nanosecond check (
    refill_ns >= capacity or refill = 'once' or refill like 'calendar %'),
  constraint rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or (refill_ns + capacity - 1) / capacity * capacity - refill_ns <= refill_ns / 1000)
) strict, without rowid;

-- The grid of periods contains the creation time and extends to the past, because clocks can be set back.
drop trigger if exists token_bucket_begins;
create trigger token_bucket_begins after insert on token_buckets
when new.full_at = 0 and new.period_end is null
     and (new.anchor >= new.step_ns or new.anchor <> 0 and new.refill like 'calendar%') begin
  update token_buckets
     set anchor = case when new.refill like 'calendar%' then 0 else new.anchor % new.step_ns end
   where id = new.id;
end;

-- One row per plan: the quota of each bucket that follows the plan. A change applies from the next request on. Buckets keep
-- their available tokens, up to the new capacity.
--
--   insert into token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. An override's mode precedes a plan's mode, and a plan's mode precedes token_mode.
create table if not exists token_plans (
  name           text not null primary key,          -- 1 to 255 bytes
  capacity       integer not null,                   -- tokens
  refill_seconds real not null,                      -- from empty to full
  refill         text not null default 'continuous', -- as in token_buckets
  mode           text,                               -- null: the mode of token_mode
  mode_reason    text,
  mode_until     text,                               -- UTC, as datetime() writes it; null: until the mode is changed
  refill_ns      integer as (cast(round(refill_seconds * 1e9) as integer)),
  constraint name_has_1_to_255_bytes_and_no_nul check (
    length(cast(name as blob)) between 1 and 255 and instr(cast(name as blob), x'00') = 0),
  constraint name_does_not_begin_with_u0001 check (substr(name, 1, 1) <> char(1)),
  constraint capacity_is_1_or_more check (capacity >= 1),
  constraint capacity_is_at_most_as_many_as_a_century_has_nanoseconds check (capacity <= 3155760000000000000),
  constraint refill_has_a_valid_form check (
    refill in ('interval', 'calendar', 'continuous', 'once')
    or refill like 'calendar day%' or refill like 'calendar week%' or refill like 'calendar month%'
    or refill like 'calendar year%'),
  constraint refill_seconds_is_above_0 check (refill_ns >= 1 or refill = 'once' or refill like 'calendar %'),
  constraint refill_seconds_is_a_century_or_less check (
    refill = 'once' or refill like 'calendar %'
    or (refill_seconds <= 3155760000 and (
      refill <> 'continuous' or (refill_ns + capacity - 1) / capacity * capacity <= 3155760000000000000))),
  constraint refill_is_at_most_1_token_a_nanosecond check (
    refill_ns >= capacity or refill = 'once' or refill like 'calendar %'),
  constraint rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or (refill_ns + capacity - 1) / capacity * capacity - refill_ns <= refill_ns / 1000),
  constraint mode_is_enforce_shadow_off_or_block check (mode in ('enforce', 'shadow', 'off', 'block')),
  constraint mode_until_is_a_time check (mode_until is null or julianday(mode_until) is not null)
) strict, without rowid;

-- The limits of a plan that has several, or one with a name. Further limits are rows of token_plans, named after the plan, U+0001
-- and the limit. A key's bucket for such a limit has the id of the key, U+0001 and the limit.
create table if not exists token_plan_limits (
  plan       text not null,
  place      integer not null, -- 1: the first limit, which has the name of the plan in token_plans
  limit_name text,             -- null: only the first limit can be without a name
  cost_name  text,             -- the name of the cost that the limit counts; null: the tokens of the request
  primary key (plan, place),
  constraint names_are_words check (
    (limit_name is null and place = 1
     or length(limit_name) between 1 and 32 and limit_name glob '[A-Za-z]*' and limit_name not glob '*[^A-Za-z0-9_-]*')
    and (cost_name is null
         or length(cost_name) between 1 and 32 and cost_name glob '[A-Za-z]*' and cost_name not glob '*[^A-Za-z0-9_-]*')),
  constraint has_at_most_16_limits check (place between 1 and 16),
  constraint name_is_used_once unique (plan, limit_name)
) strict, without rowid;

-- The mode of every key whose plan and override set none. One row; if the row is missing, the mode is 'enforce'.
--
--   update token_mode set mode = 'shadow', reason = 'incident 42', until = datetime('now', '+2 hours')
--    where one = true;
--
-- 'enforce' applies the limits. 'shadow' takes tokens, and grants requests that find too few, without a wait. 'off' grants
-- every request and touches no bucket. 'block' denies every request.
create table if not exists token_mode (
  one    integer not null primary key default 1 check (one = 1),
  mode   text not null default 'enforce',
  reason text,
  until  text, -- UTC, as datetime() writes it; null: until the mode is changed
  constraint mode_is_enforce_shadow_off_or_block check (mode in ('enforce', 'shadow', 'off', 'block')),
  constraint until_is_a_time check (until is null or julianday(until) is not null)
) strict, without rowid;

insert or ignore into token_mode default values;

-- Limits or a mode that replace one key's own for a time, with a reason.
--
--   insert into token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', datetime('now', '+1 day'));
create table if not exists token_overrides (
  id             text not null primary key,          -- the bucket; it need not exist yet
  capacity       integer,                            -- null: the limits do not change, only the mode does
  refill_seconds real,
  refill         text not null default 'continuous', -- as in token_buckets
  mode           text,                               -- null: the mode of the plan or of token_mode
  reason         text not null,
  expires_at     text,                               -- UTC, as datetime() writes it; null: until the row is deleted
  refill_ns      integer as (cast(round(refill_seconds * 1e9) as integer)),
  constraint id_has_1_to_255_bytes_and_no_nul check (
    length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1)),
  constraint both_capacity_and_refill_seconds_or_neither check ((capacity is null) = (refill_seconds is null)),
  constraint it_changes_the_limits_or_the_mode check (capacity is not null or mode is not null),
  constraint capacity_is_1_or_more check (capacity >= 1),
  constraint capacity_is_at_most_as_many_as_a_century_has_nanoseconds check (capacity <= 3155760000000000000),
  constraint refill_has_a_valid_form check (
    refill in ('interval', 'calendar', 'continuous', 'once')
    or refill like 'calendar day%' or refill like 'calendar week%' or refill like 'calendar month%'
    or refill like 'calendar year%'),
  constraint refill_seconds_is_above_0 check (refill_ns >= 1 or refill = 'once' or refill like 'calendar %'),
  constraint refill_seconds_is_a_century_or_less check (
    refill = 'once' or refill like 'calendar %'
    or (refill_seconds <= 3155760000 and (
      refill <> 'continuous' or (refill_ns + capacity - 1) / capacity * capacity <= 3155760000000000000))),
  constraint refill_is_at_most_1_token_a_nanosecond check (
    refill_ns >= capacity or refill = 'once' or refill like 'calendar %'),
  constraint rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or (refill_ns + capacity - 1) / capacity * capacity - refill_ns <= refill_ns / 1000),
  constraint mode_is_enforce_shadow_off_or_block check (mode in ('enforce', 'shadow', 'off', 'block')),
  constraint expires_at_is_a_time check (expires_at is null or julianday(expires_at) is not null)
) strict, without rowid;

-- One row per grant that tollgate must remember. A request with an id has a row, so that a retry is not charged twice. So does
-- a reservation that was cancelled or refunded, or that can still be settled.
create table if not exists token_receipts (
  id           text not null,    -- a UUID, hyphenated
  bucket       text not null,
  cost         integer not null, -- tokens
  granted      integer not null, -- the bucket's granted after this grant
  scheduled_at integer not null, -- when the tokens can be used, in nanoseconds since 1970
  state        text not null,    -- 'open', 'cancelled', 'refunded', 'settled'
  expires_at   integer not null, -- in nanoseconds since 1970; an expired receipt can no longer be adjusted
  primary key (id, bucket)
) strict, without rowid;

-- The sweep asks whether a bucket has receipts that can still be settled.
create index if not exists token_receipts_open on token_receipts (bucket, expires_at) where state = 'open';

-- One row per sliding window: the number of requests granted in each sub-interval that still counts. tollgate maintains the
-- rows: the first request creates a row, and the sweep deletes a row that has been empty for a minute.
create table if not exists token_windows (
  id            text not null primary key,
  max_requests  integer not null,           -- the limits of the last counted request
  interval_ns   integer not null,
  resolution_ns integer not null,
  counts        text not null,              -- 'end count, ...': end of each sub-interval, in nanoseconds since 1970
  empty_at      integer not null,           -- when no request counts, in nanoseconds since 1970
  granted       integer not null default 0, -- requests granted since the creation of the row
  last_wait     integer not null default 0, -- nanoseconds: wait of the last counted request
  since         integer not null default 0, -- nanoseconds since 1970: earlier requests can be missing in counts
  constraint id_has_1_to_255_bytes_and_no_nul check (
    length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1)) -- windows' receipts begin so
) strict, without rowid;

-- Denials per key and hour, as reported by the services that count them. A denial itself writes nothing. So the rows hold the
-- keys that each process denied most, up to its last report.
create table if not exists token_stats (
  hour           text not null,    -- UTC, with milliseconds: 2026-01-31 12:00:00.000
  id             text not null,    -- the bucket, which can be deleted by now
  denied         integer not null, -- requests
  last_denied_at text not null,    -- UTC, likewise: when the last denial was reported
  primary key (hour, id),
  constraint id_has_1_to_255_bytes_and_no_nul check (
    length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1))
) strict, without rowid;

-- Whether and how usage is recorded. One row: usage is recorded. No row: it is not.
--
--   insert into token_usage_recording (every_seconds) values (86400);
--   update token_usage_recording set ending = true, recorded_to = null;  -- records the rest, then no more
create table if not exists token_usage_recording (
  one           integer primary key default 1 check (one = 1),
  every_seconds integer not null default 3600, -- length of the periods, in UTC: an hour or a day
  keep_days     integer not null default 400,  -- older periods are deleted
  ending        integer not null default false, -- true: this round records what was used, and deletes this row
  period_start  text, -- UTC: the period that usage is recorded under; null: recording has yet to begin
  recorded_to   text, -- the bucket after which the next step continues; null: no round is in progress
  constraint period_is_an_hour_or_a_day check (every_seconds in (3600, 86400)),
  constraint keeps_1_day_to_100_years check (keep_days between 1 and 36525)
) strict;

-- One row per bucket, plan and period in which it was used. Read the rows through token_usage, which adds the usage that is not
-- recorded yet.
create table if not exists token_usage_records (
  id           text not null,               -- the bucket, which can be deleted by now
  period_start text not null,               -- UTC, with milliseconds: 2026-01-31 12:00:00.000
  plan         text not null default '',    -- '': no plan
  granted      integer not null default 0,  -- tokens
  charged      integer not null default 0,  -- tokens
  refunded     integer not null default 0,  -- tokens
  denied       integer not null default 0,  -- requests, as in token_stats
  primary key (id, period_start, plan)
) strict, without rowid;

-- Reports of one month, and the deletion of old periods.
create index if not exists token_usage_records_by_period on token_usage_records (period_start, id);

-- The position of the sweep, shared by all sessions. One row, which the first step creates.
create table if not exists token_sweep_position (
  one      integer primary key check (one = 1),
  swept_to text -- a table and the row after which the next step starts; null: the sweep starts again
) strict;

insert into token_migrations (version, name) values (1, '0001_tables') on conflict do nothing;
