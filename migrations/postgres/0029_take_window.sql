-- window_taken_v1: what take_window_v1 answers.
do $$
begin
  if to_regtype('tollgate.window_taken_v1') is null then
    create type tollgate.window_taken_v1 as (
      outcome       text,
      mode          text,
      now           bigint,
      acts_at       bigint,
      ends          bigint[],
      counts        bigint[],
      resolution_ns bigint
    );
  end if;
end
$$;

-- take_window_v1: decide one request under a sliding window, exactly; or count it whatever the window says.
--
-- Arguments: p_id         the window; its first request makes it
--            p_cost       requests, 1 or more; 0 with p_counting: only read
--            p_max_wait   nanoseconds that the caller would wait; in the mode 'shadow' nobody waits
--            p_keep       requests that must remain for others
--            p_most       how many pass at most in any interval
--            p_interval, p_resolution: in nanoseconds; the resolution divides the interval into 1 to 1000 parts
--            p_receipt    the request's id: repeated with it, the request counts no more; null: it has none
--            p_hold       for how many nanoseconds the id is remembered
--            p_counting   true: count it now, even beyond the maximum
-- Result:    outcome      'granted' or 'denied', as is a wait that would begin a sub-interval beyond the thousandth ahead;
--                         'never': cost + keep exceed the maximum; 'reused': the id is another
--                         request's
--            mode         what decided instead of the counts: 'shadow', 'off' or 'block', else null
--            now          the instant of the decision, in nanoseconds since 1970
--            acts_at      when the request acts; if blocked, until when; null: no end
--            ends, counts, resolution_ns: the window's columns after it
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, first of all; then the receipt. A denied request writes nothing, once there is a window.
create function tollgate.take_window_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_keep bigint, p_most bigint, p_interval bigint, p_resolution bigint,
  p_receipt uuid, p_hold bigint, p_counting boolean)
returns tollgate.window_taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  w         tollgate.token_windows;
  r         tollgate.token_receipts;
  v_now     bigint := tollgate.token_clock_v1();
  v_acts_at bigint;
  v_outcome text := 'granted';
  v_mode    text;
  v_until   timestamptz;
  c_year    constant bigint := 31622400000000000;
  -- A bucket and a window of one key have receipts of their own: no bucket's id begins so.
  c_bucket  constant text := chr(1) || p_id;
begin
  p_hold := least(greatest(coalesce(p_hold, 0), 0), c_year);
  if (p_id is not null
      and p_cost between case when p_counting then 0 else 1 end
                     and case when p_counting then 1000000000000 else 4611686018427387903 end
      and p_keep between 0 and 4611686018427387903
      and p_max_wait between 0 and c_year and p_most between 1 and 1000000000000
      and p_resolution between 1000 and p_interval and p_interval <= c_year
      and (p_interval - 1) / p_resolution < 1000) is not true then
    raise exception 'tollgate: take_window_v1 needs a cost of 1 or more, a maximum of 1 to 10^12, an interval of a year '
                    'or less, and a resolution of a microsecond or more that divides it into 1 to 1000 parts'
      using errcode = 'invalid_parameter_value';
  end if;
  loop
    select nullif(coalesce(o.mode, case when tollgate.in_force_v1(g.until, v_now) then g.mode end), 'enforce'),
           case when o.mode is null then g.until else o.expires_at end
      into v_mode, v_until
      from (values (p_id)) k (id)
      left join tollgate.token_mode g on true
      left join tollgate.token_overrides o on o.id = k.id and tollgate.in_force_v1(o.expires_at, v_now);
    -- Read again once the row is locked, which may have taken its time.
    exit when v_mode = 'off' or w.id is not null;
    loop
      select t.* into w from tollgate.token_windows t where t.id = p_id for no key update;
      exit when found;
      insert into tollgate.token_windows (id, most, interval_ns, resolution_ns, since)
      values (p_id, p_most, p_interval, p_resolution, v_now)
      on conflict do nothing;
    end loop;
    v_now := tollgate.token_clock_v1();
  end loop;
  if v_mode = 'off' then
    -- What was counted is told, and nothing is locked or made.
    select t.* into w from tollgate.token_windows t where t.id = p_id;
    if not found then
      w.ends := '{}';
      w.counts := '{}';
      w.resolution_ns := p_resolution;
    end if;
  else
    if w.ends[array_length(w.ends, 1)] - v_now > w.last_wait + w.resolution_ns + 1000000000 then
      w := tollgate.window_stepped_back_v1(w, v_now);
      update tollgate.token_windows t set ends = w.ends, since = w.since where t.id = p_id;
    end if;
    if p_receipt is not null then
      delete from tollgate.token_receipts t where t.id = p_receipt and t.bucket = c_bucket and t.expires_at <= v_now;
      select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = c_bucket;
    end if;
  end if;
  if v_mode = 'shadow' then
    p_max_wait := 0;
  end if;
  v_acts_at := v_now;

  if v_mode = 'off' then
    null;
  elsif r.id is not null then
    v_outcome := case when r.cost = p_cost and r.state <> 'cancelled' then 'granted' else 'reused' end;
    v_mode := null;
    v_acts_at := greatest(r.acts_at, v_now);
  elsif v_mode = 'block' then
    v_outcome := 'denied';
    v_acts_at := tollgate.until_v1(v_until);
  elsif not p_counting and p_cost > p_most - p_keep then
    v_outcome := 'never';
  else
    v_acts_at := tollgate.window_earliest_v1(w, p_interval, p_most - p_cost - p_keep, v_now);
    if v_acts_at > v_now and w.ends[array_length(w.ends, 1) - 999] > v_now
       and w.ends[array_length(w.ends, 1)] < (v_acts_at / p_resolution + 1) * p_resolution then
      v_acts_at := 9223372036854775807;
    end if;
    if p_counting then
      v_acts_at := v_now;
    elsif v_acts_at > v_now + p_max_wait then
      v_outcome := case v_mode when 'shadow' then 'granted' else 'denied' end;
    else
      v_mode := null;
    end if;
    if p_cost > 0 and (p_counting or v_acts_at <= v_now + p_max_wait) then
      w := tollgate.window_count_v1(
        w, p_interval, p_resolution, p_cost, v_now,
        case when p_counting then greatest(v_now, w.ends[array_length(w.ends, 1)] - w.resolution_ns) else v_acts_at end);
      update tollgate.token_windows t
         set ends = w.ends, counts = w.counts, granted = w.granted, last_wait = w.last_wait,
             most = p_most, interval_ns = w.interval_ns, resolution_ns = w.resolution_ns, since = w.since
       where t.id = p_id;
      if p_receipt is not null then
        insert into tollgate.token_receipts (id, bucket, cost, granted, acts_at, state, expires_at)
        values (p_receipt, c_bucket, p_cost, 0, v_acts_at, 'open', v_now + p_hold);
      end if;
    else
      v_acts_at := v_now;
    end if;
  end if;
  return (v_outcome, v_mode, v_now, v_acts_at, w.ends, w.counts, w.resolution_ns)::tollgate.window_taken_v1;
end
$$;

revoke all on function tollgate.take_window_v1(
  text, bigint, bigint, bigint, bigint, bigint, bigint, uuid, bigint, boolean) from public;
