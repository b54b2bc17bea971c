-- evaluate: evaluates a request against the current state of a bucket. Takes nothing.
--
-- Arguments: p_bucket
--            p_mode, p_mode_until: as in the result of prepare_bucket
--            p_cost, p_max_wait, p_min_remaining: as for take_v1
--            p_now: nanoseconds since 1970
-- Result:    as for take_v1
-- Errors:    none
-- Locks:     none
create or replace function tollgate.evaluate(
  p_bucket tollgate.token_buckets, p_mode text, p_mode_until bigint,
  p_cost bigint, p_max_wait bigint, p_min_remaining bigint, p_now bigint)
returns tollgate.taken_v1
language plpgsql immutable
as $$
declare
  t     tollgate.taken_v1;
  v_due bigint;
begin
  t.now := p_now;
  t.scheduled_at := p_now;
  t.mode := p_mode;
  t.full_at := p_bucket.full_at;
  t.granted := p_bucket.granted;
  t.burst := p_bucket.burst;
  t.anchor := p_bucket.anchor;
  t.step_ns := p_bucket.step_ns;
  t.step_ticks := p_bucket.step_ticks;
  t.token_ticks := p_bucket.token_ticks;
  if p_mode = 'off' then
    t.outcome := 'granted';
  elsif p_mode = 'block' then
    t.outcome := 'denied';
    t.scheduled_at := p_mode_until;
  elsif p_cost > p_bucket.burst / p_bucket.token_ticks - p_min_remaining then
    t.outcome := 'never';
  else
    v_due := tollgate.bucket_due(p_bucket, p_cost, p_min_remaining);
    if v_due <= tollgate.bucket_clock(
                  p_bucket, greatest(p_now, least(p_now + case p_mode when 'shadow' then 0 else p_max_wait end,
                                                  p_bucket.period_end))) then
      t.outcome := 'granted';
      t.mode := null;
      if v_due > tollgate.bucket_clock(p_bucket, p_now) then
        t.scheduled_at := greatest(p_now, tollgate.bucket_instant(p_bucket, v_due));
      end if;
    else
      t.outcome := case p_mode when 'shadow' then 'granted' else 'denied' end;
    end if;
  end if;
  return t;
end
$$;

-- lock_all: locks the rows of buckets, and creates missing buckets that the first place naming them can create.
--
-- Arguments: p_ids, p_capacities, p_refill_seconds, p_refills, p_plans: as for take_all_v1, but an id can occur several times
-- Result:    none
-- Errors:    as for prepare_bucket
-- Locks:     the rows of all buckets, in id order; missing rows are created in that order
--
-- If a bucket is missing, each row is locked or created before the next one. Otherwise, a session that creates the missing
-- bucket at the same time could take from later buckets, too, and the two sessions would deadlock.
create or replace function tollgate.lock_all(
  p_ids text[], p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
set enable_seqscan = off  -- the plan would read all of a small table, and be kept while the table grows
set jit = off  -- token_mode has no other plan than a scan, whose cost would then start the compiler
as $$
declare
  v_first record;
begin
  perform from tollgate.token_buckets l
    where l.id = any (p_ids)
      and not exists (select from unnest(p_ids) m (id)
                       where not exists (select from tollgate.token_buckets x where x.id = m.id))
    order by l.id for no key update;
  if found then
    return;
  end if;
  if array_remove(p_plans, null) = '{}'
     and not exists (select from tollgate.token_mode g where g.mode <> 'enforce')
     and not exists (select from tollgate.token_overrides o where o.id = any (p_ids))
     and not exists (select from unnest(p_ids, p_capacities, p_refill_seconds, p_refills)
                              as i (id, capacity, refill_seconds, refill)
                      where (i.capacity is not null and i.refill is not null
                             and i.refill_seconds between 0 and 9999999999) is not true) then
    -- All missing buckets can be created, with limits that fit the columns. An existing row is only locked, never updated.
    insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor)
    select distinct on (i.id collate "C") i.id, i.capacity, i.refill_seconds, i.refill, false, 0
      from unnest(p_ids, p_capacities, p_refill_seconds, p_refills) with ordinality
           as i (id, capacity, refill_seconds, refill, place)
     order by i.id collate "C", i.place
        on conflict (id) do update set room = null where false;
    return;
  end if;
  for v_first in
    select distinct on (i.id collate "C") i.*
      from unnest(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans) with ordinality
           as i (id, capacity, refill_seconds, refill, plan, place)
     order by i.id collate "C", i.place
  loop
    perform from tollgate.token_buckets l where l.id = v_first.id for no key update;
    if not found then
      perform tollgate.prepare_bucket(v_first.id, v_first.capacity, v_first.refill_seconds, v_first.refill, v_first.plan,
                                      tollgate.clock(), false);
      perform from tollgate.token_buckets l where l.id = v_first.id for no key update;
    end if;
  end loop;
end
$$;

-- take_all_in_order: takes tokens from all of several buckets, or from none, one bucket after the other.
--
-- Arguments, result, errors and locks: as for take_all_v1
create or replace function tollgate.take_all_in_order(
  p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[], p_refill_seconds numeric[],
  p_refills text[], p_plans text[], p_max_wait bigint, p_request_id uuid, p_hold bigint)
returns table (entry bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_year        constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  v_order       bigint[];                  -- the positions in id order
  v_ids         bigint;                    -- the number of distinct ids
  v_buckets     tollgate.token_buckets[];  -- by position; null: the bucket does not exist
  v_taken       tollgate.taken_v1[];       -- by position
  v_takes       boolean[];                 -- by position: whether tokens are taken if all buckets grant
  t             tollgate.taken_v1;
  b             tollgate.token_buckets;
  r             tollgate.token_receipts;
  v_refused     text;                      -- columns of the result of prepare_bucket
  v_mode        text;
  v_until       bigint;
  v_row_changed boolean;
  v_capacity    bigint;
  v_place       bigint;
  v_now         bigint;
  v_acts_at     bigint;
  v_has_rules   boolean;
  v_changed     boolean;
begin
  select array_agg(i.place order by i.id collate "C"), count(distinct i.id) into v_order, v_ids
    from unnest(p_ids) with ordinality as i (id, place);
  if v_ids is distinct from cardinality(p_ids) or v_ids = 0 then
    raise exception 'tollgate: take_all_v1 needs distinct buckets' using errcode = 'invalid_parameter_value';
  end if;

  for v_attempt in 1 .. 100 loop
    -- Each row is locked or created before the next one. Otherwise, a session that creates a missing bucket at the same time
    -- could take from later buckets, too, and the two sessions would deadlock.
    v_buckets := array_fill(null::tollgate.token_buckets, array[v_ids::int]);
    foreach v_place in array v_order loop
      select l.* into b from tollgate.token_buckets l where l.id = p_ids[v_place] for no key update;
      if not found then
        perform tollgate.prepare_bucket(p_ids[v_place], p_capacities[v_place], p_refill_seconds[v_place], p_refills[v_place],
                                        p_plans[v_place], tollgate.clock(), false);
        select l.* into b from tollgate.token_buckets l where l.id = p_ids[v_place] for no key update;
      end if;
      v_buckets[v_place] := b;
    end loop;
    v_now := tollgate.clock();
    -- Null if the row of token_mode is missing; null leads to the call of prepare_bucket.
    select g.mode <> 'enforce' or exists (select 1 from tollgate.token_overrides o where o.id = any (p_ids))
      into v_has_rules from tollgate.token_mode g;
    v_taken := array_fill(null::tollgate.taken_v1, array[v_ids::int]);
    v_takes := array_fill(false, array[v_ids::int]);
    v_changed := false;
    foreach v_place in array v_order loop
      b := v_buckets[v_place];
      v_refused := null;
      v_mode := null;
      v_capacity := null;
      if v_has_rules is not false or b.id is null or p_plans[v_place] is not null or b.plan is not null or b.overridden
         or b.period_end <= v_now
         or p_capacities[v_place] <> b.capacity or p_refill_seconds[v_place] <> b.refill_seconds
         or p_refills[v_place] <> b.refill
         or num_nulls(p_capacities[v_place], p_refill_seconds[v_place], p_refills[v_place]) in (1, 2)
         or b.full_at - tollgate.bucket_clock(b, v_now) > tollgate.bucket_max_owed(b) then
        select w.outcome, w.mode, w.mode_until, w.changed, w.capacity
          into v_refused, v_mode, v_until, v_row_changed, v_capacity
          from tollgate.prepare_bucket(p_ids[v_place], p_capacities[v_place], p_refill_seconds[v_place],
                                       p_refills[v_place], p_plans[v_place], v_now,
                                       p_costs[v_place] <= b.burst / b.token_ticks - p_min_remainings[v_place]) w;
        -- Another session created the bucket since the rows were locked: it has to be locked, too.
        v_row_changed := v_row_changed or (b.id is null and v_refused is null and v_mode is distinct from 'off');
        v_changed := v_changed or v_row_changed;
        continue when v_row_changed;
      end if;
      if v_refused is not null then
        t := null;
        t.outcome := v_refused;
        t.now := v_now;
      else
        t := tollgate.evaluate(b, v_mode, v_until, p_costs[v_place], p_max_wait, p_min_remainings[v_place], v_now);
        t.burst := coalesce(t.burst, v_capacity);
      end if;
      r := null;
      if p_request_id is not null then
        delete from tollgate.token_receipts k
         where k.id = p_request_id and k.bucket = p_ids[v_place] and k.expires_at <= v_now;
      end if;
      if p_request_id is not null and v_refused is null and v_mode is distinct from 'off' then
        select k.* into r from tollgate.token_receipts k where k.id = p_request_id and k.bucket = p_ids[v_place];
      end if;
      if r.id is not null then
        t.outcome := case when r.cost = p_costs[v_place] and r.state <> 'cancelled' then 'granted' else 'reused' end;
        t.mode := null;
        t.granted := r.granted;
        t.scheduled_at := greatest(r.scheduled_at, v_now);
      end if;
      v_takes[v_place] := t.outcome = 'granted' and t.mode is null and r.id is null;
      v_taken[v_place] := t;
    end loop;
    exit when not v_changed;
  end loop;
  if v_changed then
    raise exception 'tollgate: buckets changed during each of 100 attempts'
      using errcode = 'serialization_failure', hint = 'Call again.';
  end if;

  if exists (select from unnest(v_taken) w where w.outcome <> 'granted') then
    return query
      select w.place, (case w.outcome when 'granted' then 'spared' else w.outcome end, w.mode, w.now, w.scheduled_at, w.full_at,
                       w.granted, w.burst, w.anchor, w.step_ns, w.step_ticks, w.token_ticks)::tollgate.taken_v1
        from unnest(v_taken) with ordinality
             as w (outcome, mode, now, scheduled_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, place);
    return;
  end if;
  foreach v_place in array v_order loop
    t := v_taken[v_place];
    if v_takes[v_place] then
      b := v_buckets[v_place];
      v_acts_at := tollgate.bucket_acts_at(b, p_costs[v_place], p_min_remainings[v_place], v_now);
      t.full_at := greatest(b.full_at, v_acts_at) + p_costs[v_place] * b.token_ticks;
      t.granted := b.granted + p_costs[v_place];
      update tollgate.token_buckets l
         set room = null, granted = t.granted, full_at = t.full_at,
             max_granted_wait = greatest(b.max_granted_wait, v_acts_at - tollgate.bucket_clock(b, v_now))
       where l.id = p_ids[v_place];
      if p_request_id is not null then
        insert into tollgate.token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
        values (p_request_id, p_ids[v_place], p_costs[v_place], t.granted, t.scheduled_at, 'open',
                v_now + least(greatest(coalesce(p_hold, 0), 0), c_year));
      end if;
    end if;
    entry := v_place;
    taken := t;
    return next;
  end loop;
end
$$;

-- take_all_v1: takes tokens from all of several buckets, or from none.
--
-- Arguments: p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans
--                        one bucket per position, each bucket once; as for take_v1
--            p_max_wait, p_request_id, p_hold: as for take_v1, for all buckets
-- Result:    one row per bucket: its position in the arrays, from 1, then the columns of take_v1. Either all are 'granted'. Or
--            some have another outcome, the rest are 'spared' (could have been granted), and nothing was taken
-- Errors:    as for take_v1 · 22023 no bucket, or a bucket twice
-- Locks:     the rows of all buckets, in id order; missing rows are created in that order
--
-- The clock is read when the rows are locked. A request with a wait acts when its last bucket has the tokens. Each bucket is
-- debited for the time at which its own tokens are available.
create or replace function tollgate.take_all_v1(
  p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[], p_refill_seconds numeric[],
  p_refills text[], p_plans text[], p_max_wait bigint, p_request_id uuid, p_hold bigint)
returns table (entry bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
set enable_seqscan = off  -- the plan would read all of a small table, and be kept while the table grows
set jit = off  -- token_mode has no other plan than a scan, whose cost would then start the compiler
as $$
declare
  c_year        constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  c_max_counted constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
begin
  if (1 <= all (p_costs) and c_max_counted >= all (p_costs) and cardinality(p_costs) = cardinality(p_ids)
      and 0 <= all (p_min_remainings) and c_max_counted >= all (p_min_remainings)
      and cardinality(p_min_remainings) = cardinality(p_ids)
      and p_max_wait between 0 and c_year) is not true then
    raise exception 'tollgate: take_all_v1 needs distinct buckets, costs of 1 or more, minimum remainings of 0 or more, and a '
                    'wait of 0 to a year' using errcode = 'invalid_parameter_value';
  end if;

  -- One statement decides if only the tokens count, all buckets exist and all grant. Each bucket is evaluated when its row is
  -- locked, and affords at least as much when all rows are locked, which is when the clock is read.
  if p_request_id is null then
    return query
      with locked as materialized (
        select l as b, i.*
          from unnest(p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans)
               as i (id, cost, min_remaining, capacity, refill_seconds, refill, plan)
          join tollgate.token_buckets l on l.id = i.id
         where not exists (select from unnest(p_ids) m (id)
                            where not exists (select from tollgate.token_buckets x where x.id = m.id))
         order by l.id for no key update of l
      ), fit as materialized (
        select count(distinct (x.b).id) = cardinality(p_ids) and bool_and(
                 not (x.b).overridden and (x.b).period_end > tollgate.clock()
                 and case
                       when x.plan is null
                         then (x.b).plan is null
                              and (x.capacity is null and x.refill_seconds is null and x.refill is null
                                   or (x.capacity, x.refill_seconds, x.refill)
                                      = ((x.b).capacity, (x.b).refill_seconds, (x.b).refill))
                       else num_nonnulls(x.capacity, x.refill_seconds, x.refill) = 0 and x.plan = (x.b).plan
                            and tollgate.follows_plan((x.b).plan, (x.b).capacity, (x.b).refill_seconds, (x.b).refill)
                     end
                 and case when x.cost <= (x.b).burst / (x.b).token_ticks - x.min_remaining
                       then tollgate.bucket_due(x.b, x.cost, x.min_remaining)
                            <= tollgate.bucket_clock(x.b, least(tollgate.clock() + p_max_wait, (x.b).period_end))
                       else false end
                 and (x.b).full_at - tollgate.bucket_clock(x.b, tollgate.clock())
                     <= tollgate.bucket_max_owed(x.b)) as fits,
               tollgate.clock() as now
          from locked x
         where not exists (select from tollgate.token_mode g where g.mode <> 'enforce')
           and not exists (select from tollgate.token_overrides o where o.id = any (p_ids))
      )
      update tollgate.token_buckets l
         set room = null,
             granted = l.granted + i.cost,
             max_granted_wait = greatest(
               l.max_granted_wait,
               tollgate.bucket_acts_at(l, i.cost, i.min_remaining, f.now) - tollgate.bucket_clock(l, f.now)),
             full_at = greatest(l.full_at, tollgate.bucket_acts_at(l, i.cost, i.min_remaining, f.now))
                       + i.cost * l.token_ticks
        from fit f, unnest(p_ids, p_costs, p_min_remainings) with ordinality as i (id, cost, min_remaining, place)
       where f.fits and l.id = i.id
      returning i.place,
                ('granted', null, f.now, tollgate.bucket_scheduled_at(l, i.min_remaining, f.now), l.full_at, l.granted,
                 l.burst, l.anchor, l.step_ns, l.step_ticks, l.token_ticks)::tollgate.taken_v1;
    if found then
      return;
    end if;
  end if;
  return query
    select t.* from tollgate.take_all_in_order(p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills,
                                               p_plans, p_max_wait, p_request_id, p_hold) t;
end
$$;

-- take_all_batch_v1: decides several requests in one call. Each takes from all of its buckets, or from none.
--
-- Arguments: p_requests  the number of the request of each position, from 1, ascending.
--            p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans
--                        one bucket per position, each bucket once per request; as for take_all_v1, without a wait
-- Result:    standing    true: the state is that before the call; granted requests take their tokens in order
--                        false: the state is that after the request
--            answers     as for take_all_v1, with positions in the arrays, from 1; for all buckets of a request, or for none
-- Errors:    as for take_all_v1 · 55P03 a bucket was locked for longer than 100 ms: nothing was taken
-- Locks:     the rows of all buckets, in id order; missing rows are created in that order. Then the rows that only a later
--            request can create.
--
-- The clock is read when the rows are locked. Requests that the locked buckets cannot grant are denied. A request is granted if
-- each of its buckets affords all requests that remain; one UPDATE debits the buckets. take_all_v1 decides the others in order,
-- as it does with a mode, an override or other limits. The answers are those of deciding the requests one after the other.
create or replace function tollgate.take_all_batch_v1(
  p_requests bigint[], p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns table (standing boolean, answers tollgate.answers_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
set enable_seqscan = off  -- the plan would read all of a small table, and be kept while the table grows
set jit = off  -- token_mode has no other plan than a scan, whose cost would then start the compiler
as $$
declare
  c_max_counted constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  v_lock       text := current_setting('lock_timeout');
  v_limited    boolean := false;
  v_made       boolean := false;  -- whether missing buckets are created, where possible
  v_missing    boolean;
  v_enforced   boolean;
  v_overrides  boolean;
  v_left       bigint[] := '{}';  -- the positions of the requests for take_all_v1
  v_part       record;
begin
  if (1 <= all (p_costs) and c_max_counted >= all (p_costs)
      and 0 <= all (p_min_remainings) and c_max_counted >= all (p_min_remainings)) is not true then
    raise exception 'tollgate: take_all_batch_v1 needs costs of 1 or more, and minimum remainings of 0 or more'
      using errcode = 'invalid_parameter_value';
  end if;
  if v_lock = '0' or v_lock::interval > interval '100 ms' then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;
  v_enforced := not exists (select from tollgate.token_mode g where g.mode <> 'enforce');
  v_overrides := exists (select from tollgate.token_overrides);

  loop
    v_missing := false;
    for v_part in
      with locked as materialized (
        select l.* from tollgate.token_buckets l
         where l.id = any (p_ids)
           and (v_made or not exists (select from unnest(p_ids) m (id)
                                       where not exists (select from tollgate.token_buckets x where x.id = m.id)))
         order by l.id for no key update
      ), clock as materialized (
        select tollgate.clock() as now, l.n = 0 and not v_made as missing from (select count(*) as n from locked) l
      ), evaluated as materialized (
        select i.request, i.place, i.id, i.cost, i.min_remaining, c.now, c.missing, l.full_at, l.granted, l.burst, l.anchor,
               l.step_ns, l.step_ticks, l.token_ticks, l.burst / l.token_ticks - i.min_remaining as max_cost,
               (l.burst - greatest(l.full_at - tollgate.bucket_clock(l, c.now), 0)) / l.token_ticks
                 - i.min_remaining as left,
               -- Whether only the tokens decide.
               coalesce(
                 v_enforced and l.period_end > c.now
                 and case
                       when i.plan is null
                         then tollgate.has_limits(l, i.capacity, i.refill_seconds, i.refill, null)
                       else num_nonnulls(i.capacity, i.refill_seconds, i.refill) = 0 and not l.overridden
                            and i.plan = l.plan and tollgate.follows_plan(l.plan, l.capacity, l.refill_seconds, l.refill)
                     end
                 and (not v_overrides or not exists (select from tollgate.token_overrides o where o.id = i.id))
                 and l.full_at - tollgate.bucket_clock(l, c.now) <= tollgate.bucket_max_owed(l),
                 false) as plain
          from unnest(p_requests, p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans)
               with ordinality as i (request, id, cost, min_remaining, capacity, refill_seconds, refill, plan, place)
          left join locked l on l.id = i.id
         cross join clock c
      ), demand as (
        select w.id, bool_and(w.plain) as plain,
               -- The demand of the requests that the bucket could grant by themselves, and their largest minimum remaining.
               sum(w.cost) filter (where w.cost <= w.left) as cost,
               max(w.min_remaining) filter (where w.cost <= w.left) as min_remaining
          from evaluated w group by w.id
      ), decided as (
        select w.request,
               case when not bool_and(d.plain) then 'left'
                 when not bool_and(w.cost <= w.left) then 'denied'
                 when bool_and(d.cost + d.min_remaining <= w.left + w.min_remaining) then 'granted'
                 else 'left' end as outcome
          from evaluated w join demand d on d.id = w.id
         group by w.request
      ), answered as (
        select w.*,
               case when w.missing then 'missing'
                 when d.outcome <> 'denied' then d.outcome
                 when w.cost <= w.left then 'spared'
                 when w.cost <= w.max_cost then 'denied'
                 else 'never' end as outcome
          from evaluated w join decided d on d.request = w.request
      )
      select t.outcome, array_agg(t.id) as ids, array_agg(t.cost) as costs,
             (array_agg(t.place), array_agg(1::bigint), t.outcome, null, array_agg(t.now), null, array_agg(t.full_at),
              array_agg(t.granted), array_agg(t.burst), array_agg(t.anchor), array_agg(t.step_ns),
              array_agg(t.step_ticks), array_agg(t.token_ticks))::tollgate.answers_v1 as answers
        from answered t group by t.outcome
    loop
      answers := v_part.answers;
      if v_part.outcome = 'missing' then
        v_missing := true;
        continue;
      elsif v_part.outcome = 'left' then
        v_left := answers.entries;
        continue;
      elsif v_part.outcome = 'granted' then
        update tollgate.token_buckets l
           set room = null,
               granted = l.granted + g.cost,
               full_at = greatest(l.full_at, tollgate.bucket_clock(l, answers.now[1])) + g.cost * l.token_ticks
          from (select i.id, sum(i.cost)::bigint as cost from unnest(v_part.ids, v_part.costs) i (id, cost) group by i.id) g
         where l.id = g.id;
      end if;
      standing := true;
      return next;
    end loop;
    exit when not v_missing;
    -- Locks in id order, with the rows that exist already.
    perform tollgate.lock_all(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans);
    v_made := true;
  end loop;

  for v_part in
    select min(x.place) as first, max(x.place) as last
      from unnest(v_left) x (place) group by p_requests[x.place] order by 1
  loop
    return query
      select false, tollgate.answers_of(v_part.first + t.entry - 1, 1, t.taken)
        from tollgate.take_all_v1(
               p_ids[v_part.first:v_part.last], p_costs[v_part.first:v_part.last],
               p_min_remainings[v_part.first:v_part.last], p_capacities[v_part.first:v_part.last],
               p_refill_seconds[v_part.first:v_part.last], p_refills[v_part.first:v_part.last],
               p_plans[v_part.first:v_part.last], 0, null, 0) t;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

insert into tollgate.migrations (version, name) values (6, '0006_take_all') on conflict do nothing;
