-- window_earliest_v1: when a request that leaves room for so many others may act: not before any that was granted, and
-- not before so few of those still count.
--
-- Arguments: p_window; p_interval in nanoseconds; p_room in requests; p_now in nanoseconds since 1970
-- Result:    nanoseconds since 1970
create function tollgate.window_earliest_v1(
  p_window tollgate.token_windows, p_interval bigint, p_room bigint, p_now bigint)
returns bigint
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_last    constant int := coalesce(pg_catalog.array_length(p_window.ends, 1), 0);
  v_from    bigint := p_now;
  v_counted bigint := 0;
begin
  if v_last > 0 then
    v_from := greatest(p_now, p_window.ends[v_last] - p_window.resolution_ns);
  end if;
  for v_place in reverse v_last .. 1 loop
    v_counted := v_counted + p_window.counts[v_place];
    if v_counted > p_room then
      return greatest(v_from, p_window.ends[v_place] + p_interval);
    end if;
  end loop;
  return v_from;
end
$$;

revoke all on function tollgate.window_earliest_v1(tollgate.token_windows, bigint, bigint, bigint) from public;

-- window_count_v1: a window with requests counted at an instant, and without what counts no more. Of more than 2000
-- sub-intervals one that has passed is counted as the next one, so that its requests count for longer: the one which that
-- delays least for its age. The resolution stays that of the newest.
--
-- Arguments: p_window; p_interval, p_resolution in nanoseconds; p_cost in requests; p_now, p_at in nanoseconds since
-- 1970
create function tollgate.window_count_v1(
  p_window tollgate.token_windows, p_interval bigint, p_resolution bigint, p_cost bigint, p_now bigint, p_at bigint)
returns tollgate.token_windows
language plpgsql immutable
as $$
declare
  v_end  constant bigint := (p_at / p_resolution + 1) * p_resolution;
  v_kept constant bigint := greatest(p_interval, p_window.interval_ns);
  v_last int;
  v_join int;
begin
  p_window.since := greatest(
    p_window.since, (select max(e) from unnest(p_window.ends) as u (e) where e <= p_now - v_kept));
  select coalesce(pg_catalog.array_agg(e order by e), '{}'), coalesce(pg_catalog.array_agg(c order by e), '{}')
    into p_window.ends, p_window.counts
    from unnest(p_window.ends, p_window.counts) as u (e, c)
   where e > p_now - v_kept;
  v_last := coalesce(pg_catalog.array_length(p_window.ends, 1), 0);
  if v_last > 0 and p_window.ends[v_last] >= v_end then
    p_window.counts[v_last] := p_window.counts[v_last] + p_cost;
  else
    p_window.ends := pg_catalog.array_append(p_window.ends, v_end);
    p_window.counts := pg_catalog.array_append(p_window.counts, p_cost);
    p_window.resolution_ns := p_resolution;
  end if;
  if array_length(p_window.ends, 1) > 2000 then
    select k.place into v_join
      from (select place, lag(e) over (order by place) as before, lead(e) over (order by place) as after
              from unnest(p_window.ends) with ordinality as u (e, place)
             where e <= p_now) k
     where k.before is not null and k.after is not null
     order by (p_now - k.before) / (k.after - k.before) desc, k.place limit 1;
    if found then
      p_window.counts[v_join + 1] := p_window.counts[v_join + 1] + p_window.counts[v_join];
      p_window.ends := p_window.ends[:v_join - 1] || p_window.ends[v_join + 1:];
      p_window.counts := p_window.counts[:v_join - 1] || p_window.counts[v_join + 1:];
    end if;
  end if;
  p_window.granted := p_window.granted + p_cost;
  p_window.last_wait := p_at - p_now;
  -- Who asks by a longer interval finds its counts, until there are none but this one's.
  p_window.interval_ns := case when v_last = 0 then p_interval else v_kept end;
  return p_window;
end
$$;

revoke all on function
  tollgate.window_count_v1(tollgate.token_windows, bigint, bigint, bigint, bigint, bigint) from public;

-- window_stepped_back_v1: a window as of a clock that was set back. What was counted since then counts as of now:
-- nobody is locked out for longer than an interval. What acted by the clock as it was gives nothing back by this one.
create function tollgate.window_stepped_back_v1(p_window tollgate.token_windows, p_now bigint)
returns tollgate.token_windows
language plpgsql immutable
as $$
declare
  v_back constant bigint := p_window.ends[pg_catalog.array_length(p_window.ends, 1)] - p_now - p_window.resolution_ns;
begin
  p_window.since := greatest(p_window.since, p_window.ends[pg_catalog.array_length(p_window.ends, 1)]);
  p_window.ends := array(select e - v_back from pg_catalog.unnest(p_window.ends) as u (e) order by e);
  return p_window;
end
$$;

revoke all on function tollgate.window_stepped_back_v1(tollgate.token_windows, bigint) from public;
