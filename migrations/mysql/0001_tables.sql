-- The migrations that have run. applied_at is null while a migration runs. MySQL commits each DDL statement by itself, so the
-- next run finds the announced migration of a killed run and finishes it.
create table if not exists token_migrations (
  version    bigint not null primary key,
  name       varchar(64) not null,
  applied_at datetime(6) null default (utc_timestamp(6))
) engine = InnoDB comment = 'The migrations that have run';

-- One row per bucket. To provision a bucket, set the first three columns. tollgate maintains the others.
--
--   insert into token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- refill: how tokens come back.
--   'interval'   all at once at the end of each period, counted from the creation of the row
--   'calendar'   all at once at the end of each period of the UTC calendar
--   'continuous' one by one
--   'once'       never; refill_seconds has no effect
--   'calendar month in Europe/Berlin'
--                all at once when a day, week, month or year of a time zone begins: see token_period_bounds; refill_seconds has no
--                effect
--
-- Ids are bytes of UTF-8, so no collation merges 'A' with 'a', or 'a' with 'a '. An INSERT stores the bytes that the session
-- sends: call set names utf8mb4 first if an id is not ASCII. An UPDATE can change the limits. The next request converts the
-- state to the new limits and keeps the available tokens.
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- The grid of steps contains the creation time and extends to the past, because clocks can be set back.
-- With 'continuous', a tick is a nanosecond. With the others, a tick is a token and a step is the whole period, or never ends.
-- The clock of a calendar period knows its own start and end. The first request after period_end starts the next period.
--
-- least(refill_seconds, 9000000000) keeps the nanoseconds of a period that is too long within bigint; a constraint refuses it.
-- The columns that follow from the limits are defaults, not generated columns, which every UPDATE would compute anew.
create table if not exists token_buckets (
  id             varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(80) character set ascii collate ascii_bin not null default 'interval'
                 comment 'how tokens come back',
  plan           varbinary(255) null comment 'the plan that the bucket follows, or null',
  provisioned    boolean not null default true comment 'false: created by its first request, can be swept',
  under_capacity bigint not null default (capacity) comment 'the limits that the state is under: its own, or an override''s',
  under_seconds  decimal(19, 9) not null default (refill_seconds),
  under_refill   varchar(80) character set ascii collate ascii_bin not null default (refill),
  overridden     boolean not null default false comment 'whether the state is under an override''s limits',
  step_ns        bigint not null default (
                   case when refill = 'continuous' then 1 when refill = 'once' then 9223372036854775807
                     when refill like 'calendar %' then 31556952000000000
                     else greatest(cast(least(refill_seconds, 9000000000) * 1000000000 as signed), 1) end),
  step_ticks     bigint not null default (if(refill in ('continuous', 'once'), 1, capacity)),
  token_ticks    bigint not null default (
                   if(refill = 'continuous',
                      (least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1, 1)),
  burst          bigint not null default (
                   cast(least(cast(capacity as decimal(40, 0)) * token_ticks, 9223372036854775807) as signed))
                 comment 'ticks from empty to full',
  anchor         bigint not null default (
                   if(refill like 'calendar%', 0,
                      timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) * 1000 mod step_ns))
                 comment 'nanoseconds since 1970: start of the bucket''s clock',
  full_at        bigint not null default 0 comment 'ticks: when the bucket is full again',
  granted        bigint not null default 0 comment 'tokens granted since the creation of the row',
  max_granted_wait bigint not null default 0 comment 'ticks: the longest wait that was granted',
  period_end     bigint not null default (if(refill like 'calendar %', 0, 9223372036854775807))
                 comment 'nanoseconds since 1970: end of the calendar period; 0: the first request finds it',
  recorded       bigint not null default 0 comment 'the part of granted that is recorded as usage, or is none',
  charged        bigint not null default 0 comment 'tokens charged since usage was recorded last',
  refunded       bigint not null default 0 comment 'tokens given back since usage was recorded last',
  constraint token_bucket_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_bucket_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_bucket_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01'),
  -- The same bounds as token_bucket_limits.
  constraint token_bucket_capacity_is_1_or_more check (capacity >= 1),
  constraint token_bucket_capacity_is_at_most_as_many_as_a_century_has_ns check (capacity <= 3155760000000000000),
  constraint token_bucket_refill_has_a_valid_form check (
    cast(refill as binary) in ('interval', 'calendar', 'continuous', 'once')
    or refill like 'calendar day%' or refill like 'calendar week%' or refill like 'calendar month%'
    or refill like 'calendar year%'),
  constraint token_bucket_refill_seconds_is_above_0 check (
    refill_seconds > 0 or refill = 'once' or refill like 'calendar %'),
  constraint token_bucket_refill_seconds_is_a_century_or_less check (
    refill_seconds <= 3155760000 or refill = 'once' or refill like 'calendar %'),
  constraint token_bucket_refill_is_at_most_1_token_a_nanosecond check (
    refill_seconds * 1000000000 >= capacity or refill = 'once'
    or refill like 'calendar %' and capacity <= 31556952000000000),
  constraint token_bucket_rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or ((least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1) * cast(capacity as decimal(40, 0))
       <= least(refill_seconds * 1001000000, 3155760000000000000))
) engine = InnoDB comment = 'Token buckets; read them through token_bucket_levels';

-- One row per plan: the quota of each bucket that follows the plan. A change applies from the next request on. Buckets keep
-- their available tokens, up to the new capacity.
--
--   insert into token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. An override's mode precedes a plan's mode, and a plan's mode precedes token_mode.
create table if not exists token_plans (
  name           varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(80) character set ascii collate ascii_bin not null default 'continuous'
                 comment 'as in token_buckets',
  mode           varchar(7) character set ascii collate ascii_bin null comment 'null: the mode of token_mode',
  mode_reason    text character set utf8mb4 null,
  mode_until     datetime(6) null comment 'in UTC; null: until the mode is changed',
  constraint token_plan_name_has_1_to_255_bytes check (length(name) >= 1 and locate(x'00', name) = 0),
  constraint token_plan_name_is_utf_8 check (cast(convert(name using utf8mb4) as binary) <=> name),
  constraint token_plan_name_does_not_begin_with_u0001 check (left(name, 1) <> x'01'),
  -- The same bounds as token_bucket_limits.
  constraint token_plan_capacity_is_1_or_more check (capacity >= 1),
  constraint token_plan_capacity_is_at_most_as_many_as_a_century_has_ns check (capacity <= 3155760000000000000),
  constraint token_plan_refill_has_a_valid_form check (
    cast(refill as binary) in ('interval', 'calendar', 'continuous', 'once')
    or refill like 'calendar day%' or refill like 'calendar week%' or refill like 'calendar month%'
    or refill like 'calendar year%'),
  constraint token_plan_refill_seconds_is_above_0 check (
    refill_seconds > 0 or refill = 'once' or refill like 'calendar %'),
  constraint token_plan_refill_seconds_is_a_century_or_less check (
    refill_seconds <= 3155760000 or refill = 'once' or refill like 'calendar %'),
  constraint token_plan_refill_is_at_most_1_token_a_nanosecond check (
    refill_seconds * 1000000000 >= capacity or refill = 'once'
    or refill like 'calendar %' and capacity <= 31556952000000000),
  constraint token_plan_rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or ((least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1) * cast(capacity as decimal(40, 0))
       <= least(refill_seconds * 1001000000, 3155760000000000000)),
  constraint token_plan_mode_is_enforce_shadow_off_or_block check (cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'Plans: the limits of the buckets that follow them';

-- The limits of a plan that has several, or one with a name: see token_create_plan_limit. Further limits are rows of token_plans,
-- named after the plan, U+0001 and the limit. A key's bucket for such a limit has the id of the key, U+0001 and the limit.
create table if not exists token_plan_limits (
  plan       varbinary(255) not null,
  place      bigint not null comment '1: the first limit, which has the name of the plan in token_plans',
  limit_name varchar(32) character set ascii collate ascii_bin null comment 'null: only the first limit can be without a name',
  cost_name  varchar(32) character set ascii collate ascii_bin null
             comment 'the name of the cost that the limit counts; null: the tokens of the request',
  primary key (plan, place),
  constraint token_plan_limit_names_are_words check (
    (limit_name is null and place = 1 or limit_name regexp '^[A-Za-z][A-Za-z0-9_-]{0,31}$')
    and (cost_name is null or cost_name regexp '^[A-Za-z][A-Za-z0-9_-]{0,31}$')),
  constraint token_plan_has_at_most_16_limits check (place between 1 and 16),
  constraint token_plan_limit_name_is_used_once unique (plan, limit_name)
) engine = InnoDB comment = 'Plans of several limits: the names of the limits';

-- The mode of every key whose plan and override set none. One row; if the row is missing, the mode is 'enforce'.
--
--   update token_mode set mode = 'shadow', reason = 'incident 42', until = utc_timestamp() + interval 2 hour
--    where one = true;
--
-- 'enforce' applies the limits. 'shadow' takes tokens, and grants requests that find too few, without a wait. 'off' grants
-- every request and touches no bucket. 'block' denies every request.
create table if not exists token_mode (
  one    boolean not null default true primary key,
  mode   varchar(7) character set ascii collate ascii_bin not null default 'enforce',
  reason text character set utf8mb4 null,
  until  datetime(6) null comment 'in UTC; null: until the mode is changed',
  constraint token_mode_has_one_row check (one = true),
  constraint token_mode_is_enforce_shadow_off_or_block check (cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'The mode of all keys whose plan and override set none';

-- Inserts the one row of token_mode.
insert ignore into token_mode (one) values (true);

-- Limits or a mode that replace one key's own for a time, with a reason.
--
--   insert into token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', utc_timestamp() + interval 1 day);
create table if not exists token_overrides (
  id             varbinary(255) not null primary key comment 'the bucket; it need not exist yet',
  capacity       bigint null comment 'null: the limits do not change, only the mode does',
  refill_seconds decimal(19, 9) null,
  refill         varchar(80) character set ascii collate ascii_bin not null default 'continuous'
                 comment 'as in token_buckets',
  mode           varchar(7) character set ascii collate ascii_bin null comment 'null: the mode of the plan or of token_mode',
  reason         text character set utf8mb4 not null,
  expires_at     datetime(6) null comment 'in UTC; null: until the row is deleted; an expired row has no effect',
  constraint token_override_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_override_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_override_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01'),
  constraint token_override_has_both_capacity_and_refill_seconds_or_neither check (
    (capacity is null) = (refill_seconds is null)),
  constraint token_override_changes_the_limits_or_the_mode check (capacity is not null or mode is not null),
  -- The same bounds as token_bucket_limits.
  constraint token_override_capacity_is_1_or_more check (capacity >= 1),
  constraint token_override_capacity_is_at_most_as_many_as_a_century_has_ns check (capacity <= 3155760000000000000),
  constraint token_override_refill_has_a_valid_form check (
    cast(refill as binary) in ('interval', 'calendar', 'continuous', 'once')
    or refill like 'calendar day%' or refill like 'calendar week%' or refill like 'calendar month%'
    or refill like 'calendar year%'),
  constraint token_override_refill_seconds_is_above_0 check (
    refill_seconds > 0 or refill = 'once' or refill like 'calendar %'),
  constraint token_override_refill_seconds_is_a_century_or_less check (
    refill_seconds <= 3155760000 or refill = 'once' or refill like 'calendar %'),
  constraint token_override_refill_is_at_most_1_token_a_nanosecond check (
    refill_seconds * 1000000000 >= capacity or refill = 'once'
    or refill like 'calendar %' and capacity <= 31556952000000000),
  constraint token_override_rounding_slows_by_at_most_a_thousandth check (
    refill <> 'continuous'
    or ((least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1) * cast(capacity as decimal(40, 0))
       <= least(refill_seconds * 1001000000, 3155760000000000000)),
  constraint token_override_mode_is_enforce_shadow_off_or_block check (
    cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'Limits or modes that replace those of single keys, for a time';

-- One row per grant that tollgate must remember. A request with an id has a row, so that a retry is not charged twice. So does
-- a reservation that was cancelled or refunded, or that can still be settled.
create table if not exists token_receipts (
  id           binary(16) not null,
  bucket       varbinary(256) not null comment 'of a sliding window: x''01'' and its id',
  cost         bigint not null comment 'tokens',
  granted      bigint not null comment 'the bucket''s granted after this grant',
  scheduled_at bigint not null comment 'when the tokens can be used, in nanoseconds since 1970',
  state        varchar(9) character set ascii collate ascii_bin not null comment 'open, cancelled, refunded, settled',
  expires_at   bigint not null comment 'in nanoseconds since 1970; an expired receipt can no longer be adjusted',
  primary key (id, bucket),
  key token_receipts_open (bucket, state, expires_at) comment 'the sweep looks for receipts that can still be settled'
) engine = InnoDB comment = 'Grants that tollgate must remember';

-- One row per sliding window: the number of requests granted in each sub-interval that still counts. tollgate maintains the
-- rows: request_tokens_in_window creates them, and the sweep deletes a row that has been empty for a minute.
create table if not exists token_windows (
  id            varbinary(255) not null primary key,
  max_requests  bigint not null comment 'the limits of the last counted request: requests in any interval',
  interval_ns   bigint not null,
  resolution_ns bigint not null,
  counts        longtext character set ascii not null
                comment 'a JSON array of [end of the sub-interval in nanoseconds since 1970, granted in it]',
  newest        bigint not null default 0 comment 'end of the newest sub-interval, in nanoseconds since 1970',
  granted       bigint not null default 0 comment 'requests granted since the creation of the row',
  last_wait     bigint not null default 0 comment 'nanoseconds: wait of the last counted request',
  since         bigint not null default 0 comment 'nanoseconds since 1970: earlier requests can be missing in counts',
  constraint token_window_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_window_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_window_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01')
) engine = InnoDB comment = 'Sliding windows';

-- Denials per key and hour, as reported by the services that count them. A denial itself writes nothing. So the rows hold the
-- keys that each process denied most, up to its last report.
create table if not exists token_stats (
  hour           datetime not null comment 'in UTC',
  id             varbinary(255) not null comment 'the bucket, which can be deleted by now',
  denied         bigint not null comment 'requests',
  last_denied_at datetime(6) not null comment 'in UTC: when the last denial was reported',
  primary key (hour, id),
  constraint token_stats_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_stats_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_stats_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01')
) engine = InnoDB comment = 'Denials by hour and key; read them through token_most_denied';

-- Whether and how usage is recorded. One row: usage is recorded. No row: it is not.
--
--   insert into token_usage_recording (every_seconds) values (86400);
--   update token_usage_recording set ending = true, recorded_to = null;  -- records the rest, then no more
create table if not exists token_usage_recording (
  one           boolean not null default true primary key,
  every_seconds bigint not null default 3600 comment 'length of the periods, in UTC: an hour or a day',
  keep_days     bigint not null default 400 comment 'older periods are deleted',
  ending        boolean not null default false comment 'true: this round records what was used, and deletes this row',
  period_start  datetime null
                comment 'in UTC: the period that usage is recorded under; null: recording has yet to begin',
  recorded_to   varbinary(255) null
                comment 'the bucket after which the next step continues; null: no round is in progress',
  constraint token_usage_recording_has_one_row check (one = true),
  constraint token_usage_recording_period_is_an_hour_or_a_day check (every_seconds in (3600, 86400)),
  constraint token_usage_recording_keeps_1_day_to_100_years check (keep_days between 1 and 36525)
) engine = InnoDB comment = 'Whether and how usage is recorded';

-- One row per bucket, plan and period in which it was used. Read the rows through token_usage, which adds the usage that is not
-- recorded yet.
create table if not exists token_usage_records (
  id           varbinary(255) not null comment 'the bucket, which can be deleted by now',
  period_start datetime not null comment 'in UTC',
  plan         varbinary(255) not null default '' comment 'empty: no plan',
  granted      bigint not null default 0 comment 'tokens',
  charged      bigint not null default 0 comment 'tokens',
  refunded     bigint not null default 0 comment 'tokens',
  denied       bigint not null default 0 comment 'requests, as in token_stats',
  primary key (id, period_start, plan),
  key token_usage_records_by_period (period_start, id) comment 'for reports of one month, and the deletion of old periods'
) engine = InnoDB comment = 'Usage by bucket, plan and period; read it through token_usage';

-- The position of the sweep, shared by all sessions. One row, which the first step creates.
create table if not exists token_sweep_position (
  one      boolean not null default true primary key,
  swept_to varbinary(300) null
           comment 'a table and the row after which the next step starts; null: the sweep starts again',
  constraint token_sweep_position_has_one_row check (one = true)
) engine = InnoDB comment = 'The position of the sweep, shared by all sessions';

insert into token_migrations (version, name) values (1, '0001_tables') on duplicate key update applied_at = utc_timestamp(6);
