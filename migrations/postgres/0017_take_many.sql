-- answers_v1: what several requests came to, all to the same. A row of each would be put together, sent and read by itself,
-- which takes as long as a third of the decision. Of burst, step_ns, step_ticks and token_ticks one element may stand for all.
do $$
begin
  if to_regtype('tollgate.answers_v1') is null then
    create type tollgate.answers_v1 as (
      entries     bigint[],  -- which requests, by their places among those of the call, from 1
      times       bigint[],  -- how many equal ones each of these stands for; the state is that after the last of them
      outcome     text,      -- and the columns of taken_v1, one for all, or for each
      mode        text,
      now         bigint[],
      acts_at     bigint[],  -- null: those of now
      full_at     bigint[],
      granted     bigint[],
      burst       bigint[],
      anchor      bigint[],
      step_ns     bigint[],
      step_ticks  bigint[],
      token_ticks bigint[]
    );
  end if;
end
$$;

-- answers_of_v1(p_entry, p_times, p_taken) -> the same of one.
create function tollgate.answers_of_v1(p_entry bigint, p_times bigint, p_taken tollgate.taken_v1)
returns tollgate.answers_v1
language sql immutable
as $$
  select array[p_entry], array[p_times], p_taken.outcome, p_taken.mode, array[p_taken.now], array[p_taken.acts_at],
         array[p_taken.full_at], array[p_taken.granted], array[p_taken.burst], array[p_taken.anchor],
         array[p_taken.step_ns], array[p_taken.step_ticks], array[p_taken.token_ticks]
$$;

revoke all on function tollgate.answers_of_v1(bigint, bigint, tollgate.taken_v1) from public;

-- answers_each_v1(p_answers) -> a row for each of them.
create function tollgate.answers_each_v1(p_answers tollgate.answers_v1)
returns table (entry bigint, times bigint, taken tollgate.taken_v1)
language sql immutable
as $$
  select a.entry, a.times,
         (p_answers.outcome, p_answers.mode, a.now, case when p_answers.acts_at is null then a.now else a.acts_at end,
          a.full_at, a.granted, case cardinality(p_answers.burst) when 1 then p_answers.burst[1] else a.burst end,
          a.anchor, case cardinality(p_answers.step_ns) when 1 then p_answers.step_ns[1] else a.step_ns end,
          case cardinality(p_answers.step_ticks) when 1 then p_answers.step_ticks[1] else a.step_ticks end,
          case cardinality(p_answers.token_ticks) when 1 then p_answers.token_ticks[1] else a.token_ticks end
         )::tollgate.taken_v1
    from unnest(p_answers.entries, p_answers.times, p_answers.now, p_answers.acts_at, p_answers.full_at,
                p_answers.granted, p_answers.burst, p_answers.anchor, p_answers.step_ns, p_answers.step_ticks,
                p_answers.token_ticks)
         as a (entry, times, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks)
$$;

revoke all on function tollgate.answers_each_v1(tollgate.answers_v1) from public;

-- take_many_v1: decide several requests in one call, each for itself: one that fails does not fail the others.
--
-- Arguments: the same as take_v1's, an array each, all of one length, or all but p_ids and p_times of one element, which is
--            then that of every request, and the ids are in their order, none twice; and
--            p_times: for how many equal requests, decided one after the other, each entry stands; null: for one
-- Result:    rows that together answer all requests; those of one entry in the order in which the rows come
-- Errors:    as take_v1's · 22023 fewer times than one, or, where all else is said once, ids that are not in their order,
--            if not all are granted · 55P03 several buckets, and one was locked for longer than
--            100 ms: nothing was taken
-- Locks:     the rows of granted requests, in the order of their ids; then those that it makes, in that order; then, in
--            that order, those that something rules beside their tokens, and those that changed meanwhile. Requests for
--            one bucket are decided in the order given.
--
-- Where nothing but tokens rules, nobody waits, and there are more than a few: one UPDATE for many rows, which reckons with
-- what it finds under each row's lock, and one unlocked read of what that left. All else is take_v1's, one request after
-- the other. Requests that differ in their buckets only are looked at least.
--
-- As there, a decision counts when its row is locked: grants that waited for that are moved to the later instant, and what
-- was denied of them is decided again.
create function tollgate.take_many_v1(
  p_ids text[], p_costs bigint[], p_max_waits bigint[], p_keeps bigint[],
  p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[],
  p_receipts uuid[], p_holds bigint[], p_times bigint[])
returns setof tollgate.answers_v1
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
  v_costs     bigint[];
  v_keeps     bigint[];
  v_capacity  bigint[];
  v_seconds   numeric[];
  v_refill    text[];
  v_plans     text[];
  v_many      bigint[];
  v_part      record;               -- what a statement granted or denied
  v_answers   tollgate.answers_v1;
  v_seen      bigint[];             -- the entries that are through
  v_late      bigint[];             -- those that waited for a lock since their instant
  v_again     bigint[] := '{}';     -- entries that could be granted after all
  v_new       bigint[];             -- entries whose buckets are to be made
  v_left      bigint[] := '{}';     -- entries for take_v1, and how many requests of each
  v_rest      bigint[] := '{}';
  v_alike     boolean;              -- whether all but buckets and numbers is said once
  v_plan      tollgate.token_plans; -- the terms of all, and their plan, if they follow one
  v_step      text;
  v_now       bigint;
  v_request   record;
  v_taken     tollgate.taken_v1;
  v_times     bigint;
  c_few       constant bigint := 6;  -- requests that are decided sooner one by one than a set statement begins
begin
  if 1 > any (p_times) then
    raise exception 'tollgate: take_many_v1 needs each request once or more often'
      using errcode = 'invalid_parameter_value';
  end if;
  v_simple := not exists (select from tollgate.token_mode g where g.mode <> 'enforce');
  v_overrides := exists (select from tollgate.token_overrides);
  if p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms') then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;
  v_alike := (cardinality(p_ids) > 1
    and 1 = all (array[cardinality(p_costs), cardinality(p_max_waits), cardinality(p_keeps), cardinality(p_capacities),
                       cardinality(p_refill_seconds), cardinality(p_refills), cardinality(p_plans),
                       cardinality(p_receipts), cardinality(p_holds)])) is true;
  if v_alike then
    v_alike := (v_simple and p_max_waits[1] = 0 and p_receipts[1] is null
      and (p_capacities[1] is not null or p_plans[1] is not null)
      and p_costs[1] between 1 and 4611686018427387903 and p_keeps[1] between 0 and 4611686018427387903
      and cardinality(p_times) = cardinality(p_ids) and 1 <= all (p_times)
      and array_position(p_ids, null) is null) is true;
    if v_alike and v_overrides then
      v_alike := not exists (
        select from tollgate.token_overrides o
         where o.id = any (p_ids) and tollgate.in_force_v1(o.expires_at, tollgate.token_clock_v1()));
    end if;
    if v_alike then
      if p_capacities[1] is null and p_refill_seconds[1] is null and p_refills[1] is null then
        select p.* into v_plan from tollgate.token_plans p where p.name = p_plans[1] and p.mode is null;
      elsif abs(p_refill_seconds[1]) < 10000000000 then  -- what a column holds
        v_plan.capacity := p_capacities[1];
        v_plan.refill_seconds := p_refill_seconds[1];
        v_plan.refill := p_refills[1];
      end if;
      v_part := tollgate.grant_alike_v1(p_ids, p_times, p_costs[1], p_keeps[1], v_plan.capacity::bigint, v_plan.refill_seconds,
                                        v_plan.refill, v_plan.name);
      if (v_part.answers).entries is null then
        v_part := coalesce(
          tollgate.make_alike_v1(p_ids, p_times, p_costs[1], p_keeps[1], v_plan.capacity::bigint, v_plan.refill_seconds,
                                 v_plan.refill, v_plan.name),
          v_part);
      end if;
      if v_part.whole and v_part.late = '{}' then
        v_answers := v_part.answers;
        return next v_answers;
        if v_limited then
          perform set_config('lock_timeout', v_lock, true);
        end if;
        return;
      end if;
    end if;
    -- What is left of them is looked at as others are.
    p_costs := array_fill(p_costs[1], array[cardinality(p_ids)]);
    p_max_waits := array_fill(p_max_waits[1], array[cardinality(p_ids)]);
    p_keeps := array_fill(p_keeps[1], array[cardinality(p_ids)]);
    p_capacities := array_fill(p_capacities[1], array[cardinality(p_ids)]);
    p_refill_seconds := array_fill(p_refill_seconds[1], array[cardinality(p_ids)]);
    p_refills := array_fill(p_refills[1], array[cardinality(p_ids)]);
    p_plans := array_fill(p_plans[1], array[cardinality(p_ids)]);
    p_receipts := array_fill(p_receipts[1], array[cardinality(p_ids)]);
    p_holds := array_fill(p_holds[1], array[cardinality(p_ids)]);
  end if;
  v_costs := p_costs;
  v_keeps := p_keeps;
  v_capacity := p_capacities;
  v_seconds := p_refill_seconds;
  v_refill := p_refills;
  v_plans := p_plans;
  v_many := p_times;
  v_order := array(select generate_series(1, cardinality(p_ids)));
  v_simple := v_alike or v_simple
    and cardinality(p_ids) = all (array[cardinality(p_costs), cardinality(p_max_waits), cardinality(p_keeps),
                                        cardinality(p_times)])
    and 0 = all (p_max_waits) and coalesce(array_remove(p_receipts, null) = '{}', true)
    and 1 <= all (p_costs) and 4611686018427387903 >= all (p_costs)
    and 0 <= all (p_keeps) and 4611686018427387903 >= all (p_keeps)
    and 1 <= all (p_times) and array_position(p_ids, null) is null
    and (select sum(x) from unnest(p_times) x) > c_few;
  if v_simple then
    v_ids := array(select distinct i.id collate "C" from unnest(p_ids) i (id) order by 1);
    v_simple := cardinality(v_ids) = cardinality(p_ids);
    if v_alike and v_ids <> p_ids then
      raise exception 'tollgate: take_many_v1 needs ids in their order, none twice, where all else is said once'
        using errcode = 'invalid_parameter_value';
    end if;
  end if;
  if v_simple is not true then
    v_left := v_order;
    v_rest := array(select coalesce(p_times[i], 1) from unnest(v_order) i);
    v_order := '{}';
  elsif not v_alike then
    if v_overrides then
      v_left := array(select i.place from unnest(p_ids) with ordinality i (id, place)
                       where exists (select from tollgate.token_overrides o
                                      where o.id = i.id
                                        and tollgate.in_force_v1(o.expires_at, tollgate.token_clock_v1())));
      v_rest := array(select p_times[x] from unnest(v_left) x);
    end if;
    if v_left <> '{}' or v_ids <> p_ids then
      v_order := '{}';
      v_again := array(select i.place from unnest(p_ids) with ordinality i (id, place)
                        where i.place <> all (v_left) order by i.id collate "C");
    end if;
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
      v_many := array(select p_times[i] from unnest(v_order) i);
    elsif v_round > 1 then
      exit;
    end if;
    v_seen := '{}';
    foreach v_step in array array['grant', 'weigh', 'make'] loop
      if v_step = 'grant' then
        continue when v_order = '{}';
        if v_alike then
          v_alike := false;  -- it was tried
        else
          select g.* into v_part
            from tollgate.grant_many_v1(v_order, v_ids, v_costs, v_keeps, v_capacity, v_seconds, v_refill, v_plans,
                                        v_many) g;
        end if;
        v_seen := coalesce((v_part.answers).entries, '{}');
      elsif v_step = 'weigh' then
        exit when cardinality(v_seen) = cardinality(v_order);
        select w.*, true as whole, '{}'::bigint[] as late into v_part
          from tollgate.weigh_many_v1(v_order, v_ids, v_costs, v_keeps, v_capacity, v_seconds, v_refill, v_plans, v_many,
                                      v_seen) w;
        v_again := v_part.again;
        v_new := v_part.missing;
        v_left := v_left || v_part.ruled;
        v_rest := v_rest || array(select p_times[x] from unnest(v_part.ruled) x);
      else
        exit when v_new is null;
        select m.* into v_part
          from tollgate.make_many_v1(v_new, p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans,
                                     p_times) m;
        v_new := array(select x from unnest(v_new) x where x <> all (coalesce((v_part.answers).entries, '{}')));
        v_left := v_left || v_new;
        v_rest := v_rest || array(select p_times[x] from unnest(v_new) x);
      end if;
      v_answers := v_part.answers;
      continue when v_answers.entries is null;
      if cardinality(v_answers.burst) < cardinality(v_answers.entries) then
        v_answers.burst := array_fill(v_answers.burst[1], array[cardinality(v_answers.entries)]);
        v_answers.step_ns := array_fill(v_answers.step_ns[1], array[cardinality(v_answers.entries)]);
        v_answers.step_ticks := array_fill(v_answers.step_ticks[1], array[cardinality(v_answers.entries)]);
        v_answers.token_ticks := array_fill(v_answers.token_ticks[1], array[cardinality(v_answers.entries)]);
      end if;

      v_late := v_part.late;
      if v_late <> '{}' then
        v_left := v_left || array(select d.place from unnest(v_answers.entries, v_answers.times) d (place, granted)
                                   where d.place = any (v_late) and d.granted < p_times[d.place]);
        v_rest := v_rest || array(select p_times[d.place] - d.granted
                                    from unnest(v_answers.entries, v_answers.times) d (place, granted)
                                   where d.place = any (v_late) and d.granted < p_times[d.place]);
        v_now := tollgate.token_clock_v1();
        with moved as (
          update tollgate.token_buckets t
             set full_at = tollgate.bucket_clock_v1(t, v_now) + d.granted * p_costs[d.place] * t.token_ticks
            from unnest(v_answers.entries, v_answers.times) d (place, granted)
           where d.place = any (v_late) and t.id = p_ids[d.place]
             and t.full_at < tollgate.bucket_clock_v1(t, v_now) + d.granted * p_costs[d.place] * t.token_ticks
          returning d.place, t.full_at)
        select array_agg(case when d.place = any (v_late) then v_now else d.now end order by d.nth),
               array_agg(coalesce(m.full_at, d.full_at) order by d.nth)
          into v_answers.now, v_answers.full_at
          from unnest(v_answers.entries, v_answers.now, v_answers.full_at) with ordinality as d (place, now, full_at, nth)
          left join moved m on m.place = d.place;
      end if;
      return next v_answers;
      if not v_part.whole then
        return query
          select array_agg(d.place), array_agg(p_times[d.place] - d.granted), 'denied', v_answers.mode, array_agg(d.now),
                 null::bigint[], array_agg(d.full_at), array_agg(d.tokens), array_agg(d.burst), array_agg(d.anchor),
                 array_agg(d.step_ns), array_agg(d.step_ticks), array_agg(d.token_ticks)
            from unnest(v_answers.entries, v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted,
                        v_answers.burst, v_answers.anchor, v_answers.step_ns, v_answers.step_ticks,
                        v_answers.token_ticks)
                 as d (place, granted, now, full_at, tokens, burst, anchor, step_ns, step_ticks, token_ticks)
           where d.granted < p_times[d.place] and d.place <> all (v_late)
          having count(*) > 0;
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
    while v_request.rest > 0 loop
      v_taken := tollgate.take_v1(
        p_ids[v_request.place], p_costs[v_request.place], p_max_waits[v_request.place], p_keeps[v_request.place],
        p_capacities[v_request.place], p_refill_seconds[v_request.place], p_refills[v_request.place],
        p_plans[v_request.place], p_receipts[v_request.place], p_holds[v_request.place]);
      -- Where nothing was taken, or an id was asked for, the next one is answered alike.
      v_times := case when v_taken.outcome = 'granted' and v_taken.mode is null and p_receipts[v_request.place] is null
                   then 1 else v_request.rest end;
      v_request.rest := v_request.rest - v_times;
      return next tollgate.answers_of_v1(v_request.place, v_times, v_taken);
    end loop;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

revoke all on function tollgate.take_many_v1(
  text[], bigint[], bigint[], bigint[], bigint[], numeric[], text[], text[], uuid[], bigint[], bigint[]) from public;
