-- Decides one request. The first statement grants it, if only the bucket's own limits apply.
-- Otherwise the second statement reads the bucket.
-- ?1, ?2, ?3   key, cost, minimum remaining
-- ?4, ?5       now and max_wait, in nanoseconds
-- ?6           the time when ?4 was read, in milliseconds since 1970
-- ?7           milliseconds after ?6 for which ?4 is valid; later, the statement grants nothing
-- ?8, ?9, ?10  capacity, refill_ns and refill of the quota passed, or null
-- Result: the instant of a grant or null, whether a mode or an override can apply, and the bucket's columns in the order of
-- bucket_from_columns of rows.rs.
--
-- Aliases: over is a row of token_overrides, global_mode the row of token_mode.
--
-- Only the linked library runs this statement, so unixepoch('subsec'), of SQLite 3.42, is available.
-- A statement that waited for the lock decides by the time after the wait. Milliseconds are truncated, so a grant is at
-- most 3 ms older than the lock.
with clock(now) as (
  -- Ignores the first 2 ms. CALLERS_CLOCK_VALID_MS in take.rs must not exceed them.
  select ?4 + max(passed - 2, 0) * 1000000
    from (select cast(unixepoch('subsec') * 1000 as integer) - ?6 as passed)
   where passed between 0 and ?7)
update token_buckets
   set granted = granted + ?2,
       max_granted_wait = case
         when full_at + (?2 + ?3) * token_ticks - burst <= ((select now from clock) - anchor) / step_ns * step_ticks
           then max_granted_wait
         else max(max_granted_wait,
                  (full_at + (?2 + ?3) * token_ticks - burst + step_ticks - 1) / step_ticks * step_ticks
                    - ((select now from clock) - anchor) / step_ns * step_ticks)
       end,
       full_at = ?2 * token_ticks + case
         when full_at + (?2 + ?3) * token_ticks - burst <= ((select now from clock) - anchor) / step_ns * step_ticks
           then max(full_at, ((select now from clock) - anchor) / step_ns * step_ticks)
         else max(full_at, (full_at + (?2 + ?3) * token_ticks - burst + step_ticks - 1) / step_ticks * step_ticks)
       end
 where id = ?1
   and plan is null and over_capacity is null
   and length(refill) <= 10  -- the text of a calendar period is longer, and the host computes the period
   and ?2 <= capacity - ?3
   and full_at + (?2 + ?3) * token_ticks - burst <= ((select now from clock) + ?5 - anchor) / step_ns * step_ticks
   and (?5 = 0 or full_at - ((select now from clock) - anchor) / step_ns * step_ticks
                   <= burst + max_granted_wait + (1000000000 / step_ns + 1) * step_ticks)
   and (?8 is null or (capacity = ?8 and refill_ns = ?9 and refill = ?10))
   and not exists (select global_mode.one from token_mode global_mode where global_mode.mode <> 'enforce')
   and not exists (select over.id from token_overrides over where over.id = ?1)
returning (select now from clock), false, anchor, full_at, granted, max_granted_wait, capacity, refill_ns, refill,
          provisioned, plan, over_capacity, over_refill_ns, over_refill;

select null,
       exists (select global_mode.one from token_mode global_mode where global_mode.mode <> 'enforce')
       or exists (select over.id from token_overrides over where over.id = ?1),
       anchor, full_at, granted, max_granted_wait, capacity, refill_ns, refill, provisioned, plan,
       over_capacity, over_refill_ns, over_refill
  from token_buckets where id = ?1 and changes() = 0;
