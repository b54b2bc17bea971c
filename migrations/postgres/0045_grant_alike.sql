-- grant_alike_v1: grant requests of several buckets that differ in bucket and number only, as those of one limiter do.
--
-- Arguments: p_ids, p_times: as grant_many_v1's, in the order of p_ids, none twice, and none that an override rules; the
--            others once, for all: p_capacity to p_refill are the terms of p_plan, if that is given
-- Result:    answers  the entries that were granted once or more often, by their places from 1, how often, and the state
--                     after that; burst, step_ns, step_ticks and token_ticks once, for all; null: none
--            whole    whether every entry was granted as often as asked
--            late     those whose rows were locked more than 2 ms after the instant that they were granted at
--            What is not among them is denied, or not ordinary, or changed meanwhile
-- Locks:     as grant_many_v1's.
--
-- The case that is met most, without what others need: by it a decision takes the server a quarter less.
do $$
begin
  if to_regtype('tollgate.granted_v1') is null then
    create type tollgate.granted_v1 as (answers tollgate.answers_v1, whole boolean, late bigint[]);
  end if;
end
$$;

create function tollgate.grant_alike_v1(
  p_ids text[], p_times bigint[], p_cost bigint, p_keep bigint, p_capacity bigint, p_refill_seconds numeric,
  p_refill text, p_plan text)
returns tollgate.granted_v1
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
  v_granted tollgate.granted_v1;
begin
  -- Why it is one statement, and when its clock is read: see grant_many_v1. Rows of these terms have the same burst, steps
  -- and ticks, but for those that an override's terms still rule.
  with chosen as (
    update tollgate.token_buckets t
       set room = null,
           granted = t.granted + p_cost * b.times,
           full_at = greatest(t.full_at, tollgate.bucket_clock_v1(t, c.now)) + p_cost * t.token_ticks * b.times
      from unnest(p_ids, p_times) with ordinality as u (id, times, place)
           cross join lateral (select tollgate.token_clock_v1() as now where u.place is not null offset 0) c
           cross join lateral (
             select 1 as times, null as full_at where u.times = 1
              union all
             select least(u.times, tollgate.bucket_affords_v1(o, o.full_at, p_cost, p_keep, c.now)), o.full_at
               from tollgate.token_buckets o
              where o.id = u.id and u.times > 1 and p_cost <= o.burst / o.token_ticks - p_keep
             offset 0) b
     where t.id = u.id and not t.overridden
       and t.capacity = p_capacity and t.refill_seconds = p_refill_seconds and t.refill = p_refill
       and t.plan is not distinct from p_plan
       and b.times >= 1 and (b.times = u.times or b.full_at = t.full_at)
       and case when p_cost <= t.burst / t.token_ticks - p_keep
             then tollgate.bucket_affords_v1(t, t.full_at, p_cost, p_keep, c.now) >= b.times end
    returning u.place, u.times as wanted, b.times as granted, tollgate.token_clock_v1() - c.now > 2000000 as late,
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

revoke all on function tollgate.grant_alike_v1(
  text[], bigint[], bigint, bigint, bigint, numeric, text, text) from public;
