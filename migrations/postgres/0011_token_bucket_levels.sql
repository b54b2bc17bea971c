-- token_bucket_levels: each bucket as people think of it, at this instant. Reads, locks nothing, changes nothing.
--
--   capacity       under the terms that the last request found, an override's too
--   available      whole tokens there now; negative: promised to requests that wait for them
--   full_at        when it is full again; null: it is, or never
--   next_refill_at when the next token comes; null: it is full, or never
create view tollgate.token_bucket_levels as
select b.id, b.burst / b.token_ticks as capacity,
       floor((b.burst - greatest(b.full_at - l.clock, 0))::numeric / b.token_ticks)::bigint
         as available,
       b.refill_seconds, b.refill, b.plan, b.provisioned, b.overridden, b.granted,
       case when b.full_at > l.clock
            then to_timestamp(tollgate.bucket_instant_v1(b, b.full_at) / 1000000000.0) end as full_at,
       case when b.full_at > l.clock
            then to_timestamp(tollgate.bucket_instant_v1(
                   b, b.full_at - (b.full_at - l.clock - 1) / b.token_ticks * b.token_ticks) / 1000000000.0)
       end as next_refill_at
  from (select tollgate.token_clock_v1() as now) n
 cross join tollgate.token_buckets b
 cross join lateral (select tollgate.bucket_clock_v1(b, n.now) as clock) l;

revoke all on tollgate.token_bucket_levels from public;

comment on view tollgate.token_bucket_levels is 'Each bucket: capacity, tokens available now, full at, next refill';
