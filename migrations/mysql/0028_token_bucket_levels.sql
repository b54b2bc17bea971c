-- token_bucket_levels: each bucket as people think of it, at this instant, in UTC. Reads, locks and changes nothing.
--
--   id_bytes, plan_bytes: id as the index has it, and plan, in UTF-8 whatever the session's character set is
--   capacity, refill_seconds, refill: the terms that the last request found, an override's too
--   overridden     whether they are an override's
--   available      whole tokens there now; negative: promised to requests that wait for them
--   full_at        when it is full again; null: it is, or never
--   next_refill_at when the next token comes; null: it is full, or never
--
-- available is null where the row breaks its bounds: no figure of it can fail the whole read.
create sql security definer view token_bucket_levels as
select convert(b.id using utf8mb4) as id, b.burst div b.token_ticks as capacity,
       (b.burst - b.owed) div b.token_ticks - ((b.burst - b.owed) mod b.token_ticks < 0) as available,
       b.under_seconds as refill_seconds, b.under_refill as refill, convert(b.plan using utf8mb4) as plan, b.provisioned,
       b.overridden, b.granted,
       case when b.owed > 0 and b.step_ns < 9223372036854775807
            then timestamp('1970-01-01') + interval (
              b.anchor + (b.full_at div b.step_ticks + (b.full_at mod b.step_ticks > 0)) * b.step_ns)
              div 1000 microsecond
       end as full_at,
       case when b.owed > 0 and b.step_ns < 9223372036854775807
            then timestamp('1970-01-01') + interval (
              b.anchor + (b.next div b.step_ticks + (b.next mod b.step_ticks > 0)) * b.step_ns)
              div 1000 microsecond
       end as next_refill_at,
       b.id as id_bytes, b.plan as plan_bytes
  from (select o.*, o.full_at - (o.owed - 1) div o.token_ticks * o.token_ticks as next
          from (select t.*,
                       if(t.burst between 1 and 4611686018427387903 and t.token_ticks >= 1
                          and t.step_ticks between 1 and t.step_ns and t.anchor between 0 and 4611686018427387903
                          and t.full_at >= -4611686018427387904
                          and (t.step_ns = 9223372036854775807
                               or t.full_at div t.step_ticks + (t.full_at mod t.step_ticks > 0)
                                  <= (9223372036854775807 - t.anchor) div t.step_ns),
                          greatest(t.full_at - (n.now - t.anchor) div t.step_ns * t.step_ticks, 0), null) as owed
                  from token_buckets t
                 cross join (select (cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)),
                                               16, 10) as signed) - 122192928000000000) * 100 as now
                               from (select uuid() as uuid limit 1) u limit 1) n) o) b
