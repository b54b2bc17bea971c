-- in_force(p_until, p_now in nanoseconds since 1970) -> whether an entry that ends at p_until is in force at p_now. null: no
-- end.
create or replace function tollgate.in_force(p_until timestamptz, p_now bigint) returns boolean
language sql immutable
return p_until is null or extract(epoch from p_until)::numeric * 1000000000::numeric > p_now::numeric;

-- end_ns(p_until) -> p_until in nanoseconds since 1970. null: no end, or an end after 2262, which no clock reaches.
create or replace function tollgate.end_ns(p_until timestamptz) returns bigint
language sql immutable
as $$
  select case when p_until < timestamptz '2262-01-01 00:00:00+00'
           then (extract(epoch from p_until)::numeric * 1000000000::numeric)::bigint end
$$;

-- raise_incomplete_quota: raises the error of a request that names only a part of a quota.
--
-- Arguments: p_id        the bucket
--            p_capacity, p_refill_seconds, p_refill: as for take_v1
-- Result:    none
-- Errors:    22023 always
-- Locks:     none
create or replace function tollgate.raise_incomplete_quota(p_id text, p_capacity bigint, p_refill_seconds numeric, p_refill text)
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

-- rule_checks: trigger that refuses an invalid plan, mode or override.
--
-- Argument:  'plan', 'mode' or 'override'. A shard of a distributed table has another name than the table.
-- Errors:    23514 invalid values
-- Locks:     none
create or replace function tollgate.rule_checks() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_name  text;
  v_error text;
begin
  v_error := case when new.mode not in ('enforce', 'shadow', 'off', 'block')
    then format('mode is %L: give ''enforce'', ''shadow'', ''off'' or ''block''', new.mode) end;
  if tg_argv[0] = 'plan' then
    v_name := 'plan ' || quote_nullable(left(new.name, 255));
    v_error := coalesce(v_error, case
      when (octet_length(new.name) between 1 and 255) is not true
        then format('its name has %s bytes: give 1 to 255', coalesce(octet_length(new.name), 0))
      when left(new.name, 1) = chr(1) then 'its name begins with U+0001: put something before it' end);
    perform tollgate.bucket_limits(v_name, new.capacity, new.refill_seconds, new.refill, tollgate.clock());
  elsif tg_argv[0] = 'override' then
    v_name := 'override of ' || quote_nullable(left(new.id, 255));
    v_error := coalesce(v_error, case
      when (octet_length(new.id) between 1 and 255) is not true
        then format('its id has %s bytes: give 1 to 255', coalesce(octet_length(new.id), 0))
      when left(new.id, 1) = chr(1) then 'its id begins with U+0001, which is reserved: use another prefix'
      when (new.capacity is null) <> (new.refill_seconds is null)
        then 'give both capacity and refill_seconds, or neither'
      when new.capacity is null and new.mode is null
        then 'it changes nothing: give capacity and refill_seconds, or a mode'
    end);
    if v_error is null and new.capacity is not null then
      perform tollgate.bucket_limits(v_name, new.capacity, new.refill_seconds, new.refill, tollgate.clock());
    end if;
  else
    v_name := 'token_mode';
  end if;
  if v_error is not null then
    raise exception 'tollgate: %: %', v_name, v_error using errcode = 'check_violation';
  end if;
  return new;
end
$$;

create or replace trigger plan_checks before insert or update on tollgate.token_plans
  for each row execute function tollgate.rule_checks('plan');
create or replace trigger mode_checks before insert or update of mode on tollgate.token_mode
  for each row execute function tollgate.rule_checks('mode');
create or replace trigger override_checks before insert or update on tollgate.token_overrides
  for each row execute function tollgate.rule_checks('override');

-- Also fires for rows that replication tools or data loaders write with session_replication_role = replica.
alter table tollgate.token_plans enable always trigger plan_checks;
alter table tollgate.token_mode enable always trigger mode_checks;
alter table tollgate.token_overrides enable always trigger override_checks;

-- convert_state: converts a bucket's state to other limits, or to the current calendar period.
--
-- Arguments: p_id              the bucket
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full
--            p_refill          see token_buckets
--            p_overridden      whether the limits are an override's
-- Result:    none
-- Errors:    23514 invalid limits
-- Locks:     the bucket's row; the clock is read after that
--
-- The bucket keeps its available tokens, including fractions, up to the new capacity. If the clock was set back, the bucket
-- becomes empty. If a calendar period has ended, the tokens are those of the next one, because waits and debts reach no further.
-- The next one has the new capacity if the periods stay the same.
create or replace function tollgate.convert_state(
  p_id text, p_capacity numeric, p_refill_seconds numeric, p_refill text, p_overridden boolean)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_old       tollgate.token_buckets;
  v_new       tollgate.token_buckets;
  v_now       bigint;
  v_clock     bigint;
  v_same      boolean := false;  -- whether a calendar period has ended, and the new limits have the same periods
  v_owed      bigint;
  v_available numeric := 0;  -- in ticks of the old limits; negative while grants wait for their tokens
  c_year      constant bigint := 31622400000000000;  -- 366 days in nanoseconds
begin
  select b.* into v_old from tollgate.token_buckets b where b.id = p_id for no key update;
  if not found then
    return;  -- The sweep deleted the row: the caller reads it again.
  end if;
  v_new := v_old;
  v_now := tollgate.clock();
  v_clock := tollgate.bucket_clock(v_old, v_now);
  -- A clock that was set back over the start of a period stays in the period, unless it was set back far.
  select t.burst, t.step_ns, t.step_ticks, t.token_ticks, coalesce(t.anchor, v_old.anchor), t.period_end
    into v_new.burst, v_new.step_ns, v_new.step_ticks, v_new.token_ticks, v_new.anchor, v_new.period_end
    from tollgate.bucket_limits(
           'bucket ' || quote_literal(p_id), p_capacity, p_refill_seconds, p_refill,
           case when v_old.full_at - v_clock > tollgate.bucket_max_owed(v_old) then v_now
                else greatest(v_now, v_old.anchor) end) t;
  if v_old.overridden <> p_overridden
     and (v_new.burst, v_new.step_ns, v_new.step_ticks, v_new.token_ticks, v_new.anchor, v_new.period_end)
         = (v_old.burst, v_old.step_ns, v_old.step_ticks, v_old.token_ticks, v_old.anchor, v_old.period_end) then
    -- The override's limits equal the bucket's own: the state does not change.
    update tollgate.token_buckets b set overridden = p_overridden where b.id = p_id;
    return;
  end if;

  if v_old.period_end <= v_now then
    -- The old clock knows no period but the next. That one has also ended if it is not the current one of the same periods.
    select (t.period_start, t.period_end) is not distinct from (v_old.anchor, v_old.period_end) into v_same
      from tollgate.period_bounds(p_refill, v_old.anchor) t;
    v_clock := v_old.step_ticks * case when v_same and v_new.anchor > v_old.period_end then 2 else 1 end;
  end if;
  v_owed := v_old.full_at - v_clock;
  if v_same then
    v_available := v_new.burst - greatest(v_owed, 0);
  elsif v_owed <= tollgate.bucket_max_owed(v_old) then
    v_available := v_old.burst - greatest(v_owed, 0);
  end if;
  v_available := v_available * v_new.token_ticks;
  v_available := div(v_available - case when v_available < 0 then v_old.token_ticks - 1 else 0 end,
                     v_old.token_ticks);
  v_new.full_at := least(
    tollgate.bucket_clock(v_new, v_now) + v_new.burst - least(v_available, v_new.burst),
    tollgate.bucket_clock(v_new, least(v_now + c_year, v_new.period_end)) + v_new.burst);

  update tollgate.token_buckets b
     set burst = v_new.burst,
         step_ns = v_new.step_ns,
         step_ticks = v_new.step_ticks,
         token_ticks = v_new.token_ticks,
         anchor = v_new.anchor,
         period_end = v_new.period_end,
         full_at = v_new.full_at,
         max_granted_wait = greatest(v_new.full_at - v_new.burst - tollgate.bucket_clock(v_new, v_now), 0),
         overridden = p_overridden
   where b.id = p_id;
end
$$;

-- apply_new_limits: trigger that sets the derived columns of a new bucket. After an UPDATE of a bucket's own limits, the
-- trigger converts the state to them, unless the state is under an override's limits.
--
-- Errors:    23514 invalid id or limits
-- Locks:     the bucket's row, which the statement already holds
create or replace function tollgate.apply_new_limits() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_limits record;
begin
  if (octet_length(new.id) between 1 and 255) is not true then
    raise exception 'tollgate: bucket %: its id has % bytes: give 1 to 255',
                    quote_nullable(left(new.id, 255)), coalesce(octet_length(new.id), 0)
      using errcode = 'check_violation';
  elsif left(new.id, 1) = chr(1) then
    raise exception 'tollgate: bucket %: its id begins with U+0001, which is reserved: use another prefix',
                    quote_literal(new.id)
      using errcode = 'check_violation';
  end if;
  if tg_op = 'INSERT' then
    v_limits := tollgate.bucket_limits('bucket ' || quote_nullable(new.id), new.capacity, new.refill_seconds, new.refill,
                                       tollgate.clock());
    new.burst := v_limits.burst;
    new.step_ns := v_limits.step_ns;
    new.step_ticks := v_limits.step_ticks;
    new.token_ticks := v_limits.token_ticks;
    new.period_end := v_limits.period_end;
    -- The grid of periods contains the creation time and extends to the past, because clocks can be set back.
    new.anchor := coalesce(v_limits.anchor, new.anchor % new.step_ns);
    return new;
  end if;
  v_limits := tollgate.bucket_limits('bucket ' || quote_nullable(new.id), new.capacity, new.refill_seconds, new.refill,
                                     greatest(tollgate.clock(), new.anchor));
  if not new.overridden
     and (v_limits.burst, v_limits.step_ns, v_limits.step_ticks, v_limits.token_ticks, coalesce(v_limits.anchor, new.anchor),
          v_limits.period_end)
         <> (new.burst, new.step_ns, new.step_ticks, new.token_ticks, new.anchor, new.period_end) then
    perform tollgate.convert_state(new.id, new.capacity, new.refill_seconds, new.refill, false);
  end if;
  return null;
end
$$;

-- Before an insert, but after an update: a trigger before updates would lock each row once more. create_batch sets the
-- derived columns of its new rows itself. No role has the privilege to set these columns.
create or replace trigger new_bucket before insert on tollgate.token_buckets
  for each row when (new.burst is null) execute function tollgate.apply_new_limits();

create or replace trigger new_limits after update of capacity, refill_seconds, refill on tollgate.token_buckets
  for each row execute function tollgate.apply_new_limits();

-- Also fires for rows that replication tools or data loaders write with session_replication_role = replica. With triggers
-- disabled, a row without its derived columns violates their not-null constraints.
alter table tollgate.token_buckets enable always trigger new_bucket;
alter table tollgate.token_buckets enable always trigger new_limits;

-- prepare_bucket: reads the effective limits and mode of a bucket, and prepares the bucket for a decision. The routine creates a
-- missing bucket if its first request can do so, and converts the state to the limits of the override, of the plan or of the
-- bucket.
--
-- Arguments: p_id, p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
--            p_now       nanoseconds since 1970
--            p_empties   true: empties a bucket whose clock was set back; only for requests that could take tokens otherwise
-- Result:    outcome     null: the bucket is ready; else 'unknown', 'unplanned' or 'conflict', as for take_v1
--            mode        'shadow', 'off' or 'block'; null: the tokens decide; 'off' creates and converts nothing
--            mode_until  end of the mode in nanoseconds since 1970; null: no end
--            changed     whether the bucket changed: the caller must read it and call prepare_bucket again
--            capacity    tokens, of the effective limits
-- Errors:    22023 incomplete limits · 23514 invalid limits
-- Locks:     the bucket's row, if it is created or changed
create or replace function tollgate.prepare_bucket(
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
    perform tollgate.raise_incomplete_quota(p_id, p_capacity, p_refill_seconds, p_refill);
  end if;
  -- Rounded like the column: a value with more decimals would always differ from its own bucket's.
  p_refill_seconds := round(p_refill_seconds, 9);
  changed := false;
  select t.* into b from tollgate.token_buckets t where t.id = p_id;
  v_exists := found;
  select t.* into g from tollgate.token_mode t;
  if tollgate.in_force(g.until, p_now) then
    mode := g.mode;
    v_until := g.until;
  end if;
  if not v_quota and coalesce(p_plan, b.plan) is not null then
    select t.* into p from tollgate.token_plans t where t.name = coalesce(p_plan, b.plan);
    if not found then
      outcome := 'unplanned';
      return;
    end if;
    if p.mode is not null and tollgate.in_force(p.mode_until, p_now) then
      mode := p.mode;
      v_until := p.mode_until;
    end if;
  end if;
  select t.* into o from tollgate.token_overrides t where t.id = p_id and tollgate.in_force(t.expires_at, p_now);
  if o.mode is not null then
    mode := o.mode;
    v_until := o.expires_at;
  end if;
  mode := nullif(mode, 'enforce');
  mode_until := tollgate.end_ns(v_until);
  p_capacity := coalesce(p_capacity, p.capacity);
  p_refill_seconds := coalesce(p_refill_seconds, p.refill_seconds);
  p_refill := coalesce(p_refill, p.refill);
  if p_refill = b.refill and (p_refill = 'once' or p_refill like 'calendar %') then
    p_refill_seconds := b.refill_seconds;  -- has no effect with these
  end if;
  capacity := coalesce(o.capacity, p_capacity, b.capacity);
  v_plan := case when v_quota and b.provisioned then b.plan else p.name end;

  if mode = 'off' then
    return;
  elsif abs(p_refill_seconds) >= 10000000000 then
    -- Exceeds the column: bucket_limits raises the error that the trigger would raise.
    perform tollgate.bucket_limits('bucket ' || quote_nullable(left(p_id, 255)), p_capacity, p_refill_seconds, p_refill, p_now);
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
           or (t.burst, t.step_ns, t.token_ticks, coalesce(t.anchor, b.anchor), t.period_end)
              <> (b.burst, b.step_ns, b.token_ticks, b.anchor, b.period_end)
      into changed
      from tollgate.bucket_limits('override of ' || quote_literal(p_id), o.capacity, o.refill_seconds, o.refill,
                                  greatest(p_now, b.anchor)) t;
    if changed then
      perform tollgate.convert_state(p_id, o.capacity, o.refill_seconds, o.refill, true);
    end if;
    -- The bucket's own limits do not change, but the bucket follows the plan that was named last.
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
  elsif b.overridden or b.period_end <= p_now then
    perform tollgate.convert_state(p_id, b.capacity, b.refill_seconds, b.refill, false);
    changed := true;
  end if;
  if p_empties and outcome is null and not changed and mode is distinct from 'block'
     and b.full_at - tollgate.bucket_clock(b, p_now) > tollgate.bucket_max_owed(b) then
    -- After a backward step of the clock, the bucket is emptied once: keys are denied for one refill at most.
    -- Reads the clock again: compared with p_now, grants during a wait for the row would look like a backward step.
    select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
    p_now := tollgate.clock();
    if b.full_at - tollgate.bucket_clock(b, p_now) > tollgate.bucket_max_owed(b) then
      perform tollgate.convert_state(
        p_id, coalesce(o.capacity, b.capacity), case when o.capacity is null then b.refill_seconds else o.refill_seconds end,
        case when o.capacity is null then b.refill else o.refill end, b.overridden);
    end if;
    changed := true;
  end if;
end
$$;

-- follows_plan(p_plan, p_capacity, p_refill_seconds, p_refill) -> whether a bucket has the limits of its plan, and the plan has
-- no mode.
create or replace function tollgate.follows_plan(p_plan text, p_capacity numeric, p_refill_seconds numeric, p_refill text)
returns boolean
language sql stable
as $$
  select exists (
    select from tollgate.token_plans p
     where p.name = p_plan and p.mode is null and p.capacity = p_capacity and p.refill_seconds = p_refill_seconds
       and p.refill = p_refill)
$$;

insert into tollgate.migrations (version, name) values (3, '0003_rules') on conflict do nothing;
