-- token_bucket_levels: each bucket as people think of it, at this instant, in UTC. Reads, locks and changes nothing.
--
--   available      whole tokens there now; negative: promised to requests that wait for them
--   full_at        when it is full again; null: it is
--   next_refill_at when the next token comes; null: it is full
create sql security definer view token_bucket_levels as
select convert(b.id using utf8mb4) as id, b.capacity,
       cast(floor((b.capacity * b.token_ticks
                   - greatest(b.full_at - (n.now - b.anchor) div b.step_ns * b.step_ticks, 0))
                  / b.token_ticks) as signed) as available,
       b.refill_seconds, b.refill, b.provisioned, b.granted,
       if(b.full_at > (n.now - b.anchor) div b.step_ns * b.step_ticks,
          timestamp('1970-01-01') + interval (
            b.anchor + (b.full_at + b.step_ticks - 1) div b.step_ticks * b.step_ns) div 1000 microsecond,
          null) as full_at,
       if(b.full_at > (n.now - b.anchor) div b.step_ns * b.step_ticks,
          timestamp('1970-01-01') + interval (
            b.anchor + (b.full_at
                        - (b.full_at - (n.now - b.anchor) div b.step_ns * b.step_ticks - 1)
                          div b.token_ticks * b.token_ticks
                        + b.step_ticks - 1) div b.step_ticks * b.step_ns) div 1000 microsecond,
          null) as next_refill_at
  from token_buckets b
 cross join (select (cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)), 16, 10) as signed)
                     - 122192928000000000) * 100 as now
               from (select uuid() as uuid limit 1) u limit 1) n
