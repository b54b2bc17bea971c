-- adjust_v1: cancels, refunds or settles a granted request, or charges a bucket, once per receipt.
--
-- Arguments: p_kind          'cancel': the tokens will not be used, and their time has not passed. Gives back the tokens that
--                            no later request queues behind
--                            'refund': p_tokens were not used
--                            'settle': the request cost p_tokens in the end, more or fewer than were taken.
--                            'charge': p_tokens were used without a grant
--            p_receipt       id of the request, or an id of this adjustment; null: a charge that is not remembered
--            p_id            the bucket
--            p_cost, p_granted, p_scheduled_at: of the grant
--            p_tokens        see p_kind; 0 with 'cancel'
--            p_max_debt      'settle', 'charge': longest wait for the next token, in nanoseconds; at least the wait of an empty
--                            bucket; null: one year, the maximum
-- Result:    outcome         'done'; with other outcomes, nothing changes
--                            'late': the time has passed, or the receipt expired
--                            'repeated': already adjusted · 'unknown': no such bucket
--                            'reused': the id of a charge is that of a request
--            given_back      tokens; negative: tokens charged in addition
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt
--
-- An adjustment is remembered for a day and until p_scheduled_at, but for 366 days at most.
create or replace function tollgate.adjust_v1(
  p_kind text, p_receipt uuid, p_id text, p_cost bigint, p_granted bigint, p_scheduled_at bigint, p_tokens bigint,
  p_max_debt bigint default null, out outcome text, out given_back bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b            tollgate.token_buckets;
  o            tollgate.token_overrides;
  r            tollgate.token_receipts;
  v_known      boolean;
  v_now        bigint;
  v_clock      bigint;
  v_later      bigint;
  c_year       constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  c_day        constant bigint := 86400000000000;  -- one day in nanoseconds
  c_max_counted constant bigint := 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
begin
  if (p_kind in ('cancel', 'refund', 'settle', 'charge') and (p_receipt is not null or p_kind = 'charge') and p_id is not null
      and p_cost between 1 and 3155760000000000000 and p_granted >= 0 and p_scheduled_at is not null
      and p_tokens between 0 and 3155760000000000000
      and coalesce(p_max_debt, 0) >= 0) is not true then
    raise exception 'tollgate: adjust_v1 takes ''cancel'', ''refund'', ''settle'' or ''charge'', a receipt, a bucket, a cost of '
                    '1 or more, 0 tokens or more and a debt of 0 or more' using errcode = 'invalid_parameter_value';
  end if;
  given_back := 0;
  select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
  v_now := tollgate.clock();
  select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = p_id for update;
  v_known := found;
  if v_known then
    -- The receipt takes precedence over the caller's arguments.
    p_granted := r.granted;
    p_scheduled_at := r.scheduled_at;
  end if;
  v_later := b.granted - p_granted;
  outcome := case
    when p_kind = 'cancel' and v_now > p_scheduled_at then 'late'
    when p_kind = 'settle' and (not v_known or r.expires_at <= v_now) then 'late'
    when p_kind = 'charge' and r.granted <> 0 then 'reused'
    when v_known and (p_kind = 'charge' or r.state <> 'open' or r.cost <> p_cost) then 'repeated'
    when b.id is null then 'unknown'
    when p_kind = 'cancel' and v_later < 0 then 'late'
    else 'done'
  end;
  if outcome <> 'done' then
    return;
  end if;

  if p_receipt is not null then
    insert into tollgate.token_receipts as t (id, bucket, cost, granted, scheduled_at, state, expires_at)
    values (p_receipt, p_id, p_cost, p_granted, p_scheduled_at,
            case when p_kind = 'cancel' then 'cancelled' when p_kind = 'refund' then 'refunded' else 'settled' end,
            least(greatest(p_scheduled_at, v_now + c_day), v_now + c_year))
    on conflict (id, bucket) do update
       set state = excluded.state, expires_at = greatest(t.expires_at, excluded.expires_at);
  end if;
  if p_kind = 'cancel' then
    given_back := greatest(p_cost - v_later, 0);
    b.granted := greatest(b.granted - case when v_later = 0 then p_cost else 0 end, 0);
  else
    given_back := case p_kind when 'refund' then least(p_tokens, p_cost) when 'charge' then -p_tokens
                              else p_cost - p_tokens end;
  end if;
  if given_back < 0 and b.period_end <= v_now then
    -- Starts the current calendar period, with any mode, under the limits that the state is under.
    select t.* into o from tollgate.token_overrides t where t.id = p_id and b.overridden and t.capacity is not null;
    perform tollgate.convert_state(
      p_id, coalesce(o.capacity, b.capacity), case when o.id is null then b.refill_seconds else o.refill_seconds end,
      case when o.id is null then b.refill else o.refill end, o.id is not null);
    select t.* into b from tollgate.token_buckets t where t.id = p_id;
  end if;
  v_clock := tollgate.bucket_clock(b, least(v_now, b.period_end));
  if given_back >= 0 then
    -- Can exceed the capacity: a debt can be older than a lower capacity.
    b.full_at := greatest(b.full_at - given_back::numeric * b.token_ticks, -b.burst);
    b.granted := least(b.granted, c_max_counted);
  else
    if b.full_at - v_clock > tollgate.bucket_max_owed(b) then
      -- The clock was set back: the bucket is empty from now on, as a request would find it.
      b.full_at := v_clock + b.burst;
      b.max_granted_wait := 0;
    end if;
    b.full_at := greatest(b.full_at, least(
      greatest(b.full_at, v_clock)::numeric - given_back::numeric * b.token_ticks,
      greatest(v_clock, tollgate.bucket_clock(b, least(v_now + least(p_max_debt, c_year) - 1, b.period_end)) + 1
                        - b.token_ticks)::numeric
        + b.burst));
    b.granted := least(b.granted::numeric - given_back, c_max_counted);
  end if;
  update tollgate.token_buckets t
     set full_at = b.full_at, granted = b.granted,
         max_granted_wait = greatest(b.max_granted_wait, case when given_back < 0 then b.full_at - v_clock - t.burst end),
         recorded = greatest(t.recorded::numeric - t.granted + b.granted, b.granted - c_max_counted),
         charged = least(t.charged::numeric - least(given_back, 0), c_max_counted),
         refunded = least(t.refunded::numeric + greatest(given_back, 0), c_max_counted)
   where t.id = p_id;
end
$$;

-- adjust_window_v1: cancels, refunds or settles a granted request of a sliding window, once per receipt.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_scheduled_at, p_tokens: as for adjust_v1
-- Result:    outcome, given_back: as for adjust_v1
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt
create or replace function tollgate.adjust_window_v1(
  p_kind text, p_receipt uuid, p_id text, p_cost bigint, p_scheduled_at bigint, p_tokens bigint,
  out outcome text, out given_back bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  w       tollgate.token_windows;
  r       tollgate.token_receipts;
  v_known boolean;
  v_now   bigint;
  v_place int;
  c_year  constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  c_day   constant bigint := 86400000000000;  -- one day in nanoseconds
  c_bucket constant text := chr(1) || p_id;  -- see take_window_v1
begin
  if (p_kind in ('cancel', 'refund', 'settle') and p_receipt is not null and p_id is not null
      and p_cost between 1 and 1000000000000
      and p_scheduled_at >= 0 and p_tokens between 0 and 3155760000000000000) is not true then
    raise exception 'tollgate: adjust_window_v1 takes ''cancel'', ''refund'' or ''settle'', a receipt, a window, a cost of '
                    '1 or more and 0 requests or more' using errcode = 'invalid_parameter_value';
  end if;
  given_back := 0;
  select t.* into w from tollgate.token_windows t where t.id = p_id for no key update;
  v_now := tollgate.clock();
  select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = c_bucket for update;
  v_known := found;
  if v_known then
    p_scheduled_at := r.scheduled_at;
  end if;
  if p_kind = 'cancel' and v_now > p_scheduled_at then
    outcome := 'late';
  elsif p_kind = 'settle' and (not v_known or r.expires_at <= v_now) then
    outcome := 'late';
  elsif v_known and (r.state <> 'open' or r.cost <> p_cost) then
    outcome := 'repeated';
  elsif w.id is null then
    outcome := 'unknown';
  end if;
  if outcome is not null then
    return;
  end if;

  insert into tollgate.token_receipts as t (id, bucket, cost, granted, scheduled_at, state, expires_at)
  values (p_receipt, c_bucket, p_cost, 0, p_scheduled_at,
          case when p_kind = 'cancel' then 'cancelled' when p_kind = 'refund' then 'refunded' else 'settled' end,
          least(greatest(p_scheduled_at, v_now + c_day), v_now + c_year))
  on conflict (id, bucket) do update
     set state = excluded.state, expires_at = greatest(t.expires_at, excluded.expires_at)
   where t.state = 'open';
  if not found then
    -- A distributed database can have the window and the receipt on two nodes, which commit one after the other. The earlier
    -- adjustment then shows in the window first.
    outcome := 'repeated';
    return;
  end if;
  outcome := 'done';
  given_back := case p_kind when 'cancel' then p_cost when 'refund' then least(p_tokens, p_cost)
                else p_cost - least(p_tokens, 1000000000000) end;
  if given_back < 0 then
    if tollgate.window_stepped_back(w.ends, w.last_wait, w.resolution_ns, v_now) then
      w := tollgate.window_step_back(w, v_now);
    end if;
    w := tollgate.window_count(w, w.interval_ns, w.resolution_ns, -given_back, v_now,
                               greatest(v_now, w.ends[array_length(w.ends, 1)] - w.resolution_ns));
  else
    -- Requests of a dropped sub-interval cannot be given back in another one. Otherwise, their sub-interval is the first one
    -- that ends after they act, or a later one.
    select u.place into v_place
      from unnest(w.ends) with ordinality as u (e, place)
     where u.e > p_scheduled_at and p_scheduled_at >= w.since
     order by u.place limit 1;
    if v_place is null and p_kind = 'cancel' then
      given_back := 0;
    elsif v_place is not null then
      if p_kind = 'cancel' then
        given_back := least(given_back, w.counts[v_place]);
      end if;
      w.granted := w.granted - least(given_back, w.counts[v_place]);
      w.counts[v_place] := greatest(w.counts[v_place] - given_back, 0);
      -- Deletes empty sub-intervals: no request queues behind them.
      select coalesce(array_agg(e order by e), '{}'), coalesce(array_agg(c order by e), '{}') into w.ends, w.counts
        from unnest(w.ends, w.counts) as u (e, c) where c > 0;
    end if;
  end if;
  update tollgate.token_windows t
     set ends = w.ends, counts = w.counts, granted = w.granted, last_wait = w.last_wait,
         interval_ns = w.interval_ns, resolution_ns = w.resolution_ns, since = w.since
   where t.id = p_id;
end
$$;

-- adjust_batch_v1: cancels, refunds or settles several granted requests, once per receipt.
--
-- Arguments: p_kinds, p_receipts, p_ids, p_costs, p_granted, p_scheduled_at, p_tokens: as for adjust_v1, one array each, all of
--                            one length
--            p_in_window     true: the key's sliding window granted the request; null: false for all
--            p_max_debts     as for adjust_v1
-- Result:    outcomes, given_back: as for adjust_v1 and adjust_window_v1, in the order given, as if done one after the other
-- Errors:    22023 arguments out of range
--            55P03 the call names several keys, and one was locked for longer than 100 ms: nothing was done
-- Locks:     the buckets' rows in id order, each followed by its receipts; then the windows' rows likewise. Adjustments of one
--            key are done in the order given.
create or replace function tollgate.adjust_batch_v1(
  p_kinds text[], p_receipts uuid[], p_ids text[], p_costs bigint[], p_granted bigint[], p_scheduled_at bigint[],
  p_tokens bigint[], p_in_window boolean[], p_max_debts bigint[] default null, out outcomes text[], out given_back bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- without it, each call would plan anew for its arrays
as $$
declare
  v_lock       text := current_setting('lock_timeout');
  v_limited    boolean := false;
  v_adjustment record;
  v_outcome    text;
  v_given_back bigint;
begin
  if p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms') then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;
  outcomes := array_fill(null::text, array[coalesce(cardinality(p_ids), 0)]);
  given_back := array_fill(null::bigint, array[coalesce(cardinality(p_ids), 0)]);
  for v_adjustment in
    select u.*
      from unnest(p_kinds, p_receipts, p_ids, p_costs, p_granted, p_scheduled_at, p_tokens, p_in_window,
                  p_max_debts) with ordinality
           as u (kind, receipt, id, cost, granted, scheduled_at, tokens, in_window, max_debt, place)
     order by u.in_window is true, u.id collate "C", u.place
  loop
    if v_adjustment.in_window then
      select a.outcome, a.given_back into v_outcome, v_given_back
        from tollgate.adjust_window_v1(v_adjustment.kind, v_adjustment.receipt, v_adjustment.id, v_adjustment.cost,
                                       v_adjustment.scheduled_at, v_adjustment.tokens) a;
    else
      select a.outcome, a.given_back into v_outcome, v_given_back
        from tollgate.adjust_v1(v_adjustment.kind, v_adjustment.receipt, v_adjustment.id, v_adjustment.cost,
                                v_adjustment.granted, v_adjustment.scheduled_at, v_adjustment.tokens,
                                v_adjustment.max_debt) a;
    end if;
    outcomes[v_adjustment.place] := v_outcome;
    given_back[v_adjustment.place] := v_given_back;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

-- throttle_v1: lowers a bucket to the limit that an upstream reports. Never raises it. A repeated call changes nothing.
--
-- Arguments: p_id         the bucket
--            p_remaining  tokens that are left at most; null: unknown
--            p_wait       nanoseconds until the next token at the earliest, one year at most; 0: unknown. With 'interval', the
--                         tokens come with the first period that starts after the wait
--            p_capacity, p_refill_seconds, p_refill, p_plan: as for take_v1
-- Result:    'lowered'; 'unchanged': the bucket held no more, or its mode is 'off'
--            'endless': there is a wait, but the bucket never refills
--            'unknown', 'unplanned' or 'conflict': as for take_v1
-- Errors:    22023 arguments out of range, or incomplete limits · 23514 invalid limits
--            40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row; the clock is read after that
create or replace function tollgate.throttle_v1(
  p_id text, p_remaining bigint, p_wait bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_year    constant bigint := 31622400000000000;  -- 366 days in nanoseconds
  b         tollgate.token_buckets;
  v_rule    record;
  v_now     bigint;
  v_clock   bigint;
  v_full_at bigint;
  v_before  bigint;
  v_lowered boolean;
begin
  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and p_wait between 0 and c_year) is not true then
    raise exception 'tollgate: throttle_v1 takes a bucket, 0 tokens or more, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  for v_attempt in 1 .. 100 loop
    select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
    v_now := tollgate.clock();
    select t.* into v_rule
      from tollgate.prepare_bucket(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, false) t;
    -- The bucket changed, or another session created it since the read.
    continue when v_rule.changed
                  or (b.id is null and v_rule.outcome is null and v_rule.mode is distinct from 'off');
    if v_rule.outcome is not null then
      return v_rule.outcome;
    elsif v_rule.mode = 'off' then
      return 'unchanged';
    elsif p_wait > 0 and b.step_ns = 9223372036854775807 then
      return 'endless';
    end if;

    v_clock := tollgate.bucket_clock(b, v_now);
    v_before := b.full_at;
    if b.full_at - v_clock > tollgate.bucket_max_owed(b) then
      -- The clock was set back: the bucket is empty.
      b.full_at := v_clock + b.burst;
      b.max_granted_wait := 0;
    end if;
    -- A missing argument yields null, which greatest() ignores.
    v_full_at := greatest(
      b.full_at,
      v_clock,
      case when p_remaining is not null
        then v_clock + b.burst - least(p_remaining, b.burst / b.token_ticks) * b.token_ticks end,
      case when p_wait > 0
        then tollgate.bucket_clock(b, least(v_now + p_wait - 1, b.period_end)) + 1 + b.burst - b.token_ticks end);
    v_lowered := v_full_at > greatest(b.full_at, v_clock);
    if v_lowered then
      b.full_at := v_full_at;
      b.max_granted_wait := greatest(b.max_granted_wait, v_full_at - v_clock - b.burst);
    end if;
    if b.full_at <> v_before then
      update tollgate.token_buckets t
         set room = null, full_at = b.full_at, max_granted_wait = b.max_granted_wait
       where t.id = p_id;
    end if;
    return case when v_lowered then 'lowered' else 'unchanged' end;
  end loop;
  raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
    using errcode = 'serialization_failure', hint = 'Call again.';
end
$$;

insert into tollgate.migrations (version, name) values (8, '0008_adjust') on conflict do nothing;
