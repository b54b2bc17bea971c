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
-- Where nothing but tokens rules, nobody waits, and there are more than a few: one UPDATE for many rows, which reckons with
-- what it finds under each row's lock, and one unlocked read of what that left. All else is take_v1's, one request after
-- the other.
--
-- As there, a decision counts when its row is locked: grants that waited for that are moved to the later instant, and what
-- was denied of them is decided again.
create function tollgate.take_many_v1(
  p_ids text[], p_costs bigint[], p_max_waits bigint[], p_keeps bigint[],
  p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[],
  p_receipts uuid[], p_holds bigint[], p_times bigint[])
returns table (entry bigint, times bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else each call would plan anew for its arrays
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
  v_seen      bigint[];             -- the entries that are through
  v_whole     boolean;              -- whether it granted all that they asked for
  v_late      bigint[];             -- those that waited for a lock since their instant
  v_again     bigint[] := '{}';     -- entries that could be granted after all
  v_new       bigint[];             -- entries whose buckets are to be made
  v_left      bigint[] := '{}';     -- entries for take_v1, and how many requests of each
  v_rest      bigint[] := '{}';
  v_step      text;
  v_now       bigint;
  v_request   record;
  c_few       constant bigint := 6;  -- requests that are decided sooner one by one than a set statement begins
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
  v_simple := v_simple and (select sum(x) from unnest(p_times) x) > c_few;
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
  if p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms') then
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
    v_seen := '{}';
    foreach v_step in array array['grant', 'weigh', 'make'] loop
      if v_step = 'grant' then
        continue when v_order = '{}';
        select g.done, g.granted, g.taken, g.whole, g.late into v_done, v_granted, v_taken, v_whole, v_late
          from tollgate.grant_many_v1(v_order, v_ids, v_costs, v_keeps, v_capacity, v_seconds, v_refill, v_plans, v_times,
                                      v_overrides) g;
        v_seen := coalesce(v_done, '{}');
      elsif v_step = 'weigh' then
        exit when cardinality(v_seen) = cardinality(v_order);
        v_late := '{}';
        v_whole := true;
        select w.denied, w.times, w.taken, w.again, w.missing, v_left || w.ruled,
               v_rest || array(select p_times[x] from unnest(w.ruled) x)
          into v_done, v_granted, v_taken, v_again, v_new, v_left, v_rest
          from tollgate.weigh_many_v1(v_order, v_ids, v_costs, v_keeps, v_capacity, v_seconds, v_refill, v_plans, v_times,
                                      v_overrides, v_seen) w;
      else
        exit when v_new is null;
        select m.done, m.granted, m.taken, m.whole, m.late into v_done, v_granted, v_taken, v_whole, v_late
          from tollgate.make_many_v1(v_new, p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans,
                                     p_times) m;
        v_left := v_left || array(select x from unnest(v_new) x where x <> all (coalesce(v_done, '{}')));
        v_rest := v_rest || array(select p_times[x] from unnest(v_new) x where x <> all (coalesce(v_done, '{}')));
      end if;
      continue when v_done is null;

      if v_late <> '{}' then
        v_left := v_left || array(select d.place from unnest(v_done, v_granted) d (place, granted)
                                   where d.place = any (v_late) and d.granted < p_times[d.place]);
        v_rest := v_rest || array(select p_times[d.place] - d.granted from unnest(v_done, v_granted) d (place, granted)
                                   where d.place = any (v_late) and d.granted < p_times[d.place]);
        v_now := tollgate.token_clock_v1();
        with moved as (
          update tollgate.token_buckets t
             set full_at = tollgate.bucket_clock_v1(t, v_now) + d.granted * p_costs[d.place] * t.token_ticks
            from unnest(v_done, v_granted) d (place, granted)
           where d.place = any (v_late) and t.id = p_ids[d.place]
             and t.full_at < tollgate.bucket_clock_v1(t, v_now) + d.granted * p_costs[d.place] * t.token_ticks
          returning d.place, t.full_at)
        select array_agg(d.place), array_agg(d.granted),
               array_agg((d.outcome, d.mode, x.now, x.now, coalesce(m.full_at, d.full_at), d.tokens, d.burst, d.anchor,
                          d.step_ns, d.step_ticks, d.token_ticks)::tollgate.taken_v1)
          into v_done, v_granted, v_taken
          from unnest(v_done, v_granted, v_taken)
               as d (place, granted, outcome, mode, now, acts_at, full_at, tokens, burst, anchor, step_ns, step_ticks,
                     token_ticks)
         cross join lateral (select case when d.place = any (v_late) then v_now else d.now end) x (now)
          left join moved m on m.place = d.place;
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
           where d.granted < p_times[d.place] and d.place <> all (v_late);
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
