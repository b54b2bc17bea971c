-- What holds for one key instead of its own terms and mode, for a time, and why.
--
--   insert into token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', utc_timestamp() + interval 1 day);
create table token_overrides (
  id             varbinary(255) not null primary key comment 'the bucket; it need not exist yet',
  capacity       bigint null comment 'null: the terms stay, only the mode is another',
  refill_seconds decimal(19, 9) null,
  refill         varchar(10) character set ascii collate ascii_bin not null default 'continuous'
                 comment 'as in token_buckets',
  mode           varchar(7) character set ascii collate ascii_bin null comment 'null: what the plan or token_mode says',
  reason         text character set utf8mb4 not null,
  expires_at     datetime(6) null comment 'in UTC; null: until it is deleted; once past, it rules nothing',
  constraint token_override_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_override_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_override_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01'),
  constraint token_override_has_both_capacity_and_refill_seconds_or_neither check (
    (capacity is null) = (refill_seconds is null)),
  constraint token_override_changes_the_terms_or_the_mode check (capacity is not null or mode is not null),
  constraint token_override_capacity_is_1_or_more check (capacity >= 1),
  constraint token_override_capacity_is_at_most_as_many_as_a_century_has_ns check (capacity <= 3155760000000000000),
  constraint token_override_refill_is_interval_calendar_continuous_or_once check (
    cast(refill as binary) in ('interval', 'calendar', 'continuous', 'once')),
  constraint token_override_refill_seconds_is_above_0 check (refill_seconds > 0 or refill = 'once'),
  constraint token_override_refill_seconds_is_a_century_or_less check (
    refill_seconds <= 3155760000 or refill = 'once'),
  constraint token_override_refill_is_at_most_1_token_a_nanosecond check (
    refill_seconds * 1000000000 >= capacity or refill = 'once'),
  constraint token_override_rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or ceiling(refill_seconds * 1000000000 / greatest(capacity, 1)) * capacity
       <= least(refill_seconds * 1001000000, 3155760000000000000)),
  constraint token_override_mode_is_enforce_shadow_off_or_block check (
    cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'What holds for single token buckets, for a time'
