-- take_all_many_v1: decide several requests in one call, each for several buckets: from all of its buckets or from none.
--
-- Arguments: p_requests  to which request a place belongs, from 1 on and ascending
--            p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans
--                        a bucket a place, no request naming one twice; as for take_all_v1. Nobody waits.
-- Result:    standing  whether the state is how the buckets stand before anything is taken: a request that is granted
--                      takes its tokens after those of the granted ones before it. Else it is after the request
--            answers   take_all_v1's, to places in the arrays, from 1: all of a request's stand, or none
-- Errors:    as take_all_v1's · 55P03 a bucket was locked for longer than 100 ms: nothing was taken
-- Locks:     the rows of all buckets, made if need be, in the order of their ids; then those that the first request that
--            names them may not make, but a later one may.
--
-- The clock is read when the rows are locked. What cannot be granted as the buckets stand is denied; a request whose
-- buckets have enough for all that could be granted takes its tokens, by one UPDATE for all. The others are decided by
-- take_all_v1, in their order, and so is what names a bucket that something rules beside its tokens. So each is granted or
-- denied as if they came one after the other.
create function tollgate.take_all_many_v1(
  p_requests bigint[], p_ids text[], p_costs bigint[], p_keeps bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns table (standing boolean, answers tollgate.answers_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else each call would plan anew for its arrays
as $$
declare
  v_lock      text := current_setting('lock_timeout');
  v_limited   boolean := false;
  v_made      boolean := false;  -- whether those that were missing are made, if they may be
  v_missing   boolean;
  v_enforced  boolean;
  v_overrides boolean;
  v_left      bigint[] := '{}';  -- the places of requests for take_all_v1
  v_part      record;
begin
  if (1 <= all (p_costs) and 4611686018427387903 >= all (p_costs)
      and 0 <= all (p_keeps) and 4611686018427387903 >= all (p_keeps)) is not true then
    raise exception 'tollgate: take_all_many_v1 needs costs of 1 or more, and 0 or more to keep'
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
        select tollgate.token_clock_v1() as now, l.n = 0 and not v_made as missing from (select count(*) as n from locked) l
      ), weighed as materialized (
        select i.request, i.place, i.id, i.cost, i.keep, c.now, c.missing, l.full_at, l.granted, l.burst, l.anchor,
               l.step_ns, l.step_ticks, l.token_ticks, l.burst / l.token_ticks - i.keep as most,
               (l.burst - greatest(l.full_at - tollgate.bucket_clock_v1(l, c.now), 0)) / l.token_ticks - i.keep as left,
               -- Whether nothing but tokens rules it.
               coalesce(
                 v_enforced and not l.overridden
                 and l.full_at - tollgate.bucket_clock_v1(l, c.now) <= tollgate.bucket_furthest_v1(l)
                 and case
                       when i.capacity is not null
                         then l.plan is null and i.capacity = l.capacity and i.refill_seconds = l.refill_seconds
                              and i.refill = l.refill
                       when i.refill_seconds is not null or i.refill is not null
                         then false
                       when i.plan is null and l.plan is null
                         then true
                       else coalesce(i.plan = l.plan, i.plan is null)
                            and exists (
                              select from tollgate.token_plans p
                               where p.name = l.plan and p.mode is null and p.capacity = l.capacity
                                 and p.refill_seconds = l.refill_seconds and p.refill = l.refill)
                     end
                 and (not v_overrides or not exists (select from tollgate.token_overrides o where o.id = i.id)),
                 false) as plain
          from unnest(p_requests, p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans)
               with ordinality as i (request, id, cost, keep, capacity, refill_seconds, refill, plan, place)
          left join locked l on l.id = i.id
         cross join clock c
      ), demand as (
        select w.id, bool_and(w.plain) as plain,
               -- By those that the bucket could grant, and what it must keep for them.
               sum(w.cost) filter (where w.cost <= w.left) as cost, max(w.keep) filter (where w.cost <= w.left) as keep
          from weighed w group by w.id
      ), decided as (
        select w.request,
               case when not bool_and(d.plain) then 'left'
                 when not bool_and(w.cost <= w.left) then 'denied'
                 when bool_and(d.cost + d.keep <= w.left + w.keep) then 'granted'
                 else 'left' end as word
          from weighed w join demand d on d.id = w.id
         group by w.request
      ), told as (
        select w.*,
               case when w.missing then 'missing'
                 when d.word <> 'denied' then d.word
                 when w.cost <= w.left then 'spared'
                 when w.cost <= w.most then 'denied'
                 else 'never' end as word
          from weighed w join decided d on d.request = w.request
      )
      select t.word, array_agg(t.id) as ids, array_agg(t.cost) as costs,
             (array_agg(t.place), array_agg(1::bigint), t.word, null, array_agg(t.now), null, array_agg(t.full_at),
              array_agg(t.granted), array_agg(t.burst), array_agg(t.anchor), array_agg(t.step_ns),
              array_agg(t.step_ticks), array_agg(t.token_ticks))::tollgate.answers_v1 as answers
        from told t group by t.word
    loop
      answers := v_part.answers;
      if v_part.word = 'missing' then
        v_missing := true;
        continue;
      elsif v_part.word = 'left' then
        v_left := answers.entries;
        continue;
      elsif v_part.word = 'granted' then
        update tollgate.token_buckets l
           set room = null,
               granted = l.granted + g.cost,
               full_at = greatest(l.full_at, tollgate.bucket_clock_v1(l, answers.now[1])) + g.cost * l.token_ticks
          from (select i.id, sum(i.cost)::bigint as cost from unnest(v_part.ids, v_part.costs) i (id, cost) group by i.id) g
         where l.id = g.id;
      end if;
      standing := true;
      return next;
    end loop;
    exit when not v_missing;
    -- In the order of the ids, with those that are there.
    perform tollgate.lock_all_v1(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans);
    v_made := true;
  end loop;

  for v_part in
    select min(x.place) as first, max(x.place) as last
      from unnest(v_left) x (place) group by p_requests[x.place] order by 1
  loop
    return query
      select false, tollgate.answers_of_v1(v_part.first + t.entry - 1, 1, t.taken)
        from tollgate.take_all_v1(
               p_ids[v_part.first:v_part.last], p_costs[v_part.first:v_part.last],
               p_keeps[v_part.first:v_part.last], p_capacities[v_part.first:v_part.last],
               p_refill_seconds[v_part.first:v_part.last], p_refills[v_part.first:v_part.last],
               p_plans[v_part.first:v_part.last], 0, null, 0) t;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

revoke all on function tollgate.take_all_many_v1(
  bigint[], text[], bigint[], bigint[], bigint[], numeric[], text[], text[]) from public;
