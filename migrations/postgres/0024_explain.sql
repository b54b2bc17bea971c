-- explain: what rules a bucket now, where that comes from, and what a request for one token would come to. Reads only.
--
-- Arguments: p_id   the bucket, which need not exist yet
--            p_plan the plan that the request would name; null: the bucket's own
-- Result:    known           whether the bucket exists
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
create function tollgate.explain(
  p_id text, p_plan text default null,
  out known boolean, out terms_from text, out plan text, out capacity bigint, out refill_seconds numeric,
  out refill text, out mode text, out mode_from text, out mode_reason text, out mode_until timestamptz,
  out override_reason text, out override_until timestamptz, out available bigint, out outcome text,
  out retry_after_ms bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b     tollgate.token_buckets;
  g     tollgate.token_mode;
  o     tollgate.token_overrides;
  p     tollgate.token_plans;
  t     tollgate.taken_v1;
  v_now bigint := tollgate.token_clock_v1();
begin
  select w.* into b from tollgate.token_buckets w where w.id = p_id;
  known := b.id is not null;
  plan := coalesce(p_plan, b.plan);
  select w.* into p from tollgate.token_plans w where w.name = explain.plan;
  select w.* into o from tollgate.token_overrides w where w.id = p_id and tollgate.in_force_v1(w.expires_at, v_now);
  select w.* into g from tollgate.token_mode w;
  override_reason := o.reason;
  override_until := o.expires_at;

  select w.*
    into terms_from, capacity, refill_seconds, refill
    from (values (1, 'override', o.capacity, o.refill_seconds, o.refill),
                 (2, 'plan', p.capacity, p.refill_seconds, p.refill),
                 (3, 'bucket', b.capacity, b.refill_seconds, b.refill))
         as c (nearness, source, capacity, refill_seconds, refill)
   cross join lateral (select c.source, c.capacity, c.refill_seconds, c.refill) w
   where c.capacity is not null
   order by c.nearness limit 1;
  select w.*
    into mode_from, mode, mode_reason, mode_until
    from (values (1, 'override', o.mode, o.reason, o.expires_at),
                 (2, 'plan', p.mode, p.mode_reason, p.mode_until),
                 (3, 'all', nullif(g.mode, 'enforce'), g.reason, g.until))
         as c (nearness, source, mode, reason, until)
   cross join lateral (select c.source, c.mode, c.reason, c.until) w
   where c.mode is not null and tollgate.in_force_v1(c.until, v_now)
   order by c.nearness limit 1;
  mode := coalesce(mode, 'enforce');

  if plan is not null and p.name is null then
    outcome := 'unplanned';
  elsif mode = 'off' then
    outcome := 'granted';
    retry_after_ms := 0;
  elsif terms_from is null or (not known and p.name is null) then
    outcome := 'unknown';
  elsif b.provisioned and p_plan <> coalesce(b.plan, '') then
    outcome := 'conflict';
  elsif mode = 'block' then
    outcome := 'denied';
    retry_after_ms := (tollgate.until_v1(mode_until) - v_now + 999999) / 1000000;
  elsif not known then
    outcome := 'granted';
    retry_after_ms := 0;
  else
    t := tollgate.weigh_v1(b, mode, null, 1, 0, 0, v_now);
    outcome := t.outcome;
    retry_after_ms := tollgate.taken_until_v1(t, 1);
  end if;
  if known then
    available := floor((b.burst - greatest(b.full_at - tollgate.bucket_clock_v1(b, v_now), 0))::numeric / b.token_ticks);
  end if;
end
$$;

revoke all on function tollgate.explain(text, text) from public;
