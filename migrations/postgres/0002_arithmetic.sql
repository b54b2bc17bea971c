-- bucket_limits: converts a quota to a bucket's own units, or raises an error for invalid limits.
--
-- Arguments: p_whose           the bucket or plan, as errors name it
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
-- Result:    burst, step_ns, step_ticks, token_ticks: see token_buckets
-- Errors:    23514 invalid limits
-- Locks:     none
create or replace function tollgate.bucket_limits(
  p_whose text, p_capacity numeric, p_refill_seconds numeric, p_refill text,
  out burst bigint, out step_ns bigint, out step_ticks bigint, out token_ticks bigint)
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_refill_ns constant numeric := p_refill_seconds * 1000000000::numeric;
  v_error     text;
begin
  v_error := case
    when p_capacity is null or p_refill_seconds is null or p_refill is null
      then 'give capacity, refill_seconds and refill'
    when p_capacity < 1
      then pg_catalog.format('a capacity of %s grants nothing: give 1 or more', p_capacity)
    when p_capacity <> trunc(p_capacity)
      then pg_catalog.format('a capacity of %s is not a whole number', p_capacity)
    when p_capacity > 3155760000000000000
      then pg_catalog.format('a capacity of %s is too large: give 3155760000000000000 or less', p_capacity)
    when p_refill not in ('interval', 'calendar', 'continuous', 'once')
      then pg_catalog.format('refill is %L: give ''interval'', ''calendar'', ''continuous'' or ''once''', p_refill)
    -- Values that the tables' columns cannot hold, including NaN.
    when abs(p_refill_seconds) >= 10000000000::numeric
      then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    when p_refill = 'once'
      then null
    when p_refill_seconds <= 0::numeric
      then pg_catalog.format('refill_seconds is %s: give more than 0', p_refill_seconds)
    when p_refill_seconds > 3155760000::numeric
      then pg_catalog.format('refill_seconds is %s: give a century (3155760000) or less', p_refill_seconds)
    when v_refill_ns < p_capacity
      then pg_catalog.format('%s tokens in %s s are more than one a nanosecond: count in larger units, 1 for 1000',
                             p_capacity, p_refill_seconds)
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
    step_ns := case p_refill when 'once' then 9223372036854775807 else v_refill_ns end;
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
