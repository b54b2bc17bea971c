-- in_force_v1(p_until, p_now in nanoseconds since 1970) -> whether what holds until then holds now; null: it has no
-- end.
create function tollgate.in_force_v1(p_until timestamptz, p_now bigint) returns boolean
language sql immutable
return p_until is null or extract(epoch from p_until)::numeric * 1000000000::numeric > p_now::numeric;

revoke all on function tollgate.in_force_v1(timestamptz, bigint) from public;

-- until_v1(p_until) -> the same in nanoseconds since 1970; null: it has no end, or one beyond 2262, which no clock reaches.
create function tollgate.until_v1(p_until timestamptz) returns bigint
language sql immutable
as $$
  select case when p_until < timestamptz '2262-01-01 00:00:00+00'
           then (extract(epoch from p_until)::numeric * 1000000000::numeric)::bigint end
$$;

revoke all on function tollgate.until_v1(timestamptz) from public;

-- part_terms_v1: the error of a request that gives some of a bucket's terms: the others would be another quota's.
create function tollgate.part_terms_v1(p_id text, p_capacity bigint, p_refill_seconds numeric, p_refill text)
returns void
language plpgsql immutable
as $$
begin
  raise exception 'tollgate: bucket % was given capacity %, refill_seconds % and refill %: give all three, or none',
                  quote_nullable(left(p_id, 255)), coalesce(p_capacity::text, 'null'),
                  coalesce(p_refill_seconds::text, 'null'), coalesce(quote_literal(left(p_refill, 255)), 'null')
    using errcode = 'invalid_parameter_value';
end
$$;

revoke all on function tollgate.part_terms_v1(text, bigint, numeric, text) from public;

-- rule_v1: what rules a bucket now, and the bucket brought to it: made, if its first request may make it, and settled
-- under the terms of its override, its plan, or its own.
--
-- Arguments: p_id, p_capacity, p_refill_seconds, p_refill, p_plan: as take_v1's; p_now in nanoseconds since 1970
--            p_empties   whether a bucket whose clock was set back since is emptied: not if nothing can be taken of it
-- Result:    outcome     null: the bucket is ready; else why there is none: 'unknown', 'unplanned' or 'conflict', as
--                        take_v1 answers
--            mode        'shadow', 'off' or 'block'; null: the tokens decide. With 'off' nothing is made or settled
--            mode_until  until when, in nanoseconds since 1970; null: it has no end
--            changed     whether the bucket changed: it must be read again, and this asked again
--            capacity    of the terms that rule, in tokens
-- Errors:    22023 terms given in part · 23514 terms that make no bucket
-- Locks:     the bucket's row, if it is made or changes.
create function tollgate.rule_v1(
  p_id text, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text, p_now bigint, p_empties boolean,
  out outcome text, out mode text, out mode_until bigint, out changed boolean, out capacity bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b        tollgate.token_buckets;
  g        tollgate.token_mode;
  o        tollgate.token_overrides;
  p        tollgate.token_plans;
  v_exists boolean;
  v_until  timestamptz;
  v_plan   text;
  v_quota  constant boolean := p_capacity is not null;
begin
  if (p_capacity is null) <> (p_refill_seconds is null)
     or (p_capacity is null) <> (p_refill is null) then
    perform tollgate.part_terms_v1(p_id, p_capacity, p_refill_seconds, p_refill);
  end if;
  -- As the column will hold it: what has more decimals would differ from its own bucket's for ever.
  p_refill_seconds := round(p_refill_seconds, 9);
  changed := false;
  select t.* into b from tollgate.token_buckets t where t.id = p_id;
  v_exists := found;
  select t.* into g from tollgate.token_mode t;
  if tollgate.in_force_v1(g.until, p_now) then
    mode := g.mode;
    v_until := g.until;
  end if;
  if not v_quota and coalesce(p_plan, b.plan) is not null then
    select t.* into p from tollgate.token_plans t where t.name = coalesce(p_plan, b.plan);
    if not found then
      outcome := 'unplanned';
      return;
    end if;
    if p.mode is not null and tollgate.in_force_v1(p.mode_until, p_now) then
      mode := p.mode;
      v_until := p.mode_until;
    end if;
  end if;
  select t.* into o from tollgate.token_overrides t where t.id = p_id and tollgate.in_force_v1(t.expires_at, p_now);
  if o.mode is not null then
    mode := o.mode;
    v_until := o.expires_at;
  end if;
  mode := nullif(mode, 'enforce');
  mode_until := tollgate.until_v1(v_until);
  p_capacity := coalesce(p_capacity, p.capacity);
  p_refill_seconds := coalesce(p_refill_seconds, p.refill_seconds);
  p_refill := coalesce(p_refill, p.refill);
  if p_refill = 'once' and b.refill = 'once' then
    p_refill_seconds := b.refill_seconds;  -- which say nothing
  end if;
  capacity := coalesce(o.capacity, p_capacity, b.capacity);
  v_plan := case when v_quota and b.provisioned then b.plan else p.name end;

  if mode = 'off' then
    return;
  elsif abs(p_refill_seconds) >= 10000000000 then
    -- More than the column holds: this says so as its trigger would.
    perform tollgate.terms_v1('bucket ' || quote_nullable(left(p_id, 255)), p_capacity, p_refill_seconds, p_refill);
  elsif not v_exists and p_capacity is null then
    outcome := 'unknown';
  elsif not v_exists then
    insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor)
    values (p_id, p_capacity, p_refill_seconds, p_refill, p_plan, false, 0)
    on conflict do nothing;
    changed := true;
  elsif b.provisioned and (case when v_quota
          then (p_capacity, p_refill_seconds, p_refill) <> (b.capacity, b.refill_seconds, b.refill)
          else p_plan <> coalesce(b.plan, '') end) then
    outcome := 'conflict';
  elsif o.capacity is not null then
    select not b.overridden
           or (t.burst, t.step_ns, t.token_ticks) <> (b.burst, b.step_ns, b.token_ticks)
           or (o.refill = 'calendar' and b.anchor <> 0)
      into changed
      from tollgate.terms_v1('override of ' || quote_literal(p_id), o.capacity, o.refill_seconds, o.refill) t;
    if changed then
      perform tollgate.settle_v1(p_id, o.capacity, o.refill_seconds, o.refill, true);
    end if;
    -- Its own terms are left as they are, but it follows the plan that was named last.
    if p_capacity is not null and b.plan is distinct from v_plan then
      update tollgate.token_buckets t set plan = v_plan where t.id = p_id and t.plan is distinct from v_plan;
      changed := true;
    end if;
  elsif (p_capacity, p_refill_seconds, p_refill) <> (b.capacity, b.refill_seconds, b.refill)
        or (p_capacity is not null and b.plan is distinct from v_plan) then
    update tollgate.token_buckets t
       set capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill, plan = v_plan
     where t.id = p_id
       and ((p_capacity, p_refill_seconds, p_refill) <> (t.capacity, t.refill_seconds, t.refill)
            or t.plan is distinct from v_plan);
    changed := true;
  elsif b.overridden then
    perform tollgate.settle_v1(p_id, b.capacity, b.refill_seconds, b.refill, false);
    changed := true;
  end if;
  if p_empties and outcome is null and not changed and mode is distinct from 'block'
     and b.full_at - tollgate.bucket_clock_v1(b, p_now) > tollgate.bucket_furthest_v1(b) then
    -- After a step of the clock backwards a bucket is empty, once: nobody is locked out for longer than a refill.
    -- By a clock from before a wait for the row, what others were granted since would look like such a step.
    update tollgate.token_buckets t
       set full_at = tollgate.bucket_clock_v1(t, tollgate.token_clock_v1()) + t.burst, longest_wait = 0
     where t.id = p_id
       and t.full_at - tollgate.bucket_clock_v1(t, tollgate.token_clock_v1()) > tollgate.bucket_furthest_v1(t);
    changed := true;
  end if;
end
$$;

revoke all on function tollgate.rule_v1(text, bigint, numeric, text, text, bigint, boolean) from public;
