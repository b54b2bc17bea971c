-- token_rules: everything that somebody chose and that holds now, in UTC: a row for all keys, a row a plan, and a row an
-- override in force. Reads only. For one key, call token_explain instead.
--
--   kind       'all', 'plan' or 'override'
--   name       of the plan, or the key that is overridden
--   plan       of an override: that its bucket follows; null: none, or there is no bucket yet
--   capacity, refill_seconds, refill: its terms; null: it has none of its own
--   mode       what rules there beside the tokens; null, of an override: what its plan or 'all' says
--   mode_from  which row chose the mode: 'all', 'plan' or 'override'; null: nobody did
--   reason     why; until: when that ends; null: when somebody ends it
create sql security definer view token_rules as
select 'all' as kind, cast(null as char(255)) as name, cast(null as char(255)) as plan, cast(null as signed) as capacity,
       cast(null as decimal(19, 9)) as refill_seconds, cast(null as char(10)) as refill,
       coalesce(a.mode, 'enforce') as mode, if(a.mode is null, null, 'all') as mode_from, a.reason, a.until
  from (select 1 as one) n
  left join token_mode a on a.mode <> 'enforce' and (a.until is null or a.until > utc_timestamp(6))
union all
select 'plan', convert(p.name using utf8mb4), null, p.capacity, p.refill_seconds, p.refill,
       if(p.own, p.mode, coalesce(a.mode, 'enforce')), if(p.own, 'plan', if(a.mode is null, null, 'all')),
       if(p.own, p.mode_reason, a.reason), if(p.own, p.mode_until, a.until)
  from (select t.*, t.mode is not null and (t.mode_until is null or t.mode_until > utc_timestamp(6)) as own
          from token_plans t) p
  left join token_mode a on a.mode <> 'enforce' and (a.until is null or a.until > utc_timestamp(6))
union all
select 'override', convert(o.id using utf8mb4), convert(b.plan using utf8mb4), o.capacity, o.refill_seconds,
       if(o.capacity is null, null, o.refill), o.mode, if(o.mode is null, null, 'override'), o.reason, o.expires_at
  from token_overrides o
  left join token_buckets b on b.id = o.id
 where o.expires_at is null or o.expires_at > utc_timestamp(6)
