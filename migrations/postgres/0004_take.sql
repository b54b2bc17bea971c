-- taken_v1: the result of take_v1, grant_v1 and evaluate. A named type, because each call would describe OUT parameters anew.
do $$
begin
  if to_regtype('tollgate.taken_v1') is null then
    create type tollgate.taken_v1 as (
      outcome      text,
      mode         text,
      now          bigint,
      scheduled_at bigint,
      full_at      bigint,
      granted      bigint,
      burst        bigint,
      anchor       bigint,
      step_ns      bigint,
      step_ticks   bigint,
      token_ticks  bigint
    );
  end if;
end
$$;

-- take_v1: decides one request exactly. grant_v1, grant_batch, create_batch, take_equal_v1 and the take_all routines have
-- statements of their own. grant_v1, take_each_v1 and the request routines call take_v1.
--
-- Arguments: p_id             the bucket
--            p_cost           tokens to take, 1 or more
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  tokens that must remain
--            p_capacity, p_refill_seconds, p_refill
--                             limits of a bucket that its first request creates, full and on the calendar's grid; or all null
--            p_plan           plan of such a bucket; null with null limits: the bucket must exist
--            p_request_id     id of the request: a retry with the id is charged once; null: no id
--            p_hold           nanoseconds for which the id is remembered
-- Result:    outcome          'granted' or 'denied'
--                             'never': p_cost + p_min_remaining exceeds the capacity
--                             'unknown': no such bucket · 'unplanned': no such plan
--                             'conflict': the bucket was provisioned with other limits or another plan
--                             'reused': the id belongs to another request
--            mode             the mode that decided instead of the tokens: 'shadow', 'off' or 'block'; else null
--            now              instant of the decision, in nanoseconds since 1970
--            scheduled_at     when granted tokens can be used; with 'block', the end of the mode; null: no end
--            full_at to token_ticks: the bucket's columns after the decision
-- Errors:    22023 arguments out of range, or incomplete limits · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, if the request is granted or has an id; then the receipt. A denied request without an id
--            writes nothing and waits for no lock, once the bucket exists.
--
-- Without an id, the first read is unlocked, so that a denial costs no write. The UPDATE checks the tokens again under the row's
-- lock. If they are gone or the limits changed, the attempt starts again. A decision counts from the moment its row is locked:
-- if the clock has advanced since, a grant moves to the later instant. No attempt that holds the lock starts again for time. The
-- mode, the override and the plan are those from before a wait for the row.
create or replace function tollgate.take_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_min_remaining bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text, p_request_id uuid, p_hold bigint)
returns tollgate.taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_year         constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  c_max_counted  constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  c_stale        constant bigint := 2000000;  -- nanoseconds: a longer gap means that the row was waited for
  b              tollgate.token_buckets;
  r              tollgate.token_receipts;
  v_has_rules    boolean;
  v_rule         record;
  v_now          bigint;
  v_scheduled_at bigint;
  v_clock        bigint;
  v_spare        bigint;  -- ticks: how far full_at can be ahead of the bucket's clock when the request acts
  v_latest       bigint;  -- ticks: the latest full_at at which the tokens are available, now or within the wait
  v_outcome      text;
  v_mode         text;
begin
  if (p_cost between 1 and c_max_counted and p_min_remaining between 0 and c_max_counted
      and p_max_wait between 0 and c_year) is not true then
    raise exception 'tollgate: take_v1 needs a cost of 1 or more, a minimum remaining of 0 or more, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  for v_attempt in 1 .. 100 loop
    if p_request_id is null then
      select t.* into b from tollgate.token_buckets t where t.id = p_id;
    else
      -- All routines lock the bucket before the receipt, so that they cannot deadlock.
      select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
    end if;
    -- Null if the row of token_mode is missing; null leads to the call of prepare_bucket.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = p_id)
      into v_has_rules from tollgate.token_mode g;
    -- Read after the row: other sessions can only have taken more since, so a denial holds at this instant.
    v_now := tollgate.clock();
    v_scheduled_at := v_now;
    -- A bucket under the requested limits needs no call of prepare_bucket, unless a mode, an override or a plan applies.
    if not v_has_rules and p_capacity is null and (p_plan is not null or b.plan is not null) then
      v_has_rules := true;
      select p.mode is not null or b.plan is distinct from p.name
             or p.capacity <> b.capacity or p.refill_seconds <> b.refill_seconds or p.refill <> b.refill
        into v_has_rules
        from tollgate.token_plans p where p.name = coalesce(p_plan, b.plan);
    end if;
    if b.id is null or v_has_rules is not false or b.overridden or b.period_end <= v_now
       or (case when p_capacity is null
             then p_refill_seconds is not null or p_refill is not null
             else b.plan is not null or p_capacity <> b.capacity or p_refill_seconds <> b.refill_seconds
                  or p_refill <> b.refill end) is not false then
      select t.* into v_rule
        from tollgate.prepare_bucket(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, false) t;
      -- The bucket changed, or another session created it since the read.
      continue when v_rule.changed
                    or (b.id is null and v_rule.outcome is null and v_rule.mode is distinct from 'off');
      v_outcome := v_rule.outcome;
      v_mode := v_rule.mode;
      exit when v_outcome is not null;
      if v_mode = 'off' then
        v_outcome := 'granted';
        b.burst := coalesce(b.burst, v_rule.capacity);
        exit;
      end if;
    else
      v_mode := null;
    end if;

    if p_request_id is not null then
      delete from tollgate.token_receipts t where t.id = p_request_id and t.bucket = p_id and t.expires_at <= v_now;
      select t.* into r from tollgate.token_receipts t where t.id = p_request_id and t.bucket = p_id;
      if found then
        v_outcome := case when r.cost = p_cost and r.state <> 'cancelled' then 'granted' else 'reused' end;
        v_mode := null;
        b.granted := r.granted;
        v_scheduled_at := greatest(r.scheduled_at, v_now);
        exit;
      end if;
    end if;

    if v_mode = 'block' then
      v_outcome := 'denied';
      v_scheduled_at := v_rule.mode_until;
      exit;
    elsif p_cost > b.burst / b.token_ticks - p_min_remaining then
      v_outcome := 'never';
      exit;
    end if;

    v_clock := tollgate.bucket_clock(b, v_now);
    v_spare := b.burst - (p_cost + p_min_remaining) * b.token_ticks;
    v_latest := v_clock + v_spare;
    if b.full_at <= v_latest then
      update tollgate.token_buckets t
         set room = null,
             granted = t.granted + p_cost,
             full_at = greatest(t.full_at, v_clock) + p_cost * b.token_ticks
       where t.id = p_id and t.full_at <= v_latest
         and t.anchor = b.anchor and t.burst = b.burst and t.step_ns = b.step_ns and t.token_ticks = b.token_ticks
      returning t.full_at, t.granted into b.full_at, b.granted;
    elsif b.full_at - v_clock > tollgate.bucket_max_owed(b) then
      perform tollgate.prepare_bucket(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, true);
      continue;
    else
      if v_mode is null then
        v_latest := v_spare + tollgate.bucket_clock(b, least(v_now + p_max_wait, b.period_end));
      end if;
      if b.full_at > v_latest then
        v_outcome := case v_mode when 'shadow' then 'granted' else 'denied' end;
        exit;
      end if;
      update tollgate.token_buckets t
         set room = null,
             granted = t.granted + p_cost,
             max_granted_wait = greatest(
               t.max_granted_wait, tollgate.step_at(b.step_ticks, t.full_at - v_spare, v_clock) - v_clock),
             full_at = greatest(t.full_at, tollgate.step_at(b.step_ticks, t.full_at - v_spare, v_clock))
                       + p_cost * b.token_ticks
       where t.id = p_id and t.full_at <= v_latest
         and t.anchor = b.anchor and t.burst = b.burst and t.step_ns = b.step_ns and t.token_ticks = b.token_ticks
      returning t.full_at, t.granted into b.full_at, b.granted;
    end if;

    if found then
      v_outcome := 'granted';
      v_mode := null;
      if p_request_id is null and tollgate.clock() - v_now > c_stale then
        v_now := tollgate.clock();
        v_scheduled_at := v_now;
        if b.full_at < tollgate.bucket_clock(b, v_now) + p_cost * b.token_ticks then
          b.full_at := tollgate.bucket_clock(b, v_now) + p_cost * b.token_ticks;
          update tollgate.token_buckets t set full_at = b.full_at where t.id = p_id;
        end if;
      end if;
      if p_max_wait > 0 then
        v_scheduled_at := tollgate.bucket_scheduled_at(b, p_min_remaining, v_now);
      end if;
      if p_request_id is not null then
        insert into tollgate.token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
        values (p_request_id, p_id, p_cost, b.granted, v_scheduled_at, 'open',
                v_now + least(greatest(coalesce(p_hold, 0), 0), c_year));
      end if;
      exit;
    end if;
  end loop;

  if v_outcome is null then
    raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
      using errcode = 'serialization_failure', hint = 'Call again.';
  end if;
  return (v_outcome, v_mode, v_now, v_scheduled_at, b.full_at, b.granted, b.burst, b.anchor, b.step_ns, b.step_ticks,
          b.token_ticks)::tollgate.taken_v1;
end
$$;

-- grant_v1: decides one request that has no id and does not wait. The usual grant takes four fifths of the time of take_v1.
--
-- Arguments: p_id, p_cost, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
-- Result:    as for take_v1
-- Errors:    as for take_v1
-- Locks:     the bucket's row, if the request is granted
--
-- One statement grants what only the tokens decide. take_v1 decides the rest, so a denial takes half as long again. After a
-- wait for the row's lock, the UPDATE checks the row again. Values that were read before would grant too much. The mode, the
-- override and the plan are those from before the wait.
create or replace function tollgate.grant_v1(
  p_id text, p_cost bigint, p_min_remaining bigint, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text)
returns tollgate.taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_stale constant bigint := 2000000;  -- nanoseconds: a longer gap means that the row was waited for
  v_now   bigint := tollgate.clock();
  v_taken tollgate.taken_v1;
begin
  update tollgate.token_buckets t
     set room = null,
         granted = t.granted + p_cost,
         full_at = greatest(t.full_at, tollgate.ticks_at(t.anchor, t.step_ns, t.step_ticks, v_now)) + p_cost * t.token_ticks
   where t.id = p_id and not t.overridden and t.period_end > v_now
     and case when p_capacity is not null
           then t.plan is null and t.capacity = p_capacity and t.refill_seconds = p_refill_seconds and t.refill = p_refill
           else p_refill_seconds is null and p_refill is null and (p_plan is null or t.plan = p_plan)
                and (t.plan is null or tollgate.follows_plan(t.plan, t.capacity, t.refill_seconds, t.refill)) end
     and (select g.mode from tollgate.token_mode g) = 'enforce'
     and not exists (select from tollgate.token_overrides o where o.id = p_id)
     and case when p_min_remaining >= 0 and p_cost between 1 and t.burst / t.token_ticks - p_min_remaining
           -- Not (p_cost + p_min_remaining): the planner would add them before they are checked.
           then t.full_at - (t.burst - p_cost * t.token_ticks - p_min_remaining * t.token_ticks)
                <= tollgate.ticks_at(t.anchor, t.step_ns, t.step_ticks, v_now) end
  returning 'granted', null, v_now, v_now, t.full_at, t.granted, t.burst, t.anchor, t.step_ns, t.step_ticks, t.token_ticks
    into v_taken;
  if not found then
    return tollgate.take_v1(p_id, p_cost, 0, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan, null, null);
  end if;
  if tollgate.clock() - v_now > c_stale then
    v_now := tollgate.clock();
    update tollgate.token_buckets t
       set full_at = greatest(
             t.full_at, tollgate.ticks_at(t.anchor, t.step_ns, t.step_ticks, v_now) + p_cost * t.token_ticks)
     where t.id = p_id
    returning v_now, v_now, t.full_at into v_taken.now, v_taken.scheduled_at, v_taken.full_at;
  end if;
  return v_taken;
end
$$;

insert into tollgate.migrations (version, name) values (4, '0004_take') on conflict do nothing;
