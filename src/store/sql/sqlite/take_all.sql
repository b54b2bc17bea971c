-- Decides one request for several buckets, all or none. The first statement grants it, if all buckets exist and only
-- their own limits apply. Otherwise the second statement reads the existing buckets.
-- ?1 a JSON array of keys, ?2 of costs, ?3 of minimum remaining tokens
-- ?4 now, ?5 max_wait, ?6 and ?7 as for take.sql.
-- ?8 a JSON array of the quotas passed: null, or a text of capacity, refill_ns and refill
-- Result: the key, and the columns of read.sql. The first column is 'granted', 'ruled' or 'bucket'; the second is the instant
-- of a grant.
--
-- An insert, because the planner could scan all buckets for an update from a join. Every id exists, so the inserted limits are
-- placeholders. The inserted granted and max_granted_wait carry the cost and the minimum remaining tokens.
with clock(now) as (
  select ?4 + max(passed - 2, 0) * 1000000
    from (select cast(unixepoch('subsec') * 1000 as integer) - ?6 as passed)
   where passed between 0 and ?7)
insert into token_buckets (id, anchor, capacity, refill_seconds, granted, max_granted_wait)
select value, 0, 1, 1, ?2 ->> key, ?3 ->> key
  from json_each(?1)
 where json_array_length(?1) = (
         select count(*)
           from json_each(?1) asked cross join token_buckets bucket on bucket.id = asked.value
          where plan is null and over_capacity is null
            and ?2 ->> asked.key <= capacity - (?3 ->> asked.key)
            and full_at + ((?2 ->> asked.key) + (?3 ->> asked.key)) * token_ticks - burst
                  <= ((select now from clock) + ?5 - anchor) / step_ns * step_ticks
            and (?5 = 0 or full_at - ((select now from clock) - anchor) / step_ns * step_ticks
                            <= burst + max_granted_wait + (1000000000 / step_ns + 1) * step_ticks)
            and (?8 ->> asked.key is null or ?8 ->> asked.key = capacity || ' ' || refill_ns || ' ' || refill))
   and not exists (select from_all.one from token_mode from_all where from_all.mode <> 'enforce')
   and not exists (select over.id from token_overrides over)
    on conflict (id) do update
   set granted = granted + excluded.granted,
       max_granted_wait = case
         when full_at + (excluded.granted + excluded.max_granted_wait) * token_ticks - burst
              <= ((select now from clock) - anchor) / step_ns * step_ticks then max_granted_wait
         else max(max_granted_wait,
                  (full_at + (excluded.granted + excluded.max_granted_wait) * token_ticks - burst + step_ticks - 1)
                    / step_ticks * step_ticks - ((select now from clock) - anchor) / step_ns * step_ticks)
       end,
       full_at = excluded.granted * token_ticks + case
         when full_at + (excluded.granted + excluded.max_granted_wait) * token_ticks - burst
              <= ((select now from clock) - anchor) / step_ns * step_ticks then max(full_at, ((select now from clock) - anchor) / step_ns * step_ticks)
         else max(full_at,
                  (full_at + (excluded.granted + excluded.max_granted_wait) * token_ticks - burst + step_ticks - 1)
                    / step_ticks * step_ticks)
       end
returning id, format('granted %s %s %s %s %s %s %s %s %s    ', (select now from clock),
                     anchor, full_at, granted, max_granted_wait, capacity, refill_ns, refill, provisioned);

select bucket.id, format('%s  %s %s %s %s %s %s %s %s %s %s %s %s',
                  case when exists (select from_all.one from token_mode from_all where from_all.mode <> 'enforce')
                            or exists (select over.id from token_overrides over) then 'ruled' else 'bucket' end,
                  anchor, full_at, granted, max_granted_wait, capacity, refill_ns, refill, provisioned, hex(plan),
                  over_capacity, over_refill_ns, over_refill)
  from json_each(?1) asked cross join token_buckets bucket on bucket.id = asked.value
 where changes() = 0;
