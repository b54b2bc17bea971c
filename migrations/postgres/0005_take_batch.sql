-- answers_v1: the results of requests with the same outcome. Building, sending and reading one row per request takes a third as
-- long as the decision. One element of burst, step_ns, step_ticks and token_ticks can stand for all entries.
do $$
begin
  if to_regtype('tollgate.answers_v1') is null then
    create type tollgate.answers_v1 as (
      entries     bigint[],  -- positions of the requests among those of the call, from 1
      times       bigint[],  -- number of equal requests of each entry; the state is that after the last one
      outcome     text,      -- the columns of taken_v1, one for all entries, or one for each
      mode        text,
      now         bigint[],
      scheduled_at     bigint[],  -- null: the values of now
      full_at     bigint[],
      granted     bigint[],
      burst       bigint[],
      anchor      bigint[],
      step_ns     bigint[],
      step_ticks  bigint[],
      token_ticks bigint[]
    );
  end if;
end
$$;

-- answers_of(p_entry, p_times, p_taken) -> answers_v1 of one entry.
create or replace function tollgate.answers_of(p_entry bigint, p_times bigint, p_taken tollgate.taken_v1)
returns tollgate.answers_v1
language sql immutable
as $$
  select array[p_entry], array[p_times], p_taken.outcome, p_taken.mode, array[p_taken.now], array[p_taken.scheduled_at],
         array[p_taken.full_at], array[p_taken.granted], array[p_taken.burst], array[p_taken.anchor],
         array[p_taken.step_ns], array[p_taken.step_ticks], array[p_taken.token_ticks]
$$;

-- answers_each(p_answers) -> one row per entry of answers_v1.
create or replace function tollgate.answers_each(p_answers tollgate.answers_v1)
returns table (entry bigint, times bigint, taken tollgate.taken_v1)
language sql immutable
as $$
  select a.entry, a.times,
         (p_answers.outcome, p_answers.mode, a.now, case when p_answers.scheduled_at is null then a.now else a.scheduled_at end,
          a.full_at, a.granted, case cardinality(p_answers.burst) when 1 then p_answers.burst[1] else a.burst end,
          a.anchor, case cardinality(p_answers.step_ns) when 1 then p_answers.step_ns[1] else a.step_ns end,
          case cardinality(p_answers.step_ticks) when 1 then p_answers.step_ticks[1] else a.step_ticks end,
          case cardinality(p_answers.token_ticks) when 1 then p_answers.token_ticks[1] else a.token_ticks end
         )::tollgate.taken_v1
    from unnest(p_answers.entries, p_answers.times, p_answers.now, p_answers.scheduled_at, p_answers.full_at,
                p_answers.granted, p_answers.burst, p_answers.anchor, p_answers.step_ns, p_answers.step_ticks,
                p_answers.token_ticks)
         as a (entry, times, now, scheduled_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks)
$$;

-- granted: the result of grant_uniform and make_uniform.
do $$
begin
  if to_regtype('tollgate.granted') is null then
    create type tollgate.granted as (answers tollgate.answers_v1, whole boolean, late bigint[]);
  end if;
end
$$;

-- grant_uniform: grants requests for different buckets that otherwise differ in p_times only. A limiter sends such requests.
--
-- Arguments: p_ids, p_times: as for grant_batch, in the order of p_ids, each id once, and no id with an override
--            the others: one value for all requests; with p_plan, p_capacity to p_refill are the limits of the plan
-- Result:    answers  the entries with grants: position from 1, number of grants, and the state after the last one;
--                     null: none. burst, step_ns, step_ticks and token_ticks are given once
--            whole    whether every request of every entry was granted
--            late     the entries whose rows were locked more than 2 ms after the instant of the grant.
--                     An entry that is not listed was denied, needs another routine, or its bucket changed since the read
-- Errors:    none
-- Locks:     as for grant_batch
--
-- Handles the most common case without the columns that the general case needs: a decision takes the server a quarter less.
create or replace function tollgate.grant_uniform(
  p_ids text[], p_times bigint[], p_cost bigint, p_min_remaining bigint, p_capacity bigint, p_refill_seconds numeric,
  p_refill text, p_plan text)
returns tollgate.granted
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_granted tollgate.granted;
begin
  -- grant_batch explains why this is one statement, and when the clock is read. Rows with these limits share burst, steps and
  -- ticks, except rows whose state is still under an override's limits.
  with chosen as (
    update tollgate.token_buckets t
       set room = null,
           granted = t.granted + p_cost * b.times,
           full_at = greatest(t.full_at, tollgate.bucket_clock(t, c.now)) + p_cost * t.token_ticks * b.times
      from unnest(p_ids, p_times) with ordinality as u (id, times, place)
           cross join lateral (select tollgate.clock() as now where u.place is not null offset 0) c
           cross join lateral (
             select 1 as times, null as full_at where u.times = 1
              union all
             select least(u.times, tollgate.bucket_affords(o, o.full_at, p_cost, p_min_remaining, c.now)), o.full_at
               from tollgate.token_buckets o
              where o.id = u.id and u.times > 1 and p_cost <= o.burst / o.token_ticks - p_min_remaining
             offset 0) b
     where t.id = u.id and not t.overridden
       and t.capacity = p_capacity and t.refill_seconds = p_refill_seconds and t.refill = p_refill
       and t.plan is not distinct from p_plan
       and b.times >= 1 and (b.times = u.times or b.full_at = t.full_at)
       and case when p_cost <= t.burst / t.token_ticks - p_min_remaining
             then tollgate.bucket_affords(t, t.full_at, p_cost, p_min_remaining, c.now) >= b.times end
    returning u.place, u.times as wanted, b.times as granted, tollgate.clock() - c.now > 2000000 as late,
              c.now, t.full_at, t.granted as tokens, t.burst, t.anchor, t.step_ns, t.step_ticks, t.token_ticks)
  select (array_agg(d.place), array_agg(d.granted), 'granted', null, array_agg(d.now), null, array_agg(d.full_at),
          array_agg(d.tokens), array[min(d.burst)], array_agg(d.anchor), array[min(d.step_ns)],
          array[min(d.step_ticks)], array[min(d.token_ticks)])::tollgate.answers_v1,
         count(*) = cardinality(p_ids) and bool_and(d.granted = d.wanted),
         coalesce(array_agg(d.place) filter (where d.late), '{}')
    into v_granted
    from chosen d;
  return v_granted;
end
$$;

-- make_uniform: creates the buckets of requests that differ in bucket and p_times only, and grants what a full bucket holds.
--
-- Arguments: as for grant_uniform, which found none of the buckets
-- Result:    as for grant_uniform; null: some buckets exist, or the limits are missing or invalid
--            A bucket that is not listed was not created: the bucket exists by now, or no request can create it.
-- Errors:    23514 invalid limits
-- Locks:     the rows that the routine creates, in the order of p_ids
--
-- New keys usually arrive in batches. Reading first which buckets exist, and then calling make_batch, takes the server at least
-- half as long again.
create or replace function tollgate.make_uniform(
  p_ids text[], p_times bigint[], p_cost bigint, p_min_remaining bigint, p_capacity bigint, p_refill_seconds numeric,
  p_refill text, p_plan text)
returns tollgate.granted
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_nestloop = off  -- the generic plan expects few entries
set jit = off
as $$
declare
  v_most  bigint;  -- how many equal requests a full bucket grants
  v_limits record;
  v_made  tollgate.granted;
begin
  if (p_cost <= p_capacity - p_min_remaining and p_refill_seconds is not null and p_refill is not null) is not true
     -- If the first and the last bucket exist, all may exist: then grant_uniform granted nothing because no tokens are left.
     or exists (select from tollgate.token_buckets b where b.id in (p_ids[1], p_ids[cardinality(p_ids)])) then
    return null;
  end if;
  v_most := (p_capacity - p_min_remaining) / p_cost;
  v_limits := tollgate.bucket_limits('bucket ' || quote_literal(p_ids[1]), p_capacity, p_refill_seconds, p_refill);
  with made as (
    insert into tollgate.token_buckets as t
      (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted, burst, step_ns, step_ticks,
       token_ticks)
    select u.id, p_capacity, p_refill_seconds, p_refill, p_plan, false, 0,
           c.now / v_limits.step_ns * v_limits.step_ticks + least(u.times, v_most) * p_cost * v_limits.token_ticks,
           least(u.times, v_most) * p_cost, v_limits.burst, v_limits.step_ns, v_limits.step_ticks, v_limits.token_ticks
      from unnest(p_ids, p_times) as u (id, times)
     cross join lateral (select tollgate.clock() as now where u.id is not null offset 0) c
     where octet_length(u.id) between 1 and 255 and left(u.id, 1) <> chr(1)
    on conflict do nothing
    returning t.id, t.full_at, t.granted as tokens, tollgate.clock() as now)
  select (array_agg(u.place), array_agg(least(u.times, v_most)), 'granted', null, array_agg(m.now), null,
          array_agg(m.full_at), array_agg(m.tokens), array[v_limits.burst], array_agg(0::bigint), array[v_limits.step_ns],
          array[v_limits.step_ticks], array[v_limits.token_ticks])::tollgate.answers_v1,
         (select count(*) from made) = cardinality(p_ids) and bool_and(u.times <= v_most),
         -- Entries that waited for another session's row, whose insert was rolled back.
         coalesce(array_agg(u.place) filter (
           where (m.now - 2000000) / v_limits.step_ns * v_limits.step_ticks > m.full_at - m.tokens * v_limits.token_ticks),
           '{}')
    into v_made
    from made m
    join unnest(p_ids, p_times) with ordinality as u (id, times, place) on u.id = m.id;
  return v_made;
end
$$;

-- grant_batch: grants requests for different buckets that only the tokens decide, as many as each bucket affords.
--
-- Arguments: p_places: numbers of the entries in the answer
--            p_ids to p_times: as for take_batch_v1, in the order of p_ids, each id once, and no id with an override
-- Result:    answers  the entries with grants: number of grants, and the state after the last one; null: none
--            whole    whether every request of every entry was granted
--            late     the entries whose rows were locked more than 2 ms after the instant of the grant.
--                     An entry that is not listed was denied, needs another routine, or its bucket changed since the read
-- Errors:    none
-- Locks:     the rows of granted requests, in id order: the plan reads the arrays in order, and the settings of the routine
--            forbid other plans. Rows that other sessions changed since the read stay locked, too.
create or replace function tollgate.grant_batch(
  p_places bigint[], p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_times bigint[])
returns table (answers tollgate.answers_v1, whole boolean, late bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  -- The number of grants follows from the old row, which RETURNING does not show. So a subquery reads the old row. Its number
  -- holds if the locked row is unchanged or affords all requests. The clock is read for each row when the plan reaches the row,
  -- so that the duration of the statement moves no instant.
  return query
  with chosen as (
    update tollgate.token_buckets t
       set room = null,
           granted = t.granted + u.cost * b.times,
           full_at = greatest(t.full_at, tollgate.bucket_clock(t, c.now)) + u.cost * t.token_ticks * b.times
      from unnest(p_places, p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans, p_times)
           as u (place, id, cost, keep, capacity, refill_seconds, refill, plan, times)
           cross join lateral (select tollgate.clock() as now where u.place is not null offset 0) c
           cross join lateral (
             select 1 as times, null as full_at where u.times = 1
              union all
             select least(u.times, tollgate.bucket_affords(o, o.full_at, u.cost, u.keep, c.now)), o.full_at
               from tollgate.token_buckets o
              where o.id = u.id and u.times > 1 and u.cost <= o.burst / o.token_ticks - u.keep
             offset 0) b
     where t.id = u.id and not t.overridden
       and case
             when u.capacity is not null
               then t.plan is null and u.capacity = t.capacity and u.refill_seconds = t.refill_seconds
                    and u.refill = t.refill
             when u.refill_seconds is not null or u.refill is not null
               then false
             when u.plan is null and t.plan is null
               then true
             else coalesce(u.plan = t.plan, u.plan is null)
                  and exists (
                    select from tollgate.token_plans p
                     where p.name = t.plan and p.mode is null and p.capacity = t.capacity
                       and p.refill_seconds = t.refill_seconds and p.refill = t.refill)
           end
       and b.times >= 1 and (b.times = u.times or b.full_at = t.full_at)
       and case when u.cost <= t.burst / t.token_ticks - u.keep
             then tollgate.bucket_affords(t, t.full_at, u.cost, u.keep, c.now) >= b.times end
    returning u.place, u.times as wanted, b.times as granted,
              tollgate.clock() - c.now > 2000000 as late,
              c.now, t.full_at, t.granted as tokens, t.burst, t.anchor, t.step_ns, t.step_ticks, t.token_ticks)
  select (array_agg(d.place), array_agg(d.granted), 'granted', null, array_agg(d.now), null, array_agg(d.full_at),
          array_agg(d.tokens), array_agg(d.burst), array_agg(d.anchor), array_agg(d.step_ns), array_agg(d.step_ticks),
          array_agg(d.token_ticks))::tollgate.answers_v1,
         bool_and(d.granted = d.wanted), coalesce(array_agg(d.place) filter (where d.late), '{}')
    from chosen d;
end
$$;

-- evaluate_batch: evaluates the requests that grant_batch did not grant. Writes nothing and waits for no lock.
--
-- Arguments: p_places to p_times: as for grant_batch
--            p_done: the entries that grant_batch granted
-- Result:    answers  the denied entries, with all of their requests; null: none
--            again    the entries that the bucket affords by now
--            missing  the entries whose buckets have to be created
--            ruled    the entries that take_v1 must decide
-- Errors:    none
-- Locks:     none
create or replace function tollgate.evaluate_batch(
  p_places bigint[], p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_times bigint[], p_done bigint[])
returns table (answers tollgate.answers_v1, again bigint[], missing bigint[], ruled bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set jit = off
as $$
begin
  -- Each clock is read after its row: other sessions can only have taken more since, so a denial holds at this instant.
  return query
  select (array_agg(r.place) filter (where r.what = 'denied'), array_agg(r.times) filter (where r.what = 'denied'),
          'denied', null, array_agg(r.now) filter (where r.what = 'denied'), null,
          array_agg(r.full_at) filter (where r.what = 'denied'), array_agg(r.granted) filter (where r.what = 'denied'),
          array_agg(r.burst) filter (where r.what = 'denied'), array_agg(r.anchor) filter (where r.what = 'denied'),
          array_agg(r.step_ns) filter (where r.what = 'denied'),
          array_agg(r.step_ticks) filter (where r.what = 'denied'),
          array_agg(r.token_ticks) filter (where r.what = 'denied'))::tollgate.answers_v1,
         array_agg(r.place) filter (where r.what = 'granted'),
         array_agg(r.place) filter (where r.what = 'missing'),
         array_agg(r.place) filter (where r.what = 'ruled')
    from (
      select u.place, u.times, c.now, t.*,
             case
               when t.id is null
                 then case when octet_length(u.id) between 1 and 255 and left(u.id, 1) <> chr(1)
                                and u.cost <= coalesce(u.capacity, p.capacity) - u.keep
                                and case when u.capacity is null
                                      then p.mode is null and u.refill_seconds is null and u.refill is null
                                      else u.plan is null and u.refill_seconds is not null and u.refill is not null
                                    end
                        then 'missing' else 'ruled' end
               when t.overridden
                    or (case
                          when u.capacity is not null
                            then t.plan is null and u.capacity = t.capacity
                                 and u.refill_seconds = t.refill_seconds and u.refill = t.refill
                          when u.refill_seconds is not null or u.refill is not null
                            then false
                          when u.plan is null and t.plan is null
                            then true
                          else p.name = t.plan and p.mode is null and p.capacity = t.capacity
                               and p.refill_seconds = t.refill_seconds and p.refill = t.refill
                        end) is not true
                 then 'ruled'
               when t.full_at - tollgate.bucket_clock(t, c.now) > tollgate.bucket_max_full_at(t)
                 then 'ruled'
               when u.cost > t.burst / t.token_ticks - u.keep  -- exceeds the capacity
                 then 'ruled'
               when tollgate.bucket_affords(t, t.full_at, u.cost, u.keep, c.now) >= 1
                 then 'granted'
               else 'denied'
             end as what
        from unnest(p_places, p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans, p_times)
             as u (place, id, cost, keep, capacity, refill_seconds, refill, plan, times)
        left join tollgate.token_buckets t on t.id = u.id
       cross join lateral (
             select tollgate.clock() as now where t.id is not null or u.id is not null offset 0) c
        left join tollgate.token_plans p on p.name = coalesce(u.plan, t.plan) and u.capacity is null
       where u.place not in (select unnest(p_done))
      offset 0
    ) r;
end
$$;

-- make_batch: creates buckets and grants their first requests.
--
-- Arguments: p_places: the entries whose buckets to create
--            the others: as for take_batch_v1, in id order
-- Result:    answers  the entries whose buckets were created, and the number of grants of each; null: none. The buckets of the
--                     other entries exist by now
--            whole    whether every request of every entry was granted
--            late     the entries that were created more than 2 ms after the instant of the grant
-- Errors:    23514 invalid limits
-- Locks:     the rows that the routine creates, in id order
create or replace function tollgate.make_batch(
  p_places bigint[], p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_times bigint[])
returns table (answers tollgate.answers_v1, whole boolean, late bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_nestloop = off  -- the generic plan expects few entries
set jit = off
as $$
begin
  return query
  with asked as (
    select e.place, p_ids[e.place] as id, p_costs[e.place] as cost, p_min_remainings[e.place] as keep,
           p_times[e.place] as times, coalesce(p_capacities[e.place], p.capacity::bigint) as capacity,
           round(coalesce(p_refill_seconds[e.place], p.refill_seconds), 9) as refill_seconds,  -- rounded like the column
           coalesce(p_refills[e.place], p.refill) as refill, p.name as plan
      from unnest(p_places) e (place)
      left join tollgate.token_plans p on p.name = p_plans[e.place] and p_capacities[e.place] is null
                                       and p.mode is null
  ), limits as materialized (  -- once for all entries with equal limits
    select a.capacity, a.refill_seconds, a.refill, x.burst, x.step_ns, x.step_ticks, x.token_ticks
      from (select k.capacity, k.refill_seconds, k.refill, min(k.id) as id from asked k
             where k.capacity is not null group by 1, 2, 3) a,
           lateral tollgate.bucket_limits('bucket ' || quote_literal(a.id), a.capacity, a.refill_seconds, a.refill) x
  ), able as (
    select a.*, least(a.times, (a.capacity - a.keep) / a.cost) as granted, x.burst, x.step_ns, x.step_ticks, x.token_ticks
      from asked a
      join limits x on (x.capacity, x.refill_seconds, x.refill) = (a.capacity, a.refill_seconds, a.refill)
     -- The plan can have changed since evaluate_batch read it.
     where a.cost <= a.capacity - a.keep
     order by a.id collate "C"
  ), made as (
    insert into tollgate.token_buckets as t
      (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted, burst, step_ns,
       step_ticks, token_ticks)
    select a.id, a.capacity, a.refill_seconds, a.refill, a.plan, false, 0,
           c.now / a.step_ns * a.step_ticks + a.granted * a.cost * a.token_ticks, a.granted * a.cost,
           a.burst, a.step_ns, a.step_ticks, a.token_ticks
      from able a
     cross join lateral (select tollgate.clock() as now where a.place is not null offset 0) c
    on conflict do nothing
    returning t.*, tollgate.clock() as now
  )
  select (array_agg(a.place), array_agg(a.granted), 'granted', null, array_agg(m.now), null, array_agg(m.full_at),
          array_agg(m.granted), array_agg(m.burst), array_agg(m.anchor), array_agg(m.step_ns), array_agg(m.step_ticks),
          array_agg(m.token_ticks))::tollgate.answers_v1,
         bool_and(a.granted = a.times),
         -- Entries that waited for another session's row, whose insert was rolled back.
         coalesce(array_agg(a.place) filter (
           where (m.now - 2000000) / m.step_ns * m.step_ticks > m.full_at - m.granted * m.token_ticks), '{}')
    from made m
    join able a on a.id = m.id;
end
$$;

-- take_batch_v1: decides several requests in one call, each by itself. A request that fails does not fail the others.
--
-- Arguments: as for take_v1, one array each, all of one length. All but p_ids and p_times can have one element for all
--            requests: then the ids are in order, each id once.
--            p_times: number of equal requests of each entry, decided one after the other; null: 1
-- Result:    rows that together answer all requests; the answers to one entry are in the order of the rows
-- Errors:    as for take_v1
--            22023 p_times below 1, or ids out of order with single elements, unless all requests are granted
--            55P03 the call names several buckets, and one was locked for longer than 100 ms: nothing was taken
-- Locks:     each group in id order: the rows of granted requests; the rows that the call creates; the rows that take_v1
--            decides or that changed since the read. Requests for one bucket are decided in the order given.
--
-- If only the tokens decide, no request waits and there are more than c_few requests, one UPDATE changes many rows. The UPDATE
-- computes from the locked rows, and one unlocked read evaluates the rest. take_v1 decides other requests one by one. After a
-- wait for a lock, grants move to the later instant, and denials are decided again.
create or replace function tollgate.take_batch_v1(
  p_ids text[], p_costs bigint[], p_max_waits bigint[], p_min_remainings bigint[],
  p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[],
  p_receipts uuid[], p_holds bigint[], p_times bigint[])
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  v_simple    boolean;
  v_overrides boolean;
  v_lock      text := current_setting('lock_timeout');
  v_limited   boolean := false;
  v_order     bigint[];             -- the entries to decide, in id order, and their arguments
  v_ids       text[];
  v_costs     bigint[];
  v_min_remainings     bigint[];
  v_capacity  bigint[];
  v_seconds   numeric[];
  v_refill    text[];
  v_plans     text[];
  v_many      bigint[];
  v_part      record;               -- the result of a statement
  v_answers   tollgate.answers_v1;
  v_seen      bigint[];             -- the entries that are decided
  v_late      bigint[];             -- the entries that waited for a lock since their instant
  v_again     bigint[] := '{}';     -- the entries that the bucket affords by now
  v_new       bigint[];             -- the entries whose buckets have to be created
  v_left      bigint[] := '{}';     -- the entries for take_v1, and the number of requests of each
  v_rest      bigint[] := '{}';
  v_alike     boolean;              -- whether the requests differ in bucket and p_times only
  v_plan      tollgate.token_plans; -- the limits of all requests, and their plan, if any
  v_step      text;
  v_now       bigint;
  v_request   record;
  v_taken     tollgate.taken_v1;
  v_times     bigint;
  c_few       constant bigint := 6;  -- up to this many requests, take_v1 is faster than starting a set statement
begin
  if 1 > any (p_times) then
    raise exception 'tollgate: take_batch_v1 needs times of 1 or more'
      using errcode = 'invalid_parameter_value';
  end if;
  v_simple := not exists (select from tollgate.token_mode g where g.mode <> 'enforce');
  v_overrides := exists (select from tollgate.token_overrides);
  if p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms') then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;
  v_alike := (cardinality(p_ids) > 1
    and 1 = all (array[cardinality(p_costs), cardinality(p_max_waits), cardinality(p_min_remainings), cardinality(p_capacities),
                       cardinality(p_refill_seconds), cardinality(p_refills), cardinality(p_plans),
                       cardinality(p_receipts), cardinality(p_holds)])) is true;
  if v_alike then
    v_alike := (v_simple and p_max_waits[1] = 0 and p_receipts[1] is null
      and (p_capacities[1] is not null or p_plans[1] is not null)
      and p_costs[1] between 1 and 4611686018427387903 and p_min_remainings[1] between 0 and 4611686018427387903
      and cardinality(p_times) = cardinality(p_ids) and 1 <= all (p_times)
      and array_position(p_ids, null) is null) is true;
    if v_alike and v_overrides then
      v_alike := not exists (
        select from tollgate.token_overrides o
         where o.id = any (p_ids) and tollgate.in_force(o.expires_at, tollgate.clock()));
    end if;
    if v_alike then
      if p_capacities[1] is null and p_refill_seconds[1] is null and p_refills[1] is null then
        select p.* into v_plan from tollgate.token_plans p where p.name = p_plans[1] and p.mode is null;
      elsif abs(p_refill_seconds[1]) < 10000000000 then  -- the range of the column
        v_plan.capacity := p_capacities[1];
        v_plan.refill_seconds := p_refill_seconds[1];
        v_plan.refill := p_refills[1];
      end if;
      v_part := tollgate.grant_uniform(p_ids, p_times, p_costs[1], p_min_remainings[1], v_plan.capacity::bigint, v_plan.refill_seconds,
                                        v_plan.refill, v_plan.name);
      if (v_part.answers).entries is null then
        v_part := coalesce(
          tollgate.make_uniform(p_ids, p_times, p_costs[1], p_min_remainings[1], v_plan.capacity::bigint, v_plan.refill_seconds,
                                 v_plan.refill, v_plan.name),
          v_part);
      end if;
      if v_part.whole and v_part.late = '{}' then
        v_answers := v_part.answers;
        return next v_answers;
        if v_limited then
          perform set_config('lock_timeout', v_lock, true);
        end if;
        return;
      end if;
    end if;
    -- The general case decides the other requests: repeat the single elements.
    p_costs := array_fill(p_costs[1], array[cardinality(p_ids)]);
    p_max_waits := array_fill(p_max_waits[1], array[cardinality(p_ids)]);
    p_min_remainings := array_fill(p_min_remainings[1], array[cardinality(p_ids)]);
    p_capacities := array_fill(p_capacities[1], array[cardinality(p_ids)]);
    p_refill_seconds := array_fill(p_refill_seconds[1], array[cardinality(p_ids)]);
    p_refills := array_fill(p_refills[1], array[cardinality(p_ids)]);
    p_plans := array_fill(p_plans[1], array[cardinality(p_ids)]);
    p_receipts := array_fill(p_receipts[1], array[cardinality(p_ids)]);
    p_holds := array_fill(p_holds[1], array[cardinality(p_ids)]);
  end if;
  v_costs := p_costs;
  v_min_remainings := p_min_remainings;
  v_capacity := p_capacities;
  v_seconds := p_refill_seconds;
  v_refill := p_refills;
  v_plans := p_plans;
  v_many := p_times;
  v_order := array(select generate_series(1, cardinality(p_ids)));
  v_simple := v_alike or v_simple
    and cardinality(p_ids) = all (array[cardinality(p_costs), cardinality(p_max_waits), cardinality(p_min_remainings),
                                        cardinality(p_times)])
    and 0 = all (p_max_waits) and coalesce(array_remove(p_receipts, null) = '{}', true)
    and 1 <= all (p_costs) and 4611686018427387903 >= all (p_costs)
    and 0 <= all (p_min_remainings) and 4611686018427387903 >= all (p_min_remainings)
    and 1 <= all (p_times) and array_position(p_ids, null) is null
    and (select sum(x) from unnest(p_times) x) > c_few;
  if v_simple then
    v_ids := array(select distinct i.id collate "C" from unnest(p_ids) i (id) order by 1);
    v_simple := cardinality(v_ids) = cardinality(p_ids);
    if v_alike and v_ids <> p_ids then
      raise exception 'tollgate: take_batch_v1 needs distinct ids in order, if one cost and quota apply to all'
        using errcode = 'invalid_parameter_value';
    end if;
  end if;
  if v_simple is not true then
    v_left := v_order;
    v_rest := array(select coalesce(p_times[i], 1) from unnest(v_order) i);
    v_order := '{}';
  elsif not v_alike then
    if v_overrides then
      v_left := array(select i.place from unnest(p_ids) with ordinality i (id, place)
                       where exists (select from tollgate.token_overrides o
                                      where o.id = i.id
                                        and tollgate.in_force(o.expires_at, tollgate.clock())));
      v_rest := array(select p_times[x] from unnest(v_left) x);
    end if;
    if v_left <> '{}' or v_ids <> p_ids then
      v_order := '{}';
      v_again := array(select i.place from unnest(p_ids) with ordinality i (id, place)
                        where i.place <> all (v_left) order by i.id collate "C");
    end if;
  end if;
  for v_round in 1 .. 3 loop
    if v_again <> '{}' then
      v_order := v_again;
      v_again := '{}';
      v_ids := array(select p_ids[i] from unnest(v_order) i);
      v_costs := array(select p_costs[i] from unnest(v_order) i);
      v_min_remainings := array(select p_min_remainings[i] from unnest(v_order) i);
      v_capacity := array(select p_capacities[i] from unnest(v_order) i);
      v_seconds := array(select p_refill_seconds[i] from unnest(v_order) i);
      v_refill := array(select p_refills[i] from unnest(v_order) i);
      v_plans := array(select p_plans[i] from unnest(v_order) i);
      v_many := array(select p_times[i] from unnest(v_order) i);
    elsif v_round > 1 then
      exit;
    end if;
    v_seen := '{}';
    foreach v_step in array array['grant', 'evaluate', 'make'] loop
      if v_step = 'grant' then
        continue when v_order = '{}';
        if v_alike then
          v_alike := false;  -- already tried
        else
          select g.* into v_part
            from tollgate.grant_batch(v_order, v_ids, v_costs, v_min_remainings, v_capacity, v_seconds, v_refill, v_plans,
                                        v_many) g;
        end if;
        v_seen := coalesce((v_part.answers).entries, '{}');
      elsif v_step = 'evaluate' then
        exit when cardinality(v_seen) = cardinality(v_order);
        select w.*, true as whole, '{}'::bigint[] as late into v_part
          from tollgate.evaluate_batch(v_order, v_ids, v_costs, v_min_remainings, v_capacity, v_seconds, v_refill, v_plans, v_many,
                                      v_seen) w;
        v_again := v_part.again;
        v_new := v_part.missing;
        v_left := v_left || v_part.ruled;
        v_rest := v_rest || array(select p_times[x] from unnest(v_part.ruled) x);
      else
        exit when v_new is null;
        select m.* into v_part
          from tollgate.make_batch(v_new, p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills, p_plans,
                                     p_times) m;
        v_new := array(select x from unnest(v_new) x where x <> all (coalesce((v_part.answers).entries, '{}')));
        v_left := v_left || v_new;
        v_rest := v_rest || array(select p_times[x] from unnest(v_new) x);
      end if;
      v_answers := v_part.answers;
      continue when v_answers.entries is null;
      if cardinality(v_answers.burst) < cardinality(v_answers.entries) then
        v_answers.burst := array_fill(v_answers.burst[1], array[cardinality(v_answers.entries)]);
        v_answers.step_ns := array_fill(v_answers.step_ns[1], array[cardinality(v_answers.entries)]);
        v_answers.step_ticks := array_fill(v_answers.step_ticks[1], array[cardinality(v_answers.entries)]);
        v_answers.token_ticks := array_fill(v_answers.token_ticks[1], array[cardinality(v_answers.entries)]);
      end if;

      v_late := v_part.late;
      if v_late <> '{}' then
        v_left := v_left || array(select d.place from unnest(v_answers.entries, v_answers.times) d (place, granted)
                                   where d.place = any (v_late) and d.granted < p_times[d.place]);
        v_rest := v_rest || array(select p_times[d.place] - d.granted
                                    from unnest(v_answers.entries, v_answers.times) d (place, granted)
                                   where d.place = any (v_late) and d.granted < p_times[d.place]);
        v_now := tollgate.clock();
        with moved as (
          update tollgate.token_buckets t
             set full_at = tollgate.bucket_clock(t, v_now) + d.granted * p_costs[d.place] * t.token_ticks
            from unnest(v_answers.entries, v_answers.times) d (place, granted)
           where d.place = any (v_late) and t.id = p_ids[d.place]
             and t.full_at < tollgate.bucket_clock(t, v_now) + d.granted * p_costs[d.place] * t.token_ticks
          returning d.place, t.full_at)
        select array_agg(case when d.place = any (v_late) then v_now else d.now end order by d.nth),
               array_agg(coalesce(m.full_at, d.full_at) order by d.nth)
          into v_answers.now, v_answers.full_at
          from unnest(v_answers.entries, v_answers.now, v_answers.full_at) with ordinality as d (place, now, full_at, nth)
          left join moved m on m.place = d.place;
      end if;
      return next v_answers;
      if not v_part.whole then
        return query
          select array_agg(d.place), array_agg(p_times[d.place] - d.granted), 'denied', v_answers.mode, array_agg(d.now),
                 null::bigint[], array_agg(d.full_at), array_agg(d.tokens), array_agg(d.burst), array_agg(d.anchor),
                 array_agg(d.step_ns), array_agg(d.step_ticks), array_agg(d.token_ticks)
            from unnest(v_answers.entries, v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted,
                        v_answers.burst, v_answers.anchor, v_answers.step_ns, v_answers.step_ticks,
                        v_answers.token_ticks)
                 as d (place, granted, now, full_at, tokens, burst, anchor, step_ns, step_ticks, token_ticks)
           where d.granted < p_times[d.place] and d.place <> all (v_late)
          having count(*) > 0;
      end if;
    end loop;
  end loop;

  if v_again <> '{}' then
    v_left := v_left || v_again;
    v_rest := v_rest || array(select p_times[i] from unnest(v_again) i);
  end if;
  for v_request in
    select l.place, l.rest from unnest(v_left, v_rest) l (place, rest) order by p_ids[l.place] collate "C", l.place
  loop
    while v_request.rest > 0 loop
      v_taken := tollgate.take_v1(
        p_ids[v_request.place], p_costs[v_request.place], p_max_waits[v_request.place], p_min_remainings[v_request.place],
        p_capacities[v_request.place], p_refill_seconds[v_request.place], p_refills[v_request.place],
        p_plans[v_request.place], p_receipts[v_request.place], p_holds[v_request.place]);
      -- If nothing was taken, or the request has an id, the equal requests that follow get the same answer.
      v_times := case when v_taken.outcome = 'granted' and v_taken.mode is null and p_receipts[v_request.place] is null
                   then 1 else v_request.rest end;
      v_request.rest := v_request.rest - v_times;
      return next tollgate.answers_of(v_request.place, v_times, v_taken);
    end loop;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

-- take_equal_v1: decides equal requests for one bucket, one after the other, in one update of its row.
--
-- Arguments: p_id, p_cost, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
--            p_times: number of requests, 1 or more
-- Result:    as for take_batch_v1, with one entry: one row for the grants, one for the denials, or either
-- Errors:    as for take_v1
-- Locks:     the bucket's row, if any request is granted
--
-- Several times faster than a batch of one entry, because a statement for many rows takes longer to start than to change a row.
-- All requests are granted if the locked row affords them, and fewer if the row is unchanged since the read. Otherwise the
-- attempt starts again, with the row locked. take_batch_v1 decides buckets with a mode, an override or other limits.
create or replace function tollgate.take_equal_v1(
  p_id text, p_cost bigint, p_min_remaining bigint, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text,
  p_times bigint)
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b         tollgate.token_buckets;
  v_ruled   boolean;
  v_now     bigint;
  v_clock   bigint;
  v_granted bigint;
  v_late    boolean;
  c_stale   constant bigint := 2000000;
begin
  for v_attempt in 1 .. 3 loop
    exit when (p_cost between 1 and 4611686018427387903 and p_min_remaining between 0 and 4611686018427387903
               and p_times >= 1
               and (p_capacity is null) = (p_refill_seconds is null)
               and (p_capacity is null) = (p_refill is null)) is not true;
    -- Null if the row of token_mode is missing; null leads to take_batch_v1.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = p_id)
      into v_ruled from tollgate.token_mode g;
    select t.* into b from tollgate.token_buckets t where t.id = p_id;
    -- Read after the row, as in take_v1.
    v_now := tollgate.clock();
    if not v_ruled and p_capacity is null and (p_plan is not null or b.plan is not null) then
      v_ruled := true;
      select p.mode is not null or b.plan is distinct from p.name
             or p.capacity <> b.capacity or p.refill_seconds <> b.refill_seconds or p.refill <> b.refill
        into v_ruled
        from tollgate.token_plans p where p.name = coalesce(p_plan, b.plan);
    end if;
    v_clock := tollgate.bucket_clock(b, v_now);
    exit when b.id is null or v_ruled is not false or b.overridden or (p_capacity is not null and b.plan is not null)
              or p_capacity <> b.capacity or p_refill_seconds <> b.refill_seconds or p_refill <> b.refill
              or p_cost > b.burst / b.token_ticks - p_min_remaining
              or b.full_at - v_clock > tollgate.bucket_max_full_at(b);

    v_granted := least(p_times, tollgate.bucket_affords(b, b.full_at, p_cost, p_min_remaining, v_now));
    if v_granted > 0 then
      update tollgate.token_buckets t
         set room = null,
             granted = t.granted + v_granted * p_cost,
             full_at = greatest(t.full_at, v_clock) + v_granted * p_cost * b.token_ticks
       where t.id = p_id
         and case when (t.anchor, t.burst, t.step_ns, t.token_ticks) = (b.anchor, b.burst, b.step_ns, b.token_ticks)
               then t.full_at = b.full_at
                    or v_granted = p_times and tollgate.bucket_affords(t, t.full_at, p_cost, p_min_remaining, v_now) >= p_times
             end
      returning t.full_at, t.granted into b.full_at, b.granted;
      continue when not found;
      v_late := tollgate.clock() - v_now > c_stale;
      if v_late then
        v_now := tollgate.clock();
        if b.full_at < tollgate.bucket_clock(b, v_now) + v_granted * p_cost * b.token_ticks then
          b.full_at := tollgate.bucket_clock(b, v_now) + v_granted * p_cost * b.token_ticks;
          update tollgate.token_buckets t set full_at = b.full_at where t.id = p_id;
        end if;
      end if;
      return next tollgate.answers_of(1, v_granted, ('granted', null, v_now, v_now, b.full_at, b.granted, b.burst,
                                                        b.anchor, b.step_ns, b.step_ticks, b.token_ticks));
      p_times := p_times - v_granted;
      if p_times = 0 then
        return;
      end if;
      -- New tokens can have arrived during the wait for the row.
      continue when v_late;
    end if;
    return next tollgate.answers_of(1, p_times, ('denied', null, v_now, v_now, b.full_at, b.granted, b.burst,
                                                    b.anchor, b.step_ns, b.step_ticks, b.token_ticks));
    return;
  end loop;
  return query
    select m.*
      from tollgate.take_batch_v1(
             array[p_id], array[p_cost], array[0::bigint], array[p_min_remaining], array[p_capacity], array[p_refill_seconds],
             array[p_refill], array[p_plan], array[null::uuid], array[0::bigint], array[p_times]) m;
end
$$;

revoke all on all tables in schema tollgate from public;
revoke all on all functions in schema tollgate from public;

insert into tollgate.migrations (version, name) values (5, '0005_take_batch') on conflict do nothing;
