-- weigh_many_v1: what the requests come to that grant_many_v1 did not grant. Nothing is written, no lock waited for.
--
-- Arguments: p_places to p_times: as grant_many_v1's; p_done: the entries that it granted
-- Result:    answers  the entries that are denied, all that they stand for; null: none
--            again    those that could be granted after all
--            missing  those whose buckets are to be made
--            ruled    those that take_v1 must decide
create function tollgate.weigh_many_v1(
  p_places bigint[], p_ids text[], p_costs bigint[], p_keeps bigint[], p_capacities bigint[],
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
  -- Each row's clock after the row: what others took since can only be more, so a denial holds at that instant.
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
               when t.full_at - tollgate.bucket_clock_v1(t, c.now) > tollgate.bucket_furthest_v1(t)
                 then 'ruled'
               when u.cost > t.burst / t.token_ticks - u.keep  -- never possible
                 then 'ruled'
               when tollgate.bucket_affords_v1(t, t.full_at, u.cost, u.keep, c.now) >= 1
                 then 'granted'
               else 'denied'
             end as what
        from unnest(p_places, p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans, p_times)
             as u (place, id, cost, keep, capacity, refill_seconds, refill, plan, times)
        left join tollgate.token_buckets t on t.id = u.id
       cross join lateral (
             select tollgate.token_clock_v1() as now where t.id is not null or u.id is not null offset 0) c
        left join tollgate.token_plans p on p.name = coalesce(u.plan, t.plan) and u.capacity is null
       where u.place not in (select unnest(p_done))
      offset 0
    ) r;
end
$$;

revoke all on function tollgate.weigh_many_v1(
  bigint[], text[], bigint[], bigint[], bigint[], numeric[], text[], text[], bigint[], bigint[]) from public;
