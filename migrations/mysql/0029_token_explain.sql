-- token_explain: what rules a bucket now, where that comes from, and what a request for one token would come to. Reads
-- only.
--
-- Arguments: p_id   the bucket, which need not exist yet
--            p_plan the plan that the request would name; null: the bucket's own
-- Result:    one row:
--            known           whether the bucket exists
--            terms_from      'override', 'plan' or 'bucket'; null: nothing says
--            plan            the plan that it follows
--            capacity, refill_seconds, refill: the terms
--            mode            'enforce', 'shadow', 'off' or 'block'
--            mode_from       'override', 'plan', 'all' or null: nobody chose it
--            mode_reason, mode_until
--            override_reason, override_until: of the override in force
--            available       whole tokens there now; null: it does not exist
--            outcome         'granted', 'denied', 'unknown', 'unplanned' or 'conflict'
--            retry_after_ms  milliseconds until a token is there; 0: now; null: never, or nobody knows
--            plan_bytes, mode_reason_bytes, override_reason_bytes: in UTF-8, whatever the session's character set is
create procedure token_explain(
  in p_id varchar(256) character set utf8mb4, in p_plan varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  declare v_now bigint;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_plan varbinary(1024) default cast(p_plan as binary);

  call token_clock_v1(v_now);
  -- By a statement of its own: a query within a default or an assignment would wait for whoever holds the row.
  if v_plan is null then
    select max(b.plan) into v_plan from token_buckets b where b.id = v_id;
  end if;
  select r.known, r.terms_from, r.plan, r.capacity, r.refill_seconds, r.refill, r.mode, r.mode_from, r.mode_reason,
         r.mode_until, r.override_reason, r.override_until,
         r.level div r.token_ticks - (r.level mod r.token_ticks < 0) as available,
         case
           when r.unplanned then 'unplanned'
           when r.mode = 'off' then 'granted'
           when r.terms_from is null or not r.known and not r.planned then 'unknown'
           when r.conflicts then 'conflict'
           when r.mode = 'block' then 'denied'
           when not r.known or r.mode = 'shadow' or r.until = 0 then 'granted'
           else 'denied'
         end as outcome,
         case
           when r.unplanned then null
           when r.mode = 'off' then 0
           when r.terms_from is null or not r.known and not r.planned or r.conflicts then null
           when r.mode = 'block'
             then if(r.mode_until < '2262-01-01',
                     (timestampdiff(microsecond, '1970-01-01', r.mode_until) * 1000 - v_now + 999999) div 1000000, null)
           when not r.known then 0
           else r.until
         end as retry_after_ms,
         v_plan as plan_bytes, cast(r.mode_reason as binary) as mode_reason_bytes,
         cast(r.override_reason as binary) as override_reason_bytes
    from (select b.id is not null as known,
                 case when o.capacity is not null then 'override' when p.name is not null then 'plan'
                      when b.id is not null then 'bucket' end as terms_from,
                 convert(v_plan using utf8mb4) as plan, v_plan is not null and p.name is null as unplanned,
                 p.name is not null as planned,
                 coalesce(b.provisioned and cast(p_plan as binary) <> coalesce(b.plan, ''), false) as conflicts,
                 coalesce(o.capacity, p.capacity, b.capacity) as capacity,
                 coalesce(o.refill_seconds, p.refill_seconds, b.refill_seconds) as refill_seconds,
                 if(o.capacity is not null, o.refill, coalesce(p.refill, b.refill)) as refill,
                 coalesce(o.mode, if(p.in_force, p.mode, null), if(g.in_force, g.mode, null), 'enforce') as mode,
                 case when o.mode is not null then 'override' when p.in_force then 'plan'
                      when g.in_force and g.mode <> 'enforce' then 'all' end as mode_from,
                 case when o.mode is not null then o.reason when p.in_force then p.mode_reason
                      when g.in_force and g.mode <> 'enforce' then g.reason end as mode_reason,
                 case when o.mode is not null then o.expires_at when p.in_force then p.mode_until
                      when g.in_force and g.mode <> 'enforce' then g.until end as mode_until,
                 o.reason as override_reason, o.expires_at as override_until,
                 b.burst - greatest(b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks, 0) as level,
                 b.token_ticks,
                 case
                   when b.step_ns = 9223372036854775807 then if(b.full_at < b.burst, 0, null)
                   -- Of a clock that was set back to before its start, too.
                   when b.full_at - b.burst + b.token_ticks <= (v_now - b.anchor) div b.step_ns * b.step_ticks then 0
                   else (greatest(((b.full_at - b.burst + b.token_ticks + b.step_ticks - 1) div b.step_ticks) * b.step_ns
                                  + b.anchor - v_now, 0) + 999999) div 1000000
                 end as until
            from (select 1 as one) n
            left join (select m.*, m.until is null
                                   or timestampdiff(microsecond, '1970-01-01', least(m.until, '2262-01-01')) * 1000 > v_now as in_force
                         from token_mode m) g on true
            left join token_buckets b on b.id = v_id
            left join (select t.*, t.mode is not null
                                   and (t.mode_until is null
                                        or timestampdiff(microsecond, '1970-01-01', least(t.mode_until, '2262-01-01')) * 1000 > v_now)
                                   as in_force
                         from token_plans t) p on p.name = v_plan
            left join token_overrides o
              on o.id = v_id and (o.expires_at is null
                               or timestampdiff(microsecond, '1970-01-01', least(o.expires_at, '2262-01-01')) * 1000 > v_now)) r;
end
