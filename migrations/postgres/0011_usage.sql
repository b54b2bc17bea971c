-- keep_usage: trigger that records the usage of a bucket that was deleted, or that follows another plan from now on, under the plan
-- that it followed. A further limit counts under its plan.
--
-- Errors:    none
-- Locks:     the bucket's row, which the statement holds, then the row of its usage
create or replace function tollgate.keep_usage() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into tollgate.token_usage_records as u (id, period_start, plan, granted, charged, refunded)
  select old.id, r.period_start, split_part(coalesce(old.plan, ''), chr(1), 1),
         least(old.granted::numeric - old.recorded, 9223372036854775807), old.charged, old.refunded
    from tollgate.token_usage_recording r where r.period_start is not null
      on conflict (id, period_start, plan) do update
     set granted = least(u.granted::numeric + excluded.granted, 9223372036854775807),
         charged = least(u.charged::numeric + excluded.charged, 9223372036854775807),
         refunded = least(u.refunded::numeric + excluded.refunded, 9223372036854775807);
  if tg_op = 'UPDATE' then
    update tollgate.token_buckets b
       set recorded = b.recorded - old.recorded + old.granted, charged = b.charged - old.charged,
           refunded = b.refunded - old.refunded
     where b.id = new.id;
  end if;
  return null;
end
$$;

-- Only statements that name the column plan fire it. After an update: a trigger before updates would lock each row once more.
create or replace trigger keep_usage after delete or update of plan on tollgate.token_buckets
  for each row when (old.granted <> old.recorded or old.charged <> 0 or old.refunded <> 0)
  execute function tollgate.keep_usage();

-- record_usage_v1: continues the recording of usage by one bounded step: records the usage of the period that has ended, or deletes
-- periods that are too old.
--
-- Arguments: p_limit   number of buckets to read: 1 to 1000
-- Result:    recorded  number of buckets
--            finished  whether there is nothing left to do for now. Also true if usage is not recorded, or another session is
--                      recording
-- Errors:    25001 the transaction has written: a step needs its own transaction
-- Locks:     the row of token_usage_recording, unless another session has locked it; then the buckets' rows, and the rows of their
--            usage in id order. Waits for the first bucket, 100 ms at most, while it holds no other; leaves out others that another
--            session has locked
--
-- The first round only begins to count. The usage of a bucket belongs to the period in which the last round ended. The next round
-- records a bucket that stays locked, but the first and the last round wait for it. The position contains keys, like that of
-- sweep_v1.
create or replace function tollgate.record_usage_v1(p_limit bigint, out recorded bigint, out finished boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
set debug_print_parse = off
set debug_print_rewritten = off
set debug_print_plan = off
as $$
declare
  c_limit  constant bigint := least(greatest(coalesce(p_limit, 1000), 1), 1000);
  v_now    constant timestamptz := to_timestamp(tollgate.clock() / 1000000000.0);
  r        tollgate.token_usage_recording;
  v_period timestamptz;
  v_due    text[];           -- the buckets of this step that have usage to record
  v_ids    text[];           -- those that it has locked
  v_missed text collate "C"; -- the first of the others
  v_last   text collate "C";
  v_count  bigint;
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'tollgate: recording usage needs a transaction of its own: commit first'
      using errcode = 'active_sql_transaction';
  end if;
  recorded := 0;
  finished := true;
  select t.* into r from tollgate.token_usage_recording t for no key update skip locked;
  if not found then
    return;
  end if;
  v_period := date_trunc(case r.every_seconds when 3600 then 'hour' else 'day' end, v_now, 'UTC');
  if r.recorded_to is null and r.period_start = v_period and not r.ending then
    delete from tollgate.token_usage_records u
     using (select o.id, o.period_start, o.plan from tollgate.token_usage_records o
             where o.period_start < v_now - make_interval(days => r.keep_days::int)
             order by o.period_start, o.id limit c_limit for update skip locked) o
     where u.id = o.id and u.period_start = o.period_start and u.plan = o.plan;
    get diagnostics v_count = row_count;
    finished := v_count < c_limit;
    return;
  end if;

  select count(*), max(s.id), array_agg(s.id order by s.id) filter (where s.is_due) into v_count, v_last, v_due
    from (select b.id, b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0 as is_due
            from tollgate.token_buckets b where b.id > coalesce(r.recorded_to, '') order by b.id limit c_limit) s;
  begin
    perform from tollgate.token_buckets b where b.id = v_due[1] for no key update;
    v_ids := array(
      select b.id from tollgate.token_buckets b where b.id = any (v_due) order by b.id for no key update skip locked);
    select min(d.id) into v_missed from unnest(v_due) d (id) where d.id <> all (v_ids);
  exception when lock_not_available then
    if r.period_start is null or r.ending then
      return;
    end if;
    update tollgate.token_usage_recording set recorded_to = v_due[1];
    finished := false;
    return;
  end;
  if r.period_start is not null then
    insert into tollgate.token_usage_records as u (id, period_start, plan, granted, charged, refunded)
    select b.id, r.period_start, split_part(coalesce(b.plan, ''), chr(1), 1),
           least(b.granted::numeric - b.recorded, 9223372036854775807), b.charged, b.refunded
      from tollgate.token_buckets b
     where b.id = any (v_ids) and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0)
     order by b.id
        on conflict (id, period_start, plan) do update
       set granted = least(u.granted::numeric + excluded.granted, 9223372036854775807),
           charged = least(u.charged::numeric + excluded.charged, 9223372036854775807),
           refunded = least(u.refunded::numeric + excluded.refunded, 9223372036854775807);
  end if;
  update tollgate.token_buckets b set recorded = b.granted, charged = 0, refunded = 0 where b.id = any (v_ids);
  recorded := cardinality(v_ids);
  finished := false;
  if v_missed is not null then
    -- Continues with the bucket that another session has locked.
    update tollgate.token_usage_recording
       set recorded_to = coalesce((select max(d.id) from unnest(v_due) d (id) where d.id < v_missed), r.recorded_to);
  elsif v_count = c_limit then
    update tollgate.token_usage_recording set recorded_to = v_last;
  elsif r.ending then
    delete from tollgate.token_usage_recording;
    finished := true;
  else
    update tollgate.token_usage_recording set recorded_to = null, period_start = v_period;
  end if;
end
$$;

-- token_usage: the tokens that each bucket used, one row per bucket, plan and period, if usage is recorded. Reads only.
--
--   select key, sum(used) from tollgate.token_usage
--    where period_start >= '2026-11-01Z' and period_start < '2026-12-01Z' group by key order by 2 desc;
--
--   id, plan      the bucket, and the plan that it followed; null: none
--   key, limit_name: the id of a further limit's bucket in its parts; limit_name is null for other buckets
--   period_start  start of the hour or day
--   granted       tokens that requests took
--   charged       tokens charged or settled in addition
--   refunded      tokens given back by cancels, refunds and settlements
--   used          granted + charged - refunded
--   denied        requests; the true number can be higher
--
-- Usage is up to date. A token is counted under the period in which the background task last recorded the bucket's usage. In the
-- first minute of a period, tokens can still be counted under the period before.
create or replace view tollgate.token_usage as
select u.id, split_part(u.id, chr(1), 1) as key, nullif(split_part(u.id, chr(1), 2), '') as limit_name,
       nullif(u.plan, '') as plan, u.period_start, least(sum(u.granted), 9223372036854775807)::bigint as granted,
       least(sum(u.charged), 9223372036854775807)::bigint as charged,
       least(sum(u.refunded), 9223372036854775807)::bigint as refunded,
       greatest(least(sum(u.granted) + sum(u.charged) - sum(u.refunded), 9223372036854775807),
                -9223372036854775807)::bigint as used,
       sum(u.denied)::bigint as denied
  from (select r.id, r.plan, r.period_start, r.granted::numeric, r.charged::numeric, r.refunded::numeric, r.denied
          from tollgate.token_usage_records r
        union all
        select b.id, split_part(coalesce(b.plan, ''), chr(1), 1), r.period_start, b.granted::numeric - b.recorded,
               b.charged::numeric, b.refunded::numeric, 0
          from tollgate.token_usage_recording r cross join tollgate.token_buckets b
         where r.period_start is not null and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0)) u
 group by u.id, u.plan, u.period_start;

comment on view tollgate.token_usage is 'Tokens that each bucket used, by period, if usage is recorded';

-- list_usage_v1: reads the usage of some keys in a time: one row per bucket and plan, in the order of the ids. Reads only.
--
-- Arguments: p_after   the id after which the list continues; null: start
--            p_key     only this key, with its further limits; null: every key
--            p_plan    only under this plan; null: under every plan, and under none
--            p_from, p_until: only periods that start at p_from or later, and before p_until
--            p_limit   number of buckets to read; the last page can have up to twice as many
-- Result:    id, plan, granted, charged, refunded, denied: as in token_usage
-- Errors:    none
-- Locks:     none
create or replace function tollgate.list_usage_v1(
  p_after text, p_key text, p_plan text, p_from timestamptz, p_until timestamptz, p_limit bigint)
returns table (id text, plan text, granted bigint, charged bigint, refunded bigint, denied bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  v_end  constant text collate "C" := p_key || chr(2);  -- ids of further limits have U+0001 behind the key
  v_last text collate "C";
begin
  select case when count(*) = p_limit then max(n.id) end into v_last
    from (select r.id from tollgate.token_usage_records r
           where r.id > coalesce(p_after, '') and r.id >= coalesce(p_key, '') and (v_end is null or r.id < v_end)
             and r.period_start >= p_from and r.period_start < p_until and (p_plan is null or r.plan = p_plan)
           group by r.id order by r.id limit p_limit) n;
  -- The buckets whose usage is not recorded yet are among those up to the last of the others, if these fill the page.
  select case when count(*) = p_limit then max(n.id) else v_last end into v_last
    from (select b.id from tollgate.token_usage_recording r cross join tollgate.token_buckets b
           where b.id > coalesce(p_after, '') and b.id >= coalesce(p_key, '') and (v_end is null or b.id < v_end)
             and (v_last is null or b.id <= v_last)
             and r.period_start >= p_from and r.period_start < p_until
             and (p_plan is null or split_part(b.plan, chr(1), 1) = p_plan)
             and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0)
           order by b.id limit p_limit) n;
  return query
    select u.id, u.plan, least(sum(u.granted::numeric), 9223372036854775807)::bigint,
           least(sum(u.charged::numeric), 9223372036854775807)::bigint,
           least(sum(u.refunded::numeric), 9223372036854775807)::bigint, sum(u.denied)::bigint
      from tollgate.token_usage u
     where u.id > coalesce(p_after, '') and u.id >= coalesce(p_key, '')
       and (v_end is null or u.id < v_end) and (v_last is null or u.id <= v_last)
       and u.period_start >= p_from and u.period_start < p_until and (p_plan is null or u.plan = p_plan)
     group by u.id, u.plan order by u.id, u.plan nulls first;
end
$$;

insert into tollgate.migrations (version, name) values (11, '0011_usage') on conflict do nothing;
