-- answers_v1: the results of requests with the same outcome. Building, sending and reading one row per request takes a third as
-- long as the decision.
do $$
begin
  if to_regtype('tollgate.answers_v1') is null then
    create type tollgate.answers_v1 as (
      entries      bigint[],  -- positions of the requests among those of the call, from 1
      -- The others have one element per entry, or one that stands for all entries.
      times        bigint[],  -- number of equal requests of each entry; the state is that after the last one
      outcome      text,      -- the columns of taken_v1
      mode         text,
      now          bigint[],
      scheduled_at bigint[],  -- null: the values of now
      full_at      bigint[],
      granted      bigint[],
      burst        bigint[],
      anchor       bigint[],
      step_ns      bigint[],
      step_ticks   bigint[],
      token_ticks  bigint[]
    );
  end if;
end
$$;

-- answers_of(p_entry, p_times, p_taken) -> answers_v1 of one entry.
create or replace function tollgate.answers_of(p_entry bigint, p_times bigint, p_taken tollgate.taken_v1)
returns tollgate.answers_v1
language sql immutable
as $$
  select array[p_entry], array[p_times], p_taken.outcome, p_taken.mode, array[p_taken.now], array[p_taken.scheduled_at],
         array[p_taken.full_at], array[p_taken.granted], array[p_taken.burst], array[p_taken.anchor],
         array[p_taken.step_ns], array[p_taken.step_ticks], array[p_taken.token_ticks]
$$;

-- one_if_equal(p_values) -> p_values with one element if all are equal.
create or replace function tollgate.one_if_equal(p_values bigint[]) returns bigint[]
language sql immutable
return case when p_values[1] = all (p_values) then p_values[1:1] else p_values end;

-- value_at(p_values, p_nth) -> the value of the entry: the only one, or that at its position.
create or replace function tollgate.value_at(p_values bigint[], p_nth bigint) returns bigint
language sql immutable
return p_values[case when cardinality(p_values) = 1 then 1 else p_nth end];

-- shortened(p_answers) -> p_answers with one element for the usually equal values of all entries. It takes less time to send.
create or replace function tollgate.shortened(p_answers tollgate.answers_v1) returns tollgate.answers_v1
language sql immutable
return row(p_answers.entries, tollgate.one_if_equal(p_answers.times), p_answers.outcome, p_answers.mode, p_answers.now,
           p_answers.scheduled_at, p_answers.full_at, p_answers.granted, tollgate.one_if_equal(p_answers.burst),
           tollgate.one_if_equal(p_answers.anchor), tollgate.one_if_equal(p_answers.step_ns),
           tollgate.one_if_equal(p_answers.step_ticks), tollgate.one_if_equal(p_answers.token_ticks))::tollgate.answers_v1;

-- answers_each(p_answers) -> one row per entry of answers_v1.
create or replace function tollgate.answers_each(p_answers tollgate.answers_v1)
returns table (entry bigint, times bigint, taken tollgate.taken_v1)
language sql immutable
as $$
  select i.entry, tollgate.value_at(p_answers.times, i.nth),
         (p_answers.outcome, p_answers.mode, tollgate.value_at(p_answers.now, i.nth),
          tollgate.value_at(coalesce(p_answers.scheduled_at, p_answers.now), i.nth),
          tollgate.value_at(p_answers.full_at, i.nth), tollgate.value_at(p_answers.granted, i.nth),
          tollgate.value_at(p_answers.burst, i.nth), tollgate.value_at(p_answers.anchor, i.nth),
          tollgate.value_at(p_answers.step_ns, i.nth), tollgate.value_at(p_answers.step_ticks, i.nth),
          tollgate.value_at(p_answers.token_ticks, i.nth))::tollgate.taken_v1
    from unnest(p_answers.entries) with ordinality i (entry, nth)
$$;

-- has_limits(p_bucket, p_capacity, p_refill_seconds, p_refill, p_plan) -> whether the state is under these limits, which are
-- those of p_plan unless p_plan is null. All null: under the bucket's own limits, or those of its plan.
create or replace function tollgate.has_limits(
  p_bucket tollgate.token_buckets, p_capacity numeric, p_refill_seconds numeric, p_refill text, p_plan text) returns boolean
language sql stable
as $$
  select not p_bucket.overridden
         and case when p_capacity is not null
                    then p_bucket.plan is not distinct from p_plan and p_bucket.capacity = p_capacity
                         and p_bucket.refill_seconds = p_refill_seconds and p_bucket.refill = p_refill
                  when p_refill_seconds is null and p_refill is null and p_plan is null
                    then p_bucket.plan is null
                         or tollgate.follows_plan(p_bucket.plan, p_bucket.capacity, p_bucket.refill_seconds, p_bucket.refill)
                  else false end
$$;

-- decided: the result of grant_batch, deny_batch and create_batch.
do $$
begin
  if to_regtype('tollgate.decided') is null then
    create type tollgate.decided as (
      answers tollgate.answers_v1,  -- the entries with an answer: number of requests, and the state after the last one
      partial bigint[],             -- the entries among them with fewer answers than requests; null: none
      late    bigint[]              -- the entries to compute at a later instant, because their rows were locked more than
                                    -- 2 ms after theirs, or were created and are empty; null: none
    );
  end if;
end
$$;

-- grant_batch: grants requests for different buckets that only the tokens decide, as many as each bucket affords.
--
-- Arguments: p_ids, p_times, p_costs, p_min_remainings, p_rules: the entries, as for take_batch_v1
--            p_capacities, p_refill_seconds, p_refills, p_plans
--                         the rules, as for has_limits
--            p_overrides  whether any override exists
--            p_done       numbers of entries to skip
-- Result:    see decided. An entry that is not listed was denied or needs another routine
-- Errors:    none
-- Locks:     the rows of granted requests, in the order of p_ids: the settings of the routine forbid plans with another order
create or replace function tollgate.grant_batch(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_rules bigint[], p_capacities numeric[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_overrides boolean, p_done bigint[])
returns tollgate.decided
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
  c_stale   constant bigint := 2000000;  -- nanoseconds: a longer gap means that the row was waited for
  v_decided tollgate.decided;
begin
  -- One statement, which computes from the locked row: values read before the lock would grant too much. So SET repeats the
  -- number of grants. The clock is read for each row when the plan reaches the row, so that the duration of the statement moves
  -- no instant.
  with chosen as (
    update tollgate.token_buckets t
       set room = null,
           granted_requests = least(u.times, tollgate.bucket_grants(t, u.cost, u.min_remaining, c.now)),
           granted = t.granted + u.cost * least(u.times, tollgate.bucket_grants(t, u.cost, u.min_remaining, c.now)),
           full_at = greatest(t.full_at, tollgate.bucket_clock(t, c.now))
                     + u.cost * t.token_ticks * least(u.times, tollgate.bucket_grants(t, u.cost, u.min_remaining, c.now))
      from (
             -- The planner expects one row of this limit. Otherwise a plan that was made for a few buckets could begin with all
             -- buckets, and be kept while their number grows.
             select * from unnest(p_ids, p_times, p_costs, p_min_remainings, p_rules) with ordinality
                        as i (id, times, cost, min_remaining, rule, place)
              limit cardinality(p_ids)) u
           cross join lateral (select tollgate.clock() as now where u.id is not null) c
     where t.id = u.id
       and tollgate.has_limits(t, p_capacities[u.rule], p_refill_seconds[u.rule], p_refills[u.rule], p_plans[u.rule])
       and t.period_end > c.now
       and (not p_overrides or not exists (select from tollgate.token_overrides o where o.id = u.id))
       and u.place not in (select d.place from unnest(p_done) d (place))
       and case when u.cost <= t.burst / t.token_ticks - u.min_remaining  -- within the capacity
             then tollgate.bucket_grants(t, u.cost, u.min_remaining, c.now) >= 1 end
    returning u.place, u.times as wanted, t.granted_requests as times,
              tollgate.clock() - c.now > c_stale as late, c.now, t.full_at, t.granted, t.burst, t.anchor, t.step_ns,
              t.step_ticks, t.token_ticks)
  select (array_agg(d.place), array_agg(d.times), 'granted', null, array_agg(d.now), null, array_agg(d.full_at),
          array_agg(d.granted), array_agg(d.burst), array_agg(d.anchor), array_agg(d.step_ns), array_agg(d.step_ticks),
          array_agg(d.token_ticks))::tollgate.answers_v1,
         array_agg(d.place) filter (where d.times < d.wanted), array_agg(d.place) filter (where d.late)
    into v_decided
    from chosen d;
  return v_decided;
end
$$;

-- deny_batch: finds the requests that the tokens deny. Writes nothing and waits for no lock.
--
-- Arguments: as for grant_batch
-- Result:    see decided: the denied entries, with all of their requests
-- Errors:    none
-- Locks:     none
create or replace function tollgate.deny_batch(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_rules bigint[], p_capacities numeric[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_overrides boolean, p_done bigint[])
returns tollgate.decided
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off
set jit = off
as $$
declare
  v_decided tollgate.decided;
begin
  -- Each clock is read after its row: other sessions can only have taken more since, so a denial holds at this instant.
  select (array_agg(u.place), array_agg(u.times), 'denied', null, array_agg(c.now), null, array_agg(t.full_at),
          array_agg(t.granted), array_agg(t.burst), array_agg(t.anchor), array_agg(t.step_ns), array_agg(t.step_ticks),
          array_agg(t.token_ticks))::tollgate.answers_v1,
         null, null
    into v_decided
    from (
      -- As in grant_batch.
      select * from unnest(p_ids, p_times, p_costs, p_min_remainings, p_rules) with ordinality
                 as i (id, times, cost, min_remaining, rule, place)
       limit cardinality(p_ids)) u
    join tollgate.token_buckets t on t.id = u.id
   cross join lateral (select tollgate.clock() as now where t.id is not null) c
   where tollgate.has_limits(t, p_capacities[u.rule], p_refill_seconds[u.rule], p_refills[u.rule], p_plans[u.rule])
     and t.period_end > c.now
     and (not p_overrides or not exists (select from tollgate.token_overrides o where o.id = u.id))
     and u.place not in (select d.place from unnest(p_done) d (place))
     -- False if the clock was set back.
     and t.full_at - tollgate.bucket_clock(t, c.now) <= tollgate.bucket_max_owed(t)
     and case when u.cost <= t.burst / t.token_ticks - u.min_remaining  -- within the capacity
           then tollgate.bucket_grants(t, u.cost, u.min_remaining, c.now) < 1 end;
  return v_decided;
end
$$;

-- create_batch: creates the missing buckets of requests, and grants what a full bucket holds.
--
-- Arguments: as for grant_batch
-- Result:    see decided. An entry that is not listed has a bucket by now, or cannot create it
-- Errors:    23514 invalid limits
-- Locks:     the rows that the routine creates, in id order
create or replace function tollgate.create_batch(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_rules bigint[], p_capacities numeric[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[], p_overrides boolean, p_done bigint[])
returns tollgate.decided
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_nestloop = off  -- the generic plan expects few entries to join
set enable_seqscan = off  -- see take_all_v1
set jit = off
as $$
declare
  c_stale   constant bigint := 2000000;  -- nanoseconds: a longer gap means that the row was waited for
  v_decided tollgate.decided;
begin
  with new as materialized (
    select distinct on (u.id collate "C")
           u.id, u.place, u.cost, u.rule, u.times as wanted,
           least(u.times, (p_capacities[u.rule]::bigint - u.min_remaining) / u.cost) as times
      from unnest(p_ids, p_times, p_costs, p_min_remainings, p_rules) with ordinality
           as u (id, times, cost, min_remaining, rule, place)
     where octet_length(u.id) between 1 and 255 and left(u.id, 1) <> chr(1)
       and u.cost <= p_capacities[u.rule] - u.min_remaining
       and p_refill_seconds[u.rule] is not null and p_refills[u.rule] is not null
       and u.place not in (select d.place from unnest(p_done) d (place))
       and (not p_overrides or not exists (select from tollgate.token_overrides o where o.id = u.id))
       and (select t.id from tollgate.token_buckets t where t.id = u.id) is null  -- a join would read the whole table
     order by u.id collate "C", u.place
  ), limits as materialized (  -- once for each rule
    select n.rule, x.burst, x.step_ns, x.step_ticks, x.token_ticks, coalesce(x.anchor, 0) as anchor, x.period_end
      from (select m.rule, min(m.id) as id from new m group by m.rule) n
     cross join lateral tollgate.bucket_limits(
       'bucket ' || quote_literal(n.id), p_capacities[n.rule], round(p_refill_seconds[n.rule], 9), p_refills[n.rule],
       tollgate.clock()) x
  ), made as (
    insert into tollgate.token_buckets as t
      (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted, burst, step_ns, step_ticks,
       token_ticks, period_end)
    select n.id, p_capacities[n.rule], p_refill_seconds[n.rule], p_refills[n.rule], p_plans[n.rule], false, n.anchor,
           tollgate.ticks_at(n.anchor, n.step_ns, n.step_ticks, c.now) + n.times * n.cost * n.token_ticks, n.times * n.cost,
           n.burst, n.step_ns, n.step_ticks, n.token_ticks, n.period_end
      from (select n.*, l.burst, l.step_ns, l.step_ticks, l.token_ticks, l.anchor, l.period_end
              from new n join limits l on l.rule = n.rule order by n.id collate "C") n
     -- Read for each row after the sort, when the row is inserted.
     cross join lateral (select tollgate.clock() as now where n.id is not null) c
    on conflict do nothing
    returning t.*, tollgate.clock() as now)
  select (array_agg(n.place), array_agg(n.times), 'granted', null, array_agg(m.now), null, array_agg(m.full_at),
          array_agg(m.granted), array_agg(m.burst), array_agg(m.anchor), array_agg(m.step_ns), array_agg(m.step_ticks),
          array_agg(m.token_ticks))::tollgate.answers_v1,
         array_agg(n.place) filter (where n.times < n.wanted),
         -- Entries that waited for another session's row, whose insert was rolled back, and those that emptied their bucket.
         array_agg(n.place) filter (
           where n.times < n.wanted
                 or tollgate.ticks_at(m.anchor, m.step_ns, m.step_ticks, m.now - c_stale)
                    > m.full_at - m.granted * m.token_ticks)
    into v_decided
    from made m
    join new n on n.id = m.id;
  return v_decided;
end
$$;

-- take_each_v1: decides several requests one by one, with everything that take_v1 offers. A request that is refused does not
-- affect the others, but an error fails the call.
--
-- Arguments: p_entries  the numbers of the requests in the answers
--            p_times    number of equal requests of each entry, decided one after the other
--            the others: as for take_v1, one array each, all of one length
-- Result:    rows that together answer all requests; the answers to one entry are in the order of the rows
-- Errors:    as for take_v1
--            22023 p_times below 1, or not one for each id
--            55P03 the call names several buckets, and one was locked for longer than 100 ms: nothing was taken
-- Locks:     as for take_v1, in id order. Requests for one bucket are decided in the order given
create or replace function tollgate.take_each_v1(
  p_entries bigint[], p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[], p_max_waits bigint[],
  p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[], p_request_ids uuid[], p_holds bigint[])
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_lock    text := current_setting('lock_timeout');
  v_limited boolean := p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms');
  v_nth     bigint;
  v_left    bigint;
  v_times   bigint;
  v_taken   tollgate.taken_v1;
begin
  if (1 <= all (p_times) and cardinality(p_ids) = cardinality(p_times)) is not true then
    raise exception 'tollgate: take_each_v1 needs times of 1 or more for every id' using errcode = 'invalid_parameter_value';
  end if;
  if v_limited then
    perform set_config('lock_timeout', '100ms', true);
  end if;
  for v_nth in select i.nth from unnest(p_ids) with ordinality i (id, nth) order by i.id collate "C", i.nth loop
    v_left := p_times[v_nth];
    while v_left > 0 loop
      v_taken := tollgate.take_v1(
        p_ids[v_nth], p_costs[v_nth], p_max_waits[v_nth], p_min_remainings[v_nth], p_capacities[v_nth],
        p_refill_seconds[v_nth], p_refills[v_nth], p_plans[v_nth], p_request_ids[v_nth], p_holds[v_nth]);
      -- If nothing was taken, or the request has an id, the equal requests that follow get the same answer.
      v_times := case when v_taken.outcome = 'granted' and v_taken.mode is null and p_request_ids[v_nth] is null
                   then 1 else v_left end;
      v_left := v_left - v_times;
      return next tollgate.answers_of(p_entries[v_nth], v_times, v_taken);
    end loop;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

-- take_batch_v1: decides several requests in one call, each by itself. None waits or has an id.
--
-- Arguments: p_ids             the buckets, in order, each once
--            p_times           number of equal requests of each entry, decided one after the other
--            p_costs, p_min_remainings: of each entry, as for take_v1
--            p_rules           number of the rule of each entry, from 1
--            p_capacities, p_refill_seconds, p_refills, p_plans: the rules, as for take_v1; a null array: all null
-- Result:    rows that together answer all requests, with the numbers of the entries, from 1; the answers to one entry are in
--            the order of the rows
-- Errors:    as for take_v1
--            22023 times below 1, an id is null, or lengths that differ
--            55P03 one of several buckets was locked for longer than 100 ms: nothing was taken
-- Locks:     in id order the rows of granted requests, then in id order the rows that the call creates, then in id order the
--            rows that take_v1 decides. Two calls can deadlock only if a later row of one is an earlier one of the other
--
-- Three statements decide: one grants, one denies and one creates buckets. The first bucket tells in which order they run,
-- because the buckets of a batch are usually alike. take_v1 decides the rest: buckets with a mode, an override or other limits,
-- and buckets that changed between the statements. After a wait for a lock, one statement moves the grants to the later instant,
-- and grants what the locked rows afford then.
create or replace function tollgate.take_batch_v1(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[],
  p_rules bigint[], p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  c_max_counted constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  v_lock       text := current_setting('lock_timeout');
  v_limited    boolean := cardinality(p_ids) > 1 and (v_lock = '0' or v_lock::interval > interval '100 ms');
  v_capacities numeric[] := p_capacities;  -- the limits of each rule
  v_seconds    numeric[] := p_refill_seconds;
  v_refills    text[] := p_refills;
  v_by_tokens  boolean;                    -- whether no mode applies to all buckets
  v_overrides  boolean;                    -- whether any override exists
  b            tollgate.token_buckets;     -- the first bucket
  v_steps      text[] := '{}';
  v_step       text;
  v_part       tollgate.decided;
  v_answers    tollgate.answers_v1;
  v_now        bigint;
  v_done       bigint[] := '{}';           -- the entries that are answered
  v_left       bigint[];                   -- the entries for take_v1
  v_left_times bigint[];                   -- the number of requests of each
begin
  if (1 <= all (p_times) and 1 <= all (p_costs) and c_max_counted >= all (p_costs)
      and 0 <= all (p_min_remainings) and c_max_counted >= all (p_min_remainings) and array_position(p_ids, null) is null
      and cardinality(p_ids) = all (array[cardinality(p_times), cardinality(p_costs), cardinality(p_min_remainings),
                                          cardinality(p_rules)])) is not true then
    raise exception 'tollgate: take_batch_v1 needs times and costs of 1 or more, minimum remainings of 0 or more, and one of '
                    'each for every id' using errcode = 'invalid_parameter_value';
  end if;
  if v_limited then
    perform set_config('lock_timeout', '100ms', true);
  end if;
  v_by_tokens := not exists (select from tollgate.token_mode g where g.mode <> 'enforce');
  v_overrides := exists (select from tollgate.token_overrides);

  if v_by_tokens then
    if array_remove(p_plans, null) <> '{}' then
      -- With null limits for an unknown plan, for a plan with a mode, and beside limits: then take_v1 decides.
      select array_agg(case when r.plan is null then r.capacity else p.capacity end order by r.nth),
             array_agg(case when r.plan is null then r.seconds else p.refill_seconds end order by r.nth),
             array_agg(case when r.plan is null then r.refill else p.refill end order by r.nth)
        into v_capacities, v_seconds, v_refills
        from unnest(v_capacities, v_seconds, v_refills, p_plans) with ordinality r (capacity, seconds, refill, plan, nth)
        left join tollgate.token_plans p
          on p.name = r.plan and p.mode is null and num_nonnulls(r.capacity, r.seconds, r.refill) = 0;
    end if;
    select t.* into b from tollgate.token_buckets t where t.id = p_ids[1];
    -- Rows that exist are locked before others are created, as in every call. A denial locks nothing.
    v_steps := case
      when b.id is null
        then array['grant', 'make', 'deny']
      when case when p_costs[1] <= b.burst / b.token_ticks - p_min_remainings[1]
             then tollgate.bucket_grants(b, p_costs[1], p_min_remainings[1], tollgate.clock()) < 1 end
        then array['deny', 'grant', 'make']
      else array['grant', 'deny', 'make'] end;
  end if;

  foreach v_step in array v_steps loop
    exit when cardinality(v_done) = cardinality(p_ids);
    if v_step = 'grant' then
      v_part := tollgate.grant_batch(p_ids, p_times, p_costs, p_min_remainings, p_rules, v_capacities, v_seconds, v_refills,
                                     p_plans, v_overrides, v_done);
    elsif v_step = 'deny' then
      v_part := tollgate.deny_batch(p_ids, p_times, p_costs, p_min_remainings, p_rules, v_capacities, v_seconds, v_refills,
                                    p_plans, v_overrides, v_done);
    else
      v_part := tollgate.create_batch(p_ids, p_times, p_costs, p_min_remainings, p_rules, v_capacities, v_seconds, v_refills,
                                    p_plans, v_overrides, v_done);
    end if;
    v_answers := v_part.answers;
    continue when v_answers.entries is null;
    v_done := v_done || v_answers.entries;

    if v_part.late is not null then
      v_now := tollgate.clock();
      with moved as (
        update tollgate.token_buckets t
           set (granted_requests, granted, full_at) = (
                 select m.times, t.granted + (m.times - d.times) * d.cost,
                        greatest(t.full_at, tollgate.bucket_clock(t, v_now) + d.times * d.cost * t.token_ticks)
                        + (m.times - d.times) * d.cost * t.token_ticks
                   from (select least(d.wanted, d.times + tollgate.bucket_grants(t, d.cost, d.min_remaining, v_now),
                                      (t.burst / t.token_ticks - d.min_remaining) / d.cost) as times) m)
          from (select u.place, u.times, p_times[u.place] as wanted, p_costs[u.place] as cost,
                       p_min_remainings[u.place] as min_remaining
                  from unnest(v_answers.entries, v_answers.times) u (place, times)
                 where u.place = any (v_part.late)) d
         where t.id = p_ids[d.place]
           and (d.times < d.wanted or t.full_at < tollgate.bucket_clock(t, v_now) + d.times * d.cost * t.token_ticks)
        returning d.place, t.granted_requests as times, t.full_at, t.granted)
      select array_agg(coalesce(m.times, d.times) order by d.nth),
             array_agg(case when d.place = any (v_part.late) then v_now else d.now end order by d.nth),
             array_agg(coalesce(m.full_at, d.full_at) order by d.nth),
             array_agg(coalesce(m.granted, d.granted) order by d.nth)
        into v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted
        from unnest(v_answers.entries, v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted) with ordinality
             as d (place, times, now, full_at, granted, nth)
        left join moved m on m.place = d.place;
    end if;
    return next tollgate.shortened(v_answers);

    if v_part.partial is not null then
      return query
        select array_agg(d.place), array_agg(p_times[d.place] - d.times), 'denied', null, array_agg(d.now),
               null::bigint[], array_agg(d.full_at), array_agg(d.granted), array_agg(d.burst), array_agg(d.anchor),
               array_agg(d.step_ns), array_agg(d.step_ticks), array_agg(d.token_ticks)
          from unnest(v_answers.entries, v_answers.times, v_answers.now, v_answers.full_at, v_answers.granted,
                      v_answers.burst, v_answers.anchor, v_answers.step_ns, v_answers.step_ticks, v_answers.token_ticks)
               as d (place, times, now, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks)
         where d.times < p_times[d.place]
        having count(*) > 0;
    end if;
  end loop;

  if cardinality(v_done) < cardinality(p_ids) then
    select array_agg(u.place), array_agg(u.times)
      into v_left, v_left_times
      from unnest(p_times) with ordinality u (times, place) where u.place <> all (v_done);
    return query
      select t.*
        from (select array_agg(p_ids[l.place]) as ids, array_agg(p_costs[l.place]) as costs,
                     array_agg(p_min_remainings[l.place]) as min_remainings,
                     array_agg(p_capacities[p_rules[l.place]]) as capacities,
                     array_agg(p_refill_seconds[p_rules[l.place]]) as seconds,
                     array_agg(p_refills[p_rules[l.place]]) as refills, array_agg(p_plans[p_rules[l.place]]) as plans,
                     array_agg(0::bigint) as zeros
                from unnest(v_left) l (place)) l
       cross join lateral tollgate.take_each_v1(
         v_left, l.ids, v_left_times, l.costs, l.min_remainings, l.zeros, l.capacities, l.seconds, l.refills, l.plans, null,
         l.zeros) t;
  end if;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

-- take_equal_v1: decides equal requests for one bucket, one after the other, in one update of its row.
--
-- Arguments: p_id, p_cost, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
--            p_times: number of requests, 1 or more
-- Result:    as for take_batch_v1, with one entry
-- Errors:    as for take_v1
-- Locks:     the bucket's row, if any request is granted
--
-- Several times faster than a batch of one entry, because a statement for many rows takes longer to start than to change a row.
-- All requests are granted if the locked row affords them, and fewer if the row is unchanged since the read. Otherwise the
-- attempt starts again. take_each_v1 decides buckets with a mode, an override or other limits.
create or replace function tollgate.take_equal_v1(
  p_id text, p_cost bigint, p_min_remaining bigint, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text,
  p_times bigint)
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_max_counted constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  c_stale      constant bigint := 2000000;  -- nanoseconds: a longer gap means that the row was waited for
  b            tollgate.token_buckets;
  v_capacity   numeric := p_capacity;  -- the limits of the request, or of its plan
  v_seconds    numeric := round(p_refill_seconds, 9);
  v_refill     text := p_refill;
  v_has_rules  boolean;
  v_now        bigint;
  v_clock      bigint;
  v_granted    bigint;
  v_more       bigint;
  v_full_at    bigint;
begin
  for v_attempt in 1 .. 3 loop
    exit when (p_cost between 1 and c_max_counted and p_min_remaining between 0 and c_max_counted
               and p_times >= 1 and num_nulls(p_capacity, p_refill_seconds, p_refill) in (0, 3)) is not true;
    -- Null if the row of token_mode is missing; null leads to take_each_v1.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = p_id)
      into v_has_rules from tollgate.token_mode g;
    exit when v_has_rules is not false;
    if p_plan is not null then
      exit when p_capacity is not null;
      select p.capacity, p.refill_seconds, p.refill into v_capacity, v_seconds, v_refill
        from tollgate.token_plans p where p.name = p_plan and p.mode is null;
      exit when not found;
    end if;
    select t.* into b from tollgate.token_buckets t where t.id = p_id and not t.overridden;
    v_now := tollgate.clock();  -- read after the row, as in take_v1
    if b.id is null and v_capacity is not null then
      perform from tollgate.prepare_bucket(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, false);
      continue;
    end if;
    exit when b.id is null;
    -- has_limits in the query would prepare a search for the plan each time.
    if v_capacity is not null then
      exit when b.plan is distinct from p_plan or (b.capacity, b.refill_seconds, b.refill) <> (v_capacity, v_seconds, v_refill);
    elsif b.plan is not null then
      exit when not tollgate.follows_plan(b.plan, b.capacity, b.refill_seconds, b.refill);
    end if;
    v_clock := tollgate.bucket_clock(b, v_now);
    exit when p_cost > b.burst / b.token_ticks - p_min_remaining or b.full_at - v_clock > tollgate.bucket_max_owed(b)
              or b.period_end <= v_now;
    v_granted := least(p_times, tollgate.bucket_grants(b, p_cost, p_min_remaining, v_now));
    if v_granted < 1 then
      return next tollgate.answers_of(1, p_times, ('denied', null, v_now, v_now, b.full_at, b.granted, b.burst, b.anchor,
                                                   b.step_ns, b.step_ticks, b.token_ticks));
      return;
    end if;
    update tollgate.token_buckets t
       set room = null,
           granted = t.granted + v_granted * p_cost,
           full_at = greatest(t.full_at, v_clock) + v_granted * p_cost * b.token_ticks
     where t.id = p_id
       and case when (t.anchor, t.burst, t.step_ns, t.token_ticks) = (b.anchor, b.burst, b.step_ns, b.token_ticks)
             then t.full_at = b.full_at
                  or v_granted = p_times
                     and t.full_at <= v_clock + b.burst - (p_min_remaining + v_granted * p_cost) * b.token_ticks end
    returning t.full_at, t.granted into b.full_at, b.granted;
    continue when not found;

    if tollgate.clock() - v_now > c_stale then
      -- The row had to be waited for: the grants move to the later instant, at which the row can afford more.
      v_now := tollgate.clock();
      v_full_at := b.full_at;
      b.full_at := greatest(b.full_at, tollgate.bucket_clock(b, v_now) + v_granted * p_cost * b.token_ticks);
      v_more := least(p_times - v_granted, tollgate.bucket_grants(b, p_cost, p_min_remaining, v_now));
      v_granted := v_granted + v_more;
      b.full_at := b.full_at + v_more * p_cost * b.token_ticks;
      b.granted := b.granted + v_more * p_cost;
      if b.full_at > v_full_at then
        update tollgate.token_buckets t set full_at = b.full_at, granted = b.granted where t.id = p_id;
      end if;
    end if;
    return next tollgate.answers_of(1, v_granted, ('granted', null, v_now, v_now, b.full_at, b.granted, b.burst, b.anchor,
                                                   b.step_ns, b.step_ticks, b.token_ticks));
    if p_times > v_granted then
      return next tollgate.answers_of(1, p_times - v_granted, ('denied', null, v_now, v_now, b.full_at, b.granted, b.burst,
                                                               b.anchor, b.step_ns, b.step_ticks, b.token_ticks));
    end if;
    return;
  end loop;
  return query
    select t.*
      from tollgate.take_each_v1(
             array[1::bigint], array[p_id], array[p_times], array[p_cost], array[p_min_remaining], array[0::bigint],
             array[p_capacity], array[p_refill_seconds], array[p_refill], array[p_plan], array[null::uuid], array[0::bigint]) t;
end
$$;

insert into tollgate.migrations (version, name) values (5, '0005_take_batch') on conflict do nothing;
