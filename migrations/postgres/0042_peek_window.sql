-- peek_window: a sliding window as people think of it, at this instant. Reads, locks and changes nothing.
--
-- Arguments: p_id               the window
-- Result:    one row, or none: nothing was ever counted in it, or it was swept
--            max_requests       the terms that it was last counted under; the interval is the longest since it was empty
--            interval_seconds, resolution_seconds
--            counted            requests that count now; above the maximum: promised to requests that wait
--            granted            requests, ever
--            retry_after_ms     milliseconds until one more passes, if the mode is enforce; 0: now
create function tollgate.peek_window(p_id text)
returns table (
  max_requests bigint, interval_seconds numeric, resolution_seconds numeric, counted bigint, granted bigint,
  retry_after_ms bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  w     tollgate.token_windows;
  v_now bigint;
begin
  select t.* into w from tollgate.token_windows t where t.id = p_id and t.granted <> 0;
  if not found then
    return;
  end if;
  if not tollgate.window_is_sound_v1(w) then
    -- A row that breaks its bounds: nothing of it is known.
    return query select null::bigint, null::numeric, null::numeric, null::bigint, null::bigint, null::bigint;
    return;
  end if;
  v_now := tollgate.token_clock_v1();
  if w.ends[array_length(w.ends, 1)] - v_now > w.last_wait + w.resolution_ns + 1000000000 then
    -- After a step of the clock backwards, what was counted since counts as of now.
    v_now := w.ends[array_length(w.ends, 1)] - w.resolution_ns;
  end if;
  return query
    select w.most, w.interval_ns * 0.000000001, w.resolution_ns * 0.000000001,
           coalesce(sum(u.c) filter (where u.e > v_now - w.interval_ns), 0)::bigint, w.granted,
           (tollgate.window_earliest_v1(w, w.interval_ns, w.most - 1, v_now) - v_now + 999999) / 1000000
      from unnest(w.ends, w.counts) as u (e, c);
end
$$;

revoke all on function tollgate.peek_window(text) from public;
