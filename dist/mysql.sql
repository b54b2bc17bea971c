set @host_sql_mode = @@session.sql_mode, @host_client = @@session.character_set_client, @host_connection = @@session.collation_connection, @host_results = @@session.character_set_results;
set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', names utf8mb4;

delimiter //

-- The migrations that have run. applied_at is null while a migration runs. MySQL commits each DDL statement by itself, so the
-- next run finds the announced migration of a killed run and finishes it.
create table if not exists token_migrations (
  version    bigint not null primary key,
  name       varchar(64) not null,
  applied_at datetime(6) null default (utc_timestamp(6))
) engine = InnoDB comment = 'The ledger of tollgate''s migrations'
//

-- One row per bucket. To provision a bucket, set the first three columns. tollgate maintains the others.
--
--   insert into token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- refill: how tokens come back.
--   'interval'   all at once at the end of each period, counted from the creation of the row
--   'calendar'   all at once at the end of each period of the UTC calendar
--   'continuous' one by one
--   'once'       never; refill_seconds has no effect
--
-- Ids are bytes of UTF-8, so no collation merges 'A' with 'a', or 'a' with 'a '. An INSERT stores the bytes that the session
-- sends: call set names utf8mb4 first if an id is not ASCII. An UPDATE can change the limits. The next request converts the
-- state to the new limits and keeps the available tokens.
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- The grid of steps contains the creation time and extends to the past, because clocks can be set back.
-- With 'continuous', a tick is a nanosecond. With the others, a tick is a token and a step is the whole period, or never ends.
--
-- The columns that follow from the limits are defaults, not generated columns, which every UPDATE would compute anew.
create table if not exists token_buckets (
  id             varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(10) character set ascii collate ascii_bin not null default 'interval'
                 comment 'how tokens come back',
  plan           varbinary(255) null comment 'the plan that it follows, if any',
  provisioned    boolean not null default true comment 'false: made by its first request, may be swept',
  under_capacity bigint not null default (capacity) comment 'the limits of the state: its own, or those of a plan or override',
  under_seconds  decimal(19, 9) not null default (refill_seconds),
  under_refill   varchar(10) character set ascii collate ascii_bin not null default (refill),
  overridden     boolean not null default false comment 'whether these are an override''s, if equal to its own, too',
  step_ns        bigint not null default (
                   case refill when 'continuous' then 1 when 'once' then 9223372036854775807
                     else greatest(cast(least(refill_seconds, 9000000000) * 1000000000 as signed), 1) end),
  step_ticks     bigint not null default (if(refill in ('continuous', 'once'), 1, capacity)),
  token_ticks    bigint not null default (
                   if(refill = 'continuous',
                      (least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1, 1)),
  burst          bigint not null default (
                   cast(least(cast(capacity as decimal(40, 0)) * token_ticks, 9223372036854775807) as signed))
                 comment 'ticks from empty to full',
  anchor         bigint not null default (
                   if(refill = 'calendar', 0,
                      timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) * 1000 mod step_ns))
                 comment 'nanoseconds since 1970: the first step of its clock',
  full_at        bigint not null default 0 comment 'ticks: when it is full again',
  granted        bigint not null default 0 comment 'tokens, ever',
  max_granted_wait   bigint not null default 0 comment 'ticks: the longest that was granted',
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
    or ((least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1) * cast(capacity as decimal(40, 0))
       <= least(refill_seconds * 1001000000, 3155760000000000000))
) engine = InnoDB comment = 'Token buckets; read them through token_bucket_levels'
//

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
    or ((least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1) * cast(capacity as decimal(40, 0))
       <= least(refill_seconds * 1001000000, 3155760000000000000)),
  constraint token_plan_mode_is_enforce_shadow_off_or_block check (cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'Plans that token buckets follow'
//

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
  until  datetime(6) null comment 'in UTC; null: until it is changed',
  constraint token_mode_has_one_row check (one = true),
  constraint token_mode_is_enforce_shadow_off_or_block check (cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'What holds for all token buckets'
//

-- Inserts the one row of token_mode.
insert ignore into token_mode (one) values (true)
//

-- Limits or a mode that replace one key's own for a time, with a reason.
--
--   insert into token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', utc_timestamp() + interval 1 day);
create table if not exists token_overrides (
  id             varbinary(255) not null primary key comment 'the bucket; it need not exist yet',
  capacity       bigint null comment 'null: the limits stay, and only the mode changes',
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
  constraint token_override_changes_the_limits_or_the_mode check (capacity is not null or mode is not null),
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
    or ((least(refill_seconds, 9000000000) * 1000000000 - 1) div greatest(capacity, 1) + 1) * cast(capacity as decimal(40, 0))
       <= least(refill_seconds * 1001000000, 3155760000000000000)),
  constraint token_override_mode_is_enforce_shadow_off_or_block check (
    cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'What holds for single token buckets, for a time'
//

-- One row per grant that tollgate must remember. A request with an id has a row, so that a retry is not charged twice. So does
-- a reservation that was cancelled or refunded, or that can still be settled.
create table if not exists token_receipts (
  id         binary(16) not null,
  bucket     varbinary(256) not null comment 'of a sliding window: x''01'' and its id',
  cost       bigint not null comment 'tokens',
  granted    bigint not null comment 'the bucket''s granted after it',
  scheduled_at    bigint not null comment 'when the tokens may be used, in nanoseconds since 1970',
  state      varchar(9) character set ascii collate ascii_bin not null comment 'open, cancelled, refunded, settled',
  expires_at bigint not null comment 'in nanoseconds since 1970; from then on what it says stands',
  primary key (id, bucket),
  key token_receipts_open (bucket, state, expires_at) comment 'a sweep asks for any that can be settled still'
) engine = InnoDB comment = 'Grants that must be known again'
//

-- One row per sliding window: the number of requests granted in each sub-interval that still counts. tollgate maintains the
-- rows: request_tokens_in_window creates them, and the sweep deletes a row that has been empty for a minute.
create table if not exists token_windows (
  id            varbinary(255) not null primary key,
  max_requests          bigint not null comment 'the limits of the last count: requests in any interval',
  interval_ns   bigint not null,
  resolution_ns bigint not null,
  counts        longtext character set ascii not null
                comment 'a JSON array of [end of the sub-interval in nanoseconds since 1970, granted in it]',
  newest        bigint not null default 0 comment 'the newest sub-interval''s end',
  granted       bigint not null default 0 comment 'requests, ever',
  last_wait     bigint not null default 0 comment 'nanoseconds: of the request that was counted last',
  since         bigint not null default 0 comment 'nanoseconds since 1970: what acted before is perhaps not counted any more',
  constraint token_window_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_window_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_window_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01')
) engine = InnoDB comment = 'Sliding windows'
//

-- Denials per key and hour, as reported by the services that count them. A denial itself writes nothing. So the rows hold the
-- keys that each process denied most, up to its last report.
create table if not exists token_stats (
  hour           datetime not null comment 'in UTC',
  id             varbinary(255) not null comment 'the bucket; it need not exist any more',
  denied         bigint not null comment 'requests',
  last_denied_at datetime(6) not null comment 'in UTC: when it was last reported',
  primary key (hour, id),
  constraint token_stats_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_stats_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_stats_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01')
) engine = InnoDB comment = 'Denials by hour and key; read them through token_most_denied'
//

-- The position of the sweep, shared by all sessions. One row, which the first step creates.
create table if not exists token_sweep_position (
  one      boolean not null default true primary key,
  swept_to varbinary(300) null
           comment 'a table, and behind which of its rows the next step begins; null: it begins anew',
  constraint token_sweep_position_has_one_row check (one = true)
) engine = InnoDB comment = 'How far the sweep has come'
//

insert into token_migrations (version, name) values (1, '0001_tables') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_clock: reads the clock of every decision.
--
-- Result:    o_now  nanoseconds since 1970
-- Errors:    none
-- Locks:     none
--
-- Reads the time of UUID(): the current instant in UTC, equal for every session. SET timestamp forges NOW() and
-- UTC_TIMESTAMP(), and SYSDATE() uses the session's time zone. Not a function: with the binary log on, creating a function
-- takes SUPER or log_bin_trust_function_creators.
drop procedure if exists token_clock
//

create procedure token_clock(out o_now bigint)
no sql
sql security definer
begin
  declare v_uuid char(36) character set ascii default uuid();
  set o_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
               - 122192928000000000) * 100;
end
//

-- token_require_whole_number: refuses a number with a fraction, which the server would round silently.
--
-- Arguments: p_routine, p_argument: names that the caller knows
--            p_number: the number
-- Result:    none
-- Errors:    22023 always
-- Locks:     none
drop procedure if exists token_require_whole_number
//

create procedure token_require_whole_number(
  in p_routine varchar(40) character set ascii, in p_argument varchar(20) character set ascii,
  in p_number decimal(40, 20))
no sql
sql security definer
begin
  declare v_message varchar(128) character set ascii
    default concat('tollgate: ', p_routine, ': ', p_argument, ' must be a whole number: ',
                   trim(trailing '.' from trim(trailing '0' from p_number)));
  signal sqlstate '22023' set message_text = v_message;
end
//

-- token_check_id: refuses an invalid id of a bucket or window, or an invalid plan name.
--
-- Arguments: p_what  name in the error, such as 'bucket id'
--            p_id    bytes of the id
-- Result:    none
-- Errors:    22023 the id is not 1 to 255 bytes of UTF-8, starts with U+0001 or contains NUL
-- Locks:     none
--
-- Routines call this before they insert, because a MariaDB session can disable the tables' checks.
drop procedure if exists token_check_id
//

create procedure token_check_id(in p_what varchar(20) character set ascii, in p_id varbinary(1024))
no sql
sql security definer
begin
  declare v_message varchar(128) character set ascii
    default concat('tollgate: a ', p_what, ' has 1 to 255 bytes of UTF-8, without NUL, and does not begin with U+0001');
  if (length(p_id) between 1 and 255 and left(p_id, 1) <> x'01' and locate(x'00', p_id) = 0
      and cast(convert(p_id using utf8mb4) as binary) <=> p_id) is not true then
    signal sqlstate '22023' set message_text = v_message;
  end if;
end
//

-- token_bucket_limits: converts a quota to a bucket's own units, or raises an error for invalid limits.
--
-- Arguments: p_kind, p_name    the bucket or plan, as errors name it
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
-- Result:    o_burst, o_step_ns, o_step_ticks, o_token_ticks: see token_buckets
-- Errors:    23514 invalid limits
-- Locks:     none
drop procedure if exists token_bucket_limits
//

create procedure token_bucket_limits(
  in p_kind varchar(20) character set ascii, in p_name varbinary(1024),
  in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin,
  out o_burst bigint, out o_step_ns bigint, out o_step_ticks bigint, out o_token_ticks bigint)
no sql
sql security definer
begin
  declare v_capacity bigint default p_capacity;
  declare v_refill_ns decimal(40, 0) default p_refill_seconds * 1000000000;
  declare v_seconds varchar(30) character set ascii
    default trim(trailing '.' from trim(trailing '0' from p_refill_seconds));
  declare v_message text character set utf8mb4;

  set v_message = case
    when p_capacity is null or p_refill_seconds is null or p_refill is null
      then 'give capacity, refill_seconds and refill'
    when p_capacity <> floor(p_capacity)
      then concat('a capacity of ', trim(trailing '0' from p_capacity), ' is not a whole number')
    when v_capacity < 1
      then concat('a capacity of ', v_capacity, ' grants nothing: give 1 or more')
    when v_capacity > 3155760000000000000
      then concat('a capacity of ', v_capacity, ' is too large: give 3155760000000000000 or less')
    when cast(p_refill as binary) not in ('interval', 'calendar', 'continuous', 'once')
      then concat('refill is ''', p_refill, ''': give ''interval'', ''calendar'', ''continuous'' or ''once''')
    when p_refill = 'once'
      then null
    when p_refill_seconds <= 0
      then concat('refill_seconds is ', v_seconds, ': give more than 0')
    when p_refill_seconds > 3155760000
      then concat('refill_seconds is ', v_seconds, ': give a century (3155760000) or less')
    when v_refill_ns < v_capacity
      then concat(v_capacity, ' tokens in ', v_seconds, ' s are over 1 a ns: count in larger units')
  end;
  if v_message is null and p_refill = 'continuous' then
    set o_step_ns = 1, o_step_ticks = 1, o_token_ticks = (v_refill_ns + v_capacity - 1) div v_capacity;
    set v_message = case
      when cast(o_token_ticks as decimal(40, 0)) * v_capacity > v_refill_ns * 1.001
        then concat(v_capacity, ' tokens in ', v_seconds, ' s would be rounded by over 0.1 %: count in larger units')
      when cast(o_token_ticks as decimal(40, 0)) * v_capacity > 3155760000000000000
        then concat('refill_seconds is ', v_seconds, ': give a century (3155760000) or less')
    end;
  elseif v_message is null then
    set o_step_ns = if(p_refill = 'once', 9223372036854775807, v_refill_ns),
        o_step_ticks = if(p_refill = 'once', 1, v_capacity),
        o_token_ticks = 1;
  end if;
  if v_message is not null then
    set v_message = left(concat('tollgate: ', p_kind, ' ''', left(coalesce(convert(p_name using utf8mb4), ''), 24),
                                ''': ', v_message), 128);
    signal sqlstate '23514' set message_text = v_message;
  end if;
  set o_burst = v_capacity * o_token_ticks;
end
//

-- token_settle: converts a bucket's state to other limits.
--
-- Arguments: p_now     nanoseconds since 1970
--            io_burst to io_token_ticks, io_anchor, io_full_at, io_max_granted_wait: the bucket's columns
--            p_burst to p_token_ticks, p_refill: the new limits
-- Result:    the io_ arguments, converted
-- Errors:    none
-- Locks:     none
--
-- The bucket keeps its available tokens, including fractions, up to the new capacity. If the clock was set back, the bucket
-- becomes empty.
drop procedure if exists token_settle
//

create procedure token_settle(
  in p_now bigint, in p_burst bigint, in p_step_ns bigint, in p_step_ticks bigint, in p_token_ticks bigint,
  in p_refill varchar(10) character set ascii collate ascii_bin,
  inout io_burst bigint, inout io_step_ns bigint, inout io_step_ticks bigint, inout io_token_ticks bigint,
  inout io_anchor bigint, inout io_full_at bigint, inout io_max_granted_wait bigint)
no sql
sql security definer
begin
  declare v_owed bigint default io_full_at - (p_now - io_anchor) div io_step_ns * io_step_ticks;
  declare v_available decimal(65, 0) default 0;  -- in ticks; negative while grants wait for their tokens
  declare v_clock, v_year bigint;

  if v_owed <= io_burst + io_max_granted_wait + (1000000000 div io_step_ns + 1) * io_step_ticks then
    set v_available = io_burst - greatest(v_owed, 0);
  end if;
  if p_refill = 'calendar' then
    set io_anchor = 0;
  end if;
  set v_clock = (p_now - io_anchor) div p_step_ns * p_step_ticks;
  set v_year = (p_now + 31622400000000000 - io_anchor) div p_step_ns * p_step_ticks - v_clock;
  -- v_available * new / old, rounded down, between the debt of a year and a full bucket
  set v_available = least(greatest(v_available * p_token_ticks, -cast(v_year as decimal(65, 0)) * io_token_ticks),
                          cast(p_burst as decimal(65, 0)) * io_token_ticks);
  set v_available = if(v_available < 0, -((io_token_ticks - 1 - v_available) div io_token_ticks),
                       v_available div io_token_ticks);
  set io_full_at = v_clock + p_burst - v_available, io_max_granted_wait = greatest(-v_available, 0),
      io_burst = p_burst, io_step_ns = p_step_ns, io_step_ticks = p_step_ticks, io_token_ticks = p_token_ticks;
end
//

insert into token_migrations (version, name) values (2, '0002_arithmetic') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_rule: reads the effective limits and mode of a bucket, and prepares the bucket for a decision. The routine creates a
-- missing bucket if its first request can do so. The state is converted to the limits of the override, the plan or the bucket.
-- After a backward step of the clock, the bucket is emptied.
--
-- Arguments: p_id, p_capacity, p_refill_seconds, p_refill, p_plan: as for token_take_v1
--            p_now         nanoseconds since 1970, read after the bucket was locked
--            p_least       tokens that the request needs
-- Result:    o_outcome     null: the bucket is ready; else 'unknown', 'unplanned' or 'conflict', as for token_take_v1
--            o_mode        'shadow', 'off' or 'block'; null: the tokens decide; 'off' creates and converts nothing
--            o_mode_until  end of the mode in nanoseconds since 1970; null: no end
--            o_changed     whether the bucket changed: the caller must read it and call token_rule again
--            o_capacity    tokens, of the effective limits
-- Errors:    22023 invalid id · 23514 invalid limits
-- Locks:     the bucket's row; the caller has a transaction, and already holds the lock of an existing bucket
drop procedure if exists token_rule
//

create procedure token_rule(
  in p_id varbinary(1024), in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varbinary(1024), in p_now bigint,
  in p_least bigint,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_mode_until bigint, out o_changed boolean, out o_capacity bigint)
modifies sql data
sql security definer
begin
  declare b_capacity, b_anchor, b_full_at, b_max_granted_wait, b_burst, b_step_ns, b_step_ticks, b_token_ticks bigint;
  declare u_capacity bigint;  -- u_: the limits that the state is under
  declare b_seconds, u_seconds, c_seconds, v_seconds, w_seconds decimal(19, 9);
  declare b_refill, u_refill, c_refill, v_refill, w_refill varchar(10) character set ascii collate ascii_bin;
  declare b_plan, c_plan varbinary(1024);
  declare b_provisioned, b_overridden boolean;
  declare c_capacity bigint default p_capacity;  -- c_: the requested limits, of the request or its plan
  declare w_capacity bigint;                     -- w_: an override's limits
  declare v_capacity, v_until, v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_mode varchar(7) character set ascii collate ascii_bin;
  declare v_own boolean default false;

  set o_outcome = null, o_mode = null, o_mode_until = null, o_changed = false, o_capacity = null;
  set c_seconds = p_refill_seconds, c_refill = p_refill;
  rule: begin
    -- A column or a constraint refused the limits: raises the error that names the invalid value.
    declare exit handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025
    begin
      call token_check_id('bucket id', p_id);
      call token_bucket_limits('bucket', p_id, c_capacity, c_seconds, c_refill,
                          v_burst, v_step_ns, v_step_ticks, v_token_ticks);
      resignal;
    end;

    select capacity, refill_seconds, refill, plan, provisioned, under_capacity, under_seconds, under_refill,
           overridden, anchor, full_at, max_granted_wait, burst, step_ns, step_ticks, token_ticks
      into b_capacity, b_seconds, b_refill, b_plan, b_provisioned, u_capacity, u_seconds, u_refill,
           b_overridden, b_anchor, b_full_at, b_max_granted_wait, b_burst, b_step_ns, b_step_ticks, b_token_ticks
      from token_buckets where id = p_id for update;

    select mode, if(until < '2262-01-01', timestampdiff(microsecond, '1970-01-01', until) * 1000, null) into v_mode, v_until
      from token_mode where one = true;
    if v_until is null or v_until > p_now then
      set o_mode = v_mode, o_mode_until = v_until;
    end if;
    if p_capacity is null then
      set c_plan = coalesce(p_plan, b_plan);
    end if;
    if c_plan is not null then
      select capacity, refill_seconds, refill, mode,
             if(mode_until < '2262-01-01', timestampdiff(microsecond, '1970-01-01', mode_until) * 1000, null)
        into c_capacity, c_seconds, c_refill, v_mode, v_until
        from token_plans where name = c_plan;
      if c_capacity is null then
        set o_outcome = 'unplanned', o_mode = null, o_mode_until = null;
        leave rule;
      end if;
      if v_mode is not null and (v_until is null or v_until > p_now) then
        set o_mode = v_mode, o_mode_until = v_until;
      end if;
    end if;
    if c_refill = 'once' and b_refill = 'once' then
      set c_seconds = b_seconds;  -- has no effect with 'once'
    end if;
    set v_mode = null;
    select capacity, refill_seconds, refill, mode,
           if(expires_at < '2262-01-01', timestampdiff(microsecond, '1970-01-01', expires_at) * 1000, null)
      into w_capacity, w_seconds, w_refill, v_mode, v_until
      from token_overrides
     where id = p_id
       and (expires_at is null or timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 > p_now);
    if v_mode is not null then
      set o_mode = v_mode, o_mode_until = v_until;
    end if;
    set o_mode = nullif(o_mode, 'enforce');
    set o_capacity = coalesce(w_capacity, c_capacity, b_capacity);

    if o_mode = 'off' then
      leave rule;
    elseif b_capacity is null and c_capacity is null then
      set o_outcome = 'unknown';
      leave rule;
    elseif b_capacity is null then
      -- Without strict mode, the server would truncate a longer id, and a MariaDB session can disable the table's checks.
      call token_check_id('bucket id', p_id);
      call token_bucket_limits('bucket', p_id, c_capacity, c_seconds, c_refill,
                          v_burst, v_step_ns, v_step_ticks, v_token_ticks);
      insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor)
      values (p_id, c_capacity, c_seconds, c_refill, c_plan, false, 0)
      on duplicate key update id = token_buckets.id;
      set o_changed = true;
      leave rule;
    elseif b_provisioned
           and (if(p_capacity is null, p_plan <> coalesce(b_plan, ''),
                   not (p_capacity = b_capacity and c_seconds = b_seconds and p_refill = b_refill))) then
      set o_outcome = 'conflict';
      leave rule;
    end if;

    -- While an override is in force, the bucket's own limits do not change.
    set v_own = w_capacity is null and c_capacity is not null
                and not (c_capacity = b_capacity and c_seconds = b_seconds and c_refill = b_refill);
    if v_own then
      set b_capacity = c_capacity, b_seconds = c_seconds, b_refill = c_refill;
    end if;
    if c_capacity is not null and not b_provisioned and not b_plan <=> c_plan then
      set b_plan = c_plan, v_own = true;
    end if;
    if v_own then
      call token_bucket_limits('bucket', p_id, b_capacity, b_seconds, b_refill,
                          v_burst, v_step_ns, v_step_ticks, v_token_ticks);
      update token_buckets set capacity = b_capacity, refill_seconds = b_seconds, refill = b_refill, plan = b_plan
       where id = p_id;
    end if;

    set v_capacity = coalesce(w_capacity, b_capacity), v_seconds = coalesce(w_seconds, b_seconds),
        v_refill = if(w_capacity is null, b_refill, w_refill);
    -- After a backward step of the clock, the bucket is emptied once: keys are denied for one refill at most.
    if not (v_capacity = u_capacity and v_seconds = u_seconds and v_refill = u_refill)
       or (coalesce(o_mode, '') <> 'block' and p_least <= b_burst div b_token_ticks
           and b_full_at - (p_now - b_anchor) div b_step_ns * b_step_ticks
               > b_burst + b_max_granted_wait + (1000000000 div b_step_ns + 1) * b_step_ticks) then
      call token_bucket_limits('bucket', p_id, v_capacity, v_seconds, v_refill,
                          v_burst, v_step_ns, v_step_ticks, v_token_ticks);
      call token_settle(p_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks, v_refill,
                           b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_full_at, b_max_granted_wait);
      update token_buckets
         set under_capacity = v_capacity, under_seconds = v_seconds, under_refill = v_refill,
             overridden = w_capacity is not null,
             burst = b_burst, step_ns = b_step_ns, step_ticks = b_step_ticks, token_ticks = b_token_ticks,
             anchor = b_anchor, full_at = b_full_at, max_granted_wait = b_max_granted_wait
       where id = p_id;
      set o_changed = true;
    elseif b_overridden <> (w_capacity is not null) then
      -- The override's limits equal the bucket's own: the state does not change.
      update token_buckets set overridden = not b_overridden where id = p_id;
    end if;
  end rule;
end
//

insert into token_migrations (version, name) values (3, '0003_rules') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_begin: begins a transaction at READ COMMITTED, unless the caller has one.
--
-- Arguments: p_own  true: only the routine uses the connection. An open transaction is rolled back, and autocommit has no
--                   effect
-- Result:    o_own  true: the routine must commit or roll back; false: the transaction is the caller's
-- Errors:    none
-- Locks:     none
drop procedure if exists token_begin
//

create procedure token_begin(in p_own boolean, out o_own boolean)
modifies sql data
sql security definer
begin
  declare continue handler for 1568  -- inside a transaction
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set o_own = false;
    end if;

  set o_own = @@autocommit or p_own;
  if o_own then
    set transaction isolation level read committed;
  end if;
  if o_own then
    start transaction;
  end if;
end
//

-- token_claim: inserts the receipt of a grant, unless the receipt exists. The caller holds the lock of an existing bucket.
--
-- Arguments: p_receipt  UUID, hyphenated
--            p_bucket, p_cost, p_granted, p_scheduled_at, p_expires_at: columns of the new row
--            p_now      a receipt that expired by then is replaced; 0: none is
-- Result:    o_state    state of the existing receipt; null: the new row was inserted
--            o_cost, o_granted, o_scheduled_at, o_expires_at: columns of the receipt
-- Errors:    22023 p_receipt is not a UUID
-- Locks:     the receipt
--
-- The routine inserts before it reads. A read of a missing row would lock a gap in the caller's REPEATABLE READ transaction,
-- and two sessions that insert into the gap would deadlock.
drop procedure if exists token_claim
//

create procedure token_claim(
  in p_receipt varchar(36) character set ascii, in p_bucket varbinary(1024), in p_cost bigint, in p_granted bigint,
  in p_scheduled_at bigint, in p_expires_at bigint, in p_now bigint,
  out o_state varchar(9) character set ascii collate ascii_bin, out o_cost bigint, out o_granted bigint,
  out o_scheduled_at bigint, out o_expires_at bigint)
modifies sql data
sql security definer
begin
  declare v_known boolean default false;
  declare v_id binary(16);
  declare continue handler for 1062 set v_known = true;

  if (length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}') is not true then
    signal sqlstate '22023' set message_text = 'tollgate: a request''s id is a UUID in hexadecimal';
  end if;
  set v_id = unhex(replace(p_receipt, '-', ''));
  insert into token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
  values (v_id, p_bucket, p_cost, p_granted, p_scheduled_at, 'open', p_expires_at);
  if v_known then
    select state, cost, granted, scheduled_at, expires_at into o_state, o_cost, o_granted, o_scheduled_at, o_expires_at
      from token_receipts where id = v_id and bucket = p_bucket for update;
  end if;
  if not v_known or o_expires_at <= p_now then
    set o_state = null, o_cost = p_cost, o_granted = p_granted, o_scheduled_at = p_scheduled_at, o_expires_at = p_expires_at;
  end if;
  if v_known and o_state is null then
    update token_receipts
       set state = 'open', cost = p_cost, granted = p_granted, scheduled_at = p_scheduled_at, expires_at = p_expires_at
     where id = v_id and bucket = p_bucket;
  end if;
end
//

-- token_take_v1: decides one request exactly, or equal requests one after the other. All routines that take tokens are built on
-- token_take_v1.
--
-- Arguments: p_id             the bucket
--            p_cost           tokens to take, 1 or more
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  tokens that must remain
--            p_capacity, p_refill_seconds, p_refill
--                             limits of a bucket that its first request creates, full and on the calendar's grid; or all null
--            p_plan           plan of such a bucket; null with null limits: the bucket must exist
--            p_receipt        id of the request, a UUID: a retry with the id is charged once; null: no id
--            p_hold           nanoseconds for which the id is remembered
--            p_taking         false: only evaluates the request, and takes nothing
--            p_own            true: only the routine uses the connection. The routine rolls back an open transaction, and has
--                             its own even if autocommit is off
--            io_times         number of equal requests; more than one have neither a wait nor an id
-- Result:    io_times         number of granted requests, the first ones; the other columns describe the denied rest, or all
--            o_outcome        'granted' or 'denied'
--                             'never': p_cost + p_min_remaining exceeds the capacity
--                             'unknown': no such bucket · 'unplanned': no such plan
--                             'conflict': the bucket was provisioned with other limits or another plan
--                             'reused': the id belongs to another request
--            o_mode           the mode that decided instead of the tokens: 'shadow', 'off' or 'block'; else null
--            o_now            instant of the decision, in nanoseconds since 1970
--            o_scheduled_at   when granted tokens can be used; with 'block', the end of the mode; null: no end
--            o_full_at to o_token_ticks: the bucket's columns after the decision. A prepared CALL with a placeholder for each
--                             returns all results as one row
-- Errors:    22023 arguments out of range · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
--            1205 p_own, and another session locked the bucket for a second: the caller tries again while it waits
-- Locks:     the bucket's row, before the clock is read; then the receipt. In the caller's transaction (or with autocommit
--            off), unless p_own, the locks last until it ends. Otherwise the routine has its own transaction.
--
-- token_mode is read under the lock. An unlocked read would open a REPEATABLE READ snapshot, and MariaDB can refuse (1020) to
-- lock rows that changed after it. The clock is token_clock's, inlined for speed: no caller can pass another instant.
drop procedure if exists token_take_v1
//

create procedure token_take_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_min_remaining bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_receipt varchar(36) character set ascii, in p_hold bigint, in p_taking boolean, in p_own boolean,
  inout io_times bigint,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_now bigint, out o_scheduled_at bigint, out o_full_at bigint, out o_granted bigint, out o_burst bigint,
  out o_anchor bigint, out o_step_ns bigint, out o_step_ticks bigint, out o_token_ticks bigint)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_clock, v_max_granted_wait, v_due, v_until bigint;
  declare v_plan varbinary(1024);
  declare v_uuid char(36) character set ascii;
  declare v_ruled boolean;
  declare v_attempt int default 0;
  declare v_times bigint;
  declare continue handler for 1568  -- inside the caller's transaction, or one that was left open
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_own = false;
    end if;
  declare exit handler for sqlexception
  begin
    if p_own then set innodb_lock_wait_timeout = v_wait; end if;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  if p_own then set innodb_lock_wait_timeout = least(v_wait, 1); end if;

  decide: begin
    if (p_cost between 1 and 4611686018427387903 and p_min_remaining between 0 and 4611686018427387903
        and p_max_wait between 0 and 31622400000000000) is not true then
      signal sqlstate '22023' set message_text =
        'tollgate: a take needs a cost of 1 or more, a minimum remaining of 0 or more, and a wait of 0 to a year';
    elseif (io_times = 1 or io_times > 1 and p_max_wait = 0 and p_receipt is null) is not true then
      signal sqlstate '22023' set message_text =
        'tollgate: times is 1 or more, and 1 for a request that waits or has an id';
    end if;
    set v_times = io_times, io_times = 0;
    ready: loop
      select full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, max_granted_wait, plan,
             overridden or capacity <> under_capacity or refill_seconds <> under_seconds or refill <> under_refill
             or p_capacity <> capacity or p_refill_seconds <> refill_seconds or p_refill <> refill
        into o_full_at, o_granted, o_burst, o_anchor, o_step_ns, o_step_ticks, o_token_ticks, v_max_granted_wait,
             v_plan, v_ruled
        from token_buckets where id = v_id for update;
      select v_ruled is true or coalesce(max(mode <> 'enforce'), false) or exists (select 1 from token_overrides)
        into v_ruled from token_mode where one = true;
      set v_uuid = uuid();
      set o_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                   - 122192928000000000) * 100;
      set o_scheduled_at = o_now;
      set v_clock = (o_now - o_anchor) div o_step_ns * o_step_ticks;
      -- A bucket under the requested limits needs no call of token_rule, unless a mode, an override or a plan applies.
      if p_capacity is null and (p_plan is not null or v_plan is not null) and not v_ruled then
        set v_ruled = true;
        select p.mode is not null or not (b.plan <=> p.name)
               or p.capacity <> b.capacity or p.refill_seconds <> b.refill_seconds or p.refill <> b.refill
          into v_ruled
          from token_plans p join token_buckets b on b.id = v_id
         where p.name = coalesce(cast(p_plan as binary), v_plan);
      end if;
      if not v_ruled and (p_capacity is null or v_plan is null)
         and (o_full_at - v_clock <= o_burst + v_max_granted_wait + (1000000000 div o_step_ns + 1) * o_step_ticks
              or p_cost > o_burst div o_token_ticks - p_min_remaining) then
        leave ready;
      end if;
      begin
        declare v_capacity bigint;
        declare v_changed boolean;
        call token_rule(v_id, p_capacity, p_refill_seconds, p_refill, cast(p_plan as binary), o_now, p_cost + p_min_remaining,
                           o_outcome, o_mode, v_until, v_changed, v_capacity);
        -- A bucket that was missing can exist by now, but none of its columns have been read.
        if v_changed or o_burst is null and o_outcome is null and not o_mode <=> 'off' then
          set v_attempt = v_attempt + 1;
          if v_attempt = 100 then
            begin
              -- As ASCII: in a session with another character set, the crate could not read the message.
              declare v_message varchar(128) character set utf8mb4
                default concat('tollgate: bucket ''', regexp_replace(left(p_id, 36), '[^ -~]', '?'),
                               ''' changed during each of 100 attempts: call again');
              signal sqlstate '40001' set message_text = v_message;
            end;
          end if;
          set o_mode = null;
          iterate ready;
        end if;
        if o_outcome is not null then
          leave decide;
        end if;
        if o_mode = 'off' then
          set o_outcome = 'granted', o_burst = coalesce(o_burst, v_capacity);
          leave decide;
        end if;
      end;
      leave ready;
    end loop;

    if p_receipt is not null then
      begin
        declare v_cost, v_granted, v_scheduled_at, v_expires_at bigint;
        declare v_state varchar(9) character set ascii;
        call token_claim(p_receipt, v_id, p_cost, 0, o_now,
                            o_now + least(greatest(coalesce(p_hold, 0), 0), 31622400000000000), o_now,
                            v_state, v_cost, v_granted, v_scheduled_at, v_expires_at);
        if v_state is not null then
          set o_outcome = if(v_cost = p_cost and v_state <> 'cancelled', 'granted', 'reused'),
              o_mode = null, o_granted = v_granted, o_scheduled_at = greatest(v_scheduled_at, o_now);
          leave decide;
        end if;
      end;
    end if;

    if o_mode = 'block' then
      set o_outcome = 'denied', o_scheduled_at = v_until;
    elseif p_cost > o_burst div o_token_ticks - p_min_remaining then
      set o_outcome = 'never';
    else
      set v_due = o_full_at + (p_cost + p_min_remaining - o_burst div o_token_ticks) * o_token_ticks;
      if v_due > (o_now + if(o_mode = 'shadow', 0, p_max_wait) - o_anchor) div o_step_ns * o_step_ticks then
        set o_outcome = if(o_mode = 'shadow', 'granted', 'denied');
      else
        if v_due > v_clock then
          -- All tokens belong to the step in which the request acts: the rest of an earlier step does not carry over.
          set v_due = (v_due + o_step_ticks - 1) div o_step_ticks * o_step_ticks;
          set o_scheduled_at = v_due div o_step_ticks * o_step_ns + o_anchor;
        end if;
        -- Each request finds the tokens that the one before left.
        set io_times = least(v_times, greatest(
              (o_burst - p_min_remaining * o_token_ticks - greatest(o_full_at - v_clock, 0)) div (p_cost * o_token_ticks), 1));
        if p_taking then
          set o_full_at = greatest(o_full_at, v_clock, v_due) + io_times * p_cost * o_token_ticks,
              o_granted = o_granted + io_times * p_cost;
          update token_buckets
             set full_at = o_full_at, granted = o_granted, max_granted_wait = greatest(v_max_granted_wait, v_due - v_clock)
           where id = v_id;
        end if;
        if io_times = v_times then
          set o_outcome = 'granted', o_mode = null;
        else
          set o_outcome = if(o_mode = 'shadow', 'granted', 'denied');
        end if;
      end if;
    end if;

    if p_receipt is not null then
      if p_taking and o_outcome = 'granted' and o_mode is null then
        update token_receipts set granted = o_granted, scheduled_at = o_scheduled_at
         where id = unhex(replace(p_receipt, '-', '')) and bucket = v_id;
      else
        delete from token_receipts where id = unhex(replace(p_receipt, '-', '')) and bucket = v_id;
      end if;
    end if;
  end decide;

  if p_own then set innodb_lock_wait_timeout = v_wait; end if;
  if v_own then commit and no chain no release; end if;
end
//

insert into token_migrations (version, name) values (4, '0004_take') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_make_batch: creates the missing buckets that their first requests can create.
--
-- Arguments: p_requests  as for token_take_batch_v1; only ids, limits and plans are read
--            p_capacity, p_refill_seconds, p_refill, p_plan: limits or plan of requests that name neither; or null
-- Result:    the buckets exist, full, under these limits or the plan's. The routine skips a bucket with an override, with a
--            plan that is unknown or has a mode, or with an invalid id or invalid limits: token_rule handles these
-- Errors:    none
-- Locks:     the rows that the routine creates, in id order; the caller's transaction must hold no lock of a bucket
drop procedure if exists token_make_batch
//

create procedure token_make_batch(
  in p_requests longtext character set utf8mb4, in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varbinary(1024))
modifies sql data
sql security definer
begin
  -- A value out of a column's range: the statement creates no bucket.
  declare continue handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025 begin end;

  insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor)
  select r.id, coalesce(r.capacity, p.capacity) as new_capacity,
         if(r.capacity is null, p.refill_seconds, r.refill_seconds) as new_seconds,
         if(r.capacity is null, p.refill, r.refill) as new_refill, p.name, false, 0
    from (select unhex(id) as id, coalesce(capacity, p_capacity) as capacity,
                 coalesce(refill_seconds, p_refill_seconds) as refill_seconds, coalesce(refill, p_refill) as refill,
                 coalesce(unhex(plan), p_plan) as plan
            from json_table(p_requests, '$[*]' columns (
                   id varchar(512) character set ascii path '$[0]', capacity bigint path '$[4]',
                   refill_seconds decimal(19, 9) path '$[5]',
                   refill varchar(10) character set ascii collate ascii_bin path '$[6]',
                   plan varchar(512) character set ascii path '$[7]')) as requests) as r
    left join token_plans p on r.capacity is null and p.name = r.plan and p.mode is null
    left join token_buckets b on b.id = r.id
   where b.id is null and coalesce(r.capacity, p.capacity) is not null
     and not exists (select 1 from token_overrides o where o.id = r.id)
     -- Repeats the table's checks, because a MariaDB session can disable them.
     and length(r.id) between 1 and 255 and left(r.id, 1) <> x'01' and locate(x'00', r.id) = 0
     and cast(convert(r.id using utf8mb4) as binary) <=> r.id
  having new_capacity between 1 and 3155760000000000000
     and new_refill in ('interval', 'calendar', 'continuous', 'once')
     and (new_refill = 'once'
          or new_seconds > 0 and new_seconds <= 3155760000 and new_seconds * 1000000000 >= new_capacity
             and (new_refill <> 'continuous'
                  or ((least(new_seconds, 9000000000) * 1000000000 - 1) div greatest(new_capacity, 1) + 1)
                       * cast(new_capacity as decimal(40, 0))
                     <= least(new_seconds * 1001000000, 3155760000000000000)))
   order by r.id
      on duplicate key update id = token_buckets.id;
end
//

-- token_take_uniform_v1: the common case of token_take_batch_v1, in half the time: requests under one quota or one plan that
-- differ in the bucket only. The buckets were created by their first request, and only their tokens decide.
--
-- Arguments: p_ids    a JSON array of the buckets' ids in hexadecimal, each once, in id order. [id, times] stands for equal
--                     requests, decided one after the other
--            p_cost, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan, p_own: as for token_take_v1, one value
--                     for all; no request waits
-- Result:    one row
--            now, burst, anchor, step_ns, step_ticks, token_ticks: as for token_take_v1, for all requests
--            answers  for each request, followed by a semicolon: position from 1, number of grants, full_at and granted. The
--                     first requests are granted, and the others are denied. full_at and granted are from before the
--                     decision, full_at at least the bucket's clock. null: token_take_batch_v1 has to decide
-- Errors:    22003 times too large (MariaDB takes the largest instead) · 1411 an id is not hexadecimal (MariaDB answers null)
--            22023 a bucket twice with tokens left: the caller must roll back its transaction
--            1205 another session locked one of several buckets for a second
-- Locks:     the buckets' rows in the order of p_ids; any other order than id order can deadlock. If all are missing, the same
--            transaction creates them. If only some are, an earlier transaction creates them. Inside the caller's transaction,
--            nothing is decided then.
drop procedure if exists token_take_uniform_v1
//

create procedure token_take_uniform_v1(
  in p_ids longtext character set utf8mb4, in p_cost bigint, in p_min_remaining bigint, in p_capacity bigint,
  in p_refill_seconds decimal(19, 9), in p_refill varchar(10) character set ascii collate ascii_bin,
  in p_plan varchar(256) character set utf8mb4, in p_own boolean)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_made, v_taken, v_again, v_evaluated boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_big boolean default @@sql_big_selects;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_length bigint unsigned default @@group_concat_max_len;
  declare v_plan varbinary(1024) default cast(p_plan as binary);
  declare v_capacity bigint default p_capacity;
  declare v_seconds decimal(19, 9) default p_refill_seconds;
  declare v_refill varchar(10) character set ascii collate ascii_bin default p_refill;
  declare v_requests, v_alike, v_missing, v_new, v_debits, v_cost, v_room, v_now, v_clock, v_after bigint;
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_most bigint;  -- number of equal requests that a full bucket grants
  declare v_all, v_ruled, v_overrides boolean;
  declare v_uuid char(36) character set ascii;
  declare v_answers longtext character set ascii;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_wait, group_concat_max_len = v_length, sql_safe_updates = v_safe,
        sql_big_selects = v_big;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_own, v_own);
  at_once: begin
    if v_plan is not null and v_capacity is null then
      select capacity, refill_seconds, refill into v_capacity, v_seconds, v_refill
        from token_plans where name = v_plan and mode is null;
    end if;
    set v_token_ticks = if(v_refill = 'continuous',
                           (least(v_seconds, 9000000000) * 1000000000 - 1) div greatest(v_capacity, 1) + 1, 1);
    if ((p_plan is null or p_capacity is null) and p_min_remaining between 0 and v_capacity and p_cost between 1 and v_capacity - p_min_remaining
        and v_capacity <= 3155760000000000000 and v_refill in ('interval', 'calendar', 'continuous', 'once')
        and (v_refill = 'once' or v_seconds <= 3155760000 and v_seconds * 1000000000 >= v_capacity)
        and (v_refill <> 'continuous'
             or v_token_ticks * cast(v_capacity as decimal(40, 0)) <= least(v_seconds * 1001000000, 3155760000000000000)))
       is not true then
      leave at_once;
    end if;
    set v_step_ns = case v_refill when 'continuous' then 1 when 'once' then 9223372036854775807
                      else v_seconds * 1000000000 end,
        v_step_ticks = if(v_refill in ('continuous', 'once'), 1, v_capacity),
        v_burst = v_capacity * v_token_ticks, v_cost = p_cost * v_token_ticks, v_most = (v_capacity - p_min_remaining) div p_cost;
    -- A session that holds a bucket delays the other requests by a second at most. A longer text would be truncated. A join
    -- can exceed the session's max_join_size.
    set innodb_lock_wait_timeout = if(p_own or p_ids like '%"%"%"%', least(v_wait, 1), v_wait),
        group_concat_max_len = 1000000000, sql_big_selects = 1;
    -- Checked before any row is locked: another routine decides requests under a mode or an override.
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_ruled, v_overrides
      from token_mode where one = true;
    if v_overrides and not v_ruled then
      select count(*) > 0 into v_ruled
        from json_table(p_ids, '$[*]' columns (id varchar(512) character set ascii path '$[0]')) as r
        straight_join token_overrides o on o.id = unhex(r.id);
    end if;
    if v_ruled then
      leave at_once;
    end if;
    set v_uuid = uuid();
    evaluate: loop
      set v_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                   - 122192928000000000) * 100,
          v_clock = v_now div v_step_ns * v_step_ticks,
          v_room = v_clock + v_burst - p_min_remaining * v_token_ticks;
      select count(*), count(b.id), sum(b.full_at <= v_room - v_cost),
             min((v_room - greatest(b.full_at, v_clock)) div v_cost >= r.times),
             group_concat(
               r.place, ' ', least(greatest((v_room - greatest(b.full_at, v_clock)) div v_cost, 0), r.times), ' ',
               greatest(b.full_at, v_clock), ' ', b.granted, ';' separator '')
        into v_requests, v_alike, v_debits, v_all, v_answers
        from (select place, unhex(id) as id, coalesce(times, 1) as times
                from json_table(p_ids, '$[*]' columns (
                       place for ordinality, id varchar(512) character set ascii path '$[0]',
                       times bigint path '$[1]' error on error)) as requests) as r
        left join token_buckets b
          on b.id = r.id and r.times >= 1 and b.plan <=> v_plan and not b.overridden
             and b.capacity = v_capacity and b.refill_seconds = v_seconds and b.refill = v_refill
             and b.under_capacity = v_capacity and b.under_seconds = v_seconds and b.under_refill = v_refill
             and b.burst = v_burst and b.anchor = 0 and b.step_ns = v_step_ns and b.step_ticks = v_step_ticks
             and b.token_ticks = v_token_ticks
             -- False if the clock was set back.
             and b.full_at - v_clock <= v_burst + b.max_granted_wait + (1000000000 div v_step_ns + 1) * v_step_ticks
         for update /*!80000 of b */;  -- MySQL needs this, and MariaDB skips it
      set v_uuid = uuid();
      set v_after = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                     - 122192928000000000) * 100;
      if v_alike < v_requests then
        if v_made or not v_own then
          leave at_once;
        end if;
        -- A missing bucket counts as full.
        select sum(b.id is null),
               -- Repeats the table's checks, because a MariaDB session can disable them.
               count(distinct if(v_alike = 0 and b.id is null and length(r.id) between 1 and 255 and left(r.id, 1) <> x'01'
                                 and locate(x'00', r.id) = 0 and cast(convert(r.id using utf8mb4) as binary) <=> r.id
                                 and r.times >= 1, r.id, null)),
               group_concat(if(v_alike > 0, null, concat(r.place, ' ', least(v_most, r.times), ' ', v_clock, ' 0;'))
                            separator '')
          into v_missing, v_new, v_answers
          from (select place, unhex(id) as id, coalesce(times, 1) as times
                  from json_table(p_ids, '$[*]' columns (
                         place for ordinality, id varchar(512) character set ascii path '$[0]',
                         times bigint path '$[1]')) as requests) as r
          left join token_buckets b on b.id = r.id;
        if v_missing = 0 then
          leave at_once;
        end if;
        if v_new = v_requests then
          -- Inserts all buckets with their tokens taken, because no row is locked yet. A bucket that another session created
          -- meanwhile is marked, and counts twice.
          begin
            -- A value out of a column's range: the statement creates no bucket.
            declare continue handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025 begin end;
            insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted)
            select unhex(r.id), v_capacity, v_seconds, v_refill, v_plan, false, 0,
                   v_clock + v_cost * least(v_most, coalesce(r.times, 1)), p_cost * least(v_most, coalesce(r.times, 1))
              from json_table(p_ids, '$[*]' columns (
                     id varchar(512) character set ascii path '$[0]', times bigint path '$[1]')) as r
                on duplicate key update granted = -1 - token_buckets.granted;
            set v_new = row_count();
          end;
        end if;
        if v_new >= v_requests then
          set v_uuid = uuid();
          set v_after = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                         - 122192928000000000) * 100;
          -- A longer duration means a wait for a row. The limit allows for inserting many rows.
          set v_taken = v_new = v_requests and v_after between v_now and v_now + 50000000,
              v_after = v_after div v_step_ns * v_step_ticks;
          if not v_taken or v_after >= v_clock + v_token_ticks then
            -- Tokens came in the meantime: another session can have created a bucket, and a sweep can have deleted it when
            -- full. So tokens taken return from now on. Or the buckets stay, full: after a rollback, sessions that wait for
            -- their rows would lock gaps and deadlock.
            if v_safe then set sql_safe_updates = 0; end if;
            update json_table(p_ids, '$[*]' columns (id varchar(512) character set ascii path '$[0]')) as r
              straight_join token_buckets b on b.id = unhex(r.id)
               set b.full_at = if(v_taken, b.full_at + v_after - v_clock, if(b.granted < 0, b.full_at, 0)),
                   b.granted = if(v_taken, b.granted, if(b.granted < 0, -1 - b.granted, 0));
            if v_safe then set sql_safe_updates = 1; end if;
          end if;
          if v_taken then
            leave evaluate;
          end if;
          set v_made = true;
          iterate evaluate;
        end if;
        -- A separate transaction: in this one, the rows would be locked out of order.
        rollback and no chain no release;
        set transaction isolation level read committed;
        start transaction;
        call token_make_batch(p_ids, p_capacity, p_refill_seconds, p_refill, v_plan);
        commit and no chain no release;
        set v_made = true, v_again = false;
        set transaction isolation level read committed;
        start transaction;
        set v_uuid = uuid();
        iterate evaluate;
      end if;
      -- Tokens arrived during the wait for a lock, so grants count from now.
      if not v_again and v_after not between v_now and v_now + 2000000 + 20000 * v_requests then
        set v_again = true;
        iterate evaluate;
      end if;
      leave evaluate;
    end loop;
    set v_evaluated = length(v_answers) - length(replace(v_answers, ';', '')) = v_requests;
    if v_evaluated and v_debits > 0 then
      -- Tokens taken from a full bucket return from now on, when its row is locked.
      set v_after = v_after div v_step_ns * v_step_ticks;
      if v_safe then set sql_safe_updates = 0; end if;
      update json_table(p_ids, '$[*]' columns (
               id varchar(512) character set ascii path '$[0]', times bigint path '$[1]')) as r
        straight_join token_buckets b on b.id = unhex(r.id) and (v_all or b.full_at <= v_room - v_cost)
         set b.granted = b.granted
               + p_cost * if(v_all, coalesce(r.times, 1),
                             least((v_room - greatest(b.full_at, v_clock)) div v_cost, coalesce(r.times, 1))),
             b.full_at = greatest(b.full_at, v_after)
               + v_cost * if(v_all, coalesce(r.times, 1),
                             least((v_room - greatest(b.full_at, v_clock)) div v_cost, coalesce(r.times, 1)));
      if row_count() <> v_debits then
        signal sqlstate '22023' set message_text = 'tollgate: token_take_uniform_v1 needs distinct bucket ids';
      end if;
      if v_safe then set sql_safe_updates = 1; end if;
    end if;
  end at_once;
  set innodb_lock_wait_timeout = v_wait, group_concat_max_len = v_length, sql_big_selects = v_big;
  if v_own then commit and no chain no release; end if;
  select v_now as now, v_burst as burst, 0 as anchor, v_step_ns as step_ns, v_step_ticks as step_ticks,
         v_token_ticks as token_ticks, if(v_evaluated, v_answers, null) as answers;
end
//

-- token_take_batch_v1: decides several requests in one call, each by itself. A request that fails does not fail the others.
--
-- Arguments: p_requests  a JSON array of requests: [id in hexadecimal, cost, max_wait, min_remaining, capacity, refill_seconds,
--                        refill, plan in hexadecimal, receipt, hold, times], as for token_take_v1. times: number of equal
--                        requests, decided one after the other. Missing values are null. Default of times: 1
--            p_own       as for token_take_v1
-- Result:    o_answers   a JSON array of texts, with spaces between the values and - for null. The values are the number of
--                        equal requests, the number of grants among them, the position of the request from 1, then the columns
--                        of token_take_v1 from outcome on. The columns describe the denied rest, or all, with the final state.
--                        A request can have several answers, in order; ignore an answer with 0 requests
-- Errors:    as for token_take_v1 · 22023 times below 1
--            22003 capacity, refill_seconds, hold or times too large (MariaDB takes the largest instead)
--            1205 another session locked one of several buckets for a second
-- Locks:     the buckets' rows in id order, in one transaction, so that calls cannot deadlock. An earlier transaction creates
--            missing buckets, unless the caller has a transaction. Requests for one bucket are decided in order.
--
-- If only tokens decide, all buckets are locked and evaluated at once, then debited. A call with a bucket twice, a wait, a
-- receipt or a mode is decided one by one, and so are buckets that other rules apply to. An answer is one text: an array of
-- parts costs as much as evaluating the bucket, and a row as much again. token_take_uniform_v1 decides uniform requests faster.
drop procedure if exists token_take_batch_v1
//

create procedure token_take_batch_v1(
  in p_requests longtext character set utf8mb4, in p_own boolean, out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_done, v_made, v_again, v_evaluated boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_big boolean default @@sql_big_selects;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_requests, v_ids, v_odd, v_missing, v_planned bigint;
  declare v_grants, v_ruled bigint default 0;
  declare v_answers, v_debits, v_rest json;  -- v_rest: positions of the requests to decide one by one; null: all
  declare v_each longtext character set utf8mb4 default '';
  declare v_mode_rules, v_overrides boolean;
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(10) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_receipt varchar(36) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_after, v_cost, v_max_wait, v_min_remaining, v_capacity, v_hold, v_times, v_alike bigint;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, cost, max_wait, keep, capacity, refill_seconds, refill, unhex(plan), receipt, hold,
           coalesce(times, 1)
      from json_table(p_requests, '$[*]' columns (
             place for ordinality, id varchar(2048) character set ascii path '$[0]', cost bigint path '$[1]',
             max_wait bigint path '$[2]', keep bigint path '$[3]', capacity bigint path '$[4]',
             refill_seconds decimal(19, 9) path '$[5]', refill varchar(10) path '$[6]',
             plan varchar(2048) character set ascii path '$[7]', receipt varchar(36) path '$[8]',
             hold bigint path '$[9]', times bigint path '$[10]')) as requests
     where v_rest is null or json_contains(v_rest, cast(place as char))
     order by id, place;
  declare continue handler for not found set v_done = true;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_wait, sql_safe_updates = v_safe, sql_big_selects = v_big;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_own, v_own);
  at_once: loop
    call token_clock(v_now);
    -- A session that holds a bucket delays the other requests by a second at most. A join can exceed its max_join_size.
    set innodb_lock_wait_timeout = if(p_own or p_requests like '%[%[%[%', least(v_wait, 1), v_wait), sql_big_selects = 1;
    select count(*), count(distinct id), coalesce(sum(odd), 0), coalesce(sum(missing), 0),
           sum(planned and word is not null), sum(word is null), sum(grants),
           json_arrayagg(concat_ws(
             ' ', if(word is null, 0, times), grants, place, coalesce(word, '-'), '-', v_now, v_now,
             coalesce(if(grants = 0, full_at, greatest(full_at, clock) + grants * cost * token_ticks), '-'),
             coalesce(granted + grants * cost, '-'), coalesce(burst, '-'), coalesce(anchor, '-'),
             coalesce(step_ns, '-'), coalesce(step_ticks, '-'), coalesce(token_ticks, '-'))),
           json_arrayagg(if(grants > 0, json_array(hex(id), granted + grants * cost), null))
      into v_requests, v_ids, v_odd, v_missing, v_planned, v_ruled, v_grants, v_answers, v_debits
      from (
        select s.*,
               -- Each of equal requests finds the tokens that the one before left.
               if(word = 'denied',
                  greatest(least((burst - keep * token_ticks - greatest(full_at - clock, 0)) div (cost * token_ticks),
                                 times), 0), 0) as grants
          from (
            select s.*,
                   -- null: more than the tokens decides
                   case
                     when not rule <=> 'tokens' then rule
                     when cost > burst div token_ticks - keep then 'never'
                     -- False if the clock was set back.
                     when full_at - clock <= burst + max_granted_wait + (1000000000 div step_ns + 1) * step_ticks
                       then 'denied'
                   end as word
              from (
                select r.id, r.place, r.cost, r.keep, r.times, b.full_at, b.granted, b.burst, b.anchor, b.step_ns,
                       b.step_ticks, b.token_ticks, b.max_granted_wait, b.plan is not null as planned,
                       (v_now - b.anchor) div b.step_ns * b.step_ticks as clock,
                       (r.cost between 1 and 4611686018427387903 and r.keep between 0 and 4611686018427387903
                        and r.times >= 1 and r.max_wait = 0 and r.receipt is null
                        and length(r.id) between 1 and 255) is not true as odd,
                       b.id is null and (r.capacity is not null or r.plan is not null) as missing,
                       case
                         when r.cost < 1 or r.keep < 0 or json_contains(v_rest, cast(r.place as char)) then null
                         when b.id is null then if(r.capacity is null and r.plan is null, 'unknown', null)
                         when b.overridden or b.capacity <> b.under_capacity
                              or b.refill_seconds <> b.under_seconds or b.refill <> b.under_refill then null
                         when r.capacity is not null
                           then if(b.plan is null and r.capacity = b.capacity
                                   and r.refill_seconds = b.refill_seconds and r.refill = b.refill, 'tokens', null)
                         when r.plan is null or r.plan = b.plan then 'tokens'
                       end as rule
                  from (
                    select place, unhex(id) as id, cost, max_wait, keep, capacity, refill_seconds, refill,
                           unhex(plan) as plan, receipt, coalesce(times, 1) as times
                      from json_table(p_requests, '$[*]' columns (
                             place for ordinality, id varchar(512) character set ascii path '$[0]',
                             cost bigint path '$[1]', max_wait bigint path '$[2]', keep bigint path '$[3]',
                             -- A value too large would read as null, which has a meaning. So the value is refused here.
                             capacity bigint path '$[4]' error on error,
                             refill_seconds decimal(19, 9) path '$[5]' error on error,
                             refill varchar(10) character set ascii collate ascii_bin path '$[6]',
                             plan varchar(512) character set ascii path '$[7]', receipt varchar(36) path '$[8]',
                             hold bigint path '$[9]' error on error,
                             times bigint path '$[10]' error on error)) as requests
                     -- The limit makes the server materialize the derived table, in this order.
                     order by id limit 1000000000) as r
                  left join token_buckets b on b.id = r.id
                   for update /*!80000 of b */) as s  -- MySQL needs this, and MariaDB skips it
             limit 1000000000) as s) as s;
    call token_clock(v_after);
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    -- MariaDB truncates longer arrays, and closes a truncated text.
    if v_mode_rules or v_odd > 0 or v_ids < v_requests
       or (json_length(v_answers) = v_requests and json_length(v_debits) = v_requests
           /*M! and length(v_answers) + 1000 < @@group_concat_max_len */) is not true then
      if v_missing > 0 and v_own then
        -- Creates the buckets in the order of all ids.
        rollback and no chain no release;
        set transaction isolation level read committed;
        start transaction;
      end if;
      set v_answers = '[]', v_grants = 0, v_rest = null;
      leave at_once;
    end if;
    if v_missing > 0 and v_own and not v_made then
      -- A separate transaction: in this one, the rows would be locked out of order.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
      call token_make_batch(p_requests, null, null, null, null);
      commit and no chain no release;
      set v_made = true, v_again = false, v_rest = null;
      set transaction isolation level read committed;
      start transaction;
      iterate at_once;
    end if;
    -- Tokens arrived during the wait for a lock, so grants count from now.
    if not v_again and v_after not between v_now and v_now + 2000000 + 20000 * v_requests then
      set v_again = true;
      iterate at_once;
    end if;
    if v_rest is null and (v_overrides or v_planned > 0) then
      -- Buckets whose state has to be converted are already decided one by one. Reads the current rows, as above: the caller's
      -- snapshot can hold older ones.
      select json_arrayagg(s.place) into v_rest
        from (select r.place, r.id, b.plan, b.capacity, b.refill_seconds, b.refill,
                     coalesce(not b.overridden and b.capacity = b.under_capacity
                              and b.refill_seconds = b.under_seconds and b.refill = b.under_refill, true) as settled
                from (select place, unhex(id) as id
                        from json_table(p_requests, '$[*]' columns (
                               place for ordinality, id varchar(512) character set ascii path '$[0]')) as requests
                       order by id limit 1000000000) as r
                left join token_buckets b on b.id = r.id
                 for update /*!80000 of b */) as s
        left join token_overrides o on o.id = s.id
        left join token_plans p on p.name = s.plan and p.mode is null and p.capacity = s.capacity
                                   and p.refill_seconds = s.refill_seconds and p.refill = s.refill
       where s.settled and (o.id is not null or s.plan is not null and p.name is null);
      if v_rest is not null then
        iterate at_once;
      end if;
    end if;
    if v_ruled > 0 then
      select json_arrayagg(cast(substring_index(substring_index(answer, ' ', 3), ' ', -1) as signed)) into v_rest
        from json_table(v_answers, '$[*]' columns (answer varchar(400) character set ascii path '$')) as answers
       where answer like '0 %';
    end if;
    set v_evaluated = true;
    leave at_once;
  end loop;

  if not v_evaluated or v_ruled > 0 then
    open v_sorted;
    decide: loop
      fetch v_sorted into v_place, v_id, v_cost, v_max_wait, v_min_remaining, v_capacity, v_refill_seconds, v_refill, v_plan,
                          v_receipt, v_hold, v_times;
      if v_done then leave decide; end if;
      if v_times < 1 then
        signal sqlstate '22023' set message_text = 'tollgate: times is 1 or more';
      end if;
      while v_times > 0 do
        set v_alike = 1;
        call token_take_v1(convert(v_id using utf8mb4), v_cost, v_max_wait, v_min_remaining, v_capacity, v_refill_seconds,
                             v_refill, convert(v_plan using utf8mb4), v_receipt, v_hold, true, false, v_alike,
                             v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                             v_step_ticks, v_token_ticks);
        -- After a grant, the next equal request finds fewer tokens. Otherwise all get the same answer.
        set v_alike = if(v_outcome = 'granted' and v_mode is null, 1, v_times);
        set v_each = concat(v_each, ',"', concat_ws(
          ' ', v_alike, if(v_outcome = 'granted' and v_mode is null, v_alike, 0), v_place, v_outcome,
          coalesce(v_mode, '-'), v_now, coalesce(v_scheduled_at, '-'), coalesce(v_full_at, '-'), coalesce(v_granted, '-'),
          coalesce(v_burst, '-'), coalesce(v_anchor, '-'), coalesce(v_step_ns, '-'), coalesce(v_step_ticks, '-'),
          coalesce(v_token_ticks, '-')), '"');
        set v_times = v_times - v_alike;
      end while;
      set v_done = false;
    end loop;
    close v_sorted;
  end if;
  if v_grants > 0 then
    -- Tokens taken from a full bucket return from now on, when its row is locked.
    call token_clock(v_now);
    if v_safe then set sql_safe_updates = 0; end if;
    update json_table(v_debits, '$[*]' columns (
             id varchar(512) character set ascii path '$[0]', granted bigint path '$[1]')) as d
      straight_join token_buckets b on b.id = unhex(d.id)
       set b.full_at = greatest(b.full_at, (v_now - b.anchor) div b.step_ns * b.step_ticks)
                       + (d.granted - b.granted) * b.token_ticks,
           b.granted = d.granted;
    if v_safe then set sql_safe_updates = 1; end if;
  end if;
  set innodb_lock_wait_timeout = v_wait, sql_big_selects = v_big;
  if v_each <> '' then
    set v_answers = json_merge_preserve(v_answers, concat('[', substr(v_each, 2), ']'));
  end if;
  set o_answers = v_answers;
  if v_own then commit and no chain no release; end if;
end
//

insert into token_migrations (version, name) values (5, '0005_take_batch') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_take_all_v1: takes tokens from all of several buckets, or from none.
--
-- Arguments: p_limits    a JSON array of limits: [id in hexadecimal, cost, min_remaining, capacity, refill_seconds, refill,
--                        plan in hexadecimal], in id order, each bucket once; as for token_take_v1
--            p_max_wait, p_receipt, p_hold, p_own: as for token_take_v1, for all buckets
-- Result:    o_answers   a JSON array with one text per bucket, in any order: its position, then the columns of token_take_v1
--                        from outcome on, with spaces between and - for null. Either all are 'granted'. Or some have another
--                        outcome, the rest are 'spared' (could have been granted), and nothing was taken
-- Errors:    as for token_take_v1 · 22023 a bucket twice
--            22003 capacity or refill_seconds too large (MariaDB takes the largest instead)
-- Locks:     the rows of all buckets in the order given, then the receipts. Rows are locked in id order if one has to be
--            created or more than tokens decides. Calls with another order can deadlock. The routine has its own transaction,
--            unless the caller has one.
--
-- If only tokens decide, all buckets are locked and evaluated at once, and debited if all grant. Else three passes go bucket by
-- bucket. The answer is one text and the caller sorts: rows or a derived table cost as much as evaluating several buckets. A
-- request with a wait acts when its last bucket has the tokens. Each bucket is debited for the time of its own tokens.
drop procedure if exists token_take_all_v1
//

create procedure token_take_all_v1(
  in p_limits longtext character set utf8mb4, in p_max_wait bigint, in p_receipt varchar(36) character set ascii,
  in p_hold bigint, in p_own boolean, out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_done, v_spare boolean default false;
  declare v_all boolean default true;
  declare v_again, v_taken boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_big boolean default @@sql_big_selects;
  declare v_mode_rules, v_overrides boolean;
  declare v_limits, v_ids, v_planned, v_missing, v_ruled, v_plain, v_granting, v_after bigint;
  declare v_pass int default 1;  -- 1: lock and prepare, 2: evaluate, 3: take
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(10) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_capacity, v_cost, v_min_remaining, v_at, v_times bigint;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, cost, keep, capacity, refill_seconds, refill, unhex(plan)
      from json_table(p_limits, '$[*]' columns (
             place for ordinality, id varchar(2048) character set ascii path '$[0]',
             cost bigint path '$[1]' error on error, keep bigint path '$[2]' error on error,
             capacity bigint path '$[3]' error on error, refill_seconds decimal(19, 9) path '$[4]' error on error,
             refill varchar(10) path '$[5]', plan varchar(2048) character set ascii path '$[6]')) as limits
     order by id, place;
  declare continue handler for not found set v_done = true;
  declare exit handler for sqlexception
  begin
    set sql_safe_updates = v_safe, sql_big_selects = v_big, innodb_lock_wait_timeout = v_wait;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_own, v_own);
  -- A join can exceed the session's max_join_size.
  set sql_big_selects = 1, innodb_lock_wait_timeout = if(p_own, least(v_wait, 1), v_wait);
  at_once: loop
    if (p_receipt is null and p_max_wait between 0 and 31622400000000000) is not true then
      leave at_once;
    end if;
    call token_clock(v_at);
    select count(*), count(distinct unhex(r.id)), sum(b.plan is not null),
           sum(b.id is null and (r.capacity is not null or r.plan is not null)),
           -- Only the tokens decide, and the clock was not set back.
           sum((r.cost between 1 and 4611686018427387903 and r.keep between 0 and 4611686018427387903
                and not b.overridden
                and b.capacity = b.under_capacity and b.refill_seconds = b.under_seconds and b.refill = b.under_refill
                and if(r.capacity is null, r.plan is null or unhex(r.plan) <=> b.plan,
                       b.plan is null and r.capacity = b.capacity
                       and r.refill_seconds = b.refill_seconds and r.refill = b.refill)
                and (r.cost > b.burst div b.token_ticks - r.keep
                     or b.full_at - (v_at - b.anchor) div b.step_ns * b.step_ticks
                        <= b.burst + b.max_granted_wait + (1000000000 div b.step_ns + 1) * b.step_ticks)) is true),
           sum(if(r.cost <= b.burst div b.token_ticks - r.keep,
                  b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    <= (v_at + p_max_wait - b.anchor) div b.step_ns * b.step_ticks, false)),
           json_arrayagg(if(
             r.cost <= b.burst div b.token_ticks - r.keep
             and b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                 <= (v_at + p_max_wait - b.anchor) div b.step_ns * b.step_ticks,
             concat_ws(' ', place, 'granted', '-', v_at,
               if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                    div b.step_ticks * b.step_ns + b.anchor,
                  v_at),
               greatest(
                 b.full_at, (v_at - b.anchor) div b.step_ns * b.step_ticks,
                 if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                      > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                    (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                      div b.step_ticks * b.step_ticks,
                    b.full_at)) + r.cost * b.token_ticks,
               b.granted + r.cost, b.burst, b.anchor, b.step_ns, b.step_ticks, b.token_ticks),
             null))
      into v_limits, v_ids, v_planned, v_missing, v_plain, v_granting, o_answers
      from json_table(p_limits, '$[*]' columns (
             place for ordinality, id varchar(512) character set ascii path '$[0]',
             cost bigint path '$[1]' error on error, keep bigint path '$[2]' error on error,
             capacity bigint path '$[3]' error on error, refill_seconds decimal(19, 9) path '$[4]' error on error,
             refill varchar(10) character set ascii collate ascii_bin path '$[5]',
             plan varchar(512) character set ascii path '$[6]')) as r
      left join token_buckets b on b.id = unhex(r.id)
       for update /*!80000 of b */;
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    call token_clock(v_after);
    if v_missing > 0 and v_own then
      -- Creates the buckets in the order of all ids.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
    end if;
    if v_mode_rules or v_plain < v_limits or v_ids < v_limits
       or (json_length(o_answers) = v_limits
           -- MariaDB truncates longer arrays.
           /*M! and 256 * v_limits < @@group_concat_max_len */) is not true then
      leave at_once;
    end if;
    if not v_again and v_after not between v_at and v_at + 2000000 + 20000 * v_limits then
      set v_again = true;
      iterate at_once;
    end if;
    if v_overrides or v_planned > 0 then
      -- Reads the current rows, because the caller's snapshot can hold older ones.
      select count(*) into v_ruled
        from (select r.id, b.plan, b.capacity, b.refill_seconds, b.refill
                from (select unhex(id) as id
                        from json_table(p_limits, '$[*]' columns (
                               id varchar(512) character set ascii path '$[0]')) as limits
                       order by id limit 1000000000) as r
                left join token_buckets b on b.id = r.id
                 for update /*!80000 of b */) as s
        left join token_overrides o on o.id = s.id
        left join token_plans p on p.name = s.plan and p.mode is null and p.capacity = s.capacity
                                   and p.refill_seconds = s.refill_seconds and p.refill = s.refill
       where o.id is not null or s.plan is not null and p.name is null;
      if v_ruled > 0 then
        leave at_once;
      end if;
    end if;
    set v_pass = 4, v_spare = v_granting < v_limits;
    if not v_spare then
      set v_after = greatest(v_at, v_after);
      if v_safe then set sql_safe_updates = 0; end if;
      -- Assigns from left to right: the longest wait is computed from the old full_at. A request without a wait reaches no
      -- later step, even if the clock was set back to before its start.
      update json_table(p_limits, '$[*]' columns (
               id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]', keep bigint path '$[2]')) as r
        straight_join token_buckets b force index (primary) on b.id = unhex(r.id)
         set b.granted = b.granted + r.cost,
             b.max_granted_wait = greatest(
               b.max_granted_wait,
               if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                    div b.step_ticks * b.step_ticks - (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  0)),
             b.full_at = greatest(
               b.full_at, (v_after - b.anchor) div b.step_ns * b.step_ticks,
               if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                    div b.step_ticks * b.step_ticks,
                  b.full_at)) + r.cost * b.token_ticks;
      if v_safe then set sql_safe_updates = 1; end if;
    else
      select json_arrayagg(concat_ws(
               ' ', place,
               case
                 when r.cost > b.burst div b.token_ticks - r.keep then 'never'
                 when b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                      <= (v_at + p_max_wait - b.anchor) div b.step_ns * b.step_ticks then 'spared'
                 else 'denied'
               end, '-', v_at, v_at, b.full_at, b.granted, b.burst, b.anchor, b.step_ns, b.step_ticks, b.token_ticks))
        into o_answers
        from json_table(p_limits, '$[*]' columns (
               place for ordinality, id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]',
               keep bigint path '$[2]')) as r
        straight_join token_buckets b force index (primary) on b.id = unhex(r.id)
         for update /*!80000 of b */;
    end if;
    leave at_once;
  end loop;

  if v_pass < 4
     and (select count(*) > count(distinct unhex(id))
            from json_table(p_limits, '$[*]' columns (id varchar(2048) character set ascii path '$[0]')) as limits) then
    signal sqlstate '22023' set message_text =
      'tollgate: token_take_all_v1 needs distinct bucket ids in hexadecimal';
  end if;
  while v_pass <= 3 do
    set o_answers = '[]', v_done = false;
    open v_sorted;
    decide: loop
      fetch v_sorted into v_place, v_id, v_cost, v_min_remaining, v_capacity, v_refill_seconds, v_refill, v_plan;
      if v_done then leave decide; end if;
      set v_times = 1;
      call token_take_v1(convert(v_id using utf8mb4), v_cost, p_max_wait, v_min_remaining, v_capacity, v_refill_seconds,
                           v_refill, convert(v_plan using utf8mb4), if(v_pass = 1, null, p_receipt), p_hold,
                           v_pass = 3, false, v_times,
                           v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                           v_step_ticks, v_token_ticks);
      set v_done = false;
      set v_spare = v_spare or (v_pass > 1 and v_outcome <> 'granted');
      set v_all = v_all and v_outcome = 'granted';
      set o_answers = json_array_append(o_answers, '$', concat_ws(
        ' ', v_place, v_outcome, coalesce(v_mode, '-'), v_now, coalesce(v_scheduled_at, '-'), coalesce(v_full_at, '-'),
        coalesce(v_granted, '-'), coalesce(v_burst, '-'), coalesce(v_anchor, '-'), coalesce(v_step_ns, '-'),
        coalesce(v_step_ticks, '-'), coalesce(v_token_ticks, '-')));
    end loop;
    close v_sorted;
    if v_spare and v_pass = 3 then
      rollback to savepoint tollgate_decide_all;
      signal sqlstate '40001' set message_text = 'tollgate: the limits of the buckets changed during the call: repeat it';
    end if;
    -- A bucket that granted before the others were locked still grants afterwards.
    set v_pass = if(v_spare, 4, if(v_pass = 1 and v_all and p_receipt is null, 3, v_pass + 1));
    if v_pass = 3 then
      savepoint tollgate_decide_all;
      set v_taken = true;
    end if;
  end while;
  if not v_spare and v_taken then
    release savepoint tollgate_decide_all;
  end if;
  set sql_big_selects = v_big, innodb_lock_wait_timeout = v_wait;
  if v_own then commit and no chain no release; end if;
  if v_spare then
    set o_answers = replace(o_answers, ' granted ', ' spared ');
  end if;
end
//

-- token_take_all_batch_v1: decides several requests in one call. Each takes from all of its buckets, or from none.
--
-- Arguments: p_requests  a JSON array of requests, each as p_limits of token_take_all_v1; no request waits or has an id
--            p_own       as for token_take_v1
-- Result:    o_standing  a JSON array with one text per bucket of each request, in any order. A text is the request's position
--                        from 1 and the answer of token_take_all_v1, with the bucket's state before the call. A request is
--                        granted if all its texts say 'granted'; granted requests take their tokens in order. A request with a
--                        'denied' or 'never' takes nothing
--            o_rest      like o_standing, for requests decided later, in order: the answers of token_take_all_v1. These answers
--                        replace those in o_standing
-- Errors:    as for token_take_all_v1, but a request that names a bucket twice is charged twice · 22023 more than 64 requests
--            1205 another session locked one of the buckets for a second
-- Locks:     the rows of all buckets in id order, in one transaction. An earlier transaction creates missing buckets, unless
--            the caller has one. Buckets with an override or a mode are created last: then two calls can deadlock, and one is
--            rolled back.
--
-- Requests that the locked buckets cannot grant are denied. If the buckets of a request afford all requests, the request is
-- granted, and one UPDATE debits the buckets. token_take_all_v1 decides the others, and all requests after the first one with
-- an override, a mode or other limits. The answers are those of deciding the requests one after the other.
drop procedure if exists token_take_all_batch_v1
//

create procedure token_take_all_batch_v1(
  in p_requests longtext character set utf8mb4, in p_own boolean,
  out o_standing longtext character set utf8mb4, out o_rest longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_made, v_again boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_big boolean default @@sql_big_selects;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_mode_rules, v_overrides boolean;
  declare v_now, v_after, v_limits, v_requests, v_missing, v_denials bigint;
  declare v_first bigint;  -- the first request that more than the tokens decides
  declare v_denied, v_short, v_rest bigint unsigned;  -- one bit per request: denied, perhaps denied, decided one by one
  declare v_makes, v_plans json;
  declare v_request bigint default 1;
  declare v_each longtext character set utf8mb4 default '';
  declare v_answers longtext character set utf8mb4;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_wait, sql_safe_updates = v_safe, sql_big_selects = v_big;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_own, v_own);
  at_once: loop
    call token_clock(v_now);
    -- A session that holds a bucket delays the other requests by a second at most. A join can exceed its max_join_size.
    set innodb_lock_wait_timeout = least(v_wait, 1), sql_big_selects = 1;
    with asked as (
      select request, place, unhex(id) as id, cost, keep, capacity, refill_seconds, refill, unhex(plan) as plan
        from json_table(p_requests, '$[*]' columns (
               request for ordinality,
               nested path '$[*]' columns (
                 place for ordinality, id varchar(512) character set ascii path '$[0]',
                 -- A value too large would read as null, which has a meaning. So the value is refused here.
                 cost bigint path '$[1]' error on error, keep bigint path '$[2]' error on error,
                 capacity bigint path '$[3]' error on error,
                 refill_seconds decimal(19, 9) path '$[4]' error on error,
                 refill varchar(10) character set ascii collate ascii_bin path '$[5]',
                 plan varchar(512) character set ascii path '$[6]'))) as requests
       -- The limit makes the server materialize the derived table, in this order.
       order by id limit 1000000000
    ), demand as (
      -- Groups by sorting: a temporary table would count as a write even if all requests are denied.
      select sql_big_result id, min(request) as first, sum(cost) as cost, max(keep) as keep from asked group by id
    ), evaluated as (
      select a.request, a.place, a.id, a.capacity as asked_capacity, a.refill_seconds as asked_seconds,
             a.refill as asked_refill, a.plan as asked_plan, b.capacity, b.refill_seconds, b.refill, b.plan, b.full_at,
             b.granted, b.burst, b.anchor, b.step_ns, b.step_ticks, b.token_ticks,
             -- True if the first request that names the bucket can create it.
             b.id is null and a.request = d.first and (a.capacity is not null or a.plan is not null) as missing,
             -- null: more than the tokens decides, or the clock was set back
             case
               when (a.cost between 1 and 4611686018427387903 and a.keep between 0 and 4611686018427387903
                     and not b.overridden
                     and b.capacity = b.under_capacity and b.refill_seconds = b.under_seconds and b.refill = b.under_refill
                     and if(a.capacity is null, a.plan is null or a.plan <=> b.plan,
                            b.plan is null and a.capacity = b.capacity
                            and a.refill_seconds = b.refill_seconds and a.refill = b.refill)
                     and b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks
                         <= b.burst + b.max_granted_wait + (1000000000 div b.step_ns + 1) * b.step_ticks) is not true
                 then null
               when a.cost > b.burst div b.token_ticks - a.keep then 'never'
               when greatest(b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks, 0)
                    > b.burst - (a.cost + a.keep) * b.token_ticks then 'denied'
               when greatest(b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks, 0)
                    > b.burst - (d.cost + d.keep) * b.token_ticks then 'short'
               else 'granted'
             end as word
        from asked a
        left join demand d on d.id = a.id
        left join token_buckets b on b.id = a.id
         for update /*!80000 of b */  -- MySQL needs this, and MariaDB skips it
    )
    select count(*), max(request), coalesce(sum(missing), 0), coalesce(sum(word = 'denied'), 0),
           min(if(word is null, request, null)),
           -- With null, a bit keeps its type. With 0, MariaDB would use a signed number and lose the last bit.
           bit_or(if(word in ('denied', 'never'), 1 << request - 1, null)),
           bit_or(if(word = 'short', 1 << request - 1, null)),
           json_arrayagg(if(missing, json_array(hex(id), null, null, null, asked_capacity, asked_seconds, asked_refill,
                                                hex(asked_plan)), null)),
           json_arrayagg(if(plan is null, null, json_array(request, hex(plan), capacity, refill_seconds, refill))),
           json_arrayagg(if(word is null, null, concat_ws(
             ' ', request, place, if(word = 'short', 'spared', word), '-', v_now, v_now, full_at, granted, burst, anchor,
             step_ns, step_ticks, token_ticks)))
      into v_limits, v_requests, v_missing, v_denials, v_first, v_denied, v_short, v_makes, v_plans, o_standing
      from evaluated;
    call token_clock(v_after);
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    -- MariaDB truncates longer arrays.
    if v_missing > 0 and v_own and not v_made and not v_mode_rules and json_length(v_makes) = v_limits then
      -- A separate transaction: in this one, the rows would be locked out of order.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
      call token_make_batch(v_makes, null, null, null, null);
      commit and no chain no release;
      set v_made = true, v_again = false;
      set transaction isolation level read committed;
      start transaction;
      iterate at_once;
    end if;
    -- Tokens arrived during the wait for a row. An early evaluation can only deny: the debit is computed anew. Many rows take
    -- time without any wait: if all requests are granted, the rows are not evaluated again.
    if not v_again
       and v_after not between v_now and v_now + if(v_denials > 0, 2000000 + 20000 * v_limits, 50000000) then
      set v_again = true;
      iterate at_once;
    end if;
    leave at_once;
  end loop;

  if v_requests > 64 then
    signal sqlstate '22023' set message_text = 'tollgate: token_take_all_batch_v1 takes at most 64 requests';
  end if;
  set v_first = coalesce(v_first, v_requests + 1);
  if v_overrides then
    select least(v_first, coalesce(min(a.request), v_first)) into v_first
      from json_table(p_requests, '$[*]' columns (
             request for ordinality,
             nested path '$[*]' columns (id varchar(512) character set ascii path '$[0]'))) as a
      join token_overrides o on o.id = unhex(a.id);
  end if;
  -- MariaDB truncates longer arrays, and closes a truncated text.
  if v_mode_rules or (json_length(o_standing) = v_limits and json_length(v_plans) = v_limits
                      /*M! and length(o_standing) + 1000 < @@group_concat_max_len */) is not true then
    set v_first = 1, v_plans = '[]', o_standing = '[]';
  end if;
  select least(v_first, coalesce(min(a.request), v_first)) into v_first
    from json_table(v_plans, '$[*]' columns (
           request bigint path '$[0]', plan varchar(512) character set ascii path '$[1]', capacity bigint path '$[2]',
           refill_seconds decimal(19, 9) path '$[3]',
           refill varchar(10) character set ascii collate ascii_bin path '$[4]')) as a
    left join token_plans p on p.name = unhex(a.plan) and p.mode is null and p.capacity = a.capacity
                               and p.refill_seconds = a.refill_seconds and p.refill = a.refill
   where a.plan is not null and p.name is null;
  set v_rest = v_short & ~v_denied;
  if v_first <= v_requests then
    set v_rest = v_rest | ~((1 << v_first - 1) - 1);
  end if;
  -- True unless each request has its bit in v_denied or v_rest.
  if ~(v_denied | v_rest) & (~0 >> 64 - v_requests) <> 0 then
    -- Tokens taken from a full bucket return from now on, when its row is locked.
    call token_clock(v_now);
    if v_safe then set sql_safe_updates = 0; end if;
    update (select unhex(a.id) as id, sum(a.cost) as cost
              from json_table(p_requests, '$[*]' columns (
                     request for ordinality,
                     nested path '$[*]' columns (
                       id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]'))) as a
             where (v_denied | v_rest) >> a.request - 1 & 1 = 0
             group by unhex(a.id)) as d
      straight_join token_buckets b on b.id = d.id
       set b.full_at = greatest(b.full_at, (v_now - b.anchor) div b.step_ns * b.step_ticks) + d.cost * b.token_ticks,
           b.granted = b.granted + d.cost;
    if v_safe then set sql_safe_updates = 1; end if;
  end if;
  while v_rest <> 0 and v_request <= v_requests do
    if v_rest >> v_request - 1 & 1 = 1 then
      call token_take_all_v1(
        json_extract(p_requests, concat('$[', v_request - 1, ']')), 0, null, 0, false, v_answers);
      set v_answers = regexp_replace(v_answers, '"(?=[0-9])', concat('"', v_request, ' '));
      set v_each = concat(v_each, ',', substr(v_answers, 2, char_length(v_answers) - 2));
    end if;
    set v_request = v_request + 1;
  end while;
  set innodb_lock_wait_timeout = v_wait, sql_big_selects = v_big;
  set o_rest = concat('[', substr(v_each, 2), ']');
  if v_own then commit and no chain no release; end if;
end
//

insert into token_migrations (version, name) values (6, '0006_take_all') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_window_step_back: adapts a window to a clock that was set back. Requests counted by the old clock count from now on:
-- keys are denied for one interval at most.
--
-- Arguments: p_last_wait, p_resolution: the window's columns
--            p_now                  nanoseconds since 1970
--            io_counts, io_newest   the window's columns
-- Result:    io_counts, io_newest   the new columns
-- Errors:    22023 group_concat_max_len is too small (MariaDB)
-- Locks:     none
drop procedure if exists token_window_step_back
//

create procedure token_window_step_back(
  in p_last_wait bigint, in p_resolution bigint, in p_now bigint,
  inout io_counts longtext character set ascii, inout io_newest bigint)
no sql
sql security definer
begin
  declare v_back bigint default io_newest - p_now - p_resolution;
  declare v_parts bigint;

  if v_back > p_last_wait + 1000000000 then
    select json_arrayagg(json_array(e - v_back, c)), count(*) into io_counts, v_parts
      from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j;
    if (json_valid(io_counts) and json_length(io_counts) = v_parts) is not true then
      -- MariaDB truncates the text silently.
      signal sqlstate '22023' set message_text =
        'tollgate: group_concat_max_len is too small for this window: set it to 131072 or more, or count in fewer parts';
    end if;
    set io_newest = io_newest - v_back;
  end if;
end
//

-- token_window_earliest: computes the earliest time at which at most p_room granted requests count. The result is never before
-- the time of a granted request.
--
-- Arguments: p_counts, p_newest, p_resolution: the window's columns
--            p_interval      nanoseconds
--            p_room          requests
--            p_now           nanoseconds since 1970
-- Result:    o_scheduled_at  nanoseconds since 1970
-- Errors:    none
-- Locks:     none
drop procedure if exists token_window_earliest
//

create procedure token_window_earliest(
  in p_counts longtext character set ascii, in p_newest bigint, in p_resolution bigint, in p_interval bigint,
  in p_room bigint, in p_now bigint, out o_scheduled_at bigint)
no sql
sql security definer
begin
  declare v_full bigint;

  select max(e) into v_full
    from (select e, sum(c) over (order by e desc) as so_far
            from json_table(p_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as s
   where so_far > p_room;
  set o_scheduled_at = greatest(p_now, p_newest - p_resolution, coalesce(v_full + p_interval, 0));
end
//

-- token_window_count: counts requests in a window at an instant, and drops the counts that have expired.
--
-- Arguments: p_id            the window
--            p_max_requests  maximum of requests; null: unchanged
--            p_interval, p_resolution: nanoseconds
--            p_cost          requests
--            p_now, p_at     nanoseconds since 1970
--            io_counts, io_newest, io_resolution: the window's columns
-- Result:    io_counts, io_newest, io_resolution: the new columns
-- Errors:    22023 group_concat_max_len is too small (MariaDB)
-- Locks:     the window's row, which the caller already holds
--
-- A window holds at most 2000 sub-intervals. Beyond, a past sub-interval is merged into the next one, so that its requests
-- count for longer: the one with the smallest delay in relation to its age. The window keeps the newest resolution.
drop procedure if exists token_window_count
//

create procedure token_window_count(
  in p_id varbinary(1024), in p_max_requests bigint, in p_interval bigint, in p_resolution bigint, in p_cost bigint,
  in p_now bigint, in p_at bigint, inout io_counts longtext character set ascii, inout io_newest bigint, inout io_resolution bigint)
modifies sql data
sql security definer
begin
  declare v_end bigint default (p_at div p_resolution + 1) * p_resolution;
  declare v_interval, v_entries, v_join, v_next, v_forgotten bigint;

  -- The longer interval applies until this request's counts are the only ones.
  select greatest(p_interval, interval_ns) into v_interval from token_windows where id = p_id for update;
  if io_newest <= p_now - v_interval then
    set v_interval = p_interval;
  elseif io_newest >= v_end then
    set v_end = io_newest;
  end if;
  if v_end > io_newest then
    set io_resolution = p_resolution;
  end if;
  select max(e) into v_forgotten
    from json_table(io_counts, '$[*]' columns (e bigint path '$[0]')) as j where e <= p_now - v_interval;
  select json_arrayagg(json_array(e, c)), count(*) into io_counts, v_entries
    from (select e, cast(sum(c) as signed) as c
            from (select e, c
                    from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
                   where e > p_now - v_interval
                   union all select v_end, p_cost) as u
           group by e) as s;
  if (json_valid(io_counts) and json_length(io_counts) = v_entries) is not true then
    -- MariaDB truncates the text silently, or to invalid JSON.
    signal sqlstate '22023' set message_text =
      'tollgate: group_concat_max_len is too small for this window: set it to 131072 or more, or count in fewer parts';
  end if;
  if v_entries > 2000 then
    select e, after_e into v_join, v_next
      from (select e, lag(e) over (order by e) as before_e, lead(e) over (order by e) as after_e
              from json_table(io_counts, '$[*]' columns (e bigint path '$[0]')) as j
             where e <= p_now) as k
     where before_e is not null and after_e is not null
     order by (p_now - before_e) div (after_e - before_e) desc, e limit 1;
  end if;
  if v_join is not null then
    -- Shorter than the text above, which was not truncated.
    select json_arrayagg(json_array(e, c)) into io_counts
      from (select e, cast(sum(c) as signed) as c
              from (select if(e = v_join, v_next, e) as e, c
                      from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as u
             group by e) as s;
  end if;
  set io_newest = v_end;
  update token_windows
     set counts = io_counts, newest = v_end, granted = granted + p_cost,
         last_wait = p_at - p_now, max_requests = coalesce(p_max_requests, max_requests), interval_ns = v_interval,
         resolution_ns = io_resolution,
         since = greatest(since, coalesce(v_forgotten, 0))
   where id = p_id;
end
//

-- token_take_window_v1: decides one request under a sliding window exactly, or counts the request unconditionally.
--
-- Arguments: p_id             the window; its first request creates it
--            p_cost           requests, 1 or more; 0 with p_counting: only reads
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  requests that must remain for others
--            p_max_requests   maximum in any interval
--            p_interval, p_resolution: nanoseconds; the resolution divides the interval into 1 to 1000 parts
--            p_receipt        id of the request, a UUID: a retry with the id is counted once; null: no id
--            p_hold           nanoseconds for which the id is remembered
--            p_counting       true: counts the request now, even beyond the maximum
--            p_own            as for token_take_v1
-- Result:    o_outcome        'granted' or 'denied'; a wait that needs more than 1000 sub-intervals ahead is denied, too
--                             'never': p_cost + p_min_remaining exceeds the maximum
--                             'reused': the id belongs to another request
--            o_mode           the mode that decided instead of the counts: 'shadow', 'off' or 'block'; else null
--            o_now            instant of the decision, in nanoseconds since 1970
--            o_scheduled_at   when the request acts; with 'block', the end of the mode; null: no end
--            o_counts, o_resolution: the window's columns after the decision
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt. In the caller's transaction, the locks last until it ends. Otherwise the
--            routine has its own transaction.
drop procedure if exists token_take_window_v1
//

create procedure token_take_window_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_min_remaining bigint,
  in p_max_requests bigint, in p_interval bigint, in p_resolution bigint, in p_receipt varchar(36) character set ascii,
  in p_hold bigint, in p_counting boolean, in p_own boolean,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_now bigint, out o_scheduled_at bigint, out o_counts longtext character set ascii, out o_resolution bigint)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_big boolean default @@sql_big_selects;
  declare v_newest, v_was_newest, v_last_wait, v_until, v_over_until bigint;
  declare v_mode varchar(7) character set ascii collate ascii_bin;

  if (length(v_id) between 1 and 255 and left(v_id, 1) <> x'01' and locate(x'00', v_id) = 0
      and cast(convert(v_id using utf8mb4) as binary) <=> v_id
      and p_cost between if(p_counting, 0, 1) and if(p_counting, 1000000000000, 4611686018427387903)
      and p_min_remaining between 0 and 4611686018427387903 and p_max_wait between 0 and 31622400000000000
      and p_max_requests between 1 and 1000000000000 and p_resolution between 1000 and p_interval
      and p_interval <= 31622400000000000 and (p_interval - 1) div p_resolution < 1000) is not true then
    call token_check_id('window id', v_id);
    signal sqlstate '22023' set message_text =
      'tollgate: a window needs a cost and maximum of 1 or more, at most a year, and 1 to 1000 parts of 1000 ns or more';
  end if;
  call token_begin(p_own, v_own);

  decide: begin
    declare exit handler for sqlexception
    begin
      set sql_big_selects = v_big, innodb_lock_wait_timeout = v_wait;
      if v_own then rollback and no chain no release; end if;
      resignal;
    end;

    -- A join can exceed the session's max_join_size.
    set sql_big_selects = 1, innodb_lock_wait_timeout = if(p_own, least(v_wait, 1), v_wait);
    set o_outcome = 'granted', o_counts = '[]', o_resolution = p_resolution, v_newest = 0;
    call token_clock(o_now);
    set o_scheduled_at = o_now;
    lock_row: begin
      select counts, newest, resolution_ns, last_wait into o_counts, v_newest, o_resolution, v_last_wait
        from token_windows where id = v_id for update;
      call token_clock(o_now);
      set o_scheduled_at = o_now;
    end lock_row;
    -- Reads the mode under the lock: see token_take_v1.
    select mode, if(until < '2262-01-01', timestampdiff(microsecond, '1970-01-01', until) * 1000, null) into o_mode, v_until
      from token_mode
     where one = true and (until is null or timestampdiff(microsecond, '1970-01-01', least(until, '2262-01-01')) * 1000 > o_now);
    select mode, if(expires_at < '2262-01-01', timestampdiff(microsecond, '1970-01-01', expires_at) * 1000, null) into v_mode, v_over_until
      from token_overrides
     where id = v_id and mode is not null
       and (expires_at is null or timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 > o_now);
    if v_mode is not null then
      set o_mode = v_mode, v_until = v_over_until;
    end if;
    set o_mode = nullif(o_mode, 'enforce');
    if o_mode = 'off' then
      leave decide;
    end if;

    if v_last_wait is null and p_receipt is null and not p_counting and not o_mode <=> 'block' and p_cost > p_max_requests - p_min_remaining then
      -- A request that exceeds the maximum creates no row.
      set o_outcome = 'never';
      leave decide;
    elseif v_last_wait is null then
      insert into token_windows (id, max_requests, interval_ns, resolution_ns, counts, since)
      values (v_id, p_max_requests, p_interval, p_resolution, '[]', o_now)
      on duplicate key update id = token_windows.id;
      select counts, newest, resolution_ns, last_wait into o_counts, v_newest, o_resolution, v_last_wait
        from token_windows where id = v_id for update;
      call token_clock(o_now);
      set o_scheduled_at = o_now;
    end if;
    set v_was_newest = v_newest;
    call token_window_step_back(v_last_wait, o_resolution, o_now, o_counts, v_newest);
    if v_newest < v_was_newest then
      -- An adjustment gives back nothing of a request that acted by the old clock.
      update token_windows set counts = o_counts, newest = v_newest, since = greatest(since, v_was_newest) where id = v_id;
    end if;

    if p_receipt is not null then
      -- A bucket and a window with one key have separate receipts: no bucket id starts with U+0001.
      begin
        declare v_cost, v_granted, v_scheduled_at, v_expires_at bigint;
        declare v_state varchar(9) character set ascii;
        call token_claim(p_receipt, concat(x'01', v_id), p_cost, 0, o_now,
                            o_now + least(greatest(coalesce(p_hold, 0), 0), 31622400000000000), o_now,
                            v_state, v_cost, v_granted, v_scheduled_at, v_expires_at);
        if v_state is not null then
          set o_outcome = if(v_cost = p_cost and v_state <> 'cancelled', 'granted', 'reused'),
              o_mode = null, o_scheduled_at = greatest(v_scheduled_at, o_now);
          leave decide;
        end if;
      end;
    end if;

    if o_mode = 'block' then
      set o_outcome = 'denied', o_scheduled_at = v_until;
    elseif not p_counting and p_cost > p_max_requests - p_min_remaining then
      set o_outcome = 'never';
    else
      if p_counting then
        set o_scheduled_at = greatest(o_now, v_newest - o_resolution);
      else
        call token_window_earliest(o_counts, v_newest, o_resolution, p_interval, p_max_requests - p_cost - p_min_remaining, o_now,
                                      o_scheduled_at);
        if o_scheduled_at between o_now + 1 and o_now + p_max_wait
           and v_newest < (o_scheduled_at div p_resolution + 1) * p_resolution
           and (select count(*) from json_table(o_counts, '$[*]' columns (e bigint path '$[0]')) as j where e > o_now)
               > 999 then
          set o_scheduled_at = 9223372036854775807;
        end if;
      end if;
      if p_counting or o_scheduled_at <= o_now + if(o_mode = 'shadow', 0, p_max_wait) then
        set o_mode = if(p_counting, o_mode, null);
        if p_cost > 0 then
          call token_window_count(v_id, p_max_requests, p_interval, p_resolution, p_cost, o_now, o_scheduled_at, o_counts,
                                     v_newest, o_resolution);
        end if;
        if p_counting then
          set o_scheduled_at = o_now;
        end if;
        update token_receipts set scheduled_at = o_scheduled_at
         where p_receipt is not null and id = unhex(replace(p_receipt, '-', '')) and bucket = concat(x'01', v_id);
        leave decide;
      end if;
      set o_outcome = if(o_mode = 'shadow', 'granted', 'denied'), o_scheduled_at = o_now;
    end if;
    if p_receipt is not null then
      delete from token_receipts where id = unhex(replace(p_receipt, '-', '')) and bucket = concat(x'01', v_id);
    end if;
  end decide;

  set sql_big_selects = v_big, innodb_lock_wait_timeout = v_wait;
  if v_own then commit and no chain no release; end if;
end
//

insert into token_migrations (version, name) values (7, '0007_windows') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_adjust: runs token_adjust_v1 in the caller's transaction.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_granted, p_scheduled_at, p_tokens: as for token_adjust_v1
--            p_max_debt    'settle': longest wait for the next token, in nanoseconds; at least the wait of an empty bucket;
--                          null: one year, the maximum
-- Result:    o_outcome, o_given_back: the columns of token_adjust_v1
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt
drop procedure if exists token_adjust
//

create procedure token_adjust(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_granted bigint, in p_scheduled_at bigint,
  in p_tokens bigint, in p_max_debt bigint, out o_outcome varchar(10) character set ascii, out o_given_back bigint)
modifies sql data
sql security definer
adjust: begin
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_receipt binary(16);
  declare v_state varchar(9) character set ascii;
  declare v_new boolean default false;
  declare v_now, v_clock, v_most, v_furthest, v_full_at, v_max_granted_wait, v_granted, v_burst, v_token_ticks bigint;
  declare v_known_cost, v_known_granted, v_known_acts_at, v_expires_at bigint;
  declare v_owed decimal(65, 0);

  if (p_kind in ('cancel', 'refund', 'settle')
      and length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}'
      and p_id is not null and p_cost between 1 and 3155760000000000000
      and p_granted >= 0 and p_scheduled_at is not null
      and p_tokens between 0 and 3155760000000000000 and coalesce(p_max_debt, 0) >= 0) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: adjust takes cancel, refund or settle, a UUID, a bucket, a cost of 1 or more, 0 tokens or more and a debt of 0 or more';
  end if;
  set v_receipt = unhex(replace(p_receipt, '-', ''));
  set o_outcome = 'done', o_given_back = 0;

  select full_at, granted, burst, token_ticks into v_full_at, v_granted, v_burst, v_token_ticks
    from token_buckets where id = v_id for update;
  call token_clock(v_now);
  if p_kind = 'settle' then
    select state, cost, expires_at into v_state, v_known_cost, v_expires_at
      from token_receipts where id = v_receipt and bucket = v_id for update;
    if v_state is null or v_expires_at <= v_now then
      set o_outcome = 'late';
      leave adjust;
    end if;
  else
    call token_claim(p_receipt, v_id, p_cost, p_granted, p_scheduled_at,
                        least(greatest(p_scheduled_at, v_now + 86400000000000), v_now + 31622400000000000), 0,
                        v_state, v_known_cost, v_known_granted, v_known_acts_at, v_expires_at);
    -- The receipt takes precedence over the caller's arguments.
    set v_new = v_state is null, p_granted = v_known_granted, p_scheduled_at = v_known_acts_at;
  end if;
  if p_kind = 'cancel' and v_now > p_scheduled_at then
    set o_outcome = 'late';
  elseif v_state <> 'open' or v_known_cost <> p_cost then
    set o_outcome = 'repeated';
  elseif v_burst is null then
    set o_outcome = 'unknown';
  elseif p_kind = 'cancel' and v_granted < p_granted then
    set o_outcome = 'late';
  end if;
  if o_outcome <> 'done' then
    if v_new then
      delete from token_receipts where id = v_receipt and bucket = v_id;
    end if;
    leave adjust;
  end if;

  set o_given_back = case p_kind
    when 'cancel' then greatest(p_cost - (v_granted - p_granted), 0)
    when 'refund' then least(p_tokens, p_cost)
    else p_cost - p_tokens
  end;
  if p_kind = 'cancel' and v_granted = p_granted then
    set v_granted = greatest(v_granted - p_cost, 0);
  end if;
  select (v_now - anchor) div step_ns * step_ticks,
         (v_now + least(coalesce(p_max_debt, 31622400000000000), 31622400000000000) - 1 - anchor)
           div step_ns * step_ticks + 1 - token_ticks,
         burst + max_granted_wait + (1000000000 div step_ns + 1) * step_ticks, max_granted_wait
    into v_clock, v_most, v_furthest, v_max_granted_wait from token_buckets where id = v_id for update;
  if o_given_back >= 0 then
    -- Can exceed the capacity: a debt can be older than a lower capacity. The maximum of granted leaves room for later grants.
    set v_full_at = greatest(v_full_at - cast(o_given_back as decimal(65, 0)) * v_token_ticks, -v_burst),
        v_granted = least(v_granted, 4611686018427387903);
  else
    -- The clock was set back: the bucket is empty from now on, as a request would find it.
    if v_full_at - v_clock > v_furthest then
      set v_full_at = v_clock + v_burst, v_max_granted_wait = 0;
    end if;
    set v_owed = greatest(v_full_at, v_clock) - cast(o_given_back as decimal(65, 0)) * v_token_ticks;
    set v_full_at = greatest(v_full_at, least(v_owed, greatest(v_clock, v_most) + cast(v_burst as decimal(65, 0)))),
        v_granted = least(cast(v_granted as decimal(65, 0)) - o_given_back, 4611686018427387903);
  end if;
  update token_buckets
     set full_at = v_full_at, granted = v_granted,
         max_granted_wait = greatest(v_max_granted_wait, if(o_given_back < 0, v_full_at - v_clock - v_burst, 0))
   where id = v_id;
  update token_receipts
     set state = case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
         expires_at = greatest(expires_at, least(greatest(scheduled_at, v_now + 86400000000000), v_now + 31622400000000000))
   where id = v_receipt and bucket = v_id;
end adjust
//

-- token_adjust_v1: cancels, refunds or settles a granted request, once per receipt.
--
-- Arguments: p_kind        'cancel': the tokens will not be used, and their time has not passed. Gives back the tokens that no
--                          later request queues behind
--                          'refund': p_tokens were not used
--                          'settle': the request cost p_tokens in the end, more or fewer than were taken
--            p_receipt     id of the request, or an id of this adjustment
--            p_id          the bucket
--            p_cost, p_granted, p_scheduled_at: of the grant
--            p_tokens      see p_kind; 0 with 'cancel'
--            p_own         as for token_take_v1
-- Result:    one row
--            outcome       'done'; with other outcomes, nothing changes
--                          'late': the time has passed, or the receipt expired
--                          'repeated': already adjusted · 'unknown': no such bucket
--            given_back    tokens; negative: tokens charged in addition
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt, in its own transaction unless the caller has one
--
-- A bucket owes one year at most: see token_adjust_batch_v1 for a lower maximum.
drop procedure if exists token_adjust_v1
//

create procedure token_adjust_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost decimal(40, 20), in p_granted bigint, in p_scheduled_at bigint,
  in p_tokens decimal(40, 20), in p_own boolean)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_outcome varchar(10) character set ascii;
  declare v_given_back bigint;
  declare exit handler for sqlexception
  begin
    if p_own then set innodb_lock_wait_timeout = v_wait; end if;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if p_cost <> floor(p_cost) then
    call token_require_whole_number('token_adjust_v1', 'cost', p_cost);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('token_adjust_v1', 'tokens', p_tokens);
  end if;
  call token_begin(p_own, v_own);
  if p_own then set innodb_lock_wait_timeout = least(v_wait, 1); end if;
  call token_adjust(p_kind, p_receipt, p_id, p_cost, p_granted, p_scheduled_at, p_tokens, null, v_outcome,
                           v_given_back);
  if p_own then set innodb_lock_wait_timeout = v_wait; end if;
  if v_own then commit and no chain no release; end if;
  select v_outcome as outcome, v_given_back as given_back;
end
//

-- token_adjust_window: runs token_adjust_window_v1 in the caller's transaction.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens: as for token_adjust_v1
-- Result:    o_outcome, o_given_back: the columns of token_adjust_window_v1
-- Errors:    22023 arguments out of range, or group_concat_max_len is too small (MariaDB)
-- Locks:     the window's row, then the receipt
drop procedure if exists token_adjust_window
//

create procedure token_adjust_window(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_scheduled_at bigint, in p_tokens bigint,
  out o_outcome varchar(10) character set ascii, out o_given_back bigint)
modifies sql data
sql security definer
adjust: begin
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_receipt binary(16);
  declare v_state varchar(9) character set ascii;
  declare v_counts longtext character set ascii;
  declare v_found, v_entries bigint default 0;
  declare v_now, v_newest, v_interval, v_resolution, v_last_wait, v_since, v_cost, v_expires_at, v_scheduled_at,
          v_end bigint;

  if (p_kind in ('cancel', 'refund', 'settle')
      and length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}'
      and p_id is not null and p_cost between 1 and 1000000000000 and p_scheduled_at >= 0
      and p_tokens between 0 and 3155760000000000000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: adjust takes cancel, refund or settle, a UUID, a window, a cost of 1 or more and 0 requests or more';
  end if;
  set v_receipt = unhex(replace(p_receipt, '-', ''));
  set o_outcome = 'done', o_given_back = 0;

  select counts, newest, interval_ns, resolution_ns, last_wait, since
    into v_counts, v_newest, v_interval, v_resolution, v_last_wait, v_since
    from token_windows where id = v_id for update;
  call token_clock(v_now);
  select state, cost, expires_at, scheduled_at into v_state, v_cost, v_expires_at, v_scheduled_at
    from token_receipts where id = v_receipt and bucket = concat(x'01', v_id) for update;
  set v_scheduled_at = coalesce(v_scheduled_at, p_scheduled_at);
  set o_outcome = case
    when p_kind = 'cancel' and v_now > v_scheduled_at then 'late'
    when p_kind = 'settle' and (v_state is null or v_expires_at <= v_now) then 'late'
    when v_state <> 'open' or v_cost <> p_cost then 'repeated'
    when v_counts is null then 'unknown'
    else 'done'
  end;
  if o_outcome <> 'done' then
    leave adjust;
  end if;

  set v_state = case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end;
  insert into token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
  values (v_receipt, concat(x'01', v_id), p_cost, 0, p_scheduled_at, v_state,
          least(greatest(p_scheduled_at, v_now + 86400000000000), v_now + 31622400000000000))
  on duplicate key update
    state = v_state,
    expires_at = greatest(token_receipts.expires_at,
                          least(greatest(v_scheduled_at, v_now + 86400000000000), v_now + 31622400000000000));
  set o_given_back = case p_kind
    when 'cancel' then p_cost when 'refund' then least(p_tokens, p_cost) else p_cost - least(p_tokens, 1000000000000) end;
  if o_given_back < 0 then
    set v_end = v_newest;
    call token_window_step_back(v_last_wait, v_resolution, v_now, v_counts, v_newest);
    if v_newest < v_end then
      update token_windows set since = greatest(since, v_end) where id = v_id;
    end if;
    call token_window_count(v_id, null, v_interval, v_resolution, -o_given_back, v_now,
                               greatest(v_now, v_newest - v_resolution), v_counts, v_newest, v_resolution);
    leave adjust;
  end if;
  -- Requests of a dropped sub-interval cannot be given back in another one. Otherwise, their sub-interval is the first one that
  -- ends after they act, or a later one.
  select min(e) into v_end
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
   where e > v_scheduled_at and v_scheduled_at >= v_since;
  select coalesce(sum(c), 0) into v_found
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j where e = v_end;
  set v_found = least(v_found, o_given_back);
  if p_kind = 'cancel' then
    set o_given_back = v_found;
  end if;
  -- Deletes empty sub-intervals: no request queues behind them.
  select coalesce(json_arrayagg(json_array(e, c)), '[]'), count(*), coalesce(max(e), 0)
    into v_counts, v_entries, v_newest
    from (select e, if(e = v_end, c - v_found, c) as c
            from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as s
   where c > 0;
  if (json_valid(v_counts) and json_length(v_counts) = v_entries) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: group_concat_max_len is too small for this window: set it to 131072 or more';
  end if;
  update token_windows set counts = v_counts, newest = v_newest, granted = granted - v_found where id = v_id;
end adjust
//

-- token_adjust_window_v1: cancels, refunds or settles a granted request of a sliding window, once per receipt.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens, p_own: as for token_adjust_v1
-- Result:    one row: outcome, given_back: as for token_adjust_v1
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt, in its own transaction unless the caller has one
drop procedure if exists token_adjust_window_v1
//

create procedure token_adjust_window_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost decimal(40, 20), in p_scheduled_at bigint, in p_tokens decimal(40, 20),
  in p_own boolean)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_outcome varchar(10) character set ascii;
  declare v_big boolean default @@sql_big_selects;
  declare v_given_back bigint;
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_big, innodb_lock_wait_timeout = v_wait;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if p_cost <> floor(p_cost) then
    call token_require_whole_number('token_adjust_window_v1', 'cost', p_cost);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('token_adjust_window_v1', 'tokens', p_tokens);
  end if;
  call token_begin(p_own, v_own);
  -- A join can exceed the session's max_join_size.
  set sql_big_selects = 1, innodb_lock_wait_timeout = if(p_own, least(v_wait, 1), v_wait);
  call token_adjust_window(p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens, v_outcome, v_given_back);
  set sql_big_selects = v_big, innodb_lock_wait_timeout = v_wait;
  if v_own then commit and no chain no release; end if;
  select v_outcome as outcome, v_given_back as given_back;
end
//

-- token_adjust_batch_v1: cancels, refunds or settles several granted requests, once per receipt.
--
-- Arguments: p_adjustments  a JSON array of [kind, receipt, id in hexadecimal, cost, granted, scheduled_at, tokens, window,
--                           max_debt], as for token_adjust_v1. window: 1 if the key's sliding window granted the request.
--                           max_debt: optional, as for token_adjust
--            p_own          as for token_take_v1
-- Result:    o_answers      a JSON array with one text per adjustment, in any order: its position from 1 and the columns of
--                           token_adjust_v1 or token_adjust_window_v1, with spaces between. The answers are those of
--                           adjusting one after the other
-- Errors:    22023 arguments out of range · 22003 a number that is too large (MariaDB takes the largest instead)
--            1205 the call names several keys, and another session locked one for a second: nothing is done, if the caller
--            rolls back its transaction
-- Locks:     the buckets' rows in id order, each followed by its receipts; then the windows' rows likewise. Adjustments of one
--            key are done in the order given. The routine has its own transaction, unless the caller has one.
drop procedure if exists token_adjust_batch_v1
//

create procedure token_adjust_batch_v1(
  in p_adjustments longtext character set utf8mb4, in p_own boolean,
  out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_done boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_big boolean default @@sql_big_selects;
  declare v_place, v_granted, v_scheduled_at, v_max_debt, v_given_back bigint;
  declare v_cost, v_tokens decimal(40, 20);
  declare v_in_window boolean;
  declare v_kind, v_outcome varchar(10) character set ascii;
  declare v_receipt varchar(40) character set ascii;
  declare v_id varbinary(1024);
  declare v_sorted cursor for
    select place, kind, receipt, unhex(id) as id, cost, granted, scheduled_at, tokens, in_window, max_debt
      from json_table(p_adjustments, '$[*]' columns (
             place for ordinality, kind varchar(10) character set ascii path '$[0]',
             receipt varchar(40) character set ascii path '$[1]', id varchar(2048) character set ascii path '$[2]',
             cost decimal(40, 20) path '$[3]' error on error, granted bigint path '$[4]' error on error,
             scheduled_at bigint path '$[5]' error on error, tokens decimal(40, 20) path '$[6]' error on error,
             in_window int path '$[7]', max_debt bigint path '$[8]' error on error)) as adjustments
     order by coalesce(in_window, 0), id, place;
  declare continue handler for not found set v_done = true;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_wait, sql_big_selects = v_big;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_own, v_own);
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  -- A session that holds a key delays the others by a second at most.
  if p_own or (select min(id) < max(id)
        from json_table(p_adjustments, '$[*]' columns (id varchar(2048) character set ascii path '$[2]')) as asked) then
    set innodb_lock_wait_timeout = least(v_wait, 1);
  end if;
  set o_answers = '[';
  open v_sorted;
  adjust: loop
    fetch v_sorted
      into v_place, v_kind, v_receipt, v_id, v_cost, v_granted, v_scheduled_at, v_tokens, v_in_window,
           v_max_debt;
    if v_done then leave adjust; end if;
    if v_cost <> floor(v_cost) then
      call token_require_whole_number('token_adjust_batch_v1', 'cost', v_cost);
    end if;
    if v_tokens <> floor(v_tokens) then
      call token_require_whole_number('token_adjust_batch_v1', 'tokens', v_tokens);
    end if;
    if v_in_window then
      call token_adjust_window(v_kind, v_receipt, convert(v_id using utf8mb4), v_cost, v_scheduled_at, v_tokens,
                                         v_outcome, v_given_back);
    else
      call token_adjust(v_kind, v_receipt, convert(v_id using utf8mb4), v_cost, v_granted, v_scheduled_at, v_tokens,
                               v_max_debt, v_outcome, v_given_back);
    end if;
    set v_done = false;
    set o_answers = concat(o_answers, if(o_answers = '[', '"', ',"'), v_place, ' ', v_outcome, ' ', v_given_back, '"');
  end loop;
  close v_sorted;
  set innodb_lock_wait_timeout = v_wait, sql_big_selects = v_big;
  set o_answers = concat(o_answers, ']');
  if v_own then commit and no chain no release; end if;
end
//

-- token_throttle_v1: lowers a bucket to the limit that an upstream reports. Never raises it. A repeated call changes nothing.
--
-- Arguments: p_id         the bucket
--            p_remaining  tokens that are left at most; null: unknown
--            p_wait       nanoseconds until the next token at the earliest, one year at most; 0: unknown. With 'interval', the
--                         tokens come with the first period that starts after the wait
--            p_capacity, p_refill_seconds, p_refill, p_plan, p_own: as for token_take_v1
-- Result:    o_outcome    'lowered'; 'unchanged': the bucket held no more, or its mode is 'off'
--                         'endless': there is a wait, but the bucket never refills
--                         'unknown', 'unplanned' or 'conflict': as for token_take_v1
-- Errors:    22023 arguments out of range · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, before the clock is read, in its own transaction unless the caller has one
drop procedure if exists token_throttle_v1
//

create procedure token_throttle_v1(
  in p_id varchar(256) character set utf8mb4, in p_remaining bigint, in p_wait bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_own boolean, out o_outcome varchar(10) character set ascii)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_mode varchar(7) character set ascii collate ascii_bin;
  declare v_now, v_until, v_capacity, v_clock, v_before, v_to bigint;
  declare v_full_at, v_max_granted_wait, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_changed boolean;
  declare v_attempt int default 0;
  declare exit handler for sqlexception
  begin
    if p_own then set innodb_lock_wait_timeout = v_wait; end if;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and p_wait between 0 and 31622400000000000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: throttling takes a bucket, 0 tokens or more, and a wait of 0 to a year';
  end if;
  call token_begin(p_own, v_own);
  if p_own then set innodb_lock_wait_timeout = least(v_wait, 1); end if;

  held: begin
    ready: loop
      set v_burst = null;
      select full_at, max_granted_wait, burst, anchor, step_ns, step_ticks, token_ticks
        into v_full_at, v_max_granted_wait, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks
        from token_buckets where id = v_id for update;
      call token_clock(v_now);
      -- p_least exceeds every capacity, so that token_rule skips the check for a clock that was set back. The check is below.
      call token_rule(v_id, p_capacity, p_refill_seconds, p_refill, cast(p_plan as binary), v_now,
                         4611686018427387903, o_outcome, v_mode, v_until, v_changed, v_capacity);
      -- A bucket that was missing can exist by now, but none of its columns have been read.
      if v_changed or v_burst is null and o_outcome is null and not v_mode <=> 'off' then
        set v_attempt = v_attempt + 1;
        if v_attempt = 100 then
          signal sqlstate '40001' set message_text =
            'tollgate: the bucket changed during each of 100 attempts: call again';
        end if;
        iterate ready;
      end if;
      leave ready;
    end loop;
    if o_outcome is not null then
      leave held;
    elseif v_mode = 'off' then
      set o_outcome = 'unchanged';
      leave held;
    elseif p_wait > 0 and v_step_ns = 9223372036854775807 then
      set o_outcome = 'endless';
      leave held;
    end if;

    set v_clock = (v_now - v_anchor) div v_step_ns * v_step_ticks, v_before = v_full_at;
    if v_full_at - v_clock > v_burst + v_max_granted_wait + (1000000000 div v_step_ns + 1) * v_step_ticks then
      -- The clock was set back: the bucket is empty.
      set v_full_at = v_clock + v_burst, v_max_granted_wait = 0;
    end if;
    set v_to = greatest(v_full_at, v_clock);
    if p_remaining is not null then
      set v_to = greatest(v_to, v_clock + v_burst - least(p_remaining, v_burst div v_token_ticks) * v_token_ticks);
    end if;
    if p_wait > 0 then
      set v_to = greatest(v_to, (v_now + p_wait - 1 - v_anchor) div v_step_ns * v_step_ticks + 1 + v_burst
                                - v_token_ticks);
    end if;
    set o_outcome = if(v_to > greatest(v_full_at, v_clock), 'lowered', 'unchanged');
    if o_outcome = 'lowered' then
      set v_full_at = v_to, v_max_granted_wait = greatest(v_max_granted_wait, v_to - v_clock - v_burst);
    end if;
    if v_full_at <> v_before then
      update token_buckets set full_at = v_full_at, max_granted_wait = v_max_granted_wait where id = v_id;
    end if;
  end held;

  if p_own then set innodb_lock_wait_timeout = v_wait; end if;
  if v_own then commit and no chain no release; end if;
end
//

insert into token_migrations (version, name) values (8, '0008_adjust') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_bucket_levels: the state of each bucket in tokens and timestamps, as of now, in UTC. Reads only; locks nothing.
--
--   id_bytes, plan_bytes: id as in the index, and plan; in UTF-8 with every session character set
--   capacity, refill_seconds, refill: the limits that the last request used
--   overridden      whether the limits are an override's
--   available       whole tokens; negative: promised to requests that wait for them
--   full_at         when the bucket is full again; null: full, or never
--   next_refill_at  when the next token comes; null: full, or never
--
-- available is null if the row's values are out of bounds, so that one row cannot fail the whole read.
create or replace sql security definer view token_bucket_levels as
select convert(b.id using utf8mb4) as id, b.burst div b.token_ticks as capacity,
       (b.burst - b.owed) div b.token_ticks - ((b.burst - b.owed) mod b.token_ticks < 0) as available,
       b.under_seconds as refill_seconds, b.under_refill as refill, convert(b.plan using utf8mb4) as plan, b.provisioned,
       b.overridden, b.granted,
       case when b.owed > 0 and b.step_ns < 9223372036854775807
            then timestamp('1970-01-01') + interval (
              b.anchor + (b.full_at div b.step_ticks + (b.full_at mod b.step_ticks > 0)) * b.step_ns)
              div 1000 microsecond
       end as full_at,
       case when b.owed > 0 and b.step_ns < 9223372036854775807
            then timestamp('1970-01-01') + interval (
              b.anchor + (b.next div b.step_ticks + (b.next mod b.step_ticks > 0)) * b.step_ns)
              div 1000 microsecond
       end as next_refill_at,
       b.id as id_bytes, b.plan as plan_bytes
  from (select o.*, o.full_at - (o.owed - 1) div o.token_ticks * o.token_ticks as next
          from (select t.*,
                       if(t.burst between 1 and 4611686018427387903 and t.token_ticks >= 1
                          and t.step_ticks between 1 and t.step_ns and t.anchor between 0 and 4611686018427387903
                          and t.full_at >= -4611686018427387904
                          and (t.step_ns = 9223372036854775807
                               or t.full_at div t.step_ticks + (t.full_at mod t.step_ticks > 0)
                                  <= (9223372036854775807 - t.anchor) div t.step_ns),
                          greatest(t.full_at - (n.now - t.anchor) div t.step_ns * t.step_ticks, 0), null) as owed
                  from token_buckets t
                 cross join (select (cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)),
                                               16, 10) as signed) - 122192928000000000) * 100 as now
                               from (select uuid() as uuid limit 1) u limit 1) n) o) b
//

-- request_tokens_v1: takes tokens from a provisioned bucket, or from one that follows a plan. Takes all or none.
--
-- Arguments: p_id             the bucket
--            p_tokens         tokens to take, 1 or more
--            p_max_wait_ms    longest wait in milliseconds; 0: no wait
--            p_min_remaining  tokens that must remain for others; 0: none
--            p_plan           plan of a bucket that its first request creates; null: the bucket exists
--            p_request        id of the request, a UUID: a retry with the id within a day is charged once
-- Result:    one row
--            granted          whether the tokens were taken: 1 or 0
--            remaining        whole tokens left
--            wait_ms          milliseconds until you can use the tokens: 0, or up to p_max_wait_ms
--            retry_after_ms   milliseconds until an equal request would be granted; 0: now; null: never, or unknown
--            reset_after_ms   milliseconds until the bucket is full; null: never
-- Errors:    22023 arguments out of range, or more tokens than the bucket can hold · 45000 no such bucket or plan
-- Locks:     as for token_take_v1
drop procedure if exists request_tokens_v1
//

create procedure request_tokens_v1(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_min_remaining decimal(40, 20), in p_plan varchar(256) character set utf8mb4, in p_request varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_message varchar(128) character set utf8mb4;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_tokens bigint default p_tokens;
  declare v_max_wait_ms bigint default p_max_wait_ms;
  declare v_min_remaining bigint default p_min_remaining;
  declare v_tick bigint;
  declare v_times bigint default 1;
  declare v_most bigint default 4611686018427387903;  -- exceeds every capacity; twice this value still fits a bigint

  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('request_tokens', 'tokens', p_tokens);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_require_whole_number('request_tokens', 'max_wait_ms', p_max_wait_ms);
  end if;
  if p_min_remaining <> floor(p_min_remaining) then
    call token_require_whole_number('request_tokens', 'min_remaining', p_min_remaining);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_id like '%??%' or p_plan like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_id is not null and v_tokens >= 1 and v_max_wait_ms >= 0 and v_min_remaining >= 0) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens takes an id, 1 token or more, and a wait in ms and a minimum remaining of 0 or more';
  end if;
  call token_take_v1(p_id, least(v_tokens, v_most), least(v_max_wait_ms, 31622400000) * 1000000,
                       least(v_min_remaining, v_most), null, null, null, p_plan, p_request, 86400000000000, true, false,
                       v_times, v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                       v_step_ticks, v_token_ticks);
  if v_outcome = 'unknown' then
    set v_message = concat('tollgate: no bucket ''', left(p_id, 36),
                           ''': call token_create_bucket(id, capacity, refill_seconds, refill)');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'unplanned' then
    set v_message = concat('tollgate: no plan for bucket ''', left(p_id, 32),
                           ''': call token_create_plan(name, capacity, refill_seconds, refill)');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'conflict' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36),
                           ''' is provisioned with another limit: ask without a plan');
    signal sqlstate '22023' set message_text = v_message;
  elseif v_outcome = 'reused' then
    set v_message = concat('tollgate: the id ', p_request, ' belongs to another request: use a new id for each request');
    signal sqlstate '22023' set message_text = v_message;
  elseif v_outcome = 'never' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36), ''' holds ', v_burst div v_token_ticks,
                           ' tokens: request fewer, or raise its capacity');
    signal sqlstate '22023' set message_text = v_message;
  end if;

  -- A missing token_ticks means that the mode is 'off' and the bucket does not exist.
  if v_token_ticks is null then
    select true as granted, v_burst as remaining, 0 as wait_ms, 0 as retry_after_ms, 0 as reset_after_ms;
  else
    set v_full_at = greatest(v_full_at, (v_now - v_anchor) div v_step_ns * v_step_ticks);
    set v_tick = if(v_tokens > v_burst div v_token_ticks - v_min_remaining, null,
                    v_full_at + (v_tokens + v_min_remaining - v_burst div v_token_ticks) * v_token_ticks);
    select v_outcome = 'granted' as granted,
           greatest((v_burst - v_full_at + (v_now - v_anchor) div v_step_ns * v_step_ticks) div v_token_ticks, 0)
             as remaining,
           if(v_outcome = 'granted', (v_scheduled_at - v_now + 999999) div 1000000, 0) as wait_ms,
           case
             when v_outcome = 'denied' and v_mode = 'block' then (v_scheduled_at - v_now + 999999) div 1000000
             when v_step_ns = 9223372036854775807 then if(v_tick <= 0, 0, null)
             else (greatest((v_tick div v_step_ticks + (v_tick mod v_step_ticks > 0)) * v_step_ns + v_anchor - v_now, 0)
                   + 999999) div 1000000
           end as retry_after_ms,
           case
             when v_step_ns = 9223372036854775807 then if(v_full_at <= 0, 0, null)
             else (greatest((v_full_at div v_step_ticks + (v_full_at mod v_step_ticks > 0)) * v_step_ns
                            + v_anchor - v_now, 0) + 999999) div 1000000
           end as reset_after_ms;
  end if;
end
//

-- request_tokens: calls the current version, request_tokens_v1. MySQL routines have no defaults: pass every argument.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_tokens
//

create procedure request_tokens(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_min_remaining decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, null, null);
end
//

-- request_planned_tokens: request_tokens for a bucket that follows a plan and that its first request creates.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_planned_tokens
//

create procedure request_planned_tokens(
  in p_id varchar(256) character set utf8mb4, in p_plan varchar(256) character set utf8mb4,
  in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20), in p_min_remaining decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, p_plan, null);
end
//

-- request_tokens_once: request_tokens with an id of the request, a UUID: a retry with the id within a day is charged once.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_tokens_once
//

create procedure request_tokens_once(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_min_remaining decimal(40, 20), in p_request varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, null, p_request);
end
//

-- request_token: takes one token from a provisioned bucket, without a wait.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_token
//

create procedure request_token(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, 1, 0, 0, null, null);
end
//

-- request_tokens_many: takes tokens from several provisioned buckets in one call, each by itself.
--
-- Arguments: p_requests  a JSON array of [id, tokens]: '[["user:1", 1], ["user:2", 5]]'
-- Result:    one row per request, in the order given
--            id          the bucket
--            outcome     'granted', 'denied', or another outcome of token_take_v1
--            remaining, retry_after_ms: as for request_tokens_v1; null: undecided
-- Errors:    22023 arguments out of range
-- Locks:     as for token_take_batch_v1
drop procedure if exists request_tokens_many
//

create procedure request_tokens_many(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_big boolean default @@sql_big_selects;
  declare v_requests longtext character set utf8mb4;
  declare v_answers json;
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_big;
    resignal;
  end;

  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_requests like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (json_valid(p_requests) and json_type(p_requests) = 'ARRAY'
      and json_length(p_requests) = (
        select count(*)
          from json_table(p_requests, '$[*]' columns (
                 id text character set utf8mb4 path '$[0]', tokens decimal(40, 20) path '$[1]',
                 more int exists path '$[2]')) as r
         where length(r.id) between 1 and 255 and r.tokens >= 1 and r.tokens = floor(r.tokens) and r.more = 0)) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens_many takes a JSON array of [id, tokens], each 1 or more and whole: [["a", 1], ["b", 5]]';
  end if;
  select coalesce(json_arrayagg(
           json_array(hex(cast(id as binary)), tokens, 0, 0, null, null, null, null, null, null, 1, place)), '[]')
    into v_requests
    from json_table(p_requests, '$[*]' columns (
           place for ordinality, id text character set utf8mb4 path '$[0]', tokens bigint path '$[1]')) as r;
  if (json_valid(v_requests) and json_length(v_requests) = json_length(p_requests)) is not true then
    -- MariaDB truncates the text silently.
    signal sqlstate '22023' set message_text =
      'tollgate: group_concat_max_len is too small for so many requests: raise it, or send fewer requests at once';
  end if;
  call token_take_batch_v1(v_requests, false, v_answers);
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  select id, outcome,
         case
           when outcome not in ('granted', 'denied') then null
           when token_ticks is null then burst
           else greatest((burst - full_at + clock) div token_ticks, 0)
         end as remaining,
         case
           when outcome not in ('granted', 'denied') then null
           when token_ticks is null then 0
           when outcome = 'denied' and mode = 'block' then (scheduled_at - now + 999999) div 1000000
           when step_ns = 9223372036854775807 then if(tick <= 0, 0, null)
           else (greatest((tick div step_ticks + (tick mod step_ticks > 0)) * step_ns + anchor - now, 0) + 999999)
                div 1000000
         end as retry_after_ms
    from (select d.*, greatest(d.at, d.clock) as full_at,
                 if(d.tokens > d.burst div d.token_ticks, null,
                    greatest(d.at, d.clock) + (d.tokens - d.burst div d.token_ticks) * d.token_ticks) as tick
            from (select r.given, convert(unhex(r.id) using utf8mb4) as id, r.tokens, a.*,
                         if(a.grants > 0, 'granted', a.decided) as outcome,
                         (a.now - a.anchor) div a.step_ns * a.step_ticks as clock
                    from json_table(v_requests, '$[*]' columns (
                           place for ordinality, id varchar(2048) path '$[0]', tokens bigint path '$[1]',
                           given bigint path '$[11]')) as r
                    straight_join (
                          select words.*
                            from json_table(v_answers, '$[*]' columns (
                                   answer varchar(400) character set ascii path '$')) as texts
                            straight_join json_table(
                                   concat('["', replace(replace(texts.answer, ' ', '","'), '"-"', 'null'), '"]'),
                                   '$' columns (
                                     times bigint path '$[0]', grants bigint path '$[1]', place bigint path '$[2]',
                                     decided varchar(10) path '$[3]', mode varchar(7) path '$[4]',
                                     now bigint path '$[5]', scheduled_at bigint path '$[6]', at bigint path '$[7]',
                                     burst bigint path '$[9]', anchor bigint path '$[10]', step_ns bigint path '$[11]',
                                     step_ticks bigint path '$[12]', token_ticks bigint path '$[13]')) as words
                           limit 1000000000) as a  -- materialized once instead of per request
                      on a.place = r.place and a.times > 0) as d) as answers
   order by given;
  set sql_big_selects = v_big;
end
//

-- rate_limiting_request: takes one token from a bucket that its first request creates, full, with continuous refill.
--
-- Arguments: p_rate_id         the bucket
--            p_refill_per_sec  tokens per second; null: 2
--            p_window_seconds  seconds' worth of tokens that the bucket holds; null: 60
-- Result:    one row
--            tokens_left       the tokens left, or -1 if the request is denied; a denied call changes nothing
-- Errors:    22023 invalid limits, or the bucket was provisioned with other limits
-- Locks:     as for token_take_v1
drop procedure if exists rate_limiting_request
//

create procedure rate_limiting_request(
  in p_rate_id varchar(256) character set utf8mb4, in p_refill_per_sec decimal(40, 20),
  in p_window_seconds decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_times bigint default 1;
  declare v_rate bigint default coalesce(p_refill_per_sec, 2);
  declare v_window bigint default coalesce(p_window_seconds, 60);

  if p_refill_per_sec <> floor(p_refill_per_sec) then
    call token_require_whole_number('rate_limiting_request', 'refill_per_sec', p_refill_per_sec);
  end if;
  if p_window_seconds <> floor(p_window_seconds) then
    call token_require_whole_number('rate_limiting_request', 'window_seconds', p_window_seconds);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_rate_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_rate_id is not null and v_rate between 1 and 1000000000 and v_window between 1 and 3155760000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: rate_limiting_request takes an id, 1 to 10^9 tokens a second and a window of 1 s to a century';
  end if;
  call token_take_v1(p_rate_id, 1, 0, 0, v_rate * v_window, v_window, 'continuous', null, null, null, true, false,
                       v_times, v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                       v_step_ticks, v_token_ticks);
  if v_outcome = 'conflict' then
    signal sqlstate '22023' set message_text =
      'tollgate: this bucket was provisioned with other limits: take its tokens with request_token';
  end if;
  -- A missing token_ticks means that the mode is 'off' and the bucket does not exist.
  select case
           when v_outcome = 'denied' then -1
           when v_token_ticks is null then v_burst
           else greatest((v_burst - greatest(v_full_at - (v_now - v_anchor) div v_step_ns * v_step_ticks, 0))
                         div v_token_ticks, 0)
         end as tokens_left;
end
//

-- request_tokens_in_window_v1: grants at most p_max_requests requests in any interval, whenever the interval starts.
--
-- Arguments: p_id                  the window; its first request creates it
--            p_max_requests        maximum in any interval
--            p_interval_seconds    up to one year, fractions allowed
--            p_resolution_seconds  length of the 1 to 1000 parts of the interval; a request counts until one interval after the
--                                  end of its part
--            p_tokens              requests that this one stands for
--            p_max_wait_ms         longest wait in milliseconds
-- Result:    one row
--            granted               whether you can proceed: 1 or 0
--            remaining             requests that can still be granted
--            wait_ms               milliseconds until you can proceed: 0, or up to p_max_wait_ms
--            retry_after_ms        milliseconds until an equal request would be granted; 0: now; null: unknown
--            reset_after_ms        milliseconds until no request counts
-- Errors:    22023 arguments out of range, or more tokens than the maximum
-- Locks:     as for token_take_window_v1
drop procedure if exists request_tokens_in_window_v1
//

create procedure request_tokens_in_window_v1(
  in p_id varchar(256) character set utf8mb4, in p_max_requests decimal(40, 20), in p_interval_seconds decimal(19, 9),
  in p_resolution_seconds decimal(19, 9), in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_counts longtext character set ascii;
  declare v_max_requests bigint default p_max_requests;
  declare v_tokens bigint default p_tokens;
  declare v_max_wait_ms bigint default p_max_wait_ms;
  declare v_big boolean default @@sql_big_selects;
  declare v_now, v_scheduled_at, v_resolution, v_interval, v_newest, v_counted, v_next bigint;
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_big;
    resignal;
  end;

  if p_max_requests <> floor(p_max_requests) then
    call token_require_whole_number('request_tokens_in_window', 'max_requests', p_max_requests);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('request_tokens_in_window', 'tokens', p_tokens);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_require_whole_number('request_tokens_in_window', 'max_wait_ms', p_max_wait_ms);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_interval_seconds > 0 and p_interval_seconds <= 31622400 and p_resolution_seconds > 0
      and p_resolution_seconds <= p_interval_seconds and v_max_wait_ms between 0 and 31622400000
      and v_tokens >= 1) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens_in_window takes an interval of a year or less, a resolution within it, and 1 token or more';
  end if;
  set v_interval = p_interval_seconds * 1000000000;
  call token_take_window_v1(p_id, least(v_tokens, 4611686018427387903), v_max_wait_ms * 1000000, 0, v_max_requests,
                              v_interval, cast(p_resolution_seconds * 1000000000 as signed), null, 0, false, false,
                              v_outcome, v_mode, v_now, v_scheduled_at, v_counts, v_resolution);
  if v_outcome = 'never' then
    signal sqlstate '22023' set message_text = 'tollgate: the request exceeds the maximum of this window: request fewer tokens';
  end if;
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  select coalesce(max(e), 0), coalesce(sum(if(e > v_now - v_interval, c, 0)), 0) into v_newest, v_counted
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j;
  call token_window_earliest(v_counts, v_newest, v_resolution, v_interval, v_max_requests - v_tokens, v_now, v_next);
  set sql_big_selects = v_big;
  if v_mode = 'block' then
    set v_next = v_scheduled_at;
  end if;
  select v_outcome = 'granted' as granted, greatest(v_max_requests - v_counted, 0) as remaining,
         if(v_outcome = 'granted', (v_scheduled_at - v_now + 999999) div 1000000, 0) as wait_ms,
         (v_next - v_now + 999999) div 1000000 as retry_after_ms,
         (greatest(v_newest + v_interval - v_now, 0) + 999999) div 1000000 as reset_after_ms;
end
//

-- request_tokens_in_window: calls the current version, request_tokens_in_window_v1. MySQL routines have no defaults: pass every
-- argument.
--
-- Arguments, result, errors and locks: as for request_tokens_in_window_v1
drop procedure if exists request_tokens_in_window
//

create procedure request_tokens_in_window(
  in p_id varchar(256) character set utf8mb4, in p_max_requests decimal(40, 20), in p_interval_seconds decimal(19, 9),
  in p_resolution_seconds decimal(19, 9), in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_in_window_v1(p_id, p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens,
                                   p_max_wait_ms);
end
//

-- token_throttle: lowers a provisioned bucket to the limit that an upstream reports. Never raises it. A repeated call changes
-- nothing. MySQL routines have no defaults: pass every argument.
--
-- Arguments: p_id              the bucket
--            p_remaining       tokens that are left at most; null: unknown
--            p_retry_after_ms  milliseconds until the next token at the earliest; null: unknown
--            p_max_wait_ms     upper bound of p_retry_after_ms; null: one hour
-- Result:    one row
--            lowered           whether the bucket held more: 1 or 0
-- Errors:    22023 arguments out of range, or a wait for a bucket that never refills · 45000 no such bucket or plan
-- Locks:     as for token_throttle_v1. In your transaction, the bucket stays locked until the end.
drop procedure if exists token_throttle
//

create procedure token_throttle(
  in p_id varchar(256) character set utf8mb4, in p_remaining decimal(40, 20), in p_retry_after_ms decimal(40, 20),
  in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_remaining bigint default p_remaining;
  declare v_retry_after_ms bigint default p_retry_after_ms;
  declare v_longest_ms bigint default p_max_wait_ms;
  declare v_outcome varchar(10) character set ascii;
  declare v_message varchar(128) character set utf8mb4;
  if p_remaining <> floor(p_remaining) then
    call token_require_whole_number('token_throttle', 'remaining', p_remaining);
  end if;
  if p_retry_after_ms <> floor(p_retry_after_ms) then
    call token_require_whole_number('token_throttle', 'retry_after_ms', p_retry_after_ms);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_require_whole_number('token_throttle', 'max_wait_ms', p_max_wait_ms);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_id is not null and coalesce(v_remaining, 0) >= 0 and coalesce(v_retry_after_ms, 0) >= 0
      and coalesce(v_longest_ms, 0) >= 0 and coalesce(v_remaining, v_retry_after_ms) is not null) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: token_throttle takes an id, and a number of tokens, a wait in ms, or both, of 0 or more';
  end if;
  call token_throttle_v1(p_id, v_remaining,
                      least(coalesce(v_retry_after_ms, 0), coalesce(v_longest_ms, 3600000), 31622400000) * 1000000,
                      null, null, null, null, false, v_outcome);
  if v_outcome in ('unknown', 'unplanned') then
    set v_message = concat('tollgate: no bucket ''', left(p_id, 36), ''', or no plan for it',
                           ': call token_create_bucket or token_create_plan');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'endless' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36),
                           ''' never refills: pass the remaining tokens, and no wait');
    signal sqlstate '22023' set message_text = v_message;
  end if;
  select v_outcome = 'lowered' as lowered;
end
//

-- token_peek: reads the row of one bucket in token_bucket_levels.
--
-- Arguments: p_id  the bucket
-- Result:    one row; none if the bucket does not exist
-- Errors:    none
-- Locks:     none
--
-- Serves roles that can read a bucket whose name they know, but that cannot list buckets.
drop procedure if exists token_peek
//

create procedure token_peek(in p_id varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  select id, capacity, available, refill_seconds, refill, plan, provisioned, overridden, granted, full_at,
         next_refill_at, id_bytes, plan_bytes
    from token_bucket_levels where id_bytes = cast(p_id as binary);
end
//

-- token_peek_window: reads one sliding window as of now.
--
-- Arguments: p_id             the window
-- Result:    one row; none if the window does not exist
--            max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is
--                             the longest interval since the window was empty
--            counted          requests that count now; above the maximum: promised to requests that wait
--            granted          requests granted since the creation of the window
--            retry_after_ms   milliseconds until one more request is granted with mode 'enforce'; 0: now
-- Errors:    none
-- Locks:     none
drop procedure if exists token_peek_window
//

create procedure token_peek_window(in p_id varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  declare v_big boolean default @@sql_big_selects;
  declare v_most, v_interval, v_resolution, v_newest, v_granted, v_last_wait, v_now, v_scheduled_at bigint;
  declare v_counts longtext character set ascii default '[]';
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_big;
    resignal;
  end;

  select max_requests, interval_ns, resolution_ns, counts, newest, granted, last_wait
    into v_most, v_interval, v_resolution, v_counts, v_newest, v_granted, v_last_wait
    from token_windows where id = cast(p_id as binary);
  if (json_valid(v_counts) and v_most >= 1 and v_interval between 1 and 31622400000000000
      and v_resolution between 1 and 31622400000000000 and v_last_wait between 0 and 31622400000000000
      and v_newest between 0 and 4611686018427387903) is not true then
    -- The row's values are out of bounds: max_requests is null.
    set v_most = null, v_interval = 0, v_resolution = 0, v_counts = '[]', v_newest = 0, v_last_wait = 0;
  end if;
  call token_clock(v_now);
  if v_newest - v_now > v_last_wait + v_resolution + 1000000000 then
    -- After a backward step of the clock, requests counted by the old clock count from now on.
    set v_now = v_newest - v_resolution;
  end if;
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  call token_window_earliest(v_counts, v_newest, v_resolution, v_interval, v_most - 1, v_now, v_scheduled_at);
  select v_most as max_requests, v_interval * 0.000000001 as interval_seconds,
         v_resolution * 0.000000001 as resolution_seconds,
         cast(coalesce(sum(if(e > v_now - v_interval, c, 0)), 0) as signed) as counted, v_granted as granted,
         (v_scheduled_at - v_now + 999999) div 1000000 as retry_after_ms
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
  having v_granted <> 0;
  set sql_big_selects = v_big;
end
//

insert into token_migrations (version, name) values (9, '0009_requests') on duplicate key update applied_at = utc_timestamp(6)
//

-- token_list_windows: lists a page of the sliding windows that counted a request, as of now.
--
-- Arguments: p_prefix         prefix of the ids; null: all
--            p_after          lists ids after this one, in byte order; null: from the start
--            p_limit          maximum number of rows
-- Result:    one row per window, in id order
--            id
--            max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is
--                             the longest interval since the window was empty
--            counted          requests that count now; above the maximum: promised to requests that wait
--            available        requests that can still be granted; negative: promised
--            granted          requests granted since the creation of the window
--            retry_after_ms   milliseconds until one more request is granted with mode 'enforce'; 0: now
--            id_bytes         the id in UTF-8, with every session character set
-- Errors:    none
-- Locks:     none; reads only
drop procedure if exists token_list_windows
//

create procedure token_list_windows(
  in p_prefix varchar(256) character set utf8mb4, in p_after varchar(256) character set utf8mb4,
  in p_limit int unsigned)
reads sql data
sql security definer
begin
  declare v_big boolean default @@sql_big_selects;
  declare v_now bigint;
  declare v_prefix, v_after varbinary(1024) default '';
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_big;
    resignal;
  end;

  set v_prefix = coalesce(cast(p_prefix as binary), ''), v_after = coalesce(cast(p_after as binary), '');
  set p_limit = coalesce(p_limit, 0);
  call token_clock(v_now);
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  select convert(s.id using utf8mb4) as id, s.max_requests, s.interval_ns * 0.000000001 as interval_seconds,
         s.resolution_ns * 0.000000001 as resolution_seconds,
         if(min(s.c) < 0, null, cast(coalesce(sum(if(s.e > s.now - s.interval_ns, s.c, 0)), 0) as signed)) as counted,
         cast(s.max_requests - coalesce(sum(if(s.e > s.now - s.interval_ns, s.c, 0)), 0) as signed) as available, s.granted,
         (greatest(s.now, s.newest - s.resolution_ns,
                   coalesce(cast(max(if(s.so_far > s.max_requests - 1, s.e, null)) as decimal(20)) + s.interval_ns, 0)) - s.now + 999999)
           div 1000000 as retry_after_ms, s.id as id_bytes
    from (select w.id, w.max_requests, w.interval_ns, w.resolution_ns, w.newest, w.granted, j.e, j.c,
                 sum(j.c) over (partition by w.id order by j.e desc) as so_far,
                 -- After a backward step of the clock, requests counted by the old clock count from now on.
                 if(w.newest - v_now > w.last_wait + w.resolution_ns + 1000000000, w.newest - w.resolution_ns, v_now)
                   as now
            from (select t.id, t.granted, t.newest,
                         -- Values out of bounds become null, so that one row cannot fail the whole page.
                         if(t.sound, t.max_requests, null) as max_requests, if(t.sound, t.interval_ns, 0) as interval_ns,
                         if(t.sound, t.resolution_ns, 0) as resolution_ns, if(t.sound, t.last_wait, 0) as last_wait,
                         if(t.sound, t.counts, '[]') as counts
                    from (select k.*,
                                 json_valid(k.counts) and k.max_requests >= 1
                                 and k.interval_ns between 1 and 31622400000000000
                                 and k.resolution_ns between 1 and 31622400000000000
                                 and k.last_wait between 0 and 31622400000000000
                                 and k.newest between 0 and 4611686018427387903 as sound
                            from token_windows k) t
                   where t.granted <> 0 and t.id > v_after and t.id >= v_prefix
                     and (v_prefix = '' or t.id <= concat(v_prefix, repeat(x'F48FBFBF', 64)))
                   order by t.id limit p_limit) w
            left join json_table(w.counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j on true) s
   group by s.id, s.max_requests, s.interval_ns, s.resolution_ns, s.newest, s.granted, s.now
   order by s.id;
  set sql_big_selects = v_big;
end
//

-- token_create_bucket: provisions a bucket. A repeated call with equal values changes nothing.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval', 'calendar', 'continuous' or 'once': see token_buckets
-- Result:    none
-- Errors:    22023 invalid id · 23514 invalid limits
-- Locks:     the bucket's row, in its own transaction unless the caller has one
--
-- With other values, the call changes the limits, with any mode: the bucket keeps its available tokens, up to the new capacity.
-- If the state is under an override's limits, or an UPDATE changed the row's limits, the next request converts the state. A
-- bucket that followed a plan has its own limits from then on.
drop procedure if exists token_create_bucket
//

create procedure token_create_bucket(
  in p_id varchar(256) character set utf8mb4, in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_settles boolean;
  declare v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_full_at, b_max_granted_wait bigint;

  call token_check_id('bucket id', v_id);
  call token_bucket_limits('bucket', v_id, p_capacity, p_refill_seconds, p_refill,
                      v_burst, v_step_ns, v_step_ticks, v_token_ticks);
  call token_begin(false, v_own);
  begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback and no chain no release; end if;
      resignal;
    end;

    call token_clock(v_now);
    insert into token_buckets (id, capacity, refill_seconds, refill, anchor)
    values (v_id, p_capacity, p_refill_seconds, p_refill, if(p_refill = 'calendar', 0, v_now mod v_step_ns))
    on duplicate key update id = token_buckets.id;
    -- Reads the clock after the row is locked, because the lock can take time.
    call token_clock(v_now);
    -- False if the state is under an override's limits or an UPDATE changed the row's limits: the next request converts the
    -- state.
    select not overridden and capacity = under_capacity and refill_seconds = under_seconds and refill = under_refill
           and not (under_capacity = p_capacity and under_seconds = p_refill_seconds and under_refill = p_refill),
           burst, step_ns, step_ticks, token_ticks, anchor, full_at, max_granted_wait
      into v_settles, b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_full_at, b_max_granted_wait
      from token_buckets where id = v_id for update;
    if v_settles then
      call token_settle(v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks, p_refill,
                           b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_full_at, b_max_granted_wait);
    end if;
    update token_buckets
       set provisioned = true, plan = null, capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill,
           under_capacity = if(v_settles, p_capacity, under_capacity),
           under_seconds = if(v_settles, p_refill_seconds, under_seconds),
           under_refill = if(v_settles, p_refill, under_refill),
           burst = b_burst, step_ns = b_step_ns, step_ticks = b_step_ticks, token_ticks = b_token_ticks,
           anchor = b_anchor, full_at = b_full_at, max_granted_wait = b_max_granted_wait
     where id = v_id;
    if v_own then commit and no chain no release; end if;
  end;
end
//

-- token_create_plan: creates a plan, or changes its quota. The mode does not change.
--
-- Arguments: p_name            1 to 255 bytes
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'continuous', 'interval', 'calendar' or 'once': see token_buckets
-- Result:    none
-- Errors:    22023 invalid name · 23514 invalid limits
-- Locks:     the plan's row
drop procedure if exists token_create_plan
//

create procedure token_create_plan(
  in p_name varchar(256) character set utf8mb4, in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_name varbinary(1024) default cast(p_name as binary);
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;

  call token_check_id('plan name', v_name);
  call token_bucket_limits('plan', v_name, p_capacity, p_refill_seconds, p_refill,
                      v_burst, v_step_ns, v_step_ticks, v_token_ticks);
  insert into token_plans (name, capacity, refill_seconds, refill)
  values (v_name, p_capacity, p_refill_seconds, p_refill)
  on duplicate key update capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill;
end
//

-- token_reset_bucket: fills a bucket up to the effective capacity, and empties the sliding window with its key.
--
-- Arguments: p_id   the bucket
-- Result:    one row
--            found  whether the bucket exists, or a window that counted a request
-- Errors:    as for token_take_v1
-- Locks:     the bucket's row, then the window's, in its own transaction unless the caller has one
--
-- A reset counts as a grant of the capacity, so that earlier reservations give nothing back.
drop procedure if exists token_reset_bucket
//

create procedure token_reset_bucket(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_now, v_number bigint;
  declare v_times bigint default 1;
  declare v_word varchar(10) character set ascii;
  declare v_found boolean;
  declare exit handler for sqlexception
  begin
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(false, v_own);

  if exists (select 1 from token_buckets where id = cast(p_id as binary) for update) then
    -- A request that takes nothing converts the bucket's state to the effective limits.
    call token_take_v1(p_id, 1, 0, 0, null, null, null, null, null, 0, false, false, v_times, v_word, v_word,
                         v_number, v_number, v_number, v_number, v_number, v_number, v_number, v_number, v_number);
  end if;
  call token_clock(v_now);
  update token_buckets
     set full_at = (v_now - anchor) div step_ns * step_ticks, max_granted_wait = 0,
         granted = least(cast(granted as decimal(65, 0)) + burst div token_ticks, 4611686018427387903)
   where id = cast(p_id as binary);
  set v_found = row_count() > 0;
  set v_found = v_found or exists (select 1 from token_windows where id = cast(p_id as binary) and granted > 0);
  delete from token_windows where id = cast(p_id as binary);

  if v_own then commit and no chain no release; end if;
  select v_found as found;
end
//

-- token_delete_bucket: deletes a bucket and the sliding window with its key. If a request creates the bucket again, it starts
-- full.
--
-- Arguments: p_id   the bucket
-- Result:    one row
--            found  whether the bucket existed, or a window that counted a request
-- Errors:    none
-- Locks:     the bucket's row, then the window's, in its own transaction unless the caller has one
drop procedure if exists token_delete_bucket
//

create procedure token_delete_bucket(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_found boolean;
  declare exit handler for sqlexception
  begin
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(false, v_own);

  delete from token_buckets where id = cast(p_id as binary);
  set v_found = row_count() > 0;
  set v_found = v_found or exists (select 1 from token_windows where id = cast(p_id as binary) and granted > 0);
  delete from token_windows where id = cast(p_id as binary);

  if v_own then commit and no chain no release; end if;
  select v_found as found;
end
//

-- token_explain: shows the effective limits and mode of a bucket, their origin, and the outcome of a request for one token.
--
-- Arguments: p_id            the bucket, which can be missing
--            p_plan          plan that the request would name; null: the bucket's own
-- Result:    one row
--            known           whether the bucket exists
--            limits_from      'override', 'plan' or 'bucket'; null: no limits found
--            plan            the plan that the bucket follows
--            capacity, refill_seconds, refill: the limits
--            mode            'enforce', 'shadow', 'off' or 'block'
--            mode_from       'override', 'plan', 'all' or null: the default
--            mode_reason, mode_until
--            override_reason, override_until: of the override in force
--            available       whole tokens; null: the bucket does not exist
--            outcome         'granted', 'denied', 'unknown', 'unplanned' or 'conflict'
--            retry_after_ms  milliseconds until a token is available; 0: now; null: never, or unknown
--            plan_bytes, mode_reason_bytes, override_reason_bytes: in UTF-8, with every session character set
-- Errors:    none
-- Locks:     none; reads only
drop procedure if exists token_explain
//

create procedure token_explain(
  in p_id varchar(256) character set utf8mb4, in p_plan varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  declare v_now bigint;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_plan varbinary(1024) default cast(p_plan as binary);

  call token_clock(v_now);
  -- A separate statement: a query within a default or an assignment would wait for the row's lock.
  if v_plan is null then
    select max(b.plan) into v_plan from token_buckets b where b.id = v_id;
  end if;
  select r.known, r.limits_from, r.plan, r.capacity, r.refill_seconds, r.refill, r.mode, r.mode_from, r.mode_reason,
         r.mode_until, r.override_reason, r.override_until,
         r.level div r.token_ticks - (r.level mod r.token_ticks < 0) as available,
         case
           when r.unplanned then 'unplanned'
           when r.mode = 'off' then 'granted'
           when r.limits_from is null or not r.known and not r.planned then 'unknown'
           when r.conflicts then 'conflict'
           when r.mode = 'block' then 'denied'
           when not r.known or r.mode = 'shadow' or r.until = 0 then 'granted'
           else 'denied'
         end as outcome,
         case
           when r.unplanned then null
           when r.mode = 'off' then 0
           when r.limits_from is null or not r.known and not r.planned or r.conflicts then null
           when r.mode = 'block'
             then if(r.mode_until < '2262-01-01',
                     (timestampdiff(microsecond, '1970-01-01', r.mode_until) * 1000 - v_now + 999999) div 1000000, null)
           when not r.known then 0
           else r.until
         end as retry_after_ms,
         v_plan as plan_bytes, cast(r.mode_reason as binary) as mode_reason_bytes,
         cast(r.override_reason as binary) as override_reason_bytes
    from (select b.id is not null as known,
                 case when o.capacity is not null then 'override' when p.name is not null then 'plan'
                      when b.id is not null then 'bucket' end as limits_from,
                 convert(v_plan using utf8mb4) as plan, v_plan is not null and p.name is null as unplanned,
                 p.name is not null as planned,
                 coalesce(b.provisioned and cast(p_plan as binary) <> coalesce(b.plan, ''), false) as conflicts,
                 coalesce(o.capacity, p.capacity, b.capacity) as capacity,
                 coalesce(o.refill_seconds, p.refill_seconds, b.refill_seconds) as refill_seconds,
                 if(o.capacity is not null, o.refill, coalesce(p.refill, b.refill)) as refill,
                 coalesce(o.mode, if(p.in_force, p.mode, null), if(g.in_force, g.mode, null), 'enforce') as mode,
                 case when o.mode is not null then 'override' when p.in_force then 'plan'
                      when g.in_force and g.mode <> 'enforce' then 'all' end as mode_from,
                 case when o.mode is not null then o.reason when p.in_force then p.mode_reason
                      when g.in_force and g.mode <> 'enforce' then g.reason end as mode_reason,
                 case when o.mode is not null then o.expires_at when p.in_force then p.mode_until
                      when g.in_force and g.mode <> 'enforce' then g.until end as mode_until,
                 o.reason as override_reason, o.expires_at as override_until,
                 b.burst - greatest(b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks, 0) as level,
                 b.token_ticks,
                 case
                   when b.step_ns = 9223372036854775807 then if(b.full_at < b.burst, 0, null)
                   -- Also true of a clock that was set back to before its start.
                   when b.full_at - b.burst + b.token_ticks <= (v_now - b.anchor) div b.step_ns * b.step_ticks then 0
                   else (greatest(((b.full_at - b.burst + b.token_ticks + b.step_ticks - 1) div b.step_ticks) * b.step_ns
                                  + b.anchor - v_now, 0) + 999999) div 1000000
                 end as until
            from (select 1 as one) n
            left join (select m.*, m.until is null
                                   or timestampdiff(microsecond, '1970-01-01', least(m.until, '2262-01-01')) * 1000 > v_now as in_force
                         from token_mode m) g on true
            left join token_buckets b on b.id = v_id
            left join (select t.*, t.mode is not null
                                   and (t.mode_until is null
                                        or timestampdiff(microsecond, '1970-01-01', least(t.mode_until, '2262-01-01')) * 1000 > v_now)
                                   as in_force
                         from token_plans t) p on p.name = v_plan
            left join token_overrides o
              on o.id = v_id and (o.expires_at is null
                               or timestampdiff(microsecond, '1970-01-01', least(o.expires_at, '2262-01-01')) * 1000 > v_now)) r;
end
//

-- token_sweep_step: deletes expired rows in one bounded step, in the caller's transaction.
--
-- Arguments: p_after    end of the last step; null: start
--            p_limit    number of rows to read in all tables: 1 to 1000
-- Result:    o_deleted  number of rows
--            o_next     start of the next step: a table and the row before; null: this step reached the end
-- Errors:    none
-- Locks:     rows that can have expired; skips rows that another session has locked
--
-- Expired are buckets that were not provisioned and windows, after a minute full or empty; receipts, overrides, and denials
-- after two days. A bucket or window stays while one of its requests can be settled. Each table is read by its primary key: an
-- index on expiry would cost every decision an update.
drop procedure if exists token_sweep_step
//

create procedure token_sweep_step(
  in p_after varbinary(300), in p_limit bigint, out o_deleted bigint, out o_next varbinary(300))
modifies sql data
sql security definer
begin
  declare v_now, v_unused bigint;
  declare v_table varbinary(300) default coalesce(substring_index(p_after, '/', 1), 'buckets');
  declare v_after varbinary(300) default coalesce(substring(p_after, length(v_table) + 2), '');
  declare v_last varbinary(300);
  declare v_id varbinary(256);
  declare v_receipt, v_from, v_to binary(16) default repeat(x'00', 16);
  declare v_hour datetime;
  declare v_left bigint default least(greatest(coalesce(p_limit, 1000), 1), 1000);
  declare v_count bigint;
  declare v_done boolean default false;
  declare v_buckets cursor for
    select id from token_buckets
     where id > v_after and id <= v_last and not provisioned and full_at <= (v_unused - anchor) div step_ns * step_ticks;
  declare v_windows cursor for
    select id from token_windows where id > v_after and id <= v_last and newest + interval_ns <= v_unused;
  declare v_receipts cursor for
    select id, bucket from token_receipts
     where id >= v_from and (id > v_from or bucket > v_after) and id <= v_to and (id < v_to or bucket <= v_last)
       and expires_at <= v_now;
  declare v_overrides cursor for
    select id from token_overrides
     where id > v_after and id <= v_last
       and timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 <= v_now;
  declare v_stats cursor for  -- every denial of these hours is older than 48 hours
    select hour, id from token_stats
     where hour < timestamp('1970-01-01') + interval v_now div 1000 microsecond - interval 49 hour
     order by hour, id limit v_left;
  declare continue handler for not found set v_done = true;

  call token_clock(v_now);
  -- Deletes what was full or empty then, because most clients return sooner.
  set v_unused = v_now - 60000000000, o_deleted = 0, o_next = null;

  if v_table = 'buckets' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_buckets where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('buckets/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_buckets;
    buckets: loop
      fetch v_buckets into v_id;
      if v_done then leave buckets; end if;
      -- Looks up current receipts one by one, after locking the bucket: a snapshot can hold older ones, and a join could read
      -- all receipts.
      if exists (select 1 from token_buckets where id = v_id for update skip locked)
         and not exists (
               select 1 from token_receipts force index (token_receipts_open)
                where bucket = v_id and state = 'open' and expires_at > v_now limit 1 for update) then
        delete from token_buckets
         where id = v_id and not provisioned and full_at <= (v_unused - anchor) div step_ns * step_ticks;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_buckets;
    set v_table = 'windows', v_after = '';
  end if;

  if o_next is null and v_table = 'windows' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_windows where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('windows/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_windows;
    windows: loop
      fetch v_windows into v_id;
      if v_done then leave windows; end if;
      if exists (select 1 from token_windows where id = v_id for update skip locked)
         and not exists (
               select 1 from token_receipts force index (token_receipts_open)
                where bucket = concat(x'01', v_id) and state = 'open' and expires_at > v_now limit 1 for update) then
        delete from token_windows where id = v_id and newest + interval_ns <= v_unused;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_windows;
    set v_table = 'receipts', v_after = '';
  end if;

  if o_next is null and v_table = 'receipts' then
    if v_after <> '' then
      set v_from = left(v_after, 16), v_after = substring(v_after, 17);
    end if;
    select count(*), max(concat(id, bucket)) into v_count, v_last
      from (select id, bucket from token_receipts where id >= v_from and (id > v_from or bucket > v_after)
             order by id, bucket limit v_left) as page;
    set o_next = if(v_count = v_left, concat('receipts/', v_last), null), v_left = v_left - v_count, v_done = false;
    set v_to = left(v_last, 16), v_last = substring(v_last, 17);
    open v_receipts;
    receipts: loop
      fetch v_receipts into v_receipt, v_id;
      if v_done then leave receipts; end if;
      if exists (select 1 from token_receipts where id = v_receipt and bucket = v_id for update skip locked) then
        delete from token_receipts where id = v_receipt and bucket = v_id and expires_at <= v_now;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_receipts;
    set v_table = 'overrides', v_after = '';
  end if;

  if o_next is null and v_table = 'overrides' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_overrides where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('overrides/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_overrides;
    overrides: loop
      fetch v_overrides into v_id;
      if v_done then leave overrides; end if;
      if exists (select 1 from token_overrides where id = v_id for update skip locked) then
        delete from token_overrides
         where id = v_id and timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 <= v_now;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_overrides;
  end if;

  if o_next is null then  -- the oldest hours come first, so the scan starts at the first row
    set v_done = false, v_count = 0;
    open v_stats;
    stats: loop
      fetch v_stats into v_hour, v_id;
      if v_done then leave stats; end if;
      if exists (select 1 from token_stats where hour = v_hour and id = v_id for update skip locked) then
        delete from token_stats where hour = v_hour and id = v_id;
        set v_count = v_count + row_count();
      end if;
    end loop;
    close v_stats;
    set o_deleted = o_deleted + v_count, o_next = if(v_count = v_left, 'denials/', null);
  end if;
end
//

-- token_sweep_v1: continues the sweep by one bounded step.
--
-- Arguments: p_limit   number of rows to read in all tables: 1 to 1000
-- Result:    one row
--            deleted   number of rows
--            finished  whether this step reached the end, so that the next step starts again. Also true if another session
--                      is sweeping, and this step did nothing
-- Errors:    25001 the caller has a transaction
-- Locks:     the sweep position, then the rows of token_sweep_step, in its own transaction; waits for no lock
--
-- The position contains keys, so it never leaves the server.
drop procedure if exists token_sweep_v1
//

create procedure token_sweep_v1(in p_limit bigint)
modifies sql data
sql security definer
begin
  declare v_big boolean default @@sql_big_selects;
  declare v_deleted bigint default 0;
  declare v_position varbinary(300);
  declare exit handler for 1568
    signal sqlstate '25001' set message_text = 'tollgate: sweeping needs a transaction of its own: commit first';

  set transaction isolation level read committed;
  start transaction;
  begin
    declare v_is_mine boolean default true;
    declare continue handler for not found set v_is_mine = false;
    declare exit handler for sqlexception
    begin
      set sql_big_selects = v_big;
      rollback and no chain no release;
      resignal;
    end;

    set sql_big_selects = 1;  -- a step can exceed the session's max_join_size
    select swept_to into v_position from token_sweep_position where one = true for update skip locked;
    -- Locked, or not made yet.
    if not v_is_mine and not exists (select 1 from token_sweep_position) then
      insert ignore into token_sweep_position (one) values (true);
      set v_is_mine = row_count() > 0;
    end if;
    if v_is_mine then
      call token_sweep_step(v_position, p_limit, v_deleted, v_position);
      update token_sweep_position set swept_to = v_position where one = true;
    end if;
    set sql_big_selects = v_big;
    commit and no chain no release;
  end;
  select v_deleted as deleted, v_position is null as finished;
end
//

-- token_sweep: runs all steps of token_sweep_step, for your scheduler: call token_sweep().
--
-- Result:    one row
--            deleted  number of rows
-- Errors:    25001 the caller has a transaction
-- Locks:     the rows of token_sweep_step, each step in its own transaction
drop procedure if exists token_sweep
//

create procedure token_sweep()
modifies sql data
sql security definer
begin
  declare v_big boolean default @@sql_big_selects;
  declare v_deleted bigint;
  declare v_total bigint default 0;
  declare v_after varbinary(300);
  declare exit handler for 1568
    signal sqlstate '25001' set message_text = 'tollgate: sweeping needs a transaction of its own: commit first';

  repeat
    set transaction isolation level read committed;
    start transaction;
    begin
      declare exit handler for sqlexception
      begin
        set sql_big_selects = v_big;
        rollback and no chain no release;
        resignal;
      end;
      set sql_big_selects = 1;  -- a step can exceed the session's max_join_size
      call token_sweep_step(v_after, 1000, v_deleted, v_after);
      commit and no chain no release;
    end;
    set v_total = v_total + v_deleted, sql_big_selects = v_big;
  until v_after is null end repeat;
  select v_total as deleted;
end
//

-- token_most_denied: denials of the last 24 hours, one row per key, in UTC. Reads only.
--
--   select * from token_most_denied order by denied desc limit 10;
--
--   denied          requests; the true number can be higher
--   last_denied_at  accurate to a few seconds
--   id_bytes        the id in UTF-8, with every session character set
create or replace sql security definer view token_most_denied as
select convert(s.id using utf8mb4) as id, cast(least(greatest(sum(s.denied), -1), 9223372036854775807) as signed) as denied,
       max(s.last_denied_at) as last_denied_at, s.id as id_bytes
  from token_stats s
 cross join (select timestamp('1970-01-01') + interval (
                      (cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)),
                                 16, 10) as signed) - 122192928000000000) * 100) div 1000 microsecond as now
               from (select uuid() as uuid limit 1) u limit 1) n
 where s.hour > n.now - interval 24 hour
 group by s.id
//

-- token_count_denials_v1: adds the denials that a process counted, and deletes rows older than two days.
--
-- Arguments: p_denials  a JSON array of [id in hexadecimal, denied], 1000 at most:
--                       '[["757365723a31", 5], ["757365723a32", 1]]'
-- Result:    none
-- Errors:    22023 arguments out of range
--            1205 another session locked a row for a second
-- Locks:     the rows of these keys in this hour, in id order, so that two calls cannot deadlock; then up to 1000 old rows. The
--            routine has its own transaction, unless the caller has one. No decision reads these rows.
drop procedure if exists token_count_denials_v1
//

create procedure token_count_denials_v1(in p_denials longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_now bigint;
  declare v_at datetime(6);
  declare v_hour datetime;

  if (json_valid(p_denials) and json_type(p_denials) = 'ARRAY' and json_length(p_denials) <= 1000
      and json_length(p_denials) = (
        select count(*)
          from json_table(p_denials, '$[*]' columns (
                 id varchar(1024) character set ascii path '$[0]', denied bigint path '$[1]')) as d
         where length(unhex(d.id)) between 1 and 255 and left(unhex(d.id), 1) <> x'01' and locate(x'00', unhex(d.id)) = 0
           and cast(convert(unhex(d.id) using utf8mb4) as binary) <=> unhex(d.id) and d.denied between 1 and 1000000000000000)) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: token_count_denials_v1 takes a JSON array of up to 1000 [hex of a valid id, denials]: [["6b", 5]]';
  end if;
  call token_begin(false, v_own);

  begin
    declare exit handler for sqlexception
    begin
      set innodb_lock_wait_timeout = v_wait;
      if v_own then rollback and no chain no release; end if;
      resignal;
    end;

    set innodb_lock_wait_timeout = least(v_wait, 1);
    call token_clock(v_now);
    set v_at = timestamp('1970-01-01') + interval v_now div 1000 microsecond;
    set v_hour = timestamp(date(v_at)) + interval hour(v_at) hour;
    insert into token_stats (hour, id, denied, last_denied_at)
    select v_hour, unhex(d.id), d.denied, v_at
      from json_table(p_denials, '$[*]' columns (
             id varchar(1024) character set ascii path '$[0]', denied bigint path '$[1]')) as d
     order by unhex(d.id)
        on duplicate key update
           denied = least(cast(token_stats.denied as decimal(20, 0)) + values(denied), 9223372036854775807),
           last_denied_at = greatest(token_stats.last_denied_at, v_at);
    delete from token_stats where hour < v_hour - interval 48 hour order by hour, id limit 1000;
    set innodb_lock_wait_timeout = v_wait;
    if v_own then commit and no chain no release; end if;
  end;
end
//

-- token_rules: the modes, plans and overrides in force, in UTC: one row for all keys, one per plan and one per override. Reads
-- only. For one key, call token_explain instead.
--
--   kind       'all', 'plan' or 'override'
--   name       name of the plan, or the key of the override
--   plan       of an override: the plan that its bucket follows; null: no plan, or no bucket yet
--   capacity, refill_seconds, refill: the limits; null: none of its own
--   mode       effective mode; null, for an override: the mode of its plan or of 'all'
--   mode_from  row that chose the mode: 'all', 'plan' or 'override'; null: the default
--   reason     reason of the mode or override
--   until      end of the mode or override; null: no end
create or replace sql security definer view token_rules as
select 'all' as kind, cast(null as char(255)) as name, cast(null as char(255)) as plan, cast(null as signed) as capacity,
       cast(null as decimal(19, 9)) as refill_seconds, cast(null as char(10)) as refill,
       coalesce(a.mode, 'enforce') as mode, if(a.mode is null, null, 'all') as mode_from, a.reason, a.until
  from (select 1 as one) n
  left join token_mode a on a.mode <> 'enforce' and (a.until is null or a.until > utc_timestamp(6))
union all
select 'plan', convert(p.name using utf8mb4), null, p.capacity, p.refill_seconds, p.refill,
       if(p.own, p.mode, coalesce(a.mode, 'enforce')), if(p.own, 'plan', if(a.mode is null, null, 'all')),
       if(p.own, p.mode_reason, a.reason), if(p.own, p.mode_until, a.until)
  from (select t.*, t.mode is not null and (t.mode_until is null or t.mode_until > utc_timestamp(6)) as own
          from token_plans t) p
  left join token_mode a on a.mode <> 'enforce' and (a.until is null or a.until > utc_timestamp(6))
union all
select 'override', convert(o.id using utf8mb4), convert(b.plan using utf8mb4), o.capacity, o.refill_seconds,
       if(o.capacity is null, null, o.refill), o.mode, if(o.mode is null, null, 'override'), o.reason, o.expires_at
  from token_overrides o
  left join token_buckets b on b.id = o.id
 where o.expires_at is null or o.expires_at > utc_timestamp(6)
//

-- token_sizes: size of each table. Reads only the server's estimates. MySQL renews them once a day by default: see
-- information_schema_stats_expiry.
--
--   live_rows   estimate
--   bytes       including indexes
--   free_bytes  allocated but unused
create or replace sql security definer view token_sizes as
select t.table_name as name, t.table_rows as live_rows, t.data_length + t.index_length as bytes,
       t.data_free as free_bytes
  from information_schema.tables t
 where t.table_schema = database() and t.table_type = 'BASE TABLE' and t.table_name like 'token\_%'
//

insert into token_migrations (version, name) values (10, '0010_operations') on duplicate key update applied_at = utc_timestamp(6)
//

delimiter ;

set session sql_mode = @host_sql_mode, character_set_client = @host_client, character_set_results = @host_results, collation_connection = @host_connection;
