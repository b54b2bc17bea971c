-- One row a bucket. To provision one, name the first three columns; the others are the library's.
--
--   insert into token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- To change the terms of a bucket, call tollgate::create_bucket: it keeps the tokens that are there, which a plain
-- UPDATE of the terms reckons anew.
--
-- refill says how tokens come back: all at once at the end of each period ('interval', from the row's making on;
-- 'calendar', in UTC's), one by one ('continuous'), or not at all ('once', whatever refill_seconds says).
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- For 'continuous' a tick is a nanosecond; for the others it is a token, and a step is the whole period, or never.
create table token_buckets (
  id             text not null primary key,
  capacity       integer not null,                       -- tokens
  refill_seconds real not null,                          -- from empty to full
  refill         text not null default 'interval',       -- how tokens come back
  plan           text,                                   -- the plan that it follows, if any
  provisioned    integer not null default true,          -- false: made by its first request, may be swept
  over_capacity  integer,                                -- the override's terms that the state is under, if any
  over_refill_ns integer,
  over_refill    text,
  anchor         integer not null                        -- nanoseconds since 1970
                 default (cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000000),
  full_at        integer not null default 0,             -- ticks: when it is full again
  granted        integer not null default 0,             -- tokens, ever
  longest_wait   integer not null default 0,             -- ticks: the longest that was granted
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
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1)),  -- as windows' receipts do
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

-- Its grid goes through the instant of its making, and all the way back: clocks can be set to before it.
create trigger token_bucket_begins after insert on token_buckets
when new.anchor >= new.step_ns or (new.anchor <> 0 and new.refill = 'calendar') begin
  update token_buckets
     set anchor = case new.refill when 'calendar' then 0 else new.anchor % new.step_ns end
   where id = new.id;
end;
