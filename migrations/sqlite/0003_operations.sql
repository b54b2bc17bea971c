-- token_most_denied: denials of the last 24 hours, one row per key, in UTC. Reads only.
--
--   select * from token_most_denied order by denied desc limit 10;
--
--   denied          requests, at most 10^17 for each hour, so that the sum cannot overflow; the true number can be higher
--   last_denied_at  accurate to a few seconds
drop view if exists token_most_denied;
create view token_most_denied as
select id, sum(max(min(denied, 100000000000000000), -1)) as denied, max(last_denied_at) as last_denied_at
  from token_stats
 where hour > datetime('now', '-24 hours')
 group by id;

-- token_rules: the modes, plans and overrides in force, in UTC: one row for all keys, one per plan and one per override. Reads
-- only.
--
--   kind       'all', 'plan' or 'override'
--   name       name of the plan, or the key of the override
--   plan       of an override: the plan that its bucket follows; null: no plan, or no bucket yet
--   capacity, refill_seconds, refill: the limits; null: none of its own
--   mode       effective mode; null, for an override: the mode of its plan or of 'all'
--   mode_from  row that chose the mode: 'all', 'plan' or 'override'; null: the default
--   reason     reason of the mode or override
--   until      end of the mode or override; null: no end
drop view if exists token_rules;
create view token_rules as
with a as (select mode, reason, until from token_mode
            where mode <> 'enforce' and (until is null or julianday(until) > julianday('now'))),
     p as (select *, mode is not null and (mode_until is null or julianday(mode_until) > julianday('now'))
                  as own
             from token_plans)
select 'all' as kind, null as name, null as plan, null as capacity, null as refill_seconds, null as refill,
       coalesce(a.mode, 'enforce') as mode, iif(a.mode is null, null, 'all') as mode_from, a.reason, a.until
  from (select 1) left join a
union all
select 'plan', p.name, null, p.capacity, p.refill_seconds, p.refill,
       iif(p.own, p.mode, coalesce(a.mode, 'enforce')), iif(p.own, 'plan', iif(a.mode is null, null, 'all')),
       iif(p.own, p.mode_reason, a.reason), iif(p.own, p.mode_until, a.until)
  from p left join a
union all
select 'override', o.id, b.plan, o.capacity, o.refill_seconds, iif(o.capacity is null, null, o.refill), o.mode,
       iif(o.mode is null, null, 'override'), o.reason, o.expires_at
  from token_overrides o left join token_buckets b on b.id = o.id
 where o.expires_at is null or julianday(o.expires_at) > julianday('now');

-- token_sizes: number of rows of each table, and size of the file. Reads every table.
drop view if exists token_sizes;
create view token_sizes as
select 'token_buckets' as name, count(*) as live_rows, null as bytes from token_buckets
union all select 'token_windows', count(*), null from token_windows
union all select 'token_plans', count(*), null from token_plans
union all select 'token_overrides', count(*), null from token_overrides
union all select 'token_receipts', count(*), null from token_receipts
union all select 'token_stats', count(*), null from token_stats
union all select 'token_usage_records', count(*), null from token_usage_records
union all select 'the file', null, page_count * page_size from pragma_page_count(), pragma_page_size();

insert into token_migrations (version, name) values (3, '0003_operations') on conflict do nothing;
