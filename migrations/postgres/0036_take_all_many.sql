-- take_all_many_v1: decide several requests in one call, each for several buckets: from all of its buckets or from none.
--
-- Arguments: p_requests  to which request a place belongs, from 1 on and ascending
--            p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans
--                        a bucket a place, no request naming one twice; as for take_all_v1, the cost and what to keep
--                        being the request's at each of its places. Nobody waits.
-- Result:    entry  the place in the arrays, from 1
--            taken  as take_all_v1's
-- Errors:    as take_all_v1's · 55P03 a bucket was locked for longer than 100 ms: nothing was taken
-- Locks:     the rows of all buckets, made if need be, in the order of their ids; then those that the first request that
--            names them may not make, but a later one may.
--
-- The clock is read when the rows are locked. What cannot be granted as the buckets stand is denied, and what still can
-- after all that comes before it is debited, by one UPDATE. What is left is decided by take_all_v1, in its order: where
-- that depends on what came of those before, and where something rules beside the tokens. So each is granted or denied as if
-- they came one after the other.
create function tollgate.take_all_many_v1(
  p_requests bigint[], p_ids text[], p_costs bigint[], p_keeps bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns table (entry bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else each call would plan anew for its arrays
as $$
declare
  v_lock    text := current_setting('lock_timeout');
  v_limited boolean := false;
  v_words   text[];  -- what each place comes to; null: left for take_all_v1
  v_now     bigint;
  v_left    record;
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

  perform tollgate.lock_all_v1(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans);
  v_now := tollgate.token_clock_v1();
  if not exists (select from tollgate.token_mode g where g.mode <> 'enforce' or g.overrides) then
    select array_agg(case when s.is_left then null
                       when s.fits then 'granted'
                       when s.due <= s.clock then 'spared'
                       else 'denied' end order by s.place)
      into v_words
      from (select s.*,
                   -- Not if what comes before it, or what that has to keep, leaves too little.
                   s.fits is null or bool_or(s.fits and s.due + (s.before + s.keeps - s.keep) * s.token_ticks > s.clock)
                                       over (partition by s.request) as is_left
              from (select s.*,
                           coalesce(sum(s.cost) filter (where s.fits is not false) over earlier, 0) as before,
                           coalesce(greatest(max(s.keep) filter (where s.fits is not false) over earlier, s.keep), 0)
                             as keeps
                      from (select s.*,
                                   -- null: something else than its tokens rules one of its buckets
                                   case when bool_and(s.plain) over (partition by s.request)
                                     then bool_and(s.due <= s.clock) over (partition by s.request) end as fits
                              from (select i.request, i.place, i.id, i.cost, i.keep, l.token_ticks,
                                           tollgate.bucket_clock_v1(l, v_now) as clock,
                                           -- From when the bucket stands, so that what comes before can be added to it.
                                           case when i.cost <= l.burst / l.token_ticks - i.keep
                                             then greatest(l.full_at, tollgate.bucket_clock_v1(l, v_now)) - l.burst
                                                  + (i.cost + i.keep) * l.token_ticks end as due,
                                           bool_and(coalesce(
                                             l.plan is null and i.plan is null and not l.overridden
                                             and i.cost <= l.burst / l.token_ticks - i.keep
                                             and (i.capacity is null and i.refill_seconds is null and i.refill is null
                                                  or (i.capacity, i.refill_seconds, i.refill)
                                                     = (l.capacity, l.refill_seconds, l.refill))
                                             and l.full_at - tollgate.bucket_clock_v1(l, v_now)
                                                 <= tollgate.bucket_furthest_v1(l), false))
                                             over (partition by i.id) as plain
                                      from unnest(p_requests, p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds,
                                                  p_refills, p_plans)
                                           with ordinality
                                           as i (request, id, cost, keep, capacity, refill_seconds, refill, plan, place)
                                      left join tollgate.token_buckets l on l.id = i.id) s) s
                    window earlier as (partition by s.id order by s.place
                                       rows between unbounded preceding and 1 preceding)) s) s;
    update tollgate.token_buckets l
       set room = null,
           granted = l.granted + g.cost,
           full_at = greatest(l.full_at, tollgate.bucket_clock_v1(l, v_now)) + g.cost * l.token_ticks
      from (select i.id, sum(i.cost)::bigint as cost from unnest(p_ids, p_costs, v_words) as i (id, cost, word)
             where i.word = 'granted' group by i.id) g
     where l.id = g.id;
    return query
      select i.place,
             (i.word, null, v_now, v_now, l.full_at - i.later * l.token_ticks, l.granted - i.later, l.burst, l.anchor,
              l.step_ns, l.step_ticks, l.token_ticks)::tollgate.taken_v1
        from (select u.place, u.id, u.word,
                     coalesce(sum(u.cost) filter (where u.word = 'granted')
                                over (partition by u.id order by u.place
                                      rows between 1 following and unbounded following), 0)::bigint as later
                from unnest(p_ids, p_costs, v_words) with ordinality as u (id, cost, word, place)) i
        join tollgate.token_buckets l on l.id = i.id
       where i.word is not null;
  end if;

  for v_left in
    select i.request, min(i.place) as first, max(i.place) as last
      from unnest(p_requests) with ordinality as i (request, place)
     where v_words[i.place] is null
     group by i.request order by i.request
  loop
    return query
      select v_left.first + t.entry - 1, t.taken
        from tollgate.take_all_v1(
               p_ids[v_left.first:v_left.last], p_capacities[v_left.first:v_left.last],
               p_refill_seconds[v_left.first:v_left.last], p_refills[v_left.first:v_left.last],
               p_plans[v_left.first:v_left.last], p_costs[v_left.first], 0, p_keeps[v_left.first], null, 0) t;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

revoke all on function tollgate.take_all_many_v1(
  bigint[], text[], bigint[], bigint[], bigint[], numeric[], text[], text[]) from public;
