-- token_bucket_levels: each bucket as people think of it, at this instant. Reads, locks nothing, changes nothing.
--
--   capacity, refill_seconds, refill: the terms that the last request found, an override's too
--   overridden     whether they are an override's
--   available      whole tokens there now; negative: promised to requests that wait for them
--   full_at        when it is full again; null: it is, or never
--   next_refill_at when the next token comes; null: it is full, or never
--
-- available is null where the row breaks its bounds: no figure of it can fail the whole read.
create view tollgate.token_bucket_levels as
select b.id, b.burst / nullif(b.token_ticks, 0) as capacity,
       case when l.clock is not null
            then floor((b.burst - greatest(b.full_at - l.clock, 0))::numeric / b.token_ticks::numeric)::bigint
       end as available,
       -- An override that was changed or taken away since is known by what the state was reckoned in.
       case when not b.overridden then b.refill_seconds
            when o.id is not null then o.refill_seconds
            else round(case b.step_ns when 1 then b.burst when 9223372036854775807 then 0 else b.step_ns end::numeric
                       / 1000000000::numeric, 9) end as refill_seconds,
       case when not b.overridden then b.refill
            when o.id is not null then o.refill
            else case b.step_ns when 1 then 'continuous' when 9223372036854775807 then 'once' else 'interval' end
       end as refill,
       b.plan, b.provisioned, b.overridden, b.granted,
       case when b.full_at > l.clock and b.step_ns < 9223372036854775807
            then to_timestamp((tollgate.bucket_instant_v1(b, b.full_at)::numeric / 1000000000::numeric)::float8)
       end as full_at,
       case when b.full_at > l.clock and b.step_ns < 9223372036854775807
            then to_timestamp((tollgate.bucket_instant_v1(
                   b, b.full_at - (b.full_at - l.clock - 1) / b.token_ticks * b.token_ticks)::numeric
                   / 1000000000::numeric)::float8)
       end as next_refill_at
  from (select tollgate.token_clock_v1() as now) n
 cross join tollgate.token_buckets b
  left join tollgate.token_overrides o
    on o.id = b.id and b.overridden and o.capacity is not null
       -- terms_v1 fails for terms out of bounds.
       and case when o.capacity between 1 and 3155760000000000000 and o.capacity = trunc(o.capacity)
                     and o.refill in ('interval', 'calendar', 'continuous', 'once')
                     and abs(o.refill_seconds) < 10000000000
                     and (o.refill = 'once'
                          or o.refill_seconds > 0 and o.refill_seconds <= 3155760000
                             and o.refill_seconds * 1000000000 >= o.capacity
                             and (o.refill <> 'continuous'
                                  or ceil(o.refill_seconds * 1000000000 / greatest(o.capacity, 1)) * o.capacity
                                     <= least(o.refill_seconds * 1001000000, 3155760000000000000)))
                then tollgate.terms_v1('override of ' || quote_literal(o.id), o.capacity, o.refill_seconds, o.refill)
                     = row(b.burst, b.step_ns, b.step_ticks, b.token_ticks) end
 cross join lateral (
   select case when b.burst between 1 and 4611686018427387903 and b.token_ticks >= 1
                    and b.step_ticks between 1 and b.step_ns and b.anchor between 0 and 4611686018427387903
                    and b.full_at >= -4611686018427387904
               then case when b.step_ns = 9223372036854775807
                              or b.full_at / b.step_ticks + (b.full_at % b.step_ticks > 0)::int
                              <= (9223372036854775807 - b.anchor) / b.step_ns
                         then tollgate.bucket_clock_v1(b, n.now) end
          end as clock) l;

revoke all on tollgate.token_bucket_levels from public;

comment on view tollgate.token_bucket_levels is 'Each bucket: capacity, tokens available now, full at, next refill';
