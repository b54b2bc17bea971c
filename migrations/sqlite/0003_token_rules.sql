-- A row a plan: the quota of every bucket that follows it. A changed row rules from the next request on; tokens that
-- are there stay, up to the new capacity.
--
--   insert into token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. Of a plan, a key's override and token_mode, the nearest to the key that says one rules.
create table token_plans (
  name           text not null primary key,              -- 1 to 255 bytes
  capacity       integer not null,                       -- tokens
  refill_seconds real not null,                          -- from empty to full
  refill         text not null default 'continuous',     -- as in token_buckets
  mode           text,                                   -- null: what token_mode says
  mode_reason    text,
  mode_until     text,                                   -- UTC, as datetime() writes it; null: until it is changed
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

-- What holds for every key, unless its plan or an override says otherwise. One row; without it the mode is 'enforce'.
--
--   update token_mode set mode = 'shadow', reason = 'incident 42', until = datetime('now', '+2 hours')
--    where one = true;
--
-- 'enforce' limits; 'shadow' takes tokens, and lets requests pass that find none, without a wait; 'off' lets everything
-- pass and touches no bucket; 'block' denies everything.
create table token_mode (
  one    integer not null primary key default 1 check (one = 1),
  mode   text not null default 'enforce',
  reason text,
  until  text,                                           -- UTC, as datetime() writes it; null: until it is changed
  constraint mode_is_enforce_shadow_off_or_block check (mode in ('enforce', 'shadow', 'off', 'block')),
  constraint until_is_a_time check (until is null or julianday(until) is not null)
) strict, without rowid;

insert or ignore into token_mode default values;

-- What holds for one key instead of its own terms and mode, for a time, and why.
--
--   insert into token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', datetime('now', '+1 day'));
create table token_overrides (
  id             text not null primary key,              -- the bucket; it need not exist yet
  capacity       integer,                                -- null: the terms stay, only the mode is another
  refill_seconds real,
  refill         text not null default 'continuous',     -- as in token_buckets
  mode           text,                                   -- null: what the plan or token_mode says
  reason         text not null,
  expires_at     text,                                   -- UTC, as datetime() writes it; null: until it is deleted
  refill_ns      integer as (cast(round(refill_seconds * 1e9) as integer)),
  constraint id_has_1_to_255_bytes_and_no_nul check (
    length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1)),
  constraint both_capacity_and_refill_seconds_or_neither check ((capacity is null) = (refill_seconds is null)),
  constraint it_changes_the_terms_or_the_mode check (capacity is not null or mode is not null),
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

-- A row a grant that must be known again: of a request with an id, so that a repeated one does not pay twice, and of a
-- reservation that was cancelled, refunded or is to be settled.
create table token_receipts (
  id         text not null,                              -- a UUID, hyphenated
  bucket     text not null,
  cost       integer not null,                           -- tokens
  granted    integer not null,                           -- the bucket's granted after it
  acts_at    integer not null,                           -- when the tokens may be used, in nanoseconds since 1970
  state      text not null,                              -- 'open', 'cancelled', 'refunded', 'settled'
  expires_at integer not null,                           -- in nanoseconds since 1970; from then on what it says stands
  primary key (id, bucket)
) strict, without rowid;

-- A sweep asks whether a bucket has any that can be settled still.
create index token_receipts_open on token_receipts (bucket, expires_at) where state = 'open';
