-- The next three functions take columns, because a shard of a distributed table has another row type than the table.
--
-- window_is_sound(p_max_requests, p_interval, p_resolution, p_last_wait, p_ends, p_counts) -> whether a window's values are within
-- bounds, so that computing with them cannot overflow.
create or replace function tollgate.window_is_sound(
  p_max_requests bigint, p_interval bigint, p_resolution bigint, p_last_wait bigint, p_ends bigint[], p_counts bigint[])
returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select p_max_requests >= 1 and p_interval between 1 and 31622400000000000
         and p_resolution between 1 and 31622400000000000 and p_last_wait between 0 and 31622400000000000
         and cardinality(p_ends) = cardinality(p_counts)
         and not exists (select from unnest(p_ends, p_counts) as u (e, c)
                          where (u.e between 0 and 4611686018427387903 and u.c between 0 and 1000000000000000) is not true)
$$;

-- window_earliest: computes the earliest time at which at most p_room granted requests count. The result is never before the
-- time of a granted request.
--
-- Arguments: p_ends, p_counts, p_resolution: the window's columns; nanoseconds
--            p_interval  nanoseconds
--            p_room      requests
--            p_now       nanoseconds since 1970
-- Result:    nanoseconds since 1970
-- Errors:    none
-- Locks:     none
create or replace function tollgate.window_earliest(
  p_ends bigint[], p_counts bigint[], p_resolution bigint, p_interval bigint, p_room bigint, p_now bigint)
returns bigint
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_last    constant int := coalesce(pg_catalog.array_length(p_ends, 1), 0);
  v_from    bigint := p_now;
  v_counted bigint := 0;
begin
  if v_last > 0 then
    v_from := greatest(p_now, p_ends[v_last] - p_resolution);
  end if;
  for v_place in reverse v_last .. 1 loop
    v_counted := v_counted + p_counts[v_place];
    if v_counted > p_room then
      return greatest(v_from, p_ends[v_place] + p_interval);
    end if;
  end loop;
  return v_from;
end
$$;

-- window_stepped_back(p_ends, p_last_wait, p_resolution, p_now) -> whether the clock was set back, so that requests count from now
-- on that the old clock counted. Null for a window without requests.
create or replace function tollgate.window_stepped_back(p_ends bigint[], p_last_wait bigint, p_resolution bigint, p_now bigint)
returns boolean
language sql immutable
return p_ends[array_length(p_ends, 1)] - p_now > p_last_wait + p_resolution + 1000000000;

-- window_count: counts requests in a window at an instant, and drops the counts that have expired.
--
-- Arguments: p_window
--            p_interval, p_resolution: nanoseconds
--            p_cost       requests
--            p_now, p_at: nanoseconds since 1970
-- Result:    the window
-- Errors:    none
-- Locks:     none
--
-- A window holds at most 2000 sub-intervals. Beyond, a past sub-interval is merged into the next one, so that its requests
-- count for longer: the one with the smallest delay in relation to its age. The window keeps the newest resolution.
create or replace function tollgate.window_count(
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
  -- An unused window has forgotten nothing, even if the clock was set back since the window was created.
  p_window.since := case when p_window.granted = 0 then p_now else greatest(
    p_window.since, (select max(e) from unnest(p_window.ends) as u (e) where e <= p_now - v_kept)) end;
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
  -- The longer interval applies until this request's counts are the only ones.
  p_window.interval_ns := case when v_last = 0 then p_interval else v_kept end;
  return p_window;
end
$$;

-- window_step_back: adapts a window to a clock that was set back.
--
-- Arguments: p_window
--            p_now  nanoseconds since 1970
-- Result:    the window
-- Errors:    none
-- Locks:     none
--
-- Requests counted by the old clock count from now on: keys are denied for one interval at most. An adjustment gives back
-- nothing of a request that acted by the old clock.
create or replace function tollgate.window_step_back(p_window tollgate.token_windows, p_now bigint)
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

-- window_taken_v1: the result of take_window_v1.
do $$
begin
  if to_regtype('tollgate.window_taken_v1') is null then
    create type tollgate.window_taken_v1 as (
      outcome       text,
      mode          text,
      now           bigint,
      scheduled_at  bigint,
      ends          bigint[],
      counts        bigint[],
      resolution_ns bigint
    );
  end if;
end
$$;

-- take_window_v1: decides one request under a sliding window exactly, or counts the request unconditionally.
--
-- Arguments: p_id             the window; its first request creates it
--            p_cost           requests, 1 or more; 0 with p_counting: only reads
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  requests that must remain for others
--            p_max_requests   maximum in any interval
--            p_interval, p_resolution: nanoseconds; the resolution divides the interval into 1 to 1000 parts
--            p_request_id     id of the request: a retry with the id is counted once; null: no id
--            p_hold           nanoseconds for which the id is remembered
--            p_counting       true: counts the request now, even beyond the maximum
-- Result:    outcome          'granted' or 'denied'; a wait that needs more than 1000 sub-intervals ahead is denied, too
--                             'never': p_cost + p_min_remaining exceeds the maximum
--                             'reused': the id belongs to another request
--            mode             the mode that decided instead of the counts: 'shadow', 'off' or 'block'; else null
--            now              instant of the decision, in nanoseconds since 1970
--            scheduled_at     when the request acts; with 'block', the end of the mode; null: no end
--            ends, counts, resolution_ns: the window's columns after the decision
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt. A denied request writes nothing, once the window exists.
create or replace function tollgate.take_window_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_min_remaining bigint, p_max_requests bigint, p_interval bigint,
  p_resolution bigint, p_request_id uuid, p_hold bigint, p_counting boolean)
returns tollgate.window_taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_max_counted  constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  w              tollgate.token_windows;
  r              tollgate.token_receipts;
  v_now          bigint := tollgate.clock();
  v_scheduled_at bigint;
  v_outcome      text := 'granted';
  v_mode         text;
  v_until        timestamptz;
  c_year         constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  -- A bucket and a window with one key have separate receipts: no bucket id starts with U+0001.
  c_bucket       constant text := chr(1) || p_id;
begin
  p_hold := least(greatest(coalesce(p_hold, 0), 0), c_year);
  if (p_id is not null
      and p_cost between case when p_counting then 0 else 1 end
                     and case when p_counting then 1000000000000 else c_max_counted end
      and p_min_remaining between 0 and c_max_counted
      and p_max_wait between 0 and c_year and p_max_requests between 1 and 1000000000000
      and p_resolution between 1000 and p_interval and p_interval <= c_year
      and (p_interval - 1) / p_resolution < 1000) is not true then
    raise exception 'tollgate: take_window_v1 needs a cost of 1 or more, a maximum of 1 to 10^12, an interval of a year '
                    'or less, and a resolution of a microsecond or more that divides it into 1 to 1000 parts'
      using errcode = 'invalid_parameter_value';
  end if;
  loop
    select nullif(coalesce(o.mode, case when tollgate.in_force(g.until, v_now) then g.mode end), 'enforce'),
           case when o.mode is null then g.until else o.expires_at end
      into v_mode, v_until
      from (values (p_id)) k (id)
      left join tollgate.token_mode g on true
      left join tollgate.token_overrides o on o.id = k.id and tollgate.in_force(o.expires_at, v_now);
    -- Reads the mode again after locking the row, because the lock can take time.
    exit when v_mode = 'off' or w.id is not null;
    loop
      select t.* into w from tollgate.token_windows t where t.id = p_id for no key update;
      exit when found;
      insert into tollgate.token_windows (id, max_requests, interval_ns, resolution_ns, since)
      values (p_id, p_max_requests, p_interval, p_resolution, v_now)
      on conflict do nothing;
    end loop;
    v_now := tollgate.clock();
  end loop;
  if v_mode = 'off' then
    -- The answer shows the counts, but the routine locks and creates nothing.
    select t.* into w from tollgate.token_windows t where t.id = p_id;
    if not found then
      w.ends := '{}';
      w.counts := '{}';
      w.resolution_ns := p_resolution;
    end if;
  else
    if tollgate.window_stepped_back(w.ends, w.last_wait, w.resolution_ns, v_now) then
      w := tollgate.window_step_back(w, v_now);
      update tollgate.token_windows t set ends = w.ends, since = w.since where t.id = p_id;
    end if;
    if p_request_id is not null then
      delete from tollgate.token_receipts t where t.id = p_request_id and t.bucket = c_bucket and t.expires_at <= v_now;
      select t.* into r from tollgate.token_receipts t where t.id = p_request_id and t.bucket = c_bucket;
    end if;
  end if;
  if v_mode = 'shadow' then
    p_max_wait := 0;
  end if;
  v_scheduled_at := v_now;

  if v_mode = 'off' then
    null;
  elsif r.id is not null then
    v_outcome := case when r.cost = p_cost and r.state <> 'cancelled' then 'granted' else 'reused' end;
    v_mode := null;
    v_scheduled_at := greatest(r.scheduled_at, v_now);
  elsif v_mode = 'block' then
    v_outcome := 'denied';
    v_scheduled_at := tollgate.end_ns(v_until);
  elsif not p_counting and p_cost > p_max_requests - p_min_remaining then
    v_outcome := 'never';
  else
    v_scheduled_at := tollgate.window_earliest(
      w.ends, w.counts, w.resolution_ns, p_interval, p_max_requests - p_cost - p_min_remaining, v_now);
    if v_scheduled_at > v_now and w.ends[array_length(w.ends, 1) - 999] > v_now
       and w.ends[array_length(w.ends, 1)] < (v_scheduled_at / p_resolution + 1) * p_resolution then
      v_scheduled_at := 9223372036854775807;
    end if;
    if p_counting then
      v_scheduled_at := v_now;
    elsif v_scheduled_at > v_now + p_max_wait then
      v_outcome := case v_mode when 'shadow' then 'granted' else 'denied' end;
    else
      v_mode := null;
    end if;
    if p_cost > 0 and (p_counting or v_scheduled_at <= v_now + p_max_wait) then
      w := tollgate.window_count(
        w, p_interval, p_resolution, p_cost, v_now,
        case when p_counting then greatest(v_now, w.ends[array_length(w.ends, 1)] - w.resolution_ns) else v_scheduled_at end);
      update tollgate.token_windows t
         set ends = w.ends, counts = w.counts, granted = w.granted, last_wait = w.last_wait,
             max_requests = p_max_requests, interval_ns = w.interval_ns, resolution_ns = w.resolution_ns, since = w.since
       where t.id = p_id;
      if p_request_id is not null then
        insert into tollgate.token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
        values (p_request_id, c_bucket, p_cost, 0, v_scheduled_at, 'open', v_now + p_hold);
      end if;
    else
      v_scheduled_at := v_now;
    end if;
  end if;
  return (v_outcome, v_mode, v_now, v_scheduled_at, w.ends, w.counts, w.resolution_ns)::tollgate.window_taken_v1;
end
$$;

insert into tollgate.migrations (version, name) values (7, '0007_windows') on conflict do nothing;
