-- taken_v1: what take_v1 answers. A type of its own, because every call would describe OUT parameters anew.
create type tollgate.taken_v1 as (
  outcome     text,
  now         bigint,
  full_at     bigint,
  granted     bigint,
  capacity    bigint,
  anchor      bigint,
  step_ns     bigint,
  step_ticks  bigint,
  token_ticks bigint
);

-- take_v1: decide one request, exactly. Everything that takes tokens is built on it.
--
-- Arguments: p_id        the bucket
--            p_cost      tokens to take, 1 or more
--            p_max_wait  nanoseconds that the caller would wait for them
--            p_keep      tokens that must remain
--            p_capacity, p_refill_seconds, p_refill
--                        terms for a bucket that its first request makes, full, on the calendar's grid;
--                        all null: the bucket must exist, and its own terms hold
-- Result:    outcome     'granted' · 'denied' · 'unknown' (no such bucket) · 'never' (cost + keep exceed the capacity)
--                        · 'conflict' (it was provisioned with other terms than those given)
--            now         the instant of the decision, in nanoseconds since 1970
--            and the bucket's columns after it, from which remaining tokens and waits follow
-- Errors:    22023 arguments out of range · 23514 terms that make no bucket
-- Locks:     the bucket's row, if the request is granted. A denied request writes nothing and waits for no lock.
--
-- Reads first, so a denial costs one statement. What it read may be old by the time it writes, so the update asks again
-- whether the tokens are there, by then under the row's lock; if they are not, or the terms changed, all begins anew.
--
-- A decision counts at the instant when its row is locked. The clock is read before that and looked at again after it:
-- had the lock to be waited for, a grant is moved to the later instant, and a denial is decided again.
create function tollgate.take_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_keep bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text)
returns tollgate.taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b        tollgate.token_buckets;
  v_now    bigint;
  v_clock  bigint;
  v_latest bigint;  -- the latest full_at, in ticks, at which the tokens are there, or will be in time
  c_stale  constant bigint := 2000000;
begin
  if (p_cost >= 1 and p_keep >= 0 and p_max_wait between 0 and 31622400000000000) is not true then
    raise exception 'tollgate: take_v1 needs a cost of 1 or more, 0 or more to keep, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  for v_attempt in 1 .. 100 loop
    select t.* into b from tollgate.token_buckets t where t.id = p_id;
    -- After the read: what others took since can only be more, so a denial holds at that instant.
    v_now := tollgate.token_clock_v1();
    if b.id is null then
      if p_capacity is null then
        return ('unknown', v_now, null, null, null, null, null, null, null)::tollgate.taken_v1;
      end if;
      insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor)
      values (p_id, p_capacity, p_refill_seconds, p_refill, false, 0)
      on conflict do nothing;
      continue;
    end if;

    if p_capacity is not null
       and (p_capacity <> b.capacity or p_refill_seconds <> b.refill_seconds or p_refill <> b.refill) then
      if b.provisioned then
        return ('conflict', v_now, b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks,
                b.token_ticks)::tollgate.taken_v1;
      end if;
      update tollgate.token_buckets t
         set capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill
       where t.id = p_id and not t.provisioned
         and (p_capacity <> t.capacity or p_refill_seconds <> t.refill_seconds or p_refill <> t.refill);
      continue;
    end if;

    if p_cost > b.capacity - p_keep then
      return ('never', v_now, b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks,
              b.token_ticks)::tollgate.taken_v1;
    end if;

    v_clock := tollgate.bucket_clock_v1(b, v_now);
    v_latest := tollgate.bucket_clock_v1(b, v_now + p_max_wait) - (p_cost + p_keep - b.capacity) * b.token_ticks;

    if (b.full_at > v_latest or p_max_wait > 0) and b.full_at - v_clock > tollgate.bucket_furthest_v1(b) then
      -- After a step of the clock backwards a bucket is empty, once: nobody is locked out for longer than a refill.
      -- By a clock from before a wait for the row, what others were granted since would look like such a step.
      update tollgate.token_buckets t
         set full_at = tollgate.bucket_clock_v1(t, tollgate.token_clock_v1()) + t.capacity * t.token_ticks,
             longest_wait = 0
       where t.id = p_id
         and t.full_at - tollgate.bucket_clock_v1(t, tollgate.token_clock_v1()) > tollgate.bucket_furthest_v1(t);
      continue;
    elsif b.full_at > v_latest then
      return ('denied', v_now, b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks,
              b.token_ticks)::tollgate.taken_v1;
    elsif p_max_wait = 0 then
      update tollgate.token_buckets t
         set granted = t.granted + p_cost,
             full_at = greatest(t.full_at, v_clock) + p_cost * b.token_ticks
       where t.id = p_id and t.full_at <= v_latest
         and t.capacity = b.capacity and t.step_ns = b.step_ns and t.token_ticks = b.token_ticks
      returning t.full_at, t.granted into b.full_at, b.granted;
    else
      -- With a wait: all of its tokens are of the step in which it acts.
      update tollgate.token_buckets t
         set granted = t.granted + p_cost,
             longest_wait = greatest(
               t.longest_wait,
               tollgate.bucket_step_v1(t, t.full_at + (p_cost + p_keep - t.capacity) * t.token_ticks) - v_clock),
             full_at = greatest(
               t.full_at,
               tollgate.bucket_step_v1(t, t.full_at + (p_cost + p_keep - t.capacity) * t.token_ticks),
               v_clock) + p_cost * t.token_ticks
       where t.id = p_id and t.full_at <= v_latest
         and t.capacity = b.capacity and t.step_ns = b.step_ns and t.token_ticks = b.token_ticks
      returning t.full_at, t.granted into b.full_at, b.granted;
    end if;

    if found then
      if tollgate.token_clock_v1() - v_now > c_stale then
        v_now := tollgate.token_clock_v1();
        update tollgate.token_buckets t
           set full_at = greatest(t.full_at, tollgate.bucket_clock_v1(t, v_now) + p_cost * t.token_ticks)
         where t.id = p_id
        returning t.full_at into b.full_at;
      end if;
      return ('granted', v_now, b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks,
              b.token_ticks)::tollgate.taken_v1;
    end if;
  end loop;

  raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
    using errcode = 'serialization_failure', hint = 'Call again.';
end
$$;

revoke all on function tollgate.take_v1(text, bigint, bigint, bigint, bigint, numeric, text) from public;
