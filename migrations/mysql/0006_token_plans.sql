-- A row a plan: the quota of every bucket that follows it. A changed row rules from the next request on; tokens that
-- are there stay, up to the new capacity.
--
--   insert into token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. Of a plan, a key's override and token_mode, the nearest to the key that says one rules.
create table token_plans (
  name           varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(10) character set ascii collate ascii_bin not null default 'continuous'
                 comment 'as in token_buckets',
  mode           varchar(7) character set ascii collate ascii_bin null comment 'null: what token_mode says',
  mode_reason    text character set utf8mb4 null,
  mode_until     datetime(6) null comment 'in UTC; null: until it is changed',
  constraint token_plan_name_has_1_to_255_bytes check (length(name) >= 1 and locate(x'00', name) = 0),
  constraint token_plan_name_is_utf_8 check (cast(convert(name using utf8mb4) as binary) <=> name),
  constraint token_plan_name_does_not_begin_with_u0001 check (left(name, 1) <> x'01'),
  constraint token_plan_capacity_is_1_or_more check (capacity >= 1),
  constraint token_plan_capacity_is_at_most_as_many_as_a_century_has_ns check (capacity <= 3155760000000000000),
  constraint token_plan_refill_is_interval_calendar_continuous_or_once check (
    cast(refill as binary) in ('interval', 'calendar', 'continuous', 'once')),
  constraint token_plan_refill_seconds_is_above_0 check (refill_seconds > 0 or refill = 'once'),
  constraint token_plan_refill_seconds_is_a_century_or_less check (refill_seconds <= 3155760000 or refill = 'once'),
  constraint token_plan_refill_is_at_most_1_token_a_nanosecond check (
    refill_seconds * 1000000000 >= capacity or refill = 'once'),
  constraint token_plan_rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or ceiling(refill_seconds * 1000000000 / greatest(capacity, 1)) * capacity
       <= least(refill_seconds * 1001000000, 3155760000000000000)),
  constraint token_plan_mode_is_enforce_shadow_off_or_block check (cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'Plans that token buckets follow'
