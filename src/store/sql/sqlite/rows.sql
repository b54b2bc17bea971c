-- Writes whole buckets, new or existing.
-- ?1 a JSON array of arrays: key, anchor, full_at, granted, max_granted_wait, capacity, refill_ns, refill, provisioned,
--    plan, over_capacity, over_refill_ns, over_refill, period_end
insert into token_buckets (id, anchor, full_at, granted, max_granted_wait, capacity, refill_seconds, refill, provisioned,
                           plan, over_capacity, over_refill_ns, over_refill, period_end)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, (value ->> 6) / 1e9, value ->> 7,
       value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13
  from json_each(?1)
 where true
    on conflict (id) do update
   set anchor = excluded.anchor, full_at = excluded.full_at, granted = excluded.granted,
       max_granted_wait = excluded.max_granted_wait, capacity = excluded.capacity, refill_seconds = excluded.refill_seconds,
       refill = excluded.refill, provisioned = excluded.provisioned, plan = excluded.plan,
       over_capacity = excluded.over_capacity, over_refill_ns = excluded.over_refill_ns,
       over_refill = excluded.over_refill, period_end = excluded.period_end;
