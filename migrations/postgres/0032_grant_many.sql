-- bucket_affords_v1(p_bucket, p_full_at, p_cost, p_keep, p_now) -> how many requests for p_cost tokens the bucket grants
-- at p_now, one after the other, if it is full again at the tick p_full_at. They must be possible: p_cost + p_keep is at
-- most its capacity.
create function tollgate.bucket_affords_v1(
  p_bucket tollgate.token_buckets, p_full_at bigint, p_cost bigint, p_keep bigint, p_now bigint) returns bigint
language sql immutable
as $$
  select (p_bucket.burst - p_keep * p_bucket.token_ticks
          - greatest(p_full_at - tollgate.bucket_clock_v1(p_bucket, p_now), 0)) / (p_cost * p_bucket.token_ticks)
$$;

revoke all on function
  tollgate.bucket_affords_v1(tollgate.token_buckets, bigint, bigint, bigint, bigint) from public;

-- grant_many_v1: grant requests of several buckets that nothing but tokens rules, as many as each affords.
--
-- Arguments: p_places: what to call the entries in the answer; p_ids to p_times: as take_many_v1's, in the order of
--            p_ids, none twice, and none that an override rules
-- Result:    answers  the entries that were granted once or more often, how often, and the state after that; null: none
--            whole    whether each was as often as asked
--            late     those whose rows were locked more than 2 ms after the instant that they were granted at
--            What is not among them is denied, or not ordinary, or changed meanwhile
-- Locks:     the rows of granted requests, in the order of their ids: that in which the plan walks the arrays, which
--            is why others are forbidden. Rows that others changed meanwhile stay locked, too.
create function tollgate.grant_many_v1(
  p_places bigint[], p_ids text[], p_costs bigint[], p_keeps bigint[], p_capacities bigint[],
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
  -- How many of an entry's requests are granted follows from what the row was before, which RETURNING cannot tell: it is
  -- read beside, and holds if the locked row still says so, or affords all of them as well. The clock is read for each row,
  -- when the plan comes to it: how long the statement takes moves nobody's instant.
  return query
  with chosen as (
    update tollgate.token_buckets t
       set room = null,
           granted = t.granted + u.cost * b.times,
           full_at = greatest(t.full_at, tollgate.bucket_clock_v1(t, c.now)) + u.cost * t.token_ticks * b.times
      from unnest(p_places, p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans, p_times)
           as u (place, id, cost, keep, capacity, refill_seconds, refill, plan, times)
           cross join lateral (select tollgate.token_clock_v1() as now where u.place is not null offset 0) c
           cross join lateral (
             select 1 as times, null as full_at where u.times = 1
              union all
             select least(u.times, tollgate.bucket_affords_v1(o, o.full_at, u.cost, u.keep, c.now)), o.full_at
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
             then tollgate.bucket_affords_v1(t, t.full_at, u.cost, u.keep, c.now) >= b.times end
    returning u.place, u.times as wanted, b.times as granted,
              tollgate.token_clock_v1() - c.now > 2000000 as late,
              c.now, t.full_at, t.granted as tokens, t.burst, t.anchor, t.step_ns, t.step_ticks, t.token_ticks)
  select (array_agg(d.place), array_agg(d.granted), 'granted', null, array_agg(d.now), null, array_agg(d.full_at),
          array_agg(d.tokens), array_agg(d.burst), array_agg(d.anchor), array_agg(d.step_ns), array_agg(d.step_ticks),
          array_agg(d.token_ticks))::tollgate.answers_v1,
         bool_and(d.granted = d.wanted), coalesce(array_agg(d.place) filter (where d.late), '{}')
    from chosen d;
end
$$;

revoke all on function tollgate.grant_many_v1(
  bigint[], text[], bigint[], bigint[], bigint[], numeric[], text[], text[], bigint[]) from public;
