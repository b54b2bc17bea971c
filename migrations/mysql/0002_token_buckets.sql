-- One row a bucket. To provision one, name the first three columns; the others are the library's.
--
--   insert into token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- Ids are bytes, so no collation merges 'A' with 'a', or 'a' with 'a '. To change the terms of a bucket, call
-- token_create_bucket: it keeps the tokens that are there, which a plain UPDATE of the terms reckons anew.
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- The grid of steps goes through the instant of its making and all the way back: clocks can be set to before it.
-- For 'continuous' a tick is a nanosecond; for 'interval' it is a token, and a step is the whole period.
create table token_buckets (
  id             varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(10) character set ascii collate ascii_bin not null default 'interval'
                 comment 'interval or continuous',
  provisioned    boolean not null default true comment 'false: made by its first request, may be swept',
  anchor         bigint not null default (
                   timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) * 1000
                   mod if(refill = 'continuous', 1, greatest(cast(refill_seconds * 1000000000 as signed), 1)))
                 comment 'nanoseconds since 1970: the first step of its clock',
  full_at        bigint not null default 0 comment 'ticks: when it is full again',
  granted        bigint not null default 0 comment 'tokens, ever',
  longest_wait   bigint not null default 0 comment 'ticks: the longest that was granted',
  step_ns        bigint generated always as (
                   if(refill = 'continuous', 1, cast(refill_seconds * 1000000000 as signed))) stored,
  step_ticks     bigint generated always as (if(refill = 'continuous', 1, capacity)) stored,
  token_ticks    bigint generated always as (
                   if(refill = 'continuous',
                      cast(ceiling(refill_seconds * 1000000000 / nullif(capacity, 0)) as signed), 1)) stored,
  constraint token_bucket_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_bucket_capacity_is_1_or_more check (capacity >= 1),
  constraint token_bucket_refill_is_interval_or_continuous check (refill in ('interval', 'continuous')),
  constraint token_bucket_refill_seconds_is_above_0 check (refill_seconds > 0),
  constraint token_bucket_refill_seconds_is_a_century_or_less check (
    refill_seconds <= 3155760000
    and (refill = 'interval' or cast(token_ticks as decimal(40, 0)) * capacity <= 3155760000000000000)),
  constraint token_bucket_refill_is_at_most_1_token_a_nanosecond check (refill_seconds * 1000000000 >= capacity),
  constraint token_bucket_rounding_slows_by_at_most_a_thousandth check (
    refill = 'interval' or cast(token_ticks as decimal(40, 0)) * capacity <= refill_seconds * 1001000000)
) engine = InnoDB comment = 'Token buckets; read them through token_bucket_levels'
