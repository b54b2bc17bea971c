-- One row a bucket. To provision one, name the first three columns; the others are the library's.
--
--   insert into token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- refill says how tokens come back: all at once at the end of each period ('interval', from the row's making on;
-- 'calendar', in UTC's), one by one ('continuous'), or not at all ('once', whatever refill_seconds says).
--
-- Ids are bytes of UTF-8, so no collation merges 'A' with 'a', or 'a' with 'a '. An INSERT stores the bytes that the
-- session sends: set names utf8mb4 first if an id is not ASCII. Terms may be changed by an UPDATE: the next
-- request finds the state under other terms than the row's, and settles it, so that tokens that are there stay.
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- The grid of steps goes through the instant of its making and all the way back: clocks can be set to before it.
-- For 'continuous' a tick is a nanosecond; for the others it is a token, and a step is the whole period, or never.
--
-- What follows from the terms is a default, not a generated column: those are reckoned anew by every UPDATE.
create table token_buckets (
  id             varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(10) character set ascii collate ascii_bin not null default 'interval'
                 comment 'how tokens come back',
  plan           varbinary(255) null comment 'the plan that it follows, if any',
  provisioned    boolean not null default true comment 'false: made by its first request, may be swept',
  under_capacity bigint not null default (capacity) comment 'the terms that the state is under: its own, or others''',
  under_seconds  decimal(19, 9) not null default (refill_seconds),
  under_refill   varchar(10) character set ascii collate ascii_bin not null default (refill),
  overridden     boolean not null default false comment 'whether these are an override''s, if equal to its own, too',
  step_ns        bigint not null default (
                   case refill when 'continuous' then 1 when 'once' then 9223372036854775807
                     else greatest(cast(least(refill_seconds, 9000000000) * 1000000000 as signed), 1) end),
  step_ticks     bigint not null default (if(refill in ('continuous', 'once'), 1, capacity)),
  token_ticks    bigint not null default (
                   if(refill = 'continuous',
                      cast(ceiling(refill_seconds * 1000000000 / greatest(capacity, 1)) as signed), 1)),
  burst          bigint not null default (
                   cast(least(cast(capacity as decimal(40, 0)) * token_ticks, 9223372036854775807) as signed))
                 comment 'ticks from empty to full',
  anchor         bigint not null default (
                   if(refill = 'calendar', 0,
                      timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) * 1000 mod step_ns))
                 comment 'nanoseconds since 1970: the first step of its clock',
  full_at        bigint not null default 0 comment 'ticks: when it is full again',
  granted        bigint not null default 0 comment 'tokens, ever',
  longest_wait   bigint not null default 0 comment 'ticks: the longest that was granted',
  constraint token_bucket_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_bucket_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_bucket_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01'),
  constraint token_bucket_capacity_is_1_or_more check (capacity >= 1),
  constraint token_bucket_capacity_is_at_most_as_many_as_a_century_has_ns check (capacity <= 3155760000000000000),
  constraint token_bucket_refill_is_interval_calendar_continuous_or_once check (
    cast(refill as binary) in ('interval', 'calendar', 'continuous', 'once')),
  constraint token_bucket_refill_seconds_is_above_0 check (refill_seconds > 0 or refill = 'once'),
  constraint token_bucket_refill_seconds_is_a_century_or_less check (refill_seconds <= 3155760000 or refill = 'once'),
  constraint token_bucket_refill_is_at_most_1_token_a_nanosecond check (
    refill_seconds * 1000000000 >= capacity or refill = 'once'),
  constraint token_bucket_rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or ceiling(refill_seconds * 1000000000 / greatest(capacity, 1)) * capacity
       <= least(refill_seconds * 1001000000, 3155760000000000000))
) engine = InnoDB comment = 'Token buckets; read them through token_bucket_levels'
