-- bucket_terms_v1(p_bucket) -> the same row with the columns that follow from its terms; an error if they are no terms.
create function tollgate.bucket_terms_v1(p_bucket tollgate.token_buckets) returns tollgate.token_buckets
language plpgsql immutable
as $$
declare
  v_refill_ns constant numeric := p_bucket.refill_seconds * 1000000000;
  v_error     text;
begin
  v_error := case
    when octet_length(p_bucket.id) not between 1 and 255
      then format('its id has %s bytes: give 1 to 255', octet_length(p_bucket.id))
    when p_bucket.capacity < 1
      then format('a capacity of %s grants nothing: give 1 or more', p_bucket.capacity)
    when p_bucket.refill not in ('interval', 'continuous')
      then format('refill is %L: give ''interval'' or ''continuous''', p_bucket.refill)
    when p_bucket.refill_seconds <= 0
      then format('refill_seconds is %s: give more than 0', p_bucket.refill_seconds)
    when p_bucket.refill_seconds > 3155760000
      then format('refill_seconds is %s: give a century (3155760000) or less', p_bucket.refill_seconds)
    when v_refill_ns < p_bucket.capacity
      then format('%s tokens in %s s are more than one a nanosecond: count in larger units, 1 for 1000',
                  p_bucket.capacity, p_bucket.refill_seconds)
  end;
  if v_error is null then
    if p_bucket.refill = 'continuous' then
      p_bucket.step_ns := 1;
      p_bucket.step_ticks := 1;
      p_bucket.token_ticks := ceil(v_refill_ns / p_bucket.capacity);
    else
      p_bucket.step_ns := v_refill_ns;
      p_bucket.step_ticks := p_bucket.capacity;
      p_bucket.token_ticks := 1;
    end if;
    v_error := case
      when p_bucket.refill <> 'continuous' then null
      when p_bucket.token_ticks::numeric * p_bucket.capacity > v_refill_ns * 1.001
        then format('%s tokens in %s s, in whole nanoseconds a token, would be over 0.1 %% slower: '
                    'count in larger units, 1 for 1000', p_bucket.capacity, p_bucket.refill_seconds)
      when p_bucket.token_ticks::numeric * p_bucket.capacity > 3155760000000000000
        then format('refill_seconds is %s: give a century (3155760000) or less', p_bucket.refill_seconds)
    end;
  end if;
  if v_error is not null then
    raise exception 'tollgate: bucket % cannot be: %', quote_nullable(left(p_bucket.id, 255)), v_error
      using errcode = 'check_violation';
  end if;
  return p_bucket;
end
$$;

revoke all on function tollgate.bucket_terms_v1(tollgate.token_buckets) from public;
