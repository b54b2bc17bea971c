-- make_many_v1: make several buckets, for requests that they grant at once.
--
-- Arguments: p_places: which of the entries of the others, which are take_many_v1's, in the order of their ids
-- Result:    answers  the entries whose buckets were made, and how often each was granted; null: none. The buckets of
--                     others exist by now
--            whole    whether each was granted as often as asked
--            late     those that were made more than 2 ms after the instant that they were granted at
-- Errors:    23514 terms that make no bucket
-- Locks:     the rows that it makes, in the order of their ids.
create function tollgate.make_many_v1(
  p_places bigint[], p_ids text[], p_costs bigint[], p_keeps bigint[], p_capacities bigint[],
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
    select e.place, p_ids[e.place] as id, p_costs[e.place] as cost, p_keeps[e.place] as keep,
           p_times[e.place] as times, coalesce(p_capacities[e.place], p.capacity::bigint) as capacity,
           round(coalesce(p_refill_seconds[e.place], p.refill_seconds), 9) as refill_seconds,  -- as the column holds it
           coalesce(p_refills[e.place], p.refill) as refill, p.name as plan
      from unnest(p_places) e (place)
      left join tollgate.token_plans p on p.name = p_plans[e.place] and p_capacities[e.place] is null
                                       and p.mode is null
  ), terms as materialized (  -- once for all that are alike
    select a.capacity, a.refill_seconds, a.refill, x.burst, x.step_ns, x.step_ticks, x.token_ticks
      from (select k.capacity, k.refill_seconds, k.refill, min(k.id) as id from asked k
             where k.capacity is not null group by 1, 2, 3) a,
           lateral tollgate.terms_v1('bucket ' || quote_literal(a.id), a.capacity, a.refill_seconds, a.refill) x
  ), able as (
    select a.*, least(a.times, (a.capacity - a.keep) / a.cost) as granted, x.burst, x.step_ns, x.step_ticks, x.token_ticks
      from asked a
      join terms x on (x.capacity, x.refill_seconds, x.refill) = (a.capacity, a.refill_seconds, a.refill)
     -- A plan may have changed since it was weighed.
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
     cross join lateral (select tollgate.token_clock_v1() as now where a.place is not null offset 0) c
    on conflict do nothing
    returning t.*, tollgate.token_clock_v1() as now
  )
  select (array_agg(a.place), array_agg(a.granted), 'granted', null, array_agg(m.now), null, array_agg(m.full_at),
          array_agg(m.granted), array_agg(m.burst), array_agg(m.anchor), array_agg(m.step_ns), array_agg(m.step_ticks),
          array_agg(m.token_ticks))::tollgate.answers_v1,
         bool_and(a.granted = a.times),
         -- Those that waited for another session's row, which then did not come.
         coalesce(array_agg(a.place) filter (
           where (m.now - 2000000) / m.step_ns * m.step_ticks > m.full_at - m.granted * m.token_ticks), '{}')
    from made m
    join able a on a.id = m.id;
end
$$;

revoke all on function tollgate.make_many_v1(
  bigint[], text[], bigint[], bigint[], bigint[], numeric[], text[], text[], bigint[]) from public;
