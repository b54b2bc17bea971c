-- make_alike_v1: make the buckets of requests that differ in bucket and number only, and grant them what a full one holds.
--
-- Arguments: as grant_alike_v1's, which found none of the buckets
-- Result:    as grant_alike_v1's. What is not among the answers is not made: it is there by now, or no request makes it.
--            null: some are there, or the terms are none
-- Errors:    23514 terms that make no bucket
-- Locks:     the rows that it makes, in the order of p_ids.
--
-- Keys that nobody has asked for before come together. To read first which are there, and then make them by make_many_v1,
-- takes the server half as long again, and more.
create function tollgate.make_alike_v1(
  p_ids text[], p_times bigint[], p_cost bigint, p_keep bigint, p_capacity bigint, p_refill_seconds numeric,
  p_refill text, p_plan text)
returns tollgate.granted_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_nestloop = off  -- the generic plan expects few entries
set jit = off
as $$
declare
  v_most  bigint;  -- how often a full bucket grants one of the requests
  v_terms record;
  v_made  tollgate.granted_v1;
begin
  if (p_cost <= p_capacity - p_keep and p_refill_seconds is not null and p_refill is not null) is not true
     -- Where the first and the last one are there, so may all be, and nothing was granted because nothing was left.
     or exists (select from tollgate.token_buckets b where b.id in (p_ids[1], p_ids[cardinality(p_ids)])) then
    return null;
  end if;
  v_most := (p_capacity - p_keep) / p_cost;
  v_terms := tollgate.terms_v1('bucket ' || quote_literal(p_ids[1]), p_capacity, p_refill_seconds, p_refill);
  with made as (
    insert into tollgate.token_buckets as t
      (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted, burst, step_ns, step_ticks,
       token_ticks)
    select u.id, p_capacity, p_refill_seconds, p_refill, p_plan, false, 0,
           c.now / v_terms.step_ns * v_terms.step_ticks + least(u.times, v_most) * p_cost * v_terms.token_ticks,
           least(u.times, v_most) * p_cost, v_terms.burst, v_terms.step_ns, v_terms.step_ticks, v_terms.token_ticks
      from unnest(p_ids, p_times) as u (id, times)
     cross join lateral (select tollgate.token_clock_v1() as now where u.id is not null offset 0) c
     where octet_length(u.id) between 1 and 255 and left(u.id, 1) <> chr(1)
    on conflict do nothing
    returning t.id, t.full_at, t.granted as tokens, tollgate.token_clock_v1() as now)
  select (array_agg(u.place), array_agg(least(u.times, v_most)), 'granted', null, array_agg(m.now), null,
          array_agg(m.full_at), array_agg(m.tokens), array[v_terms.burst], array_agg(0::bigint), array[v_terms.step_ns],
          array[v_terms.step_ticks], array[v_terms.token_ticks])::tollgate.answers_v1,
         (select count(*) from made) = cardinality(p_ids) and bool_and(u.times <= v_most),
         -- Those that waited for another session's row, which then did not come.
         coalesce(array_agg(u.place) filter (
           where (m.now - 2000000) / v_terms.step_ns * v_terms.step_ticks > m.full_at - m.tokens * v_terms.token_ticks),
           '{}')
    into v_made
    from made m
    join unnest(p_ids, p_times) with ordinality as u (id, times, place) on u.id = m.id;
  return v_made;
end
$$;

revoke all on function tollgate.make_alike_v1(
  text[], bigint[], bigint, bigint, bigint, numeric, text, text) from public;
