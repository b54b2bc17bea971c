-- Routines and a view that replace those of PostgreSQL where Citus has no plan for a statement, or a slower one. The arguments
-- and results are the same.
--
-- grant_v1: decides one request that has no id and does not wait.
--
-- Arguments, result, errors and locks: as on PostgreSQL
--
-- Citus does not plan an UPDATE that calls follows_plan for its row.
create or replace function tollgate.grant_v1(
  p_id text, p_cost bigint, p_min_remaining bigint, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text)
returns tollgate.taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return tollgate.take_v1(p_id, p_cost, 0, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan, null, null);
end
$$;

-- take_batch_v1: decides several requests in one call, each by itself. None waits or has an id.
--
-- Arguments, result and errors: as on PostgreSQL
-- Locks:     as for take_each_v1
--
-- One statement for all buckets would lock rows of every shard until its slowest node has committed. Callers that know of the
-- distribution call the routines for one key instead, which run on the node that has the key.
create or replace function tollgate.take_batch_v1(
  p_ids text[], p_times bigint[], p_costs bigint[], p_min_remainings bigint[],
  p_rules bigint[], p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_zeros      constant bigint[] := array_fill(0::bigint, array[coalesce(cardinality(p_ids), 0)]);
  v_capacities bigint[];
  v_seconds    numeric[];
  v_refills    text[];
  v_plans      text[];
begin
  if (array_position(p_ids, null) is null
      and cardinality(p_ids) = all (array[cardinality(p_times), cardinality(p_costs), cardinality(p_min_remainings),
                                          cardinality(p_rules)])) is not true then
    raise exception 'tollgate: take_batch_v1 needs times, costs, minimum remainings and a rule for every id'
      using errcode = 'invalid_parameter_value';
  end if;
  select array_agg(p_capacities[r.rule] order by r.nth), array_agg(p_refill_seconds[r.rule] order by r.nth),
         array_agg(p_refills[r.rule] order by r.nth), array_agg(p_plans[r.rule] order by r.nth)
    into v_capacities, v_seconds, v_refills, v_plans
    from unnest(p_rules) with ordinality r (rule, nth);
  return query
    select t.* from tollgate.take_each_v1(
      array(select generate_series(1, cardinality(p_ids))), p_ids, p_times, p_costs, p_min_remainings, v_zeros, v_capacities,
      v_seconds, v_refills, v_plans, null, v_zeros) t;
end
$$;

-- take_all_v1: takes tokens from all of several buckets, or from none.
--
-- Arguments, result, errors and locks: as on PostgreSQL
create or replace function tollgate.take_all_v1(
  p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[], p_refill_seconds numeric[],
  p_refills text[], p_plans text[], p_max_wait bigint, p_request_id uuid, p_hold bigint)
returns table (entry bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_year        constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  c_max_counted constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
begin
  if (1 <= all (p_costs) and c_max_counted >= all (p_costs) and cardinality(p_costs) = cardinality(p_ids)
      and 0 <= all (p_min_remainings) and c_max_counted >= all (p_min_remainings)
      and cardinality(p_min_remainings) = cardinality(p_ids)
      and p_max_wait between 0 and c_year) is not true then
    raise exception 'tollgate: take_all_v1 needs distinct buckets, costs of 1 or more, minimum remainings of 0 or more, and a '
                    'wait of 0 to a year' using errcode = 'invalid_parameter_value';
  end if;
  return query
    select t.* from tollgate.take_all_in_order(p_ids, p_costs, p_min_remainings, p_capacities, p_refill_seconds, p_refills,
                                               p_plans, p_max_wait, p_request_id, p_hold) t;
end
$$;

-- take_all_batch_v1: decides several requests in one call. Each takes from all of its buckets, or from none.
--
-- Arguments, result and errors: as on PostgreSQL; standing is false
-- Locks:     the rows of each request in id order, one request after the other. Two calls can deadlock: then one fails with 40P01,
--            and nothing of it was taken
create or replace function tollgate.take_all_batch_v1(
  p_requests bigint[], p_ids text[], p_costs bigint[], p_min_remainings bigint[], p_capacities bigint[],
  p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns table (standing boolean, answers tollgate.answers_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_request record;
begin
  for v_request in
    select min(r.place) as first, max(r.place) as last
      from unnest(p_requests) with ordinality r (request, place) group by r.request order by 1
  loop
    return query
      select false, tollgate.answers_of(v_request.first + t.entry - 1, 1, t.taken)
        from tollgate.take_all_v1(
               p_ids[v_request.first:v_request.last], p_costs[v_request.first:v_request.last],
               p_min_remainings[v_request.first:v_request.last], p_capacities[v_request.first:v_request.last],
               p_refill_seconds[v_request.first:v_request.last], p_refills[v_request.first:v_request.last],
               p_plans[v_request.first:v_request.last], 0, null, 0) t;
  end loop;
end
$$;

-- sweep_step: deletes expired rows in one bounded step.
--
-- Arguments, result and errors: as on PostgreSQL
-- Locks:     the rows that the step deletes; waits for rows that another session has locked, and so does sweep_v1 here
create or replace function tollgate.sweep_step(p_after text, p_limit bigint, out deleted bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now       constant bigint := tollgate.clock();
  v_unused    constant bigint := v_now - 60000000000; -- deletes what was full or empty then, because most clients return sooner
  v_table     text collate "C" := coalesce(split_part(p_after, '/', 1), 'buckets');
  v_after     text collate "C" := coalesce(substr(p_after, length(v_table) + 2), '');
  v_left      bigint := least(greatest(coalesce(p_limit, 1000), 1), 1000);
  v_last      text collate "C";
  v_receipt   uuid := '00000000-0000-0000-0000-000000000000';
  v_to        uuid;
  v_count     bigint;
  v_kept      text[];
  v_hour      timestamptz;
  v_last_hour timestamptz;
begin
  deleted := 0;
  if v_table = 'buckets' then
    select count(*), max(s.id) into v_count, v_last
      from (select b.id from tollgate.token_buckets b where b.id > v_after order by b.id limit v_left) s;
    delete from tollgate.token_buckets b
     where b.id > v_after and b.id <= v_last
       and not b.provisioned and tollgate.is_full_since(b.full_at, b.anchor, b.step_ns, b.step_ticks, b.period_end, v_unused)
       and not exists (select 1 from tollgate.token_receipts r
                        where r.bucket = b.id and r.state = 'open' and r.expires_at > v_now);
    get diagnostics deleted = row_count;
    if v_count = v_left then
      next := 'buckets/' || v_last;
      return;
    end if;
    v_left := v_left - v_count;
    v_table := 'windows';
    v_after := '';
  end if;

  if v_table = 'windows' then
    select count(*), max(s.id) into v_count, v_last
      from (select w.id from tollgate.token_windows w where w.id > v_after order by w.id limit v_left) s;
    next := case when v_count = v_left then 'windows/' || v_last end;
    v_left := v_left - v_count;
    -- The receipts of a window are on another node.
    v_kept := array(select substr(r.bucket, 2) from tollgate.token_receipts r
                     where r.bucket > chr(1) || v_after and r.bucket <= chr(1) || v_last
                       and r.state = 'open' and r.expires_at > v_now);
    delete from tollgate.token_windows w
     where w.id > v_after and w.id <= v_last and w.id <> all (v_kept)
       and coalesce(w.ends[array_length(w.ends, 1)], 0) + w.interval_ns <= v_unused;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
    v_table := 'receipts';
    v_after := '';
  end if;

  if v_table = 'receipts' then
    if v_after <> '' then
      v_receipt := left(v_after, 36)::uuid;
      v_after := substr(v_after, 37);
    end if;
    select count(*), max(s.id::text collate "C" || s.bucket) into v_count, v_last
      from (select r.id, r.bucket from tollgate.token_receipts r where (r.id, r.bucket) > (v_receipt, v_after)
             order by r.id, r.bucket limit v_left) s;
    next := case when v_count = v_left then 'receipts/' || v_last end;
    v_left := v_left - v_count;
    v_to := left(v_last, 36)::uuid;
    v_last := substr(v_last, 37);
    delete from tollgate.token_receipts r
     where (r.id, r.bucket) > (v_receipt, v_after) and (r.id, r.bucket) <= (v_to, v_last) and r.expires_at <= v_now;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
    v_table := 'overrides';
    v_after := '';
  end if;

  if v_table = 'overrides' then
    select count(*), max(s.id) into v_count, v_last
      from (select o.id from tollgate.token_overrides o where o.id > v_after order by o.id limit v_left) s;
    next := case when v_count = v_left then 'overrides/' || v_last end;
    v_left := v_left - v_count;
    delete from tollgate.token_overrides o
     where o.id > v_after and o.id <= v_last and not tollgate.in_force(o.expires_at, v_now);
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
  end if;

  -- Every denial of these hours is older than 48 hours.
  v_hour := to_timestamp(v_now / 1000000000.0) - interval '49 hours';
  select s.hour, s.id into v_last_hour, v_last
    from tollgate.token_stats s where s.hour < v_hour order by s.hour, s.id limit 1 offset v_left - 1;
  delete from tollgate.token_stats s
   where s.hour < v_hour and (v_last_hour is null or (s.hour, s.id) <= (v_last_hour, v_last));
  get diagnostics v_count = row_count;
  deleted := deleted + v_count;
  next := case when v_last_hour is not null then 'denials/' end;
end
$$;

-- count_denials_v1: adds the denials that a process counted. The sweep deletes old rows.
--
-- Arguments, result and errors: as on PostgreSQL
-- Locks:     the rows of these keys in this hour, in id order for each shard
create or replace function tollgate.count_denials_v1(p_ids text[], p_denied bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now  constant timestamptz := to_timestamp(tollgate.clock() / 1000000000.0);
  v_hour constant timestamptz := date_trunc('hour', v_now, 'UTC');
begin
  if cardinality(p_ids) is distinct from cardinality(p_denied) or cardinality(p_ids) > 1000
     or exists (select from unnest(p_ids, p_denied) d(id, denied)
                 where (octet_length(d.id) between 1 and 255 and left(d.id, 1) <> chr(1)
                        and d.denied between 1 and 1000000000000000) is not true) then
    raise exception 'tollgate: count_denials takes up to 1000 ids of 1 to 255 bytes that do not begin with U+0001, '
                    'and for each 1 denial or more'
      using errcode = 'invalid_parameter_value';
  end if;
  insert into tollgate.token_stats as s (hour, id, denied, last_denied_at)
  select v_hour, d.id, sum(d.denied), v_now from unnest(p_ids, p_denied) d(id, denied)
   group by d.id order by d.id collate "C"
      on conflict (hour, id) do update
     set denied = least(s.denied::numeric + excluded.denied, 9223372036854775807),
         last_denied_at = greatest(s.last_denied_at, excluded.last_denied_at);
end
$$;

-- token_sizes: size of each table over all nodes. Reads only.
--
--   bytes      including indexes
--   the other columns: null, because each node counts its own shards
create or replace view tollgate.token_sizes as
select c.relname::text as name, null::bigint as live_rows, null::bigint as dead_rows,
       case when d.logicalrelid is null then pg_total_relation_size(c.oid::regclass)
            else citus_total_relation_size(c.oid::regclass) end as bytes,
       null::bigint as updates, null::numeric as hot_ratio, null::timestamptz as last_vacuum_at
  from pg_catalog.pg_class c
  left join pg_catalog.pg_dist_partition d on d.logicalrelid = c.oid::regclass
 where c.relnamespace = 'tollgate'::regnamespace and c.relkind = 'r';
