-- request_tokens_in_window_v1: at most so many requests in any interval, whenever it begins.
--
-- Arguments: p_id                 the window; its first request makes it
--            p_max_requests       how many pass at most in any interval, a whole number; as are p_tokens and p_max_wait_ms
--            p_interval_seconds   up to a year, fractions allowed
--            p_resolution_seconds the parts that the interval is counted in: 1 to 1000 of them. Who was counted in a
--            part
--                                 counts until an interval after the part's end
--            p_tokens             how many requests this one stands for
--            p_max_wait_ms        how long you would wait
-- Result:    granted        whether it may go on
--            remaining      how many more pass now
--            wait_ms        milliseconds until you may go on: 0, or up to p_max_wait_ms
--            retry_after_ms milliseconds until another request like this one passes; 0: now; null: nobody knows
--            reset_after_ms milliseconds until nothing counts any more
-- Errors:    22023 arguments out of range, or more tokens than ever pass at once
-- Locks:     the window's row. In a transaction of yours it stays locked until that ends, and a rollback uncounts.
create function tollgate.request_tokens_in_window_v1(
  p_id text, p_max_requests double precision, p_interval_seconds double precision,
  p_resolution_seconds double precision, p_tokens double precision, p_max_wait_ms double precision,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t          tollgate.window_taken_v1;
  w          tollgate.token_windows;
  v_interval bigint;
  v_most     bigint;
  v_tokens   bigint;
  v_last     int;
begin
  if (p_max_requests between 0 and 1000000000000 and p_max_requests = trunc(p_max_requests)
      and p_tokens < 9007199254740992 and p_tokens = trunc(p_tokens) and p_max_wait_ms = trunc(p_max_wait_ms)
      and p_interval_seconds > 0 and p_interval_seconds <= 31622400 and p_resolution_seconds > 0
      and p_resolution_seconds <= p_interval_seconds and p_max_wait_ms between 0 and 31622400000
      and p_tokens >= 1) is not true then
    raise exception 'tollgate: request_tokens_in_window(%, %, %, %, %, %): give an interval of up to a year, a resolution '
                    'of up to that, at most 10^12 requests, 1 token or more and a longest wait of 0 or more, in whole numbers',
                    quote_nullable(left(p_id, 255)), p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens,
                    p_max_wait_ms
      using errcode = 'invalid_parameter_value';
  end if;
  v_interval := p_interval_seconds::numeric * 1000000000;
  v_most := p_max_requests;
  v_tokens := p_tokens;
  t := tollgate.take_window_v1(p_id, v_tokens, p_max_wait_ms::bigint * 1000000, 0, v_most,
                               v_interval, (p_resolution_seconds::numeric * 1000000000)::bigint, null, 0, false);
  if t.outcome = 'never' then
    raise exception 'tollgate: at most % requests pass in the window of %, so % never do', v_most,
                    quote_literal(p_id), v_tokens using errcode = 'invalid_parameter_value';
  end if;
  w.ends := t.ends;
  w.counts := t.counts;
  w.resolution_ns := t.resolution_ns;
  v_last := array_length(t.ends, 1);
  granted := t.outcome = 'granted';
  remaining := greatest(v_most - coalesce((
    select sum(c) from unnest(t.ends, t.counts) as u (e, c) where e > t.now - v_interval), 0), 0);
  wait_ms := case when granted then (t.acts_at - t.now + 999999) / 1000000 else 0 end;
  retry_after_ms := (case
    when t.mode = 'block' then t.acts_at
    else tollgate.window_earliest_v1(w, v_interval, v_most - v_tokens, t.now) end - t.now + 999999) / 1000000;
  reset_after_ms := coalesce((greatest(t.ends[v_last] + v_interval - t.now, 0) + 999999) / 1000000, 0);
end
$$;

revoke all on function
  tollgate.request_tokens_in_window_v1(text, double precision, double precision, double precision, double precision, double precision) from public;

-- request_tokens_in_window: the current version's friendly name.
create function tollgate.request_tokens_in_window(
  p_id text, p_max_requests double precision, p_interval_seconds double precision,
  p_resolution_seconds double precision, p_tokens double precision default 1, p_max_wait_ms double precision default 0,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_in_window_v1(
    p_id, p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens, p_max_wait_ms)
$$;

revoke all on function
  tollgate.request_tokens_in_window(text, double precision, double precision, double precision, double precision, double precision) from public;
