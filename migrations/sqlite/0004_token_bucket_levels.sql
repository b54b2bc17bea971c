-- token_bucket_levels: each bucket as people think of it, at this instant, in UTC. Reads, locks and changes nothing.
--
--   capacity, refill_seconds, refill: the terms that the last request found, an override's too
--   overridden     whether they are an override's
--   available      whole tokens there now; negative: promised to requests that wait for them
--   full_at        when it is full again; null: it is, or never
--   next_refill_at when the next token comes; null: it is full, or never
create view token_bucket_levels as
with levels as (
  select b.*, max(full_at - (n.now - anchor) / step_ns * step_ticks, 0) as owed
    from token_buckets b,
         -- The end of this millisecond, which is all that SQLite tells: a bucket may have been used within it.
         (select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000000 + 999999 as now) n
)
select id, burst / token_ticks as capacity,
       burst / token_ticks - owed / token_ticks - (owed % token_ticks > 0) as available,
       coalesce(over_refill_ns / 1e9, refill_seconds) as refill_seconds, coalesce(over_refill, refill) as refill, plan,
       provisioned, over_capacity is not null as overridden, granted,
       case when owed > 0 and step_ns < 9223372036854775807 then strftime('%Y-%m-%dT%H:%M:%fZ',
         (anchor + (full_at + step_ticks - 1) / step_ticks * step_ns) / 1e9, 'unixepoch') end as full_at,
       case when owed > 0 and step_ns < 9223372036854775807 then strftime('%Y-%m-%dT%H:%M:%fZ',
         (anchor + (full_at - (owed - 1) / token_ticks * token_ticks + step_ticks - 1) / step_ticks * step_ns) / 1e9,
         'unixepoch') end as next_refill_at
  from levels;
