-- weigh_v1: what a request comes to as a bucket stands, without taking anything.
--
-- Arguments: p_bucket; p_mode, p_mode_until: as rule_v1 answers; p_cost, p_max_wait, p_keep: as take_v1's; p_now
-- Result:    as take_v1's
create function tollgate.weigh_v1(
  p_bucket tollgate.token_buckets, p_mode text, p_mode_until bigint,
  p_cost bigint, p_max_wait bigint, p_keep bigint, p_now bigint)
returns tollgate.taken_v1
language plpgsql immutable
as $$
declare
  t     tollgate.taken_v1;
  v_due   bigint;
  v_clock bigint;
begin
  t.now := p_now;
  t.acts_at := p_now;
  t.mode := p_mode;
  t.full_at := p_bucket.full_at;
  t.granted := p_bucket.granted;
  t.burst := p_bucket.burst;
  t.anchor := p_bucket.anchor;
  t.step_ns := p_bucket.step_ns;
  t.step_ticks := p_bucket.step_ticks;
  t.token_ticks := p_bucket.token_ticks;
  if p_mode = 'off' then
    t.outcome := 'granted';
  elsif p_mode = 'block' then
    t.outcome := 'denied';
    t.acts_at := p_mode_until;
  elsif p_cost > p_bucket.burst / p_bucket.token_ticks - p_keep then
    t.outcome := 'never';
  else
    v_due := p_bucket.full_at - p_bucket.burst + (p_cost + p_keep) * p_bucket.token_ticks;
    if v_due <= tollgate.bucket_clock_v1(p_bucket, p_now + case p_mode when 'shadow' then 0 else p_max_wait end) then
      t.outcome := 'granted';
      t.mode := null;
      v_clock := tollgate.bucket_clock_v1(p_bucket, p_now);
      if v_due > v_clock then
        t.acts_at := greatest(
          p_now, tollgate.bucket_instant_v1(p_bucket, tollgate.bucket_step_v1(p_bucket, v_due, v_clock)));
      end if;
    else
      t.outcome := case p_mode when 'shadow' then 'granted' else 'denied' end;
    end if;
  end if;
  return t;
end
$$;

revoke all on function
  tollgate.weigh_v1(tollgate.token_buckets, text, bigint, bigint, bigint, bigint, bigint) from public;

-- take_all_v1: take tokens from several buckets, from all of them or from none.
--
-- Arguments: p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans
--                        a bucket a place, none of them twice, each as for take_v1: its cost and what to keep, and terms
--                        or a plan, or neither
--            p_max_wait, p_receipt, p_hold: as for take_v1, the same for all
-- Result:    a row a bucket: its place in the arrays (from 1), then take_v1's columns. All are 'granted'; or one or more
--            say why not, and the others are 'spared': they could have been granted, and nothing was taken
-- Errors:    as take_v1's · 22023 no bucket, or a bucket twice
-- Locks:     the rows of all buckets, made if need be, in the order of their ids.
--
-- The clock is read when the rows are locked. A wait acts when the last bucket's does; each bucket's tokens are taken
-- for when they are there.
create function tollgate.take_all_v1(
  p_ids text[], p_costs bigint[], p_keeps bigint[], p_capacities bigint[], p_refill_seconds numeric[],
  p_refills text[], p_plans text[], p_max_wait bigint, p_receipt uuid, p_hold bigint)
returns table (entry bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else each call would plan anew for its arrays
as $$
declare
  v_order   bigint[];                  -- the places in the order of the ids
  v_buckets tollgate.token_buckets[];  -- those that exist, in that order
  v_taken   tollgate.taken_v1[];
  v_taking  text[];
  t         tollgate.taken_v1;
  b         tollgate.token_buckets;
  r         tollgate.token_receipts;
  v_refused  text;    -- what rules the bucket: as rule_v1 answers
  v_mode     text;
  v_until    bigint;
  v_made     boolean;
  v_capacity bigint;
  v_place   bigint;
  v_next    bigint;
  v_there   bigint;                    -- how many of them exist
  v_now     bigint;
  v_ruled   boolean;
  v_changed boolean;
  v_known   boolean;
  c_needs   constant text := 'tollgate: take_all_v1 needs buckets, none twice, costs of 1 or more, 0 or more to keep, and a '
                             'wait of 0 to a year';
begin
  p_hold := least(greatest(coalesce(p_hold, 0), 0), 31622400000000000);
  if (1 <= all (p_costs) and 4611686018427387903 >= all (p_costs) and cardinality(p_costs) = cardinality(p_ids)
      and 0 <= all (p_keeps) and 4611686018427387903 >= all (p_keeps) and cardinality(p_keeps) = cardinality(p_ids)
      and p_max_wait between 0 and 31622400000000000) is not true then
    raise exception '%', c_needs using errcode = 'invalid_parameter_value';
  end if;

  -- Where nothing rules the buckets but their tokens, all exist, and all grant: one statement. Each is weighed when it is
  -- locked, and grants no less when all are, which is when the clock is read.
  if p_receipt is null and array_remove(p_plans, null) = '{}' then
    return query
      with locked as materialized (
        select l as b, i.*
          from unnest(p_ids, p_costs, p_keeps, p_capacities, p_refill_seconds, p_refills)
               as i (id, cost, keep, capacity, refill_seconds, refill)
          join tollgate.token_buckets l on l.id = i.id
         where not exists (select from unnest(p_ids) m (id)
                            where not exists (select from tollgate.token_buckets x where x.id = m.id))
         order by l.id for no key update of l
      ), fit as materialized (
        select count(distinct (x.b).id) = cardinality(p_ids) and bool_and(
                 (x.b).plan is null and not (x.b).overridden
                 and (x.capacity is null and x.refill_seconds is null and x.refill is null
                      or (x.capacity, x.refill_seconds, x.refill) = ((x.b).capacity, (x.b).refill_seconds, (x.b).refill))
                 and case when x.cost <= (x.b).burst / (x.b).token_ticks - x.keep
                       then (x.b).full_at - ((x.b).burst - (x.cost + x.keep) * (x.b).token_ticks)
                            <= tollgate.bucket_clock_v1(x.b, tollgate.token_clock_v1() + p_max_wait)
                       else false end
                 and (x.b).full_at - tollgate.bucket_clock_v1(x.b, tollgate.token_clock_v1())
                     <= tollgate.bucket_furthest_v1(x.b)) as fits,
               tollgate.token_clock_v1() as now
          from locked x
         where not exists (select from tollgate.token_mode g where g.mode <> 'enforce')
           and not exists (select from tollgate.token_overrides o where o.id = any (p_ids))
      )
      update tollgate.token_buckets l
         set room = null,
             granted = l.granted + i.cost,
             longest_wait = greatest(
               l.longest_wait,
               tollgate.bucket_step_v1(
                 l, l.full_at - (l.burst - (i.cost + i.keep) * l.token_ticks), tollgate.bucket_clock_v1(l, f.now))
                 - tollgate.bucket_clock_v1(l, f.now)),
             full_at = greatest(
               l.full_at,
               tollgate.bucket_step_v1(
                 l, l.full_at - (l.burst - (i.cost + i.keep) * l.token_ticks), tollgate.bucket_clock_v1(l, f.now)))
               + i.cost * l.token_ticks
        from fit f, unnest(p_ids, p_costs, p_keeps) with ordinality as i (id, cost, keep, place)
       where f.fits and l.id = i.id
      returning i.place,
                ('granted', null, f.now,
                 case when l.full_at - (l.burst - i.keep * l.token_ticks) > tollgate.bucket_clock_v1(l, f.now)
                   then greatest(f.now, tollgate.bucket_instant_v1(l, l.full_at - (l.burst - i.keep * l.token_ticks)))
                   else f.now end,
                 l.full_at, l.granted, l.burst, l.anchor, l.step_ns, l.step_ticks, l.token_ticks)::tollgate.taken_v1;
    if found then
      return;
    end if;
  end if;

  select array_agg(i.place order by i.id collate "C"), count(distinct i.id), count(l.id) into v_order, v_next, v_there
    from unnest(p_ids) with ordinality as i (id, place) left join tollgate.token_buckets l on l.id = i.id;
  if v_next is distinct from cardinality(p_ids) or v_next = 0 then
    raise exception '%', c_needs using errcode = 'invalid_parameter_value';
  end if;
  if v_there < v_next then
    perform tollgate.lock_all_v1(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans);
  end if;

  for v_attempt in 1 .. 100 loop
    select array_agg(l.b) into v_buckets
      from (select x as b from tollgate.token_buckets x where x.id = any (p_ids) order by x.id for no key update) l;
    v_now := tollgate.token_clock_v1();
    -- Null, which counts as ruled, where the mode's row is missing.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = any (p_ids))
      into v_ruled from tollgate.token_mode g;
    v_taken := array_fill(null::tollgate.taken_v1, array[cardinality(p_ids)]);
    v_taking := '{}';
    v_next := 1;
    v_changed := false;
    delete from tollgate.token_receipts k where k.id = p_receipt and k.expires_at <= v_now;
    foreach v_place in array v_order loop
      b := v_buckets[v_next];
      if b.id = p_ids[v_place] then
        v_next := v_next + 1;
      else
        b := null;
      end if;
      v_refused := null;
      v_mode := null;
      v_capacity := null;
      if v_ruled is not false or b.id is null or p_plans[v_place] is not null or b.plan is not null or b.overridden
         or p_capacities[v_place] <> b.capacity or p_refill_seconds[v_place] <> b.refill_seconds
         or p_refills[v_place] <> b.refill
         or num_nulls(p_capacities[v_place], p_refill_seconds[v_place], p_refills[v_place]) in (1, 2)
         or b.full_at - tollgate.bucket_clock_v1(b, v_now) > tollgate.bucket_furthest_v1(b) then
        select w.outcome, w.mode, w.mode_until, w.changed, w.capacity
          into v_refused, v_mode, v_until, v_made, v_capacity
          from tollgate.rule_v1(p_ids[v_place], p_capacities[v_place], p_refill_seconds[v_place],
                                p_refills[v_place], p_plans[v_place], v_now,
                                p_costs[v_place] <= b.burst / b.token_ticks - p_keeps[v_place]) w;
        -- Made by others since the rows were locked: it has to be locked, too.
        v_made := v_made or (b.id is null and v_refused is null and v_mode is distinct from 'off');
        v_changed := v_changed or v_made;
        continue when v_made;
      end if;
      if v_refused is not null then
        t := null;
        t.outcome := v_refused;
        t.now := v_now;
      else
        t := tollgate.weigh_v1(b, v_mode, v_until, p_costs[v_place], p_max_wait, p_keeps[v_place], v_now);
        t.burst := coalesce(t.burst, v_capacity);
      end if;
      v_known := false;
      if p_receipt is not null and v_refused is null and v_mode is distinct from 'off' then
        select k.* into r from tollgate.token_receipts k where k.id = p_receipt and k.bucket = p_ids[v_place];
        v_known := found;
      end if;
      if v_known then
        t.outcome := case when r.cost = p_costs[v_place] and r.state <> 'cancelled' then 'granted' else 'reused' end;
        t.mode := null;
        t.granted := r.granted;
        t.acts_at := greatest(r.acts_at, v_now);
      elsif t.outcome = 'granted' and t.mode is null then
        v_taking := v_taking || p_ids[v_place];
      end if;
      v_taken[v_place] := t;
    end loop;
    exit when not v_changed;
  end loop;
  if v_changed then
    raise exception 'tollgate: buckets changed during each of 100 attempts'
      using errcode = 'serialization_failure', hint = 'Call again.';
  end if;

  if not exists (select from unnest(v_taken) w where w.outcome <> 'granted') then
    update tollgate.token_buckets l
       set room = null,
           granted = l.granted + i.cost,
           longest_wait = greatest(
             l.longest_wait,
             tollgate.bucket_step_v1(
               l, l.full_at + (i.cost + i.keep) * l.token_ticks - l.burst, tollgate.bucket_clock_v1(l, v_now))
               - tollgate.bucket_clock_v1(l, v_now)),
           full_at = greatest(
             l.full_at,
             tollgate.bucket_step_v1(
               l, l.full_at + (i.cost + i.keep) * l.token_ticks - l.burst, tollgate.bucket_clock_v1(l, v_now)))
             + i.cost * l.token_ticks
      from unnest(p_ids, p_costs, p_keeps) as i (id, cost, keep)
     where l.id = i.id and l.id = any (v_taking);
    insert into tollgate.token_receipts (id, bucket, cost, granted, acts_at, state, expires_at)
    select p_receipt, p_ids[w.place], p_costs[w.place], w.granted + p_costs[w.place], w.acts_at, 'open', v_now + p_hold
      from unnest(v_taken) with ordinality
           as w (outcome, mode, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, place)
     where p_receipt is not null and p_ids[w.place] = any (v_taking);
    return query
      select w.place, (w.outcome, w.mode, w.now, w.acts_at, coalesce(l.full_at, w.full_at),
                       case when l.id = any (v_taking) then l.granted else w.granted end, w.burst, w.anchor, w.step_ns,
                       w.step_ticks, w.token_ticks)::tollgate.taken_v1
        from unnest(v_taken) with ordinality
             as w (outcome, mode, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, place)
        left join tollgate.token_buckets l on l.id = p_ids[w.place];
    return;
  end if;
  return query
    select w.place, (case w.outcome when 'granted' then 'spared' else w.outcome end, w.mode, w.now, w.acts_at, w.full_at,
                     w.granted, w.burst, w.anchor, w.step_ns, w.step_ticks, w.token_ticks)::tollgate.taken_v1
      from unnest(v_taken) with ordinality
           as w (outcome, mode, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks, place);
end
$$;

revoke all on function
  tollgate.take_all_v1(text[], bigint[], bigint[], bigint[], numeric[], text[], text[], bigint, uuid, bigint) from public;
