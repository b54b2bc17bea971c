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

-- token_bucket_limits: converts a quota to a bucket's own units, or raises an error for invalid limits.
--
-- Arguments: p_kind, p_name    the bucket or plan, as errors name it
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
-- Result:    o_burst, o_step_ns, o_step_ticks, o_token_ticks: see token_buckets
-- Errors:    23514 invalid limits
-- Locks:     none
drop procedure if exists token_bucket_limits;
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
end;

-- token_convert_state: converts a bucket's state to other limits.
--
-- Arguments: p_now     nanoseconds since 1970
--            io_burst to io_token_ticks, io_anchor, io_full_at, io_max_granted_wait: the bucket's columns
--            p_burst to p_token_ticks, p_refill: the new limits
-- Result:    the io_ arguments, converted
-- Errors:    none
-- Locks:     none
--
-- The bucket keeps its available tokens, including fractions, up to the new capacity. If the clock was set back, the bucket
-- becomes empty. The clock was set back if the bucket owes more than burst + max_granted_wait + a second in steps, rounded up.
-- Grants owe no more than the first two, and the clocks of two servers can differ by a second.
drop procedure if exists token_convert_state;
create procedure token_convert_state(
  in p_now bigint, in p_burst bigint, in p_step_ns bigint, in p_step_ticks bigint, in p_token_ticks bigint,
  in p_refill varchar(10) character set ascii collate ascii_bin,
  inout io_burst bigint, inout io_step_ns bigint, inout io_step_ticks bigint, inout io_token_ticks bigint,
  inout io_anchor bigint, inout io_full_at bigint, inout io_max_granted_wait bigint)
no sql
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
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
  set v_year = (p_now + c_year - io_anchor) div p_step_ns * p_step_ticks - v_clock;
  -- v_available * new / old, rounded down, between the debt of a year and a full bucket
  set v_available = least(greatest(v_available * p_token_ticks, -cast(v_year as decimal(65, 0)) * io_token_ticks),
                          cast(p_burst as decimal(65, 0)) * io_token_ticks);
  set v_available = if(v_available < 0, -((io_token_ticks - 1 - v_available) div io_token_ticks),
                       v_available div io_token_ticks);
  set io_full_at = v_clock + p_burst - v_available, io_max_granted_wait = greatest(-v_available, 0),
      io_burst = p_burst, io_step_ns = p_step_ns, io_step_ticks = p_step_ticks, io_token_ticks = p_token_ticks;
end;

insert into token_migrations (version, name) values (2, '0002_arithmetic') on duplicate key update applied_at = utc_timestamp(6);
