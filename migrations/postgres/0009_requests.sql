-- has_units_of(burst, step_ns, step_ticks, token_ticks and anchor of a bucket, limits) -> whether the limits have these units. A
-- function, because Citus does not plan a subquery in the condition of a join.
create or replace function tollgate.has_units_of(
  p_burst bigint, p_step_ns bigint, p_step_ticks bigint, p_token_ticks bigint, p_anchor bigint,
  p_capacity numeric, p_refill_seconds numeric, p_refill text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
  select (t.burst, t.step_ns, t.step_ticks, t.token_ticks) = (p_burst, p_step_ns, p_step_ticks, p_token_ticks)
    from tollgate.bucket_limits('', p_capacity, p_refill_seconds, p_refill, p_anchor) t
$$;

-- token_bucket_levels: the state of each bucket in tokens and timestamps, as of now. Reads only; locks nothing.
--
--   capacity, refill_seconds, refill: the limits that the last request used
--   overridden      whether the limits are an override's
--   available       whole tokens; negative: promised to requests that wait for them
--   full_at         when the bucket is full again; null: full, or never
--   next_refill_at  when the next token comes; null: full, or never
--
-- available is null if the row's values are out of bounds, so that one row cannot fail the whole read.
create or replace view tollgate.token_bucket_levels as
select b.id, b.burst / nullif(b.token_ticks, 0) as capacity,
       case when l.clock is not null
            then floor((b.burst - greatest(b.full_at - l.clock, 0))::numeric / b.token_ticks::numeric)::bigint
       end as available,
       -- The units of the state show the limits of an override that was changed or deleted.
       case when not b.overridden then b.refill_seconds
            when o.id is not null then o.refill_seconds
            else round(case b.step_ns when 1 then b.burst when 9223372036854775807 then 0 else b.step_ns end::numeric
                       / 1000000000::numeric, 9) end as refill_seconds,
       case when not b.overridden then b.refill
            when o.id is not null then o.refill
            else case b.step_ns when 1 then 'continuous' when 9223372036854775807 then 'once' else 'interval' end
       end as refill,
       b.plan, b.provisioned, b.overridden, b.granted,
       case when b.full_at > l.clock and b.step_ns < 9223372036854775807
            then to_timestamp((tollgate.instant_of(b.anchor, b.step_ns, b.step_ticks, b.full_at)::numeric
                               / 1000000000::numeric)::float8)
       end as full_at,
       case when b.full_at > l.clock and b.step_ns < 9223372036854775807
            then to_timestamp((tollgate.instant_of(
                   b.anchor, b.step_ns, b.step_ticks,
                   b.full_at - (b.full_at - l.clock - 1) / b.token_ticks * b.token_ticks)::numeric
                   / 1000000000::numeric)::float8)
       end as next_refill_at
  from (select tollgate.clock() as now) n
 cross join tollgate.token_buckets b
  left join tollgate.token_overrides o
    on o.id = b.id and b.overridden and o.capacity is not null
       -- The bounds are checked first, because bucket_limits raises an error for limits out of bounds.
       and case when o.capacity between 1 and 3155760000000000000 and o.capacity = trunc(o.capacity)
                     and o.refill in ('interval', 'calendar', 'continuous', 'once')
                     and abs(o.refill_seconds) < 10000000000
                     and (o.refill = 'once'
                          or o.refill_seconds > 0 and o.refill_seconds <= 3155760000
                             and o.refill_seconds * 1000000000 >= o.capacity
                             and (o.refill <> 'continuous'
                                  or ceil(o.refill_seconds * 1000000000 / greatest(o.capacity, 1)) * o.capacity
                                     <= least(o.refill_seconds * 1001000000, 3155760000000000000)))
                then tollgate.has_units_of(b.burst, b.step_ns, b.step_ticks, b.token_ticks, b.anchor, o.capacity, o.refill_seconds,
                                           o.refill)
                when o.refill like 'calendar %' then (o.capacity, 1) = (b.burst, b.token_ticks) end
 cross join lateral (
   select case when b.burst between 1 and 4611686018427387903 and b.token_ticks >= 1
                    and b.step_ticks between 1 and b.step_ns and b.anchor between 0 and 4611686018427387903
                    and b.full_at >= -4611686018427387904
               then case when b.step_ns = 9223372036854775807
                              or b.full_at / b.step_ticks + (b.full_at % b.step_ticks > 0)::int
                              <= (9223372036854775807 - b.anchor) / b.step_ns
                         then tollgate.ticks_at(b.anchor, b.step_ns, b.step_ticks, n.now) end
          end as clock) l;

-- The view called it in a schema before the first release.
drop function if exists tollgate.bucket_limits(text, numeric, numeric, text);

comment on view tollgate.token_bucket_levels is 'Each bucket: capacity, tokens available now, full at, next refill';

-- token_window_levels: the state of each sliding window that counted a request, as of now. Reads only; locks nothing.
--
--   max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is the longest
--                   interval since the window was empty
--   counted         requests that count now; above the maximum: promised to requests that wait
--   available       requests that can still be granted; negative: promised
--   granted         requests granted since the creation of the window
--   retry_after_ms  milliseconds until one more request is granted with mode 'enforce'; 0: now
--
-- counted is null if the row's values are out of bounds, so that one row cannot fail the whole read.
create or replace view tollgate.token_window_levels as
select w.id, w.max_requests, w.interval_ns * 0.000000001 as interval_seconds,
       w.resolution_ns * 0.000000001 as resolution_seconds, c.counted, w.max_requests - c.counted as available, w.granted,
       case when c.counted is not null
            then (tollgate.window_earliest(w.ends, w.counts, w.resolution_ns, w.interval_ns, w.max_requests - 1, n.now)
                  - n.now + 999999) / 1000000
       end as retry_after_ms
  from (select tollgate.clock() as clock) k
 cross join tollgate.token_windows w
 -- After a backward step of the clock, requests counted by the old clock count from now on.
 cross join lateral (
   select case when not tollgate.window_is_sound(
                     w.max_requests, w.interval_ns, w.resolution_ns, w.last_wait, w.ends, w.counts)
               then null
               when tollgate.window_stepped_back(w.ends, w.last_wait, w.resolution_ns, k.clock)
               then w.ends[array_length(w.ends, 1)] - w.resolution_ns else k.clock end as now) n
 cross join lateral (
   select case when n.now is not null
               then coalesce(sum(u.c) filter (where u.e > n.now - w.interval_ns), 0)::bigint end as counted
     from unnest(w.ends, w.counts) as u (e, c)) c
 where w.granted <> 0;

comment on view tollgate.token_window_levels is
  'Each sliding window: its limits, the current count, and when the next request passes';

-- taken_clock(p_taken) -> the time of the bucket's own clock at the decision, in ticks.
create or replace function tollgate.taken_clock(p_taken tollgate.taken_v1) returns bigint
language sql immutable
as $$
  select (p_taken.now - p_taken.anchor) / p_taken.step_ns * p_taken.step_ticks
$$;

-- taken_remaining(p_taken) -> the whole tokens that remain.
create or replace function tollgate.taken_remaining(p_taken tollgate.taken_v1) returns bigint
language sql immutable
as $$
  select greatest((p_taken.burst - greatest(p_taken.full_at - tollgate.taken_clock(p_taken), 0))
                  / p_taken.token_ticks, 0)
$$;

-- taken_until(p_taken, p_tokens) -> milliseconds from the decision until p_tokens tokens are available, rounded up; null:
-- never.
create or replace function tollgate.taken_until(p_taken tollgate.taken_v1, p_tokens bigint) returns bigint
language plpgsql immutable
as $$
declare
  v_tick bigint;
begin
  if p_tokens > p_taken.burst / p_taken.token_ticks then
    return null;
  end if;
  v_tick := greatest(p_taken.full_at, tollgate.taken_clock(p_taken))
            + (p_tokens * p_taken.token_ticks - p_taken.burst);
  if p_taken.step_ns = 9223372036854775807 then
    return case when v_tick <= 0 then 0 end;
  end if;
  -- Also true of a clock that was set back to before its start.
  if v_tick <= tollgate.taken_clock(p_taken) then
    return 0;
  end if;
  -- Computes in integers: numeric division rounds, and over years the error exceeds a nanosecond.
  return (greatest(
    p_taken.anchor + (v_tick / p_taken.step_ticks + (v_tick % p_taken.step_ticks > 0)::int) * p_taken.step_ns - p_taken.now, 0)
    + 999999) / 1000000;
end
$$;

-- raise_undecided: raises the error of a request that has no decision.
--
-- Arguments: p_id, p_tokens, p_min_remaining, p_plan, p_request_id: the request, for the message
--            p_taken  the answer of take_v1
-- Result:    none
-- Errors:    22023, P0002: as for request_tokens_v1
-- Locks:     none
create or replace function tollgate.raise_undecided(
  p_id text, p_tokens bigint, p_min_remaining bigint, p_plan text, p_request_id uuid, p_taken tollgate.taken_v1)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  case p_taken.outcome
    when 'unknown' then
      raise exception 'tollgate: there is no bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Provision it: select tollgate.create_bucket(%L, 100, 60); -- 100 tokens a minute',
                            left(p_id, 255));
    when 'unplanned' then
      raise exception 'tollgate: there is no plan for bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Make it: select tollgate.create_plan(%L, 100, 60); -- 100 tokens a minute',
                            left(coalesce(p_plan, (select b.plan from tollgate.token_buckets b where b.id = p_id), 'free'),
                                 255));
    when 'conflict' then
      raise exception 'tollgate: bucket % is provisioned with another limit', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Ask without a plan, or use another id.';
    when 'reused' then
      raise exception 'tollgate: the id % belongs to another request', p_request_id
        using errcode = 'invalid_parameter_value', hint = 'Give each request an id of its own.';
    when 'never' then
      raise exception 'tollgate: bucket % holds % tokens: a cost of % plus a minimum remaining of % can never be granted',
                      quote_literal(p_id), p_taken.burst / p_taken.token_ticks, p_tokens, p_min_remaining
        using errcode = 'invalid_parameter_value', hint = 'Ask for fewer tokens, or give the bucket a larger capacity.';
    else
      null;
  end case;
end
$$;

-- taken_levels(p_taken, p_demand: the tokens and the minimum remaining of the request) -> the values of an answer for callers: see
-- request_tokens_v1.
create or replace function tollgate.taken_levels(
  p_taken tollgate.taken_v1, p_demand bigint,
  out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql immutable
as $$
begin
  wait_ms := case when p_taken.outcome = 'granted' then (p_taken.scheduled_at - p_taken.now + 999999) / 1000000 else 0 end;
  if p_taken.token_ticks is null then
    -- The mode is 'off', and the bucket does not exist.
    remaining := p_taken.burst;
    retry_after_ms := 0;
    reset_after_ms := 0;
    return;
  end if;
  remaining := tollgate.taken_remaining(p_taken);
  retry_after_ms := tollgate.taken_until(p_taken, p_demand);
  if p_taken.outcome = 'denied' and p_taken.mode = 'block' then
    retry_after_ms := (p_taken.scheduled_at - p_taken.now + 999999) / 1000000;
  end if;
  reset_after_ms := tollgate.taken_until(p_taken, p_taken.burst / p_taken.token_ticks);
end
$$;

-- limit_ids(p_name, p_plan) -> the ids of a key's buckets under a plan, in the order of its limits; for p_name = p_plan, the names
-- of the limits in token_plans.
create or replace function tollgate.limit_ids(p_name text, p_plan text) returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(p_name || case when l.place = 1 then '' else chr(1) || l.limit_name end order by l.place),
                  array[p_name])
    from tollgate.token_plan_limits l where l.plan = p_plan
$$;

-- request_tokens_all: takes tokens from all of several buckets, or from none.
--
-- Arguments: p_ids            the buckets, each once
--            p_tokens         tokens to take from each, whole numbers below 2^53
--            p_plans          plan of each bucket that its first request creates; null: the buckets exist
--            p_max_wait_ms, p_min_remaining, p_request_id: as for request_tokens_v1, for all buckets
-- Result:    one row per bucket, in the order given
--            id               the bucket
--            granted          whether the tokens of all buckets were taken
--            affords          whether this bucket has the tokens
--            remaining, wait_ms, retry_after_ms, reset_after_ms: as for request_tokens_v1, of this bucket
-- Errors:    as for request_tokens_v1
-- Locks:     as for take_all_v1
create or replace function tollgate.request_tokens_all(
  p_ids text[], p_tokens double precision[], p_plans text[] default null, p_max_wait_ms double precision default 0,
  p_min_remaining double precision default 0, p_request_id uuid default null)
returns table (
  id text, granted boolean, affords boolean, remaining bigint, wait_ms bigint, retry_after_ms bigint, reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t         record;
  v_all     boolean;
  v_places  bigint[];
  v_taken   tollgate.taken_v1[];
  v_none    constant text[] := array_fill(null::text, array[coalesce(cardinality(p_ids), 0)]);
  c_day     constant bigint := 86400000000000;  -- one day in nanoseconds
  c_year_ms constant bigint := 31622400000;
  c_inexact constant double precision := 9007199254740992;
begin
  if (cardinality(p_ids) between 1 and 256 and cardinality(p_tokens) = cardinality(p_ids)
      and coalesce(cardinality(p_plans) = cardinality(p_ids), true)
      and array_position(p_ids, null) is null and 1 <= all (p_tokens) and c_inexact > all (p_tokens)
      and not exists (select from unnest(p_tokens) x where x <> trunc(x))
      and p_max_wait_ms between 0 and 'infinity' and p_max_wait_ms = trunc(p_max_wait_ms)
      and p_min_remaining >= 0 and p_min_remaining < c_inexact and p_min_remaining = trunc(p_min_remaining)) is not true then
    raise exception 'tollgate: request_tokens_all: give 1 to 256 ids, as many numbers of tokens, each 1 or more, as many plans '
                    'or none, and a maximum wait and a minimum remaining of 0 or more, as whole numbers; tokens below 2^53'
      using errcode = 'invalid_parameter_value';
  end if;
  select array_agg(a.entry), array_agg(a.taken) into v_places, v_taken
    from tollgate.take_all_v1(
           p_ids, p_tokens::bigint[], array_fill(p_min_remaining::bigint, array[cardinality(p_ids)]), v_none::bigint[],
           v_none::numeric[], v_none, coalesce(p_plans, v_none), least(p_max_wait_ms, c_year_ms)::bigint * 1000000,
           p_request_id, c_day) a;
  v_all := (select bool_and(w.outcome = 'granted') from unnest(v_taken) w);
  for t in select u.place, u.nth from unnest(v_places) with ordinality u (place, nth) order by u.place loop
    perform tollgate.raise_undecided(p_ids[t.place], p_tokens[t.place]::bigint, p_min_remaining::bigint, p_plans[t.place],
                                     p_request_id, v_taken[t.nth]);
    id := p_ids[t.place];
    granted := v_all;
    affords := v_taken[t.nth].outcome in ('granted', 'spared');
    select r.remaining, r.wait_ms, r.retry_after_ms, r.reset_after_ms into remaining, wait_ms, retry_after_ms, reset_after_ms
      from tollgate.taken_levels(v_taken[t.nth], p_tokens[t.place]::bigint + p_min_remaining::bigint) r;
    return next;
  end loop;
end
$$;

-- request_tokens_v1: takes tokens from a provisioned bucket, or from one that follows a plan. Takes all or none.
--
-- Arguments: p_id             the bucket
--            p_tokens         tokens to take, 1 or more; this and the next two are whole numbers, tokens below 2^53
--            p_max_wait_ms    longest wait in milliseconds; 0: no wait
--            p_min_remaining  tokens that must remain for others
--            p_plan           plan of a bucket that its first request creates; null: the bucket exists. With several limits,
--                             takes from all of them, and answers with the values of the tightest
--            p_request_id     id of the request: a retry with the id within a day is charged once
-- Result:    granted          whether the tokens were taken
--            remaining        whole tokens left
--            wait_ms          milliseconds until you can use the tokens: 0, or up to p_max_wait_ms
--            retry_after_ms   milliseconds until an equal request would be granted; 0: now; null: never, or unknown
--            reset_after_ms   milliseconds until the bucket is full; null: never
-- Errors:    22023 arguments out of range, or more tokens than the bucket can hold · P0002 no such bucket or plan
-- Locks:     as for take_v1. In your transaction, the bucket stays locked until the end, and a rollback gives the tokens back.
create or replace function tollgate.request_tokens_v1(
  p_id text, p_tokens double precision, p_max_wait_ms double precision, p_min_remaining double precision, p_plan text,
  p_request_id uuid,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t               tollgate.taken_v1;
  v_ids           text[];
  v_tokens        bigint;
  v_min_remaining bigint;
  c_never         constant bigint := 9223372036854775807;
  c_day           constant bigint := 86400000000000;  -- one day in nanoseconds
  c_year_ms       constant bigint := 31622400000;
  c_inexact       constant double precision := 9007199254740992;
begin
  if (p_id is not null and p_tokens >= 1 and p_tokens < c_inexact and p_tokens = trunc(p_tokens)
      and p_max_wait_ms between 0 and 'infinity' and p_max_wait_ms = trunc(p_max_wait_ms)
      and p_min_remaining >= 0 and p_min_remaining < c_inexact
      and p_min_remaining = trunc(p_min_remaining)) is not true then
    raise exception 'tollgate: request_tokens(%, %, %, %): give a bucket''s id, 1 token or more, and a maximum wait '
                    'and a minimum remaining of 0 or more, as whole numbers; tokens below 2^53',
                    quote_nullable(left(p_id, 255)), p_tokens, p_max_wait_ms, p_min_remaining
      using errcode = 'invalid_parameter_value';
  end if;
  if p_plan is not null and exists (select from tollgate.token_plan_limits l where l.plan = p_plan) then
    if exists (select from tollgate.token_plan_limits l where l.plan = p_plan and l.cost_name is not null) then
      raise exception 'tollgate: a limit of plan % counts a cost with a name', quote_literal(p_plan)
        using errcode = 'invalid_parameter_value',
              hint = 'State the tokens of each limit: see request_tokens_all and limit_ids.';
    end if;
    v_ids := tollgate.limit_ids(p_id, p_plan);
    select bool_and(a.granted), (array_agg(a.remaining order by a.affords, a.retry_after_ms desc nulls first, a.remaining))[1],
           max(a.wait_ms), nullif(max(coalesce(a.retry_after_ms, c_never)), c_never),
           nullif(max(coalesce(a.reset_after_ms, c_never)), c_never)
      into granted, remaining, wait_ms, retry_after_ms, reset_after_ms
      from tollgate.request_tokens_all(
             v_ids, array_fill(p_tokens, array[cardinality(v_ids)]), tollgate.limit_ids(p_plan, p_plan), p_max_wait_ms,
             p_min_remaining, p_request_id) a;
    return;
  end if;
  v_tokens := p_tokens;
  v_min_remaining := p_min_remaining;

  t := tollgate.take_v1(p_id, v_tokens, least(p_max_wait_ms, c_year_ms)::bigint * 1000000, v_min_remaining, null, null, null,
                        p_plan, p_request_id, c_day);
  if t.outcome not in ('granted', 'denied') then
    perform tollgate.raise_undecided(p_id, v_tokens, v_min_remaining, p_plan, p_request_id, t);
  end if;
  granted := t.outcome = 'granted';
  select r.remaining, r.wait_ms, r.retry_after_ms, r.reset_after_ms into remaining, wait_ms, retry_after_ms, reset_after_ms
    from tollgate.taken_levels(t, v_tokens + v_min_remaining) r;
end
$$;

-- request_tokens: calls the current version, request_tokens_v1.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
create or replace function tollgate.request_tokens(
  p_id text, p_tokens double precision default 1, p_max_wait_ms double precision default 0,
  p_min_remaining double precision default 0, p_plan text default null, p_request_id uuid default null,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, p_plan, p_request_id)
$$;

-- request_token: takes one token from a provisioned bucket, without a wait.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
create or replace function tollgate.request_token(
  p_id text,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  select t.granted, t.remaining, t.wait_ms, t.retry_after_ms, t.reset_after_ms
    into granted, remaining, wait_ms, retry_after_ms, reset_after_ms
    from tollgate.request_tokens_v1(p_id, 1, 0, 0, null, null) t;
end
$$;

-- request_tokens_many: takes tokens from several provisioned buckets in one call, each by itself.
--
-- Arguments: p_ids           the buckets
--            p_tokens        tokens to take from each, whole numbers below 2^53
-- Result:    one row per request, in the order given
--            id              the bucket
--            outcome         'granted', 'denied', or another outcome of take_v1
--            remaining, retry_after_ms: as for request_tokens_v1; null: undecided
-- Errors and locks: as for take_each_v1
create or replace function tollgate.request_tokens_many(p_ids text[], p_tokens double precision[])
returns table (id text, outcome text, remaining bigint, retry_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_none constant bigint[] := array_fill(0::bigint, array[coalesce(cardinality(p_ids), 0)]);
  v_once constant bigint[] := array_fill(1::bigint, array[coalesce(cardinality(p_ids), 0)]);
begin
  if p_ids is null or p_tokens is null or cardinality(p_ids) <> cardinality(p_tokens)
     or array_position(p_ids, null) is not null or array_position(p_tokens, null) is not null
     or 1 > any (p_tokens) or 9007199254740992 <= any (p_tokens)
     or exists (select from unnest(p_tokens) x where x <> trunc(x)) then
    raise exception 'tollgate: request_tokens_many needs as many numbers of tokens, each a whole number of 1 or more below '
                    '2^53, as bucket ids'
      using errcode = 'invalid_parameter_value';
  end if;
  return query
    select p_ids[t.entry], (t.taken).outcome,
           case when (t.taken).outcome in ('granted', 'denied') then tollgate.taken_remaining(t.taken) end,
           case when (t.taken).outcome = 'denied' and (t.taken).mode = 'block'
                then ((t.taken).scheduled_at - (t.taken).now + 999999) / 1000000
                when (t.taken).outcome in ('granted', 'denied')
                then tollgate.taken_until(t.taken, p_tokens[t.entry]::bigint) end
      from tollgate.take_each_v1(
             array(select generate_series(1, cardinality(p_ids))), p_ids, v_once, p_tokens::bigint[], v_none, v_none, null, null,
             null, null, null, null) a,
           lateral tollgate.answers_each(a) t
     order by t.entry;
end
$$;

-- rate_limiting_request: takes one token from a bucket that its first request creates, full, with continuous refill.
--
-- Arguments: p_rate_id         the bucket
--            p_refill_per_sec  tokens per second
--            p_window_seconds  seconds' worth of tokens that the bucket holds; both are whole numbers
-- Result:    the tokens left, or -1 if the request is denied; a denied call changes nothing
-- Errors:    22023, 23514 invalid limits · 22023 the bucket was provisioned with other limits
-- Locks:     as for take_v1
create or replace function tollgate.rate_limiting_request(
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
    raise exception 'tollgate: bucket % was provisioned with other limits', quote_literal(p_rate_id)
      using errcode = 'invalid_parameter_value',
            hint = 'Take its tokens with tollgate.request_token, or use an id of its own here.';
  elsif t.outcome = 'denied' then
    return -1;
  end if;
  return coalesce(tollgate.taken_remaining(t), t.burst);
end
$$;

-- request_tokens_in_window_v1: grants at most p_max_requests requests in any interval, whenever the interval starts.
--
-- Arguments: p_id                  the window; its first request creates it
--            p_max_requests        maximum in any interval; a whole number, like p_tokens and p_max_wait_ms
--            p_interval_seconds    up to one year, fractions allowed
--            p_resolution_seconds  length of the 1 to 1000 parts of the interval; a request counts until one interval after the
--                                  end of its part
--            p_tokens              requests that this one stands for
--            p_max_wait_ms         longest wait in milliseconds
-- Result:    granted               whether you can proceed
--            remaining             requests that can still be granted
--            wait_ms               milliseconds until you can proceed: 0, or up to p_max_wait_ms
--            retry_after_ms        milliseconds until an equal request would be granted; 0: now; null: unknown
--            reset_after_ms        milliseconds until no request counts
-- Errors:    22023 arguments out of range, or more tokens than the maximum
-- Locks:     the window's row. In your transaction, the row stays locked until the end, and a rollback removes the request.
create or replace function tollgate.request_tokens_in_window_v1(
  p_id text, p_max_requests double precision, p_interval_seconds double precision,
  p_resolution_seconds double precision, p_tokens double precision, p_max_wait_ms double precision,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t              tollgate.window_taken_v1;
  v_interval     bigint;
  v_max_requests bigint;
  v_tokens       bigint;
  v_last         int;
begin
  if (p_max_requests between 0 and 1000000000000 and p_max_requests = trunc(p_max_requests)
      and p_tokens < 9007199254740992 and p_tokens = trunc(p_tokens) and p_max_wait_ms = trunc(p_max_wait_ms)
      and p_interval_seconds > 0 and p_interval_seconds <= 31622400 and p_resolution_seconds > 0
      and p_resolution_seconds <= p_interval_seconds and p_max_wait_ms between 0 and 31622400000
      and p_tokens >= 1) is not true then
    raise exception 'tollgate: request_tokens_in_window(%, %, %, %, %, %): give an interval of up to a year, a resolution '
                    'of up to that, at most 10^12 requests, 1 token or more and a maximum wait of 0 or more, in whole numbers',
                    quote_nullable(left(p_id, 255)), p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens,
                    p_max_wait_ms
      using errcode = 'invalid_parameter_value';
  end if;
  v_interval := p_interval_seconds::numeric * 1000000000;
  v_max_requests := p_max_requests;
  v_tokens := p_tokens;
  t := tollgate.take_window_v1(p_id, v_tokens, p_max_wait_ms::bigint * 1000000, 0, v_max_requests,
                               v_interval, (p_resolution_seconds::numeric * 1000000000)::bigint, null, 0, false);
  if t.outcome = 'never' then
    raise exception 'tollgate: the window of % allows at most % requests, fewer than %', quote_literal(p_id),
                    v_max_requests, v_tokens using errcode = 'invalid_parameter_value';
  end if;
  v_last := array_length(t.ends, 1);
  granted := t.outcome = 'granted';
  remaining := greatest(v_max_requests - coalesce((
    select sum(c) from unnest(t.ends, t.counts) as u (e, c) where e > t.now - v_interval), 0), 0);
  wait_ms := case when granted then (t.scheduled_at - t.now + 999999) / 1000000 else 0 end;
  retry_after_ms := (case
    when t.mode = 'block' then t.scheduled_at
    else tollgate.window_earliest(t.ends, t.counts, t.resolution_ns, v_interval, v_max_requests - v_tokens, t.now)
    end - t.now + 999999) / 1000000;
  reset_after_ms := coalesce((greatest(t.ends[v_last] + v_interval - t.now, 0) + 999999) / 1000000, 0);
end
$$;

-- request_tokens_in_window: calls the current version, request_tokens_in_window_v1.
--
-- Arguments, result, errors and locks: as for request_tokens_in_window_v1
create or replace function tollgate.request_tokens_in_window(
  p_id text, p_max_requests double precision, p_interval_seconds double precision,
  p_resolution_seconds double precision, p_tokens double precision default 1, p_max_wait_ms double precision default 0,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_in_window_v1(
    p_id, p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens, p_max_wait_ms)
$$;

-- peek: reads the row of one bucket in token_bucket_levels.
--
-- Arguments: p_id  the bucket
-- Result:    one row; none if the bucket does not exist
-- Errors:    none
-- Locks:     none
--
-- Serves roles that can read a bucket whose name they know, but that cannot list buckets.
create or replace function tollgate.peek(p_id text) returns setof tollgate.token_bucket_levels
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return query select l.* from tollgate.token_bucket_levels l where l.id = p_id;
end
$$;

-- charge: takes tokens that were used already, also if the bucket holds fewer: it then denies requests until it has refilled.
--
-- Arguments: p_id           the bucket
--            p_tokens       tokens, 1 or more, a whole number below 2^53
--            p_plan         plan of a bucket that its first request creates; null: the bucket exists. With several limits, charges
--                           those that count the tokens of the request
--            p_request_id   id of the charge: a retry with the id within a day charges nothing; null: not remembered
-- Result:    charged        false: a charge with this id was made before
--            available      tokens left, of the limit with the fewest; negative: owed
-- Errors:    22023 arguments out of range · P0002 no such bucket or plan
-- Locks:     the bucket's row, then the receipt; with several limits in their order
create or replace function tollgate.charge(
  p_id text, p_tokens double precision, p_plan text default null, p_request_id uuid default null,
  out charged boolean, out available bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_limit   record;
  v_outcome text;
begin
  if (p_id is not null and p_tokens >= 1 and p_tokens < 9007199254740992 and p_tokens = trunc(p_tokens)) is not true then
    raise exception 'tollgate: charge(%, %): give a bucket''s id and 1 token or more, a whole number below 2^53',
                    quote_nullable(left(p_id, 255)), p_tokens
      using errcode = 'invalid_parameter_value';
  end if;
  for v_limit in
    select p_id || s.suffix as id, p_plan || s.suffix as plan
      from (select case when l.place = 1 then '' else chr(1) || l.limit_name end as suffix
              from tollgate.token_plan_limits l where l.plan = p_plan and l.cost_name is null
             union all
            select '' where not exists (select from tollgate.token_plan_limits l where l.plan = p_plan)) s
     order by s.suffix collate "C"
  loop
    v_outcome := (tollgate.adjust_v1('charge', p_request_id, v_limit.id, 1, 0, 0, p_tokens::bigint)).outcome;
    if v_outcome = 'unknown' and p_plan is not null then
      -- Creates the bucket.
      v_outcome := tollgate.throttle_v1(v_limit.id, null, 0, null, null, null, v_limit.plan);
      if v_outcome = 'unchanged' then
        v_outcome := (tollgate.adjust_v1('charge', p_request_id, v_limit.id, 1, 0, 0, p_tokens::bigint)).outcome;
        -- The mode is 'off', and there is still no bucket.
        v_outcome := case v_outcome when 'unknown' then 'done' else v_outcome end;
      end if;
    end if;
    if v_outcome not in ('done', 'repeated') then
      perform tollgate.raise_undecided(v_limit.id, p_tokens::bigint, 0, v_limit.plan, p_request_id,
                                       row(v_outcome, null, null, null, null, null, null, null, null, null,
                                           null)::tollgate.taken_v1);
    end if;
    charged := coalesce(charged, true) and v_outcome = 'done';
    available := least(available, (select p.available from tollgate.peek(v_limit.id) p));
  end loop;
  if charged is null then
    raise exception 'tollgate: each limit of plan % counts a cost with a name', quote_literal(p_plan)
      using errcode = 'invalid_parameter_value', hint = 'Charge the bucket of the limit: see limit_ids.';
  end if;
end
$$;

-- throttle: throttle_v1 in milliseconds, for a provisioned bucket or one that follows a plan.
--
-- Arguments: p_id              the bucket
--            p_remaining       tokens that are left at most; null: unknown
--            p_retry_after_ms  milliseconds until the next token at the earliest; null: unknown
--            p_max_wait_ms     upper bound of p_retry_after_ms. Default: one hour
--            p_plan            plan of a bucket that its first request creates; null: the bucket exists
-- Result:    whether the bucket held more
-- Errors:    22023 arguments out of range, or a wait for a bucket that never refills · P0002 no such bucket or plan
-- Locks:     as for throttle_v1. In your transaction, the bucket stays locked until the end.
create or replace function tollgate.throttle(
  p_id text, p_remaining double precision default null, p_retry_after_ms double precision default null,
  p_max_wait_ms double precision default 3600000, p_plan text default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_outcome text;
begin
  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and coalesce(p_retry_after_ms, 0) >= 0 and p_max_wait_ms >= 0
      and coalesce(p_remaining, p_retry_after_ms) is not null
      and coalesce(p_remaining, 0) < 9007199254740992 and greatest(p_retry_after_ms, p_max_wait_ms) <= 'infinity'
      and coalesce(p_remaining = trunc(p_remaining), true) and coalesce(p_retry_after_ms = trunc(p_retry_after_ms), true)
      and p_max_wait_ms = trunc(p_max_wait_ms)) is not true then
    raise exception 'tollgate: throttle(%, %, %, %): give a bucket''s id, and a number of tokens, a wait in '
                    'milliseconds, or both, of 0 or more, in whole numbers; of tokens, below 2^53',
                    quote_nullable(left(p_id, 255)), p_remaining, p_retry_after_ms, p_max_wait_ms
      using errcode = 'invalid_parameter_value';
  end if;
  v_outcome := tollgate.throttle_v1(
    p_id, p_remaining::bigint, least(coalesce(p_retry_after_ms, 0), p_max_wait_ms, 31622400000)::bigint * 1000000,
    null, null, null, p_plan);
  case v_outcome
    when 'unknown' then
      raise exception 'tollgate: there is no bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Provision it: select tollgate.create_bucket(%L, 100, 60); -- 100 tokens a minute',
                            left(p_id, 255));
    when 'unplanned' then
      raise exception 'tollgate: there is no plan for bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Make it: select tollgate.create_plan(%L, 100, 60); -- 100 tokens a minute',
                            left(coalesce(p_plan, (select b.plan from tollgate.token_buckets b where b.id = p_id), 'free'),
                                 255));
    when 'conflict' then
      raise exception 'tollgate: bucket % is provisioned with another limit', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Ask without a plan, or use another id.';
    when 'endless' then
      raise exception 'tollgate: bucket % never refills, so it cannot be throttled for a time', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Say how many tokens are left.';
    else
      null;
  end case;
  return v_outcome = 'lowered';
end
$$;

-- peek_window: reads one sliding window as of now.
--
-- Arguments: p_id             the window
-- Result:    one row; none if the window does not exist
--            max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is
--                             the longest interval since the window was empty
--            counted          requests that count now; above the maximum: promised to requests that wait
--            granted          requests granted since the creation of the window
--            retry_after_ms   milliseconds until one more request is granted with mode 'enforce'; 0: now
-- Errors:    none
-- Locks:     none
create or replace function tollgate.peek_window(p_id text)
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
  if not tollgate.window_is_sound(w.max_requests, w.interval_ns, w.resolution_ns, w.last_wait, w.ends, w.counts) then
    -- The row's values are out of bounds: the answer is unknown.
    return query select null::bigint, null::numeric, null::numeric, null::bigint, null::bigint, null::bigint;
    return;
  end if;
  v_now := tollgate.clock();
  if tollgate.window_stepped_back(w.ends, w.last_wait, w.resolution_ns, v_now) then
    -- After a backward step of the clock, requests counted by the old clock count from now on.
    v_now := w.ends[array_length(w.ends, 1)] - w.resolution_ns;
  end if;
  return query
    select w.max_requests, w.interval_ns * 0.000000001, w.resolution_ns * 0.000000001,
           coalesce(sum(u.c) filter (where u.e > v_now - w.interval_ns), 0)::bigint, w.granted,
           (tollgate.window_earliest(w.ends, w.counts, w.resolution_ns, w.interval_ns, w.max_requests - 1, v_now)
            - v_now + 999999) / 1000000
      from unnest(w.ends, w.counts) as u (e, c);
end
$$;

insert into tollgate.migrations (version, name) values (9, '0009_requests') on conflict do nothing;
