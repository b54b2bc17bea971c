-- terms_v1: a quota in a bucket's own units; an error if the figures make none.
--
-- Arguments: p_whose the bucket or plan that it is for, as errors name it
--            p_capacity in tokens, p_refill_seconds from empty to full, p_refill: see token_buckets
-- Result:    burst, step_ns, step_ticks, token_ticks: see there
create function tollgate.terms_v1(
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
    -- What the tables' columns cannot hold, NaN too.
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
    raise exception 'tollgate: % cannot be: %', p_whose, v_error using errcode = 'check_violation';
  end if;
  burst := p_capacity * token_ticks;
end
$$;

revoke all on function tollgate.terms_v1(text, numeric, numeric, text) from public;

-- whole_v1(p_whose, p_capacity) -> the capacity as a bigint; an error for a fraction, and for 2^53 or more, where a double
-- is not exact. p_whose: see terms_v1.
create function tollgate.whole_v1(p_whose text, p_capacity double precision) returns bigint
language plpgsql immutable
as $$
begin
  if p_capacity <> trunc(p_capacity) then
    raise exception 'tollgate: % cannot be: a capacity of % is not a whole number', p_whose, p_capacity
      using errcode = 'check_violation';
  elsif abs(p_capacity) >= 9007199254740992 then
    raise exception 'tollgate: % cannot be: a capacity of % as double precision is not exact: pass a bigint', p_whose, p_capacity
      using errcode = 'check_violation';
  end if;
  return p_capacity;
end
$$;

revoke all on function tollgate.whole_v1(text, double precision) from public;
