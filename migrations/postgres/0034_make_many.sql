-- make_many_v1: make several buckets, for requests that they grant at once.
--
-- Arguments: p_places: which of the entries of the others, which are take_many_v1's, in the order of their ids;
--            p_now in nanoseconds since 1970
-- Result:    made    the ids of those that were made; null: none. Others exist by now
--            tokens  how many were granted of each
--            taken   take_v1's columns for each
-- Errors:    23514 terms that make no bucket
-- Locks:     the rows that it makes, in the order of their ids.
create function tollgate.make_many_v1(
  p_places bigint[], p_ids text[], p_costs bigint[], p_keeps bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_times bigint[], p_now bigint,
  out made text[], out tokens bigint[], out taken tollgate.taken_v1[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
begin
  with asked as (
    select e.place, p_ids[e.place] as id, p_costs[e.place] as cost, p_keeps[e.place] as keep,
           p_times[e.place] as times, coalesce(p_capacities[e.place], p.capacity) as capacity,
           coalesce(p_refill_seconds[e.place], p.refill_seconds)::numeric(19, 9) as refill_seconds,
           coalesce(p_refills[e.place], p.refill) as refill, p.name as plan
      from unnest(p_places) e (place)
      left join tollgate.token_plans p on p.name = p_plans[e.place] and p_capacities[e.place] is null
                                       and p.mode is null
  ), terms as (
    select a.capacity, a.refill_seconds, a.refill, x.burst, x.step_ns, x.step_ticks, x.token_ticks
      from (select k.capacity, k.refill_seconds, k.refill, min(k.id) as id from asked k
             where k.capacity is not null group by 1, 2, 3) a,
           lateral tollgate.terms_v1('bucket ' || quote_literal(a.id), a.capacity, a.refill_seconds, a.refill) x
  ), made as (
    insert into tollgate.token_buckets as t
      (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted, burst, step_ns,
       step_ticks, token_ticks)
    select a.id, a.capacity, a.refill_seconds, a.refill, a.plan, false, 0,
           p_now / x.step_ns * x.step_ticks
             + least(a.times, (a.capacity - a.keep) / a.cost) * a.cost * x.token_ticks,
           least(a.times, (a.capacity - a.keep) / a.cost) * a.cost,
           x.burst, x.step_ns, x.step_ticks, x.token_ticks
      from asked a
      join terms x on (x.capacity, x.refill_seconds, x.refill) = (a.capacity, a.refill_seconds, a.refill)
     -- A plan may have changed since it was weighed.
     where a.cost <= a.capacity - a.keep
     order by a.id collate "C"
    on conflict do nothing
    returning t.id, t.granted,
              ('granted', null, p_now, p_now, t.full_at, t.granted, t.burst, t.anchor, t.step_ns, t.step_ticks,
               t.token_ticks)::tollgate.taken_v1 as answer)
  select array_agg(m.id), array_agg(m.granted), array_agg(m.answer) into made, tokens, taken from made m;
end
$$;

revoke all on function tollgate.make_many_v1(
  bigint[], text[], bigint[], bigint[], bigint[], numeric[], text[], text[], bigint[], bigint) from public;
