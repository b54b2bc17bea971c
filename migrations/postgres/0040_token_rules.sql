-- token_rules: everything that somebody chose and that holds now: a row for all keys, a row a plan, and a row an
-- override in force. Reads only. For one key, ask explain instead.
--
--   kind       'all', 'plan' or 'override'
--   name       of the plan, or the key that is overridden
--   plan       of an override: that its bucket follows; null: none, or there is no bucket yet
--   capacity, refill_seconds, refill: its terms; null: it has none of its own
--   mode       what rules there beside the tokens; null, of an override: what its plan or 'all' says
--   mode_from  which row chose the mode: 'all', 'plan' or 'override'; null: nobody did
--   reason     why; until: when that ends; null: when somebody ends it
create view tollgate.token_rules as
with n as (select tollgate.token_clock_v1() as now),
     a as (select g.mode, g.reason, g.until
             from n, tollgate.token_mode g where g.mode <> 'enforce' and tollgate.in_force_v1(g.until, n.now))
select 'all' as kind, null::text as name, null::text as plan, null::bigint as capacity,
       null::numeric as refill_seconds, null::text as refill, coalesce(a.mode, 'enforce') as mode,
       case when a.mode is not null then 'all' end as mode_from, a.reason, a.until
  from n left join a on true
union all
select 'plan', p.name, null, p.capacity::bigint, p.refill_seconds, p.refill,
       case when o.own then p.mode else coalesce(a.mode, 'enforce') end,
       case when o.own then 'plan' when a.mode is not null then 'all' end,
       case when o.own then p.mode_reason else a.reason end, case when o.own then p.mode_until else a.until end
  from n cross join tollgate.token_plans p
 cross join lateral (select p.mode is not null and tollgate.in_force_v1(p.mode_until, n.now) as own) o
  left join a on true
union all
select 'override', o.id, b.plan, o.capacity::bigint, o.refill_seconds, case when o.capacity is not null then o.refill end,
       o.mode, case when o.mode is not null then 'override' end, o.reason, o.expires_at
  from n cross join tollgate.token_overrides o
  left join tollgate.token_buckets b on b.id = o.id
 where tollgate.in_force_v1(o.expires_at, n.now);

revoke all on tollgate.token_rules from public;

comment on view tollgate.token_rules is 'Modes, plans and overrides in force';
