-- token_terms_v1: a quota in a bucket's own units; an error if the figures make none.
--
-- Arguments: p_kind, p_name: what it is for, as errors name it
--            p_capacity in tokens, p_refill_seconds from empty to full, p_refill: see token_buckets
-- Result:    o_burst, o_step_ns, o_step_ticks, o_token_ticks: see there
-- Errors:    23514 figures that make no quota
create procedure token_terms_v1(
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
