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

-- take_many_v1: decide several requests in one call, each for itself: one that fails does not fail the others.
--
-- Arguments: the same as take_v1's, an array each, all of one length; and
--            p_times: for how many equal requests, decided one after the other, each entry stands; null: for one
-- Result:    entry  the place in the arrays, from 1
--            times  for how many of the entry's requests this row answers; all rows of an entry, in the order in which
--                   they come, answer all of them
--            taken  take_v1's columns; the state is that after the last of them
-- Errors:    as take_v1's · 22023 fewer times than one · 55P03 several buckets, and one was locked for longer than
--            100 ms: nothing was taken
-- Locks:     the rows of granted requests, in the order of their ids; then those that it makes, in that order; then, in
--            that order, those that something rules beside their tokens, and those that changed meanwhile. Requests for
--            one bucket are decided in the order given.
--
-- Where nothing but tokens rules, and nobody waits: one UPDATE for many rows, which reckons with what it finds under
-- each row's lock, and one unlocked read of what that left. All else is take_v1's, one request after the other.
--
-- As there, a decision counts when its row is locked; so each statement is for few rows, and where it took long, its
-- grants are moved to the later instant, and its denials decided again.
create function tollgate.take_many_v1(
  p_ids text[], p_costs bigint[], p_max_waits bigint[], p_keeps bigint[],
  p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[],
  p_receipts uuid[], p_holds bigint[], p_times bigint[])
returns table (entry bigint, times bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
-- The order of the locks is that in which the plan walks the array; and each call would plan anew for its arrays.
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_simple    boolean;
  v_overrides boolean;
  v_lock      text := current_setting('lock_timeout');
  v_limited   boolean := false;
  v_order     bigint[];             -- the entries to decide, in the order of their ids, and their arguments
  v_ids       text[];
  v_costs     bigint[] := p_costs;
  v_keeps     bigint[] := p_keeps;
  v_capacity  bigint[] := p_capacities;
  v_seconds   numeric[] := p_refill_seconds;
  v_refill    text[] := p_refills;
  v_plans     text[] := p_plans;
  v_times     bigint[] := p_times;
  v_done      bigint[];             -- the entries of a statement, how many requests it granted, and the answers
  v_granted   bigint[];
  v_taken     tollgate.taken_v1[];
  v_whole     boolean;              -- whether it granted all that they asked for
  v_made      text[];
  v_tokens    bigint[];
  v_denied    bigint[];
  v_again     bigint[] := '{}';     -- entries that could be granted after all
  v_new       bigint[] := '{}';     -- entries whose buckets are to be made
  v_making    bigint[];
  v_left      bigint[] := '{}';     -- entries for take_v1, and how many requests of each
  v_rest      bigint[] := '{}';
  v_from      integer;
  v_to        integer;
  v_now       bigint;
  v_request   record;
  c_rows      constant integer := 128;
  c_stale     constant bigint := 2000000;
begin
  if 1 > any (p_times) then
    raise exception 'tollgate: take_many_v1 needs each request once or more often'
      using errcode = 'invalid_parameter_value';
  end if;
  select g.mode = 'enforce', g.overrides into v_simple, v_overrides from tollgate.token_mode g where g.one;
  v_simple := v_simple
    and cardinality(p_ids) = all (array[cardinality(p_costs), cardinality(p_max_waits), cardinality(p_keeps),
                                        cardinality(p_times)])
    and 0 = all (p_max_waits) and coalesce(array_remove(p_receipts, null) = '{}', true)
    and 1 <= all (p_costs) and 4611686018427387903 >= all (p_costs)
    and 0 <= all (p_keeps) and 4611686018427387903 >= all (p_keeps)
    and 1 <= all (p_times) and array_position(p_ids, null) is null;
  v_order := array(select generate_series(1, cardinality(p_ids)));
  if v_simple then
    v_ids := array(select distinct i.id collate "C" from unnest(p_ids) i (id) order by 1);
    v_simple := cardinality(v_ids) = cardinality(p_ids);
  end if;
  if v_simple is not true then
    v_left := v_order;
    v_rest := array(select coalesce(p_times[i], 1) from unnest(v_order) i);
    v_order := '{}';
  elsif v_ids <> p_ids then
    v_again := array(select i.place from unnest(p_ids) with ordinality i (id, place) order by i.id collate "C");
  end if;
  if cardinality(v_order) > 1 and (v_lock = '0' or v_lock::interval > interval '100 ms') then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;

  for v_round in 1 .. 3 loop
    if v_again <> '{}' then
      v_order := v_again;
      v_again := '{}';
      v_ids := array(select p_ids[i] from unnest(v_order) i);
      v_costs := array(select p_costs[i] from unnest(v_order) i);
      v_keeps := array(select p_keeps[i] from unnest(v_order) i);
      v_capacity := array(select p_capacities[i] from unnest(v_order) i);
      v_seconds := array(select p_refill_seconds[i] from unnest(v_order) i);
      v_refill := array(select p_refills[i] from unnest(v_order) i);
      v_plans := array(select p_plans[i] from unnest(v_order) i);
      v_times := array(select p_times[i] from unnest(v_order) i);
    elsif v_round > 1 then
      exit;
    end if;
    v_from := 1;
    loop
      v_to := v_from + c_rows - 1;
      v_making := '{}';
      v_now := tollgate.token_clock_v1();
      if v_from <= cardinality(v_order) then
        -- What several requests of an entry were granted follows from what the row was before, which RETURNING cannot
        -- tell: it is read beside, and holds if the locked row still says so.
        with done as (
          update tollgate.token_buckets t
             set granted = t.granted
                   + u.cost * least(u.times, tollgate.bucket_affords_v1(t, t.full_at, u.cost, u.keep, v_now)),
                 full_at = greatest(t.full_at, tollgate.bucket_clock_v1(t, v_now))
                   + u.cost * t.token_ticks
                     * least(u.times, tollgate.bucket_affords_v1(t, t.full_at, u.cost, u.keep, v_now))
            from unnest(v_order[v_from:v_to], v_ids[v_from:v_to], v_costs[v_from:v_to], v_keeps[v_from:v_to],
                        v_capacity[v_from:v_to], v_seconds[v_from:v_to], v_refill[v_from:v_to], v_plans[v_from:v_to],
                        v_times[v_from:v_to])
                 as u (entry, id, cost, keep, capacity, refill_seconds, refill, plan, times)
                 left join lateral (
                   select o.full_at from tollgate.token_buckets o where o.id = u.id and u.times > 1 offset 0) b on true
           where t.id = u.id and (u.times = 1 or t.full_at = b.full_at) and not t.overridden
             and case
                   when u.capacity is not null
                     then t.plan is null and u.capacity = t.capacity and u.refill_seconds = t.refill_seconds
                          and u.refill = t.refill
                   when u.plan is null and t.plan is null
                     then true
                   else coalesce(u.plan = t.plan, u.plan is null)
                        and exists (
                          select from tollgate.token_plans p
                           where p.name = t.plan and p.mode is null and p.capacity = t.capacity
                             and p.refill_seconds = t.refill_seconds and p.refill = t.refill)
                 end
             and (not v_overrides or not exists (
                   select from tollgate.token_overrides o
                    where o.id = t.id and tollgate.in_force_v1(o.expires_at, v_now)))
             and case when u.cost <= t.burst / t.token_ticks - u.keep
                   then tollgate.bucket_affords_v1(t, t.full_at, u.cost, u.keep, v_now) >= 1 end
          returning u.entry as place, u.times as wanted,
                    least(u.times, tollgate.bucket_affords_v1(t, b.full_at, u.cost, u.keep, v_now)) as granted,
                    ('granted', null, v_now, v_now, t.full_at, t.granted, t.burst, t.anchor, t.step_ns, t.step_ticks,
                     t.token_ticks)::tollgate.taken_v1 as answer)
        select array_agg(d.place), array_agg(d.granted), array_agg(d.answer), bool_and(d.granted = d.wanted)
          into v_done, v_granted, v_taken, v_whole
          from done d;
      elsif v_new <> '{}' then
        v_making := v_new[1:c_rows];
        v_new := v_new[c_rows + 1:];
        with asked as (
          select e.place, p_ids[e.place] as id, p_costs[e.place] as cost, p_keeps[e.place] as keep,
                 p_times[e.place] as times, coalesce(p_capacities[e.place], p.capacity) as capacity,
                 coalesce(p_refill_seconds[e.place], p.refill_seconds)::numeric(19, 9) as refill_seconds,
                 coalesce(p_refills[e.place], p.refill) as refill, p.name as plan
            from unnest(v_making) e (place)
            left join tollgate.token_plans p on p.name = p_plans[e.place] and p_capacities[e.place] is null
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
                 v_now / x.step_ns * x.step_ticks
                   + least(a.times, (a.capacity - a.keep) / a.cost) * a.cost * x.token_ticks,
                 least(a.times, (a.capacity - a.keep) / a.cost) * a.cost,
                 x.burst, x.step_ns, x.step_ticks, x.token_ticks
            from asked a
            join terms x on (x.capacity, x.refill_seconds, x.refill) = (a.capacity, a.refill_seconds, a.refill)
           order by a.id collate "C"
          on conflict do nothing
          returning t.id, t.granted,
                    ('granted', null, v_now, v_now, t.full_at, t.granted, t.burst, t.anchor, t.step_ns, t.step_ticks,
                     t.token_ticks)::tollgate.taken_v1 as answer)
        select array_agg(m.id), array_agg(m.granted), array_agg(m.answer) into v_made, v_tokens, v_taken from made m;
        if cardinality(v_made) = cardinality(v_making) then
          v_done := v_making;
        else
          v_done := array(select v_order[array_position(v_ids, m.id)] from unnest(v_made) m (id));
          v_left := v_left || array(select x from unnest(v_making) x where x not in (select unnest(v_done)));
          v_rest := v_rest || array(select p_times[x] from unnest(v_making) x where x not in (select unnest(v_done)));
        end if;
        v_granted := array(select d.tokens / p_costs[d.place] from unnest(v_done, v_tokens) d (place, tokens));
        v_whole := v_granted = array(select p_times[x] from unnest(v_done) x);
      else
        exit;
      end if;

      if v_done <> '{}' then
        if tollgate.token_clock_v1() - v_now > c_stale then
          v_now := tollgate.token_clock_v1();
          v_left := v_left || array(select d.place from unnest(v_done, v_granted) d (place, granted)
                                     where d.granted < p_times[d.place]);
          v_rest := v_rest || array(select p_times[d.place] - d.granted from unnest(v_done, v_granted) d (place, granted)
                                     where d.granted < p_times[d.place]);
          v_whole := true;
          with done as (
            update tollgate.token_buckets t
               set full_at = greatest(t.full_at, tollgate.bucket_clock_v1(t, v_now)
                                                   + d.granted * p_costs[d.place] * t.token_ticks)
              from unnest(v_done, v_granted) d (place, granted)
             where t.id = p_ids[d.place]
            returning d.place, d.granted,
                      ('granted', null, v_now, v_now, t.full_at, t.granted, t.burst, t.anchor, t.step_ns, t.step_ticks,
                       t.token_ticks)::tollgate.taken_v1 as answer)
          select array_agg(d.place), array_agg(d.granted), array_agg(d.answer) into v_done, v_granted, v_taken
            from done d;
        end if;
        return query select unnest(v_done), unnest(v_granted), unnest(v_taken);
        if not v_whole then
          return query
            select d.place, p_times[d.place] - d.granted,
                   ('denied', d.mode, d.now, d.acts_at, d.full_at, d.tokens, d.burst, d.anchor, d.step_ns, d.step_ticks,
                    d.token_ticks)::tollgate.taken_v1
              from unnest(v_done, v_granted, v_taken)
                   as d (place, granted, outcome, mode, now, acts_at, full_at, tokens, burst, anchor, step_ns, step_ticks,
                         token_ticks)
             where d.granted < p_times[d.place];
        end if;
      end if;
      continue when v_making <> '{}';

      if coalesce(cardinality(v_done), 0) < cardinality(v_order[v_from:v_to]) then
        -- The clock after the read: what others took since can only be more, so a denial holds at that instant.
        select array_agg(r.place) filter (where r.what in ('denied', 'never')),
               array_agg(r.times) filter (where r.what in ('denied', 'never')),
               array_agg((r.what, null, r.now, r.now, r.full_at, r.granted, r.burst, r.anchor, r.step_ns, r.step_ticks,
                          r.token_ticks)::tollgate.taken_v1) filter (where r.what in ('denied', 'never')),
               v_again || array_agg(r.place) filter (where r.what = 'granted'),
               v_new || array_agg(r.place) filter (where r.what = 'new'),
               v_left || array_agg(r.place) filter (where r.what = 'ruled'),
               v_rest || array_agg(r.times) filter (where r.what = 'ruled')
          into v_denied, v_granted, v_taken, v_again, v_new, v_left, v_rest
          from (
            select u.place, u.times, c.now, t.*,
                   case
                     when v_overrides and exists (
                            select from tollgate.token_overrides o
                             where o.id = u.id and tollgate.in_force_v1(o.expires_at, c.now))
                       then 'ruled'
                     when t.id is null
                       then case when octet_length(u.id) between 1 and 255
                                      and u.cost <= coalesce(u.capacity, p.capacity) - u.keep
                                      and case when u.capacity is null
                                            then p.mode is null and u.refill_seconds is null and u.refill is null
                                            else u.plan is null and u.refill_seconds is not null and u.refill is not null
                                          end
                              then 'new' else 'ruled' end
                     when t.overridden
                          or (case
                                when u.capacity is not null
                                  then t.plan is null and u.capacity = t.capacity
                                       and u.refill_seconds = t.refill_seconds and u.refill = t.refill
                                when u.plan is null and t.plan is null
                                  then true
                                else p.name = t.plan and p.mode is null and p.capacity = t.capacity
                                     and p.refill_seconds = t.refill_seconds and p.refill = t.refill
                              end) is not true
                       then 'ruled'
                     when u.cost > t.burst / t.token_ticks - u.keep
                       then 'never'
                     when tollgate.bucket_affords_v1(t, t.full_at, u.cost, u.keep, c.now) >= 1
                       then 'granted'
                     when t.full_at - tollgate.bucket_clock_v1(t, c.now) > tollgate.bucket_furthest_v1(t)
                       then 'ruled'
                     else 'denied'
                   end as what
              from (select tollgate.token_clock_v1() as now offset 0) c
             cross join unnest(v_order[v_from:v_to], v_ids[v_from:v_to], v_costs[v_from:v_to], v_keeps[v_from:v_to],
                               v_capacity[v_from:v_to], v_seconds[v_from:v_to], v_refill[v_from:v_to],
                               v_plans[v_from:v_to], v_times[v_from:v_to])
                        as u (place, id, cost, keep, capacity, refill_seconds, refill, plan, times)
              left join tollgate.token_buckets t on t.id = u.id
              left join tollgate.token_plans p on p.name = coalesce(u.plan, t.plan) and u.capacity is null
             where u.place not in (select unnest(v_done))
          ) r;
        return query select unnest(v_denied), unnest(v_granted), unnest(v_taken);
      end if;
      v_from := v_to + 1;
    end loop;
  end loop;

  if v_again <> '{}' then
    v_left := v_left || v_again;
    v_rest := v_rest || array(select p_times[i] from unnest(v_again) i);
  end if;
  for v_request in
    select l.place, l.rest from unnest(v_left, v_rest) l (place, rest) order by p_ids[l.place] collate "C", l.place
  loop
    entry := v_request.place;
    while v_request.rest > 0 loop
      taken := tollgate.take_v1(p_ids[entry], p_costs[entry], p_max_waits[entry], p_keeps[entry], p_capacities[entry],
                                p_refill_seconds[entry], p_refills[entry], p_plans[entry], p_receipts[entry],
                                p_holds[entry]);
      -- Where nothing was taken, or an id was asked for, the next one is answered alike.
      times := case when taken.outcome = 'granted' and taken.mode is null and p_receipts[entry] is null
                 then 1 else v_request.rest end;
      v_request.rest := v_request.rest - times;
      return next;
    end loop;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

revoke all on function tollgate.take_many_v1(
  text[], bigint[], bigint[], bigint[], bigint[], numeric[], text[], text[], uuid[], bigint[], bigint[]) from public;
