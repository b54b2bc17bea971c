-- rate_limiting_request: one token from a bucket that its first request makes, full; continuous refill.
--
-- Arguments: p_rate_id         the bucket
--            p_refill_per_sec  tokens that come each second
--            p_window_seconds  the bucket holds that many seconds' worth of tokens; both are whole numbers
-- Result:    the tokens left, or -1 if there was none; a denied call changes nothing
-- Errors:    22023, 23514 figures that make no bucket · 22023 the bucket was provisioned with other figures
-- Locks:     see take_v1.
create function tollgate.rate_limiting_request(
  p_rate_id text, p_refill_per_sec double precision default 2, p_window_seconds double precision default 60)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t tollgate.taken_v1;
begin
  if p_rate_id is null or p_refill_per_sec is null or p_window_seconds is null
     or p_refill_per_sec not between 1 and 1000000000 or p_refill_per_sec <> trunc(p_refill_per_sec)
     or p_window_seconds not between 1 and 3155760000 or p_window_seconds <> trunc(p_window_seconds) then
    raise exception 'tollgate: rate_limiting_request(%, %, %): give an id, a rate of 1 to 10^9 tokens a second and a '
                    'window of 1 second to a century, in whole numbers',
                    quote_nullable(left(p_rate_id, 255)), p_refill_per_sec, p_window_seconds
      using errcode = 'invalid_parameter_value';
  end if;
  t := tollgate.take_v1(p_rate_id, 1, 0, 0, p_refill_per_sec::bigint * p_window_seconds::bigint,
                        p_window_seconds::bigint, 'continuous', null, null, null);
  if t.outcome = 'conflict' then
    raise exception 'tollgate: bucket % was provisioned with other figures', quote_literal(p_rate_id)
      using errcode = 'invalid_parameter_value',
            hint = 'Take its tokens with tollgate.request_token, or use an id of its own here.';
  elsif t.outcome = 'denied' then
    return -1;
  end if;
  return coalesce(tollgate.taken_remaining_v1(t), t.burst);
end
$$;

revoke all on function tollgate.rate_limiting_request(text, double precision, double precision) from public;
