-- local_instant(p_local, p_zone) -> the instant at which the zone's clocks first show p_local, in nanoseconds since 1970. A time
-- that they skip is as much later as they are set forward.
--
-- Compares the offsets of a day before and a day after, because servers read a time that is skipped or shown twice in other ways.
create or replace function tollgate.local_instant(p_local timestamp, p_zone text) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select (extract(epoch from case when c.before at time zone p_zone = p_local then c.before
                                  when c.after at time zone p_zone = p_local then c.after
                                  else c.before end)::numeric * 1000000000)::bigint
    from (select p_local at time zone 'UTC' as utc) u
   cross join lateral (
     select u.utc - ((u.utc - interval '24 hours') at time zone p_zone - (u.utc - interval '24 hours') at time zone 'UTC')
              as before,
            u.utc - ((u.utc + interval '24 hours') at time zone p_zone - (u.utc + interval '24 hours') at time zone 'UTC')
              as after) c
$$;

-- period_bounds: finds the calendar period that contains an instant.
--
-- Arguments: p_refill  'calendar day', 'calendar week', 'calendar month' or 'calendar year'
--                      then optionally a start: ' from 06:00' of a day, ' from sunday', ' from day 15' or ' from 04-06', the latter
--                      three with a time or without: ' from day 15 08:00'. Default: midnight, and Monday or the first day. A
--                      month without the day begins its period on its last day
--                      then optionally a zone: ' in Europe/Berlin' or ' in +01:00'. Default: UTC
--            p_now     nanoseconds since 1970
-- Result:    period_start, period_end in nanoseconds since 1970; null: p_refill has another form
-- Errors:    22023 the server does not know the time zone
-- Locks:     none
create or replace function tollgate.period_bounds(
  p_refill text, p_now bigint, out period_start bigint, out period_end bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  -- Unit, weekday, day of the month, month and day of the year, time, zone. A zone without a slash can be an abbreviation, which
  -- a server reads before names.
  c_form   constant text := '^calendar (day|week|month|year)'
    '(?: from(?: (monday|tuesday|wednesday|thursday|friday|saturday|sunday)| day ([1-9]|[12][0-9]|3[01])'
    '| (0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]))?(?: ((?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?))?)?'
    '(?: in (UTC|[+-][0-9]{2}:[0-9]{2}|[A-Za-z_]{1,32}/[A-Za-z0-9_+/-]{1,32}))?$';
  v_parts  constant text[] := regexp_match(p_refill, c_form);
  v_unit   interval;
  v_months int := 0;  -- from the start of the unit to the start of the period
  v_days   int := 0;
  v_time   constant interval := coalesce(v_parts[6], '00:00')::interval;
  -- A server reads an offset as POSIX does, with the opposite sign.
  v_zone   constant text := case when v_parts[7] ~ '^[+-]' then translate(v_parts[7], '+-', '-+')
                                 else coalesce(v_parts[7], 'UTC') end;
  v_first  timestamp;
begin
  if v_parts is null
     or (p_refill like '% from%')
        <> (case v_parts[1] when 'day' then v_parts[6] when 'week' then v_parts[2] when 'month' then v_parts[3] else v_parts[4] end
            is not null)
     or num_nonnulls(v_parts[2], v_parts[3], v_parts[4]) > (v_parts[1] <> 'day')::int
     or v_parts[4] || v_parts[5] in ('0230', '0231', '0431', '0631', '0931', '1131') then
    return;
  end if;
  if v_parts[1] = 'day' then
    v_unit := interval '1 day';
  elsif v_parts[1] = 'week' then
    v_unit := interval '7 days';
    v_days := coalesce(array_position(array['monday', 'tuesday', 'wednesday', 'thursday', 'friday', 'saturday', 'sunday'],
                                      v_parts[2]) - 1, 0);
  elsif v_parts[1] = 'month' then
    v_unit := interval '1 month';
    v_days := coalesce(v_parts[3]::int - 1, 0);
  else
    v_unit := interval '1 year';
    v_months := coalesce(v_parts[4]::int - 1, 0);
    v_days := coalesce(v_parts[5]::int - 1, 0);
  end if;
  v_first := date_trunc(v_parts[1], (timestamptz 'epoch' + p_now / 1000 * interval '1 microsecond') at time zone v_zone);
  -- The zone's clocks can be set back over a start, so the period that they show can be a neighbour of the one that counts.
  select max(s.at) filter (where s.at <= p_now), min(s.at) filter (where s.at > p_now)
    into period_start, period_end
    from generate_series(-1, 2) as n (units)
   cross join lateral (select v_first + n.units * v_unit + v_months * interval '1 month' as date) f
   cross join lateral (
     select tollgate.local_instant(
       f.date + v_time
       + case when v_parts[1] in ('month', 'year')
           then least(v_days, extract(day from f.date + interval '1 month' - interval '1 day')::int - 1)
           else v_days end * interval '1 day', v_zone) as at) s;
end
$$;

-- bucket_limits: converts a quota to a bucket's own units, or raises an error for invalid limits.
--
-- Arguments: p_whose           the bucket or plan, as errors name it
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
--            p_now             nanoseconds since 1970: the calendar period is the one that contains it
-- Result:    burst, step_ns, step_ticks, token_ticks, period_end: see token_buckets
--            anchor            where the clock starts; null: at the bucket's own anchor
-- Errors:    23514 invalid limits · 22023 the server does not know the time zone
-- Locks:     none
create or replace function tollgate.bucket_limits(
  p_whose text, p_capacity numeric, p_refill_seconds numeric, p_refill text, p_now bigint,
  out burst bigint, out step_ns bigint, out step_ticks bigint, out token_ticks bigint, out anchor bigint,
  out period_end bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  c_periods   constant text := 'calendar %';
  v_refill_ns numeric := p_refill_seconds * 1000000000::numeric;
  v_error     text;
begin
  if p_refill like c_periods then
    select t.period_start, t.period_end into anchor, period_end from tollgate.period_bounds(p_refill, p_now) t;
    -- Of a usual period, so that a short day or month has the same bounds.
    v_refill_ns := case split_part(p_refill, ' ', 2) when 'day' then 86400 when 'week' then 604800 when 'month' then 2629746
                                                     else 31556952 end * 1000000000::numeric;
  else
    period_end := 9223372036854775807;
  end if;
  v_error := case
    when p_capacity is null or p_refill_seconds is null or p_refill is null
      then 'give capacity, refill_seconds and refill'
    when p_capacity < 1
      then pg_catalog.format('a capacity of %s grants nothing: give 1 or more', p_capacity)
    when p_capacity <> trunc(p_capacity)
      then pg_catalog.format('a capacity of %s is not a whole number', p_capacity)
    when p_capacity > 3155760000000000000
      then pg_catalog.format('a capacity of %s is too large: give 3155760000000000000 or less', p_capacity)
    when p_refill not in ('interval', 'calendar', 'continuous', 'once') and anchor is null
      then pg_catalog.format('refill is %L: give ''interval'', ''calendar'', ''continuous'', ''once'', or a period such as '
                             '''calendar month from day 15 in Europe/Berlin''', left(p_refill, 80))
    -- Values that the tables' columns cannot hold, including NaN.
    when abs(p_refill_seconds) >= 10000000000::numeric
      then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    when p_refill = 'once'
      then null
    when p_refill_seconds <= 0::numeric and anchor is null
      then pg_catalog.format('refill_seconds is %s: give more than 0', p_refill_seconds)
    when p_refill_seconds > 3155760000::numeric and anchor is null
      then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    when v_refill_ns < p_capacity
      then pg_catalog.format('%s tokens in %s s are more than one a nanosecond: count in larger units, 1 for 1000',
                             p_capacity, trim_scale(v_refill_ns / 1000000000))
  end;
  if v_error is null and p_refill = 'continuous' then
    step_ns := 1;
    step_ticks := 1;
    token_ticks := ceil(v_refill_ns / p_capacity);
    v_error := case
      when token_ticks::numeric * p_capacity > v_refill_ns * 1.001
        then pg_catalog.format('%s tokens in %s s, in whole nanoseconds a token, would be over 0.1 %% slower: '
                               'count in larger units, 1 for 1000', p_capacity, p_refill_seconds)
      when token_ticks::numeric * p_capacity > 3155760000000000000::numeric
        then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    end;
  elsif v_error is null then
    step_ns := case when p_refill = 'once' then 9223372036854775807 else coalesce(period_end - anchor, v_refill_ns) end;
    anchor := case when p_refill = 'calendar' then 0 else anchor end;
    step_ticks := case p_refill when 'once' then 1 else p_capacity end;
    token_ticks := 1;
  end if;
  if v_error is not null then
    raise exception 'tollgate: %: %', p_whose, v_error using errcode = 'check_violation';
  end if;
  burst := p_capacity * token_ticks;
end
$$;

-- whole_number(p_whose, p_capacity) -> the capacity as a bigint. Raises an error for a fraction, and for 2^53 or more,
-- where a double is not exact. p_whose: see bucket_limits.
create or replace function tollgate.whole_number(p_whose text, p_capacity double precision) returns bigint
language plpgsql immutable
as $$
begin
  if p_capacity <> trunc(p_capacity) then
    raise exception 'tollgate: %: a capacity of % is not a whole number', p_whose, p_capacity
      using errcode = 'check_violation';
  elsif abs(p_capacity) >= 9007199254740992 then
    raise exception 'tollgate: %: a capacity of % as double precision is not exact: pass a bigint', p_whose, p_capacity
      using errcode = 'check_violation';
  end if;
  return p_capacity;
end
$$;

-- The next three functions take columns, because a shard of a distributed table has another row type than the table.
--
-- ticks_at(p_anchor, p_step_ns, p_step_ticks, p_now in nanoseconds since 1970) -> the time of a bucket's own clock at p_now, in
-- ticks.
create or replace function tollgate.ticks_at(p_anchor bigint, p_step_ns bigint, p_step_ticks bigint, p_now bigint)
returns bigint
language sql immutable
return (p_now - p_anchor) / p_step_ns * p_step_ticks;

-- instant_of(p_anchor, p_step_ns, p_step_ticks, p_tick) -> the first instant at which a bucket's own clock shows p_tick, in
-- nanoseconds since 1970. If the clock never advances, the result is its start. The inverse of ticks_at.
create or replace function tollgate.instant_of(p_anchor bigint, p_step_ns bigint, p_step_ticks bigint, p_tick bigint)
returns bigint
language sql immutable
return p_anchor
       + case when p_step_ns < 9223372036854775807 or p_tick > 0
           then (p_tick / p_step_ticks + (p_tick % p_step_ticks > 0)::int) * p_step_ns
           else 0 end;

-- is_full_since(p_full_at, p_anchor, p_step_ns, p_step_ticks, p_period_end, p_at in nanoseconds since 1970) -> whether a bucket has
-- been full since p_at. After the end of a calendar period, the bucket's clock does not know how long the next one lasts: debt
-- in it counts for a period more.
create or replace function tollgate.is_full_since(
  p_full_at bigint, p_anchor bigint, p_step_ns bigint, p_step_ticks bigint, p_period_end bigint, p_at bigint) returns boolean
language sql immutable
return p_full_at + case when p_period_end < 9223372036854775807 and p_full_at > p_step_ticks then p_step_ticks else 0 end
       <= tollgate.ticks_at(p_anchor, p_step_ns, p_step_ticks, p_at);

-- step_at(p_step_ticks, p_tick, p_clock) -> the first time of a bucket's own clock at or after p_tick, in ticks. The clock now
-- shows p_clock.
create or replace function tollgate.step_at(p_step_ticks bigint, p_tick bigint, p_clock bigint) returns bigint
language sql immutable
as $$
  select case when p_tick <= p_clock then p_clock else (p_tick + p_step_ticks - 1) / p_step_ticks * p_step_ticks end
$$;

-- bucket_clock(p_bucket, p_now in nanoseconds since 1970) -> the time of the bucket's own clock at p_now, in ticks.
create or replace function tollgate.bucket_clock(p_bucket tollgate.token_buckets, p_now bigint) returns bigint
language sql immutable
return tollgate.ticks_at(p_bucket.anchor, p_bucket.step_ns, p_bucket.step_ticks, p_now);

-- bucket_instant(p_bucket, p_tick) -> the first instant at which the bucket's own clock shows p_tick. See instant_of.
create or replace function tollgate.bucket_instant(p_bucket tollgate.token_buckets, p_tick bigint) returns bigint
language sql immutable
return tollgate.instant_of(p_bucket.anchor, p_bucket.step_ns, p_bucket.step_ticks, p_tick);

-- bucket_due(p_bucket, p_cost, p_min_remaining) -> when the bucket has the tokens, in ticks of its own clock.
-- p_cost + p_min_remaining must not exceed the capacity.
create or replace function tollgate.bucket_due(
  p_bucket tollgate.token_buckets, p_cost bigint, p_min_remaining bigint) returns bigint
language sql immutable
as $$ select p_bucket.full_at - (p_bucket.burst - (p_cost + p_min_remaining) * p_bucket.token_ticks) $$;

-- bucket_acts_at(p_bucket, p_cost, p_min_remaining, p_now) -> the step in which a granted request acts, in ticks: the bucket's
-- clock at p_now, or a later step. All tokens belong to that step.
create or replace function tollgate.bucket_acts_at(
  p_bucket tollgate.token_buckets, p_cost bigint, p_min_remaining bigint, p_now bigint) returns bigint
language sql immutable
as $$
  select tollgate.step_at(p_bucket.step_ticks, tollgate.bucket_due(p_bucket, p_cost, p_min_remaining),
                          tollgate.bucket_clock(p_bucket, p_now))
$$;

-- bucket_scheduled_at(p_bucket, p_min_remaining, p_now) -> when the tokens of the last grant can be used, in nanoseconds since
-- 1970: p_now, or later.
create or replace function tollgate.bucket_scheduled_at(
  p_bucket tollgate.token_buckets, p_min_remaining bigint, p_now bigint) returns bigint
language sql immutable
as $$
  select case when tollgate.bucket_due(p_bucket, 0, p_min_remaining) > tollgate.bucket_clock(p_bucket, p_now)
           then greatest(p_now, tollgate.bucket_instant(p_bucket, tollgate.bucket_due(p_bucket, 0, p_min_remaining)))
           else p_now end
$$;

-- bucket_max_owed(p_bucket) -> how far full_at can be ahead of the bucket's clock, in ticks: a burst, the longest granted
-- wait, and a second of difference between clocks. A larger distance means that the clock was set back.
create or replace function tollgate.bucket_max_owed(p_bucket tollgate.token_buckets) returns bigint
language sql immutable
as $$
  select p_bucket.burst + p_bucket.max_granted_wait
         + (1000000000 / p_bucket.step_ns + 1) * p_bucket.step_ticks
$$;

-- bucket_grants(p_bucket, p_cost, p_min_remaining, p_now) -> how many consecutive requests for p_cost tokens the bucket grants at
-- p_now. p_cost + p_min_remaining must not exceed the capacity.
create or replace function tollgate.bucket_grants(
  p_bucket tollgate.token_buckets, p_cost bigint, p_min_remaining bigint, p_now bigint) returns bigint
language sql immutable
as $$
  select (p_bucket.burst - p_min_remaining * p_bucket.token_ticks
          - greatest(p_bucket.full_at - tollgate.bucket_clock(p_bucket, p_now), 0)) / (p_cost * p_bucket.token_ticks)
$$;

insert into tollgate.migrations (version, name) values (2, '0002_arithmetic') on conflict do nothing;
