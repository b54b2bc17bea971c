-- Records the usage of a bucket before the bucket is deleted. A further limit counts under its plan.
drop trigger if exists token_bucket_ends;
create trigger token_bucket_ends before delete on token_buckets
when old.granted <> old.recorded or old.charged <> 0 or old.refunded <> 0 begin
  insert into token_usage_records (id, period_start, plan, granted, charged, refunded)
  select old.id, period_start, coalesce(substr(old.plan, 1, instr(old.plan || char(1), char(1)) - 1), ''),
         min(old.granted, 9223372036854775807 + min(old.recorded, 0)) - old.recorded, old.charged, old.refunded
    from token_usage_recording
   where period_start is not null
      on conflict (id, period_start, plan) do update
     set granted = min(granted, 9223372036854775807 - excluded.granted) + excluded.granted,
         charged = min(charged, 9223372036854775807 - excluded.charged) + excluded.charged,
         refunded = min(refunded, 9223372036854775807 - excluded.refunded) + excluded.refunded;
end;

-- Records the usage of a bucket that follows another plan from now on, under the plan that it followed.
drop trigger if exists token_bucket_follows_another_plan;
create trigger token_bucket_follows_another_plan after update of plan on token_buckets
when old.plan is not new.plan and (old.granted <> old.recorded or old.charged <> 0 or old.refunded <> 0) begin
  insert into token_usage_records (id, period_start, plan, granted, charged, refunded)
  select old.id, period_start, coalesce(substr(old.plan, 1, instr(old.plan || char(1), char(1)) - 1), ''),
         min(old.granted, 9223372036854775807 + min(old.recorded, 0)) - old.recorded, old.charged, old.refunded
    from token_usage_recording
   where period_start is not null
      on conflict (id, period_start, plan) do update
     set granted = min(granted, 9223372036854775807 - excluded.granted) + excluded.granted,
         charged = min(charged, 9223372036854775807 - excluded.charged) + excluded.charged,
         refunded = min(refunded, 9223372036854775807 - excluded.refunded) + excluded.refunded;
  update token_buckets
     set recorded = recorded - old.recorded + old.granted, charged = charged - old.charged, refunded = refunded - old.refunded
   where id = new.id;
end;

-- token_usage: the tokens that each bucket used, one row per bucket, plan and period, if usage is recorded. Reads only.
--
--   select key, sum(used) from token_usage
--    where period_start >= '2026-11-01' and period_start < '2026-12-01' group by key order by 2 desc;
--
--   id, plan      the bucket, and the plan that it followed; null: none
--   key, limit_name: the id of a further limit's bucket in its parts; limit_name is null for other buckets
--   period_start  start of the hour or day, in UTC
--   granted       tokens that requests took
--   charged       tokens charged or settled in addition
--   refunded      tokens given back by cancels, refunds and settlements
--   used          granted + charged - refunded
--   denied        requests; the true number can be higher
--
-- Usage is up to date. A token is counted under the period in which the background task last recorded the bucket's usage. In the
-- first minute of a period, tokens can still be counted under the period before.
drop view if exists token_usage;
create view token_usage as
select id, iif(instr(id, char(1)) > 1, substr(id, 1, instr(id, char(1)) - 1), id) as key,
       iif(instr(id, char(1)) > 1, substr(id, instr(id, char(1)) + 1), null) as limit_name, nullif(plan, '') as plan,
       period_start, sum(granted) as granted, sum(charged) as charged, sum(refunded) as refunded,
       sum(granted) + sum(charged) - sum(refunded) as used, sum(denied) as denied
  from (select id, plan, period_start, granted, charged, refunded, denied from token_usage_records
        union all
        select b.id, coalesce(substr(b.plan, 1, instr(b.plan || char(1), char(1)) - 1), ''), r.period_start,
               min(b.granted, 9223372036854775807 + min(b.recorded, 0)) - b.recorded, b.charged, b.refunded, 0
          from token_usage_recording r cross join token_buckets b
         where r.period_start is not null and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0))
 group by id, plan, period_start;

insert into token_migrations (version, name) values (4, '0004_usage') on conflict do nothing;
