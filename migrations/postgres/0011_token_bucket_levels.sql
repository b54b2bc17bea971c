-- token_bucket_levels: each bucket as people think of it, at this instant. Reads, locks nothing, changes nothing.
--
--   capacity, refill_seconds, refill: the terms that the last request found, an override's too
--   overridden     whether they are an override's
--   available      whole tokens there now; negative: promised to requests that wait for them
--   full_at        when it is full again; null: it is, or never
--   next_refill_at when the next token comes; null: it is full, or never
create view tollgate.token_bucket_levels as
select b.id, b.burst / b.token_ticks as capacity,
       floor((b.burst - greatest(b.full_at - l.clock, 0))::numeric / b.token_ticks::numeric)::bigint
         as available,
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
       and tollgate.terms_v1('override of ' || quote_literal(o.id), o.capacity, o.refill_seconds, o.refill)
           = row(b.burst, b.step_ns, b.step_ticks, b.token_ticks)
 cross join lateral (select tollgate.bucket_clock_v1(b, n.now) as clock) l;

revoke all on tollgate.token_bucket_levels from public;

comment on view tollgate.token_bucket_levels is 'Each bucket: capacity, tokens available now, full at, next refill';
