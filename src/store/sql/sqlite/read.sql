-- Reads all rows that decide requests, as one text: in SQLite, each separate value would cost as much as a whole row.
-- ?1 keys, each once; ?2 plans that requests name; ?3 keys of requests under the bucket's own plan: JSON arrays
-- Result: rows separated by commas, with the columns below separated by spaces. Null is empty, and plan names are hexadecimal.
-- In the text of a refill, bars stand for spaces.
-- Locked::enter of take.rs parses a row by ResultRow of rows.rs, which counts the columns from 0.
select group_concat(format('%s %s %s %s %s %s %s %s %s %s %s %s %s %s',
                           row_of, place, anchor_or_until, full_at, granted, max_granted_wait, capacity, refill_ns,
                           replace(refill, ' ', '|'), provisioned, hex(plan), over_capacity, over_refill_ns,
                           replace(over_refill_or_mode, ' ', '|')), ',')
  from (
select 'mode' as row_of, null as place, cast(round(unixepoch(until, 'subsec') * 1000) as integer) as anchor_or_until,
       null as full_at, null as granted, null as max_granted_wait, null as capacity, null as refill_ns, null as refill,
       null as provisioned, null as plan, null as over_capacity, null as over_refill_ns, mode as over_refill_or_mode
  from token_mode where mode <> 'enforce'
union all
select 'override', asked.key, cast(round(unixepoch(over.expires_at, 'subsec') * 1000) as integer),
       null, null, null, over.capacity, over.refill_ns, over.refill, null, null, null, null, over.mode
  from json_each(?1) asked cross join token_overrides over on over.id = asked.value
 where exists (select any_override.id from token_overrides any_override)
union all
select 'plan', null, cast(round(unixepoch(mode_until, 'subsec') * 1000) as integer),
       null, null, null, capacity, refill_ns, refill, null, name, null, null, mode
  from token_plans
 where name in (select named.value from json_each(?2) named
                union all
                select bucket.plan from json_each(?3) asked cross join token_buckets bucket on bucket.id = asked.value
                 where bucket.plan is not null and exists (select any_plan.name from token_plans any_plan))
union all
select 'bucket', asked.key, anchor, full_at, granted, max_granted_wait, capacity, refill_ns, refill, provisioned, plan,
       over_capacity, over_refill_ns, over_refill
  from json_each(?1) asked cross join token_buckets bucket on bucket.id = asked.value
);
