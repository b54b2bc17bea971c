.bail on
begin immediate;

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
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- With 'continuous', a tick is a nanosecond. With the others, a tick is a token and a step is the whole period, or never ends.
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
  max_granted_wait   integer not null default 0,   -- ticks: the longest wait that was granted
  refill_ns      integer as (cast(round(refill_seconds * 1e9) as integer)),
  step_ns        integer as (
                   case coalesce(over_refill, refill)
                     when 'continuous' then 1 when 'once' then 9223372036854775807
                     else coalesce(over_refill_ns, refill_ns) end),
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
  constraint refill_is_interval_calendar_continuous_or_once check (
    refill in ('interval', 'calendar', 'continuous', 'once')),
  constraint refill_seconds_is_above_0 check (refill_ns >= 1 or refill = 'once'),
  constraint refill_seconds_is_a_century_or_less check (
    refill = 'once'
    or (refill_seconds <= 3155760000 and (
      refill <> 'continuous' or (refill_ns + capacity - 1) / capacity * capacity <= 3155760000000000000))),
  constraint refill_is_at_most_1_token_a_nanosecond check (refill_ns >= capacity or refill = 'once'),
  constraint rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or (refill_ns + capacity - 1) / capacity * capacity - refill_ns <= refill_ns / 1000)
) strict, without rowid;

-- The grid of periods contains the creation time and extends to the past, because clocks can be set back.
drop trigger if exists token_bucket_begins;
create trigger token_bucket_begins after insert on token_buckets
when new.anchor >= new.step_ns or (new.anchor <> 0 and new.refill = 'calendar') begin
  update token_buckets
     set anchor = case new.refill when 'calendar' then 0 else new.anchor % new.step_ns end
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
  constraint refill_is_interval_calendar_continuous_or_once check (
    refill in ('interval', 'calendar', 'continuous', 'once')),
  constraint refill_seconds_is_above_0 check (refill_ns >= 1 or refill = 'once'),
  constraint refill_seconds_is_a_century_or_less check (
    refill = 'once'
    or (refill_seconds <= 3155760000 and (
      refill <> 'continuous' or (refill_ns + capacity - 1) / capacity * capacity <= 3155760000000000000))),
  constraint refill_is_at_most_1_token_a_nanosecond check (refill_ns >= capacity or refill = 'once'),
  constraint rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or (refill_ns + capacity - 1) / capacity * capacity - refill_ns <= refill_ns / 1000),
  constraint mode_is_enforce_shadow_off_or_block check (mode in ('enforce', 'shadow', 'off', 'block')),
  constraint mode_until_is_a_time check (mode_until is null or julianday(mode_until) is not null)
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
  constraint refill_is_interval_calendar_continuous_or_once check (
    refill in ('interval', 'calendar', 'continuous', 'once')),
  constraint refill_seconds_is_above_0 check (refill_ns >= 1 or refill = 'once'),
  constraint refill_seconds_is_a_century_or_less check (
    refill = 'once'
    or (refill_seconds <= 3155760000 and (
      refill <> 'continuous' or (refill_ns + capacity - 1) / capacity * capacity <= 3155760000000000000))),
  constraint refill_is_at_most_1_token_a_nanosecond check (refill_ns >= capacity or refill = 'once'),
  constraint rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or (refill_ns + capacity - 1) / capacity * capacity - refill_ns <= refill_ns / 1000),
  constraint mode_is_enforce_shadow_off_or_block check (mode in ('enforce', 'shadow', 'off', 'block')),
  constraint expires_at_is_a_time check (expires_at is null or julianday(expires_at) is not null)
) strict, without rowid;

-- One row per grant that tollgate must remember. A request with an id has a row, so that a retry is not charged twice. So does
-- a reservation that was cancelled or refunded, or that can still be settled.
create table if not exists token_receipts (
  id         text not null,         -- a UUID, hyphenated
  bucket     text not null,
  cost       integer not null,      -- tokens
  granted    integer not null,      -- the bucket's granted after this grant
  scheduled_at    integer not null, -- when the tokens can be used, in nanoseconds since 1970
  state      text not null,         -- 'open', 'cancelled', 'refunded', 'settled'
  expires_at integer not null,      -- in nanoseconds since 1970; an expired receipt can no longer be adjusted
  primary key (id, bucket)
) strict, without rowid;

-- The sweep asks whether a bucket has receipts that can still be settled.
create index if not exists token_receipts_open on token_receipts (bucket, expires_at) where state = 'open';

-- One row per sliding window: the number of requests granted in each sub-interval that still counts. tollgate maintains the
-- rows: the first request creates a row, and the sweep deletes a row that has been empty for a minute.
create table if not exists token_windows (
  id            text not null primary key,
  max_requests          integer not null,   -- the limits of the last counted request
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

-- The position of the sweep, shared by all sessions. One row, which the first step creates.
create table if not exists token_sweep_position (
  one      integer primary key check (one = 1),
  swept_to text -- a table and the row after which the next step starts; null: the sweep starts again
) strict;

insert into token_migrations (version, name) values (1, '0001_tables') on conflict do nothing;

-- token_bucket_levels: the state of each bucket in tokens and timestamps, as of now, in UTC. Reads only; locks nothing.
--
--   capacity, refill_seconds, refill: the limits that the last request used
--   overridden      whether the limits are an override's
--   available       whole tokens; negative: promised to requests that wait for them
--   full_at         when the bucket is full again; null: full, or never
--   next_refill_at  when the next token comes; null: full, or never
drop view if exists token_bucket_levels;
create view token_bucket_levels as
with levels as (
  select b.*, max(full_at - (n.now - anchor) / step_ns * step_ticks, 0) as owed
    from token_buckets b,
         -- The end of this millisecond, the resolution of SQLite: a request can have used the bucket within it.
         (select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000000 + 999999 as now) n
)
select id, burst / token_ticks as capacity,
       burst / token_ticks - owed / token_ticks - (owed % token_ticks > 0) as available,
       coalesce(over_refill_ns / 1e9, refill_seconds) as refill_seconds, coalesce(over_refill, refill) as refill, plan,
       provisioned, over_capacity is not null as overridden, granted,
       case when owed > 0 and step_ns < 9223372036854775807 then strftime('%Y-%m-%dT%H:%M:%fZ',
         (anchor + (full_at + step_ticks - 1) / step_ticks * step_ns) / 1e9, 'unixepoch') end as full_at,
       case when owed > 0 and step_ns < 9223372036854775807 then strftime('%Y-%m-%dT%H:%M:%fZ',
         (anchor + (full_at - (owed - 1) / token_ticks * token_ticks + step_ticks - 1) / step_ticks * step_ns) / 1e9,
         'unixepoch') end as next_refill_at
  from levels;

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
drop view if exists token_window_levels;
create view token_window_levels as
with texts as (
  select *, '[[' || replace(replace(counts, ', ', '],['), ' ', ',') || ']]' as text from token_windows where granted > 0
), windows as (
  select w.*, coalesce((select max(json_extract(value, '$[0]')) from json_each(w.entries)), 0) as newest,
         (select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000000 + 999999) as clock
    from (select *, case when json_valid(text) and max_requests >= 1 and interval_ns between 1 and 31622400000000000
                              and resolution_ns between 1 and 31622400000000000
                              and last_wait between 0 and 31622400000000000
                              and not exists (
                                    select 1 from json_each(case when json_valid(text) then text end)
                                     where json_extract(value, '$[0]') not between 0 and 4611686018427387903
                                        or json_extract(value, '$[1]') not between 0 and 1000000000000000)
                         then text end as entries
            from texts) w
), levels as (
  -- After a backward step of the clock, requests counted by the old clock count from now on.
  select *, case when newest - clock > last_wait + resolution_ns + 1000000000 then newest - resolution_ns
                 else clock end as now
    from windows
), counted as (
  select l.*,
         case when l.entries is not null then
           (select coalesce(sum(json_extract(value, '$[1]')), 0) from json_each(l.entries)
             where json_extract(value, '$[0]') > l.now - l.interval_ns) end as counted,
         (select max(ends)
            from (select ends, sum(requests) over (order by ends desc) as so_far
                    from (select json_extract(value, '$[0]') as ends, json_extract(value, '$[1]') as requests
                            from json_each(l.entries)))
           where so_far > l.max_requests - 1) as full
    from levels l
)
select id, max_requests, interval_ns / 1e9 as interval_seconds, resolution_ns / 1e9 as resolution_seconds,
       counted, max_requests - counted as available, granted,
       case when counted is not null
            then (max(now, newest - resolution_ns, coalesce(full + interval_ns, 0)) - now + 999999) / 1000000
       end as retry_after_ms
  from counted;

insert into token_migrations (version, name) values (2, '0002_levels') on conflict do nothing;

-- token_most_denied: denials of the last 24 hours, one row per key, in UTC. Reads only.
--
--   select * from token_most_denied order by denied desc limit 10;
--
--   denied          requests, at most 10^17 for each hour, so that the sum cannot overflow; the true number can be higher
--   last_denied_at  accurate to a few seconds
drop view if exists token_most_denied;
create view token_most_denied as
select id, sum(max(min(denied, 100000000000000000), -1)) as denied, max(last_denied_at) as last_denied_at
  from token_stats
 where hour > datetime('now', '-24 hours')
 group by id;

-- token_rules: the modes, plans and overrides in force, in UTC: one row for all keys, one per plan and one per override. Reads
-- only.
--
--   kind       'all', 'plan' or 'override'
--   name       name of the plan, or the key of the override
--   plan       of an override: the plan that its bucket follows; null: no plan, or no bucket yet
--   capacity, refill_seconds, refill: the limits; null: none of its own
--   mode       effective mode; null, for an override: the mode of its plan or of 'all'
--   mode_from  row that chose the mode: 'all', 'plan' or 'override'; null: the default
--   reason     reason of the mode or override
--   until      end of the mode or override; null: no end
drop view if exists token_rules;
create view token_rules as
with a as (select mode, reason, until from token_mode
            where mode <> 'enforce' and (until is null or julianday(until) > julianday('now'))),
     p as (select *, mode is not null and (mode_until is null or julianday(mode_until) > julianday('now'))
                  as own
             from token_plans)
select 'all' as kind, null as name, null as plan, null as capacity, null as refill_seconds, null as refill,
       coalesce(a.mode, 'enforce') as mode, iif(a.mode is null, null, 'all') as mode_from, a.reason, a.until
  from (select 1) left join a
union all
select 'plan', p.name, null, p.capacity, p.refill_seconds, p.refill,
       iif(p.own, p.mode, coalesce(a.mode, 'enforce')), iif(p.own, 'plan', iif(a.mode is null, null, 'all')),
       iif(p.own, p.mode_reason, a.reason), iif(p.own, p.mode_until, a.until)
  from p left join a
union all
select 'override', o.id, b.plan, o.capacity, o.refill_seconds, iif(o.capacity is null, null, o.refill), o.mode,
       iif(o.mode is null, null, 'override'), o.reason, o.expires_at
  from token_overrides o left join token_buckets b on b.id = o.id
 where o.expires_at is null or julianday(o.expires_at) > julianday('now');

-- token_sizes: number of rows of each table, and size of the file. Reads every table.
drop view if exists token_sizes;
create view token_sizes as
select 'token_buckets' as name, count(*) as live_rows, null as bytes from token_buckets
union all select 'token_windows', count(*), null from token_windows
union all select 'token_plans', count(*), null from token_plans
union all select 'token_overrides', count(*), null from token_overrides
union all select 'token_receipts', count(*), null from token_receipts
union all select 'token_stats', count(*), null from token_stats
union all select 'the file', null, page_count * page_size from pragma_page_count(), pragma_page_size();

insert into token_migrations (version, name) values (3, '0003_operations') on conflict do nothing;

commit;
