-- token_clock: reads the clock of every decision.
--
-- Result:    o_now  nanoseconds since 1970
-- Errors:    none
-- Locks:     none
--
-- Reads the time of UUID(): the current instant in UTC, equal for every session. SET timestamp forges NOW() and
-- UTC_TIMESTAMP(), and SYSDATE() uses the session's time zone. A UUID counts units of 100 ns from 1582, and 1970 began after
-- 122192928000000000 of them. Not a function: with the binary log on, creating a function takes SUPER or
-- log_bin_trust_function_creators. A call takes 5 us, so routines do not repeat the arithmetic.
drop procedure if exists token_clock;
create procedure token_clock(out o_now bigint)
no sql
sql security definer
begin
  declare v_uuid char(36) character set ascii default uuid();
  set o_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
               - 122192928000000000) * 100;
end;

-- token_now: the clock of token_clock as a view of one row, for views, which cannot call a procedure. Reading it takes 50 us.
--
--   now  nanoseconds since 1970
create or replace sql security definer view token_now as
select (cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)), 16, 10) as signed)
        - 122192928000000000) * 100 as now
  from (select uuid() as uuid limit 1) u
 limit 1
;

-- token_require_whole_number: raises the error for a number with a fraction, which the server would round silently. The caller
-- checks first, and calls it only for such a number.
--
-- Arguments: p_routine, p_argument: names that the caller knows
--            p_number: the number, which has a fraction
-- Result:    none
-- Errors:    22023 always
-- Locks:     none
drop procedure if exists token_require_whole_number;
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
end;

-- token_check_id: refuses an invalid id of a bucket or window, or an invalid plan name.
--
-- Arguments: p_subject  name in the error, such as 'bucket id'
--            p_id       bytes of the id
-- Result:    none
-- Errors:    22023 the id is not 1 to 255 bytes of UTF-8, starts with U+0001 or contains NUL
-- Locks:     none
--
-- Routines call this before they insert, because a MariaDB session can disable the tables' checks.
drop procedure if exists token_check_id;
create procedure token_check_id(in p_subject varchar(20) character set ascii, in p_id varbinary(1024))
no sql
sql security definer
begin
  declare v_message varchar(128) character set ascii
    default concat('tollgate: a ', p_subject, ' has 1 to 255 bytes of UTF-8, without NUL, and does not begin with U+0001');
  if (length(p_id) between 1 and 255 and left(p_id, 1) <> x'01' and locate(x'00', p_id) = 0
      and cast(convert(p_id using utf8mb4) as binary) <=> p_id) is not true then
    signal sqlstate '22023' set message_text = v_message;
  end if;
end;

-- token_period_bounds: finds the calendar period that contains an instant.
--
-- Arguments: p_refill  'calendar day', 'calendar week', 'calendar month' or 'calendar year'
--                      then optionally a start: ' from 06:00' of a day, ' from sunday', ' from day 15' or ' from 04-06', the latter
--                      three with a time or without: ' from day 15 08:00'. Default: midnight, and Monday or the first day. A
--                      month without the day begins its period on its last day
--                      then optionally a zone: ' in Europe/Berlin' or ' in +01:00'. Default: UTC
--            p_now     nanoseconds since 1970
-- Result:    o_start, o_end  nanoseconds since 1970
-- Errors:    22023 the server does not know the time zone
-- Locks:     none
--
-- A period begins when the zone's clocks first show its start. A start that they skip is as much later as they are set forward.
-- Compares the offsets of a day before and a day after, because servers read a time that is skipped or shown twice in other
-- ways.
drop procedure if exists token_period_bounds;
create procedure token_period_bounds(
  in p_refill varchar(80) character set ascii collate ascii_bin, in p_now bigint, out o_start bigint, out o_end bigint)
reads sql data
sql security definer
begin
  declare v_zone varchar(80) character set utf8mb4
    default if(locate(' in ', p_refill) > 0, substring_index(p_refill, ' in ', -1), 'UTC');
  declare v_form varchar(80) character set ascii collate ascii_bin default substring_index(p_refill, ' in ', 1);
  declare v_unit varchar(80) character set ascii collate ascii_bin
    default substring_index(substring_index(v_form, ' ', 2), ' ', -1);
  declare v_from varchar(80) character set ascii collate ascii_bin
    default if(locate(' from ', v_form) > 0, substring_index(v_form, ' from ', -1), '');
  declare v_time time
    default cast(if(v_from like '%:%', substring_index(v_from, ' ', -1), '00:00') as time);
  declare v_months, v_days, v_units int default 0;  -- from the start of the unit to the start of the period
  declare v_offset int default case  -- seconds; null: the zone has a name
    when v_zone = 'UTC' then 0
    when v_zone regexp '^[+-][0-9]{2}:[0-9]{2}$'
      then if(left(v_zone, 1) = '-', -1, 1) * (substr(v_zone, 2, 2) * 60 + substr(v_zone, 5, 2)) * 60 end;
  declare v_now datetime(6) default timestamp('1970-01-01') + interval p_now div 1000 microsecond;
  declare v_local, v_first, v_date, v_start datetime(6);
  declare v_at, v_before, v_after datetime(6);
  declare v_ns bigint;

  -- MariaDB before 11.5 converts no time after 2038, not even to another offset.
  set v_local = if(v_offset is null, convert_tz(v_now, '+00:00', v_zone), v_now + interval v_offset second);
  if v_local is null then
    begin
      declare v_message varchar(128) character set utf8mb4 default concat(
        'tollgate: unknown time zone ''', left(v_zone, 30), '''; to load all: ',
        'mysql_tzinfo_to_sql /usr/share/zoneinfo | mysql mysql');
      signal sqlstate '22023' set message_text = v_message;
    end;
  end if;
  case v_unit
    when 'day' then
      set v_first = date(v_local);
    when 'week' then
      set v_first = date(v_local) - interval weekday(v_local) day,
          v_days = greatest(find_in_set(substring_index(v_from, ' ', 1),
                                        'monday,tuesday,wednesday,thursday,friday,saturday,sunday') - 1, 0);
    when 'month' then
      set v_first = date(v_local) - interval dayofmonth(v_local) - 1 day,
          v_days = if(v_from = '', 0, substring_index(substring_index(v_from, ' ', 2), ' ', -1) - 1);
    else
      set v_first = makedate(year(v_local), 1),
          v_months = if(v_from = '', 0, left(v_from, 2) - 1),
          v_days = if(v_from = '', 0, substr(v_from, 4, 2) - 1);
  end case;
  set o_start = null, o_end = null, v_units = -1;
  -- The zone's clocks can be set back over a start, so the period that they show can be a neighbour of the one that counts.
  while v_units <= 2 do
    set v_date = case v_unit
          when 'day' then v_first + interval v_units day
          when 'week' then v_first + interval v_units week
          when 'month' then v_first + interval v_units month
          else v_first + interval v_units year + interval v_months month
        end;
    set v_start = v_date
                  + interval if(v_unit in ('month', 'year'), least(v_days, dayofmonth(last_day(v_date)) - 1), v_days) day
                  + interval time_to_sec(v_time) second;
    if v_offset is not null then
      set v_at = v_start - interval v_offset second;
    else
      set v_before = v_start - interval timestampdiff(second, v_start - interval 24 hour,
                                                      convert_tz(v_start - interval 24 hour, '+00:00', v_zone)) second,
          v_after = v_start - interval timestampdiff(second, v_start + interval 24 hour,
                                                     convert_tz(v_start + interval 24 hour, '+00:00', v_zone)) second;
      set v_at = if(convert_tz(v_before, '+00:00', v_zone) <> v_start and convert_tz(v_after, '+00:00', v_zone) = v_start,
                    v_after, v_before);
    end if;
    set v_ns = timestampdiff(microsecond, '1970-01-01', v_at) * 1000;
    if v_ns <= p_now then
      set o_start = v_ns;
    elseif o_end is null then
      set o_end = v_ns;
    end if;
    set v_units = v_units + 1;
  end while;
end;

-- token_bucket_limits: converts a quota to a bucket's own units, or raises an error for invalid limits.
--
-- Arguments: p_kind, p_name    the bucket or plan, as errors name it
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
--            p_now             nanoseconds since 1970: the calendar period is the one that contains it
-- Result:    o_burst, o_step_ns, o_step_ticks, o_token_ticks, o_period_end: see token_buckets
--            o_anchor          where the clock starts; null: at the bucket's own anchor
-- Errors:    23514 invalid limits · 22023 the server does not know the time zone
-- Locks:     none
drop procedure if exists token_bucket_limits;
create procedure token_bucket_limits(
  in p_kind varchar(20) character set ascii, in p_name varbinary(1024),
  in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(80) character set ascii collate ascii_bin, in p_now bigint,
  out o_burst bigint, out o_step_ns bigint, out o_step_ticks bigint, out o_token_ticks bigint, out o_anchor bigint,
  out o_period_end bigint)
reads sql data
sql security definer
begin
  declare v_capacity bigint default p_capacity;
  declare v_is_period boolean default p_refill regexp concat(
    '^calendar (day( from ([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?)?',
    '|week( from (mon|tues|wednes|thurs|fri|satur|sun)day( ([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?)?)?',
    '|month( from day ([1-9]|[12][0-9]|3[01])( ([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?)?)?',
    '|year( from (0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])( ([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?)?)?)',
    '( in (UTC|[+-][0-9]{2}:[0-9]{2}|[A-Za-z_]+/[A-Za-z0-9_+/-]+))?$');
  -- Of a usual period, so that a short day or month has the same bounds.
  declare v_refill_ns decimal(40, 0) default 1000000000 * case
    when not v_is_period then p_refill_seconds
    when p_refill like 'calendar day%' then 86400
    when p_refill like 'calendar week%' then 604800
    when p_refill like 'calendar month%' then 2629746
    else 31556952 end;
  declare v_seconds varchar(30) character set ascii
    default trim(trailing '.' from trim(trailing '0' from p_refill_seconds));
  declare v_message text character set utf8mb4;

  -- token_plans, token_overrides and token_buckets check the same bounds. So do token_create_batch and token_take_uniform_v1.
  set v_message = case
    when p_capacity is null or p_refill_seconds is null or p_refill is null
      then 'give capacity, refill_seconds and refill'
    when p_capacity <> floor(p_capacity)
      then concat('a capacity of ', trim(trailing '0' from p_capacity), ' is not a whole number')
    when v_capacity < 1
      then concat('a capacity of ', v_capacity, ' grants nothing: give 1 or more')
    when v_capacity > 3155760000000000000
      then concat('a capacity of ', v_capacity, ' is too large: give 3155760000000000000 or less')
    when cast(p_refill as binary) not in ('interval', 'calendar', 'continuous', 'once') and not v_is_period
      then concat('refill is ''', left(p_refill, 12),
                  ''': give interval, calendar, ''calendar month'', continuous or once')
    when p_refill = 'once'
      then null
    when p_refill_seconds <= 0 and not v_is_period
      then concat('refill_seconds is ', v_seconds, ': give more than 0')
    when p_refill_seconds > 3155760000 and not v_is_period
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
  set o_anchor = if(p_refill = 'calendar', 0, null), o_period_end = 9223372036854775807;
  if v_message is null and v_is_period then
    call token_period_bounds(p_refill, p_now, o_anchor, o_period_end);
    set o_step_ns = o_period_end - o_anchor;
  end if;
  if v_message is not null then
    set v_message = left(concat('tollgate: ', p_kind, ' ''', left(coalesce(convert(p_name using utf8mb4), ''), 24),
                                ''': ', v_message), 128);
    signal sqlstate '23514' set message_text = v_message;
  end if;
  set o_burst = v_capacity * o_token_ticks;
end;

-- token_convert_state: converts a bucket's state to other limits, or to the current calendar period.
--
-- Arguments: p_now     nanoseconds since 1970
--            p_burst to p_token_ticks, p_anchor, p_period_end: the new limits, as in the result of token_bucket_limits
--            p_same_refill: whether the limits have the same calendar periods as those that the state is under
--            io_burst to io_token_ticks, io_anchor, io_period_end, io_full_at, io_max_granted_wait: the bucket's columns
-- Result:    the io_ arguments, converted
-- Errors:    none
-- Locks:     none
--
-- The bucket keeps its available tokens, including fractions, up to the new capacity. If the clock was set back, the bucket
-- becomes empty. The clock was set back if the bucket owes more than burst + max_granted_wait + a second in steps, rounded up.
-- Grants owe no more than the first two, and the clocks of two servers can differ by a second. If a calendar period has ended, the
-- tokens are those of the next one: waits and debts reach no further.
drop procedure if exists token_convert_state;
create procedure token_convert_state(
  in p_now bigint, in p_burst bigint, in p_step_ns bigint, in p_step_ticks bigint, in p_token_ticks bigint,
  in p_anchor bigint, in p_period_end bigint, in p_same_refill boolean,
  inout io_burst bigint, inout io_step_ns bigint, inout io_step_ticks bigint, inout io_token_ticks bigint,
  inout io_anchor bigint, inout io_period_end bigint, inout io_full_at bigint, inout io_max_granted_wait bigint)
no sql
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  -- The old clock knows no period but the next. That one has also ended if it is not the current one of the same periods.
  declare v_owed bigint default io_full_at - if(
    p_now < io_period_end, (p_now - io_anchor) div io_step_ns * io_step_ticks,
    io_step_ticks * if(p_same_refill and p_anchor > io_period_end, 2, 1));
  declare v_available decimal(65, 0) default 0;  -- in ticks; negative while grants wait for their tokens
  declare v_clock, v_year bigint;

  if p_same_refill and io_period_end <= p_now then
    -- A period has ended: the next one has the new capacity.
    set v_available = p_burst - greatest(v_owed, 0);
  elseif v_owed <= io_burst + io_max_granted_wait + (1000000000 div io_step_ns + 1) * io_step_ticks then
    set v_available = io_burst - greatest(v_owed, 0);
  end if;
  set io_anchor = coalesce(p_anchor, io_anchor), io_period_end = p_period_end;
  set v_clock = (p_now - io_anchor) div p_step_ns * p_step_ticks;
  set v_year = (least(p_now + c_year, p_period_end) - io_anchor) div p_step_ns * p_step_ticks - v_clock;
  -- v_available * new / old, rounded down, between the debt of a year and a full bucket
  set v_available = least(greatest(v_available * p_token_ticks, -cast(v_year as decimal(65, 0)) * io_token_ticks),
                          cast(p_burst as decimal(65, 0)) * io_token_ticks);
  set v_available = if(v_available < 0, -((io_token_ticks - 1 - v_available) div io_token_ticks),
                       v_available div io_token_ticks);
  set io_full_at = v_clock + p_burst - v_available, io_max_granted_wait = greatest(-v_available, 0),
      io_burst = p_burst, io_step_ns = p_step_ns, io_step_ticks = p_step_ticks, io_token_ticks = p_token_ticks;
end;

insert into token_migrations (version, name) values (2, '0002_arithmetic') on duplicate key update applied_at = utc_timestamp(6);
