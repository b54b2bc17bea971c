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
-- A decision counts at the instant when its row is locked. So the clock is read before the update and looked at again
-- after it: had the lock to be waited for, a grant is moved to the later instant, and a denial is decided again.
--
-- Each call makes its statements ready anew, operator by operator, so the first update does no more than grant at once.
create function tollgate.take_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_keep bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text)
returns tollgate.taken_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now         bigint;
  v_outcome     text;
  v_full_at     bigint;
  v_granted     bigint;
  v_capacity    bigint;
  v_anchor      bigint;
  v_step_ns     bigint;
  v_step_ticks  bigint;
  v_token_ticks bigint;
  c_stale constant bigint := 2000000;
begin
  if (p_cost >= 1 and p_keep >= 0 and p_max_wait between 0 and 31622400000000000) is not true then
    raise exception 'tollgate: take_v1 needs a cost of 1 or more, 0 or more to keep, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  for v_attempt in 1 .. 100 loop
    v_now := tollgate.token_clock_v1();
    -- At once, for a clock that was not set back to before the bucket's own: there it rounds the other way.
    update tollgate.token_buckets b
       set granted = b.granted + p_cost,
           full_at = greatest(b.full_at, tollgate.bucket_clock_v1(b, v_now)) + p_cost * b.token_ticks
     where b.id = p_id
       and v_now >= b.anchor
       and p_cost <= b.capacity - p_keep
       and b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks <= tollgate.bucket_clock_v1(b, v_now)
       and (p_capacity is null
            or (b.capacity = p_capacity and b.refill_seconds = p_refill_seconds and b.refill = p_refill))
    returning b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks, b.token_ticks
         into v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks;

    if not found and (p_max_wait > 0 or v_attempt > 1) then
      -- After a step of the clock backwards a bucket is empty, once: nobody is locked out for longer than a refill.
      -- By a clock from before a wait for the row, what others were granted since would look like such a step.
      update tollgate.token_buckets b
         set full_at = tollgate.bucket_clock_v1(b, tollgate.token_clock_v1()) + b.capacity * b.token_ticks,
             longest_wait = 0
       where b.id = p_id
         and p_cost <= b.capacity - p_keep
         and (p_capacity is null
              or (b.capacity = p_capacity and b.refill_seconds = p_refill_seconds and b.refill = p_refill))
         and b.full_at
             > tollgate.bucket_clock_v1(b, tollgate.token_clock_v1()) + tollgate.bucket_furthest_v1(b);

      v_now := tollgate.token_clock_v1();
      -- With a wait: all of its tokens are of the step in which it acts.
      update tollgate.token_buckets b
         set granted = b.granted + p_cost,
             longest_wait = greatest(
               b.longest_wait,
               tollgate.bucket_step_v1(b, b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks)
                 - tollgate.bucket_clock_v1(b, v_now)),
             full_at = greatest(
               b.full_at,
               tollgate.bucket_step_v1(b, b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks),
               tollgate.bucket_clock_v1(b, v_now)) + p_cost * b.token_ticks
       where b.id = p_id
         and p_cost <= b.capacity - p_keep
         and b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks
             <= tollgate.bucket_clock_v1(b, v_now + p_max_wait)
         and (p_capacity is null
              or (b.capacity = p_capacity and b.refill_seconds = p_refill_seconds and b.refill = p_refill))
      returning b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks, b.token_ticks
           into v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks;
    end if;

    if found then
      if tollgate.token_clock_v1() - v_now > c_stale then
        v_now := tollgate.token_clock_v1();
        update tollgate.token_buckets b
           set full_at = greatest(b.full_at, tollgate.bucket_clock_v1(b, v_now) + p_cost * b.token_ticks)
         where b.id = p_id
        returning b.full_at into v_full_at;
      end if;
      return ('granted', v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks,
              v_token_ticks)::tollgate.taken_v1;
    end if;

    -- Why not? A denial counts now, whatever the update waited for. Null: it could be granted by now, or once the bucket
    -- is made, follows the terms or the clock.
    v_now := tollgate.token_clock_v1();
    select case
             when p_capacity is not null
                  and (p_capacity, p_refill_seconds, p_refill) is distinct from (b.capacity, b.refill_seconds, b.refill)
               then case when b.provisioned then 'conflict' end
             when p_cost > b.capacity - p_keep then 'never'
             when b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks
                  > tollgate.bucket_clock_v1(b, v_now + p_max_wait)
                  and b.full_at <= tollgate.bucket_clock_v1(b, v_now) + tollgate.bucket_furthest_v1(b)
               then 'denied'
           end,
           b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks, b.token_ticks
      into v_outcome, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks
      from tollgate.token_buckets b where b.id = p_id;

    if not found and p_capacity is null then
      v_outcome := 'unknown';
    end if;
    if v_outcome is not null then
      return (v_outcome, v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks,
              v_token_ticks)::tollgate.taken_v1;
    elsif v_capacity is null and p_capacity is not null then
      insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor)
      values (p_id, p_capacity, p_refill_seconds, p_refill, false, 0)
      on conflict do nothing;
    elsif p_capacity is not null then
      update tollgate.token_buckets b
         set capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill
       where b.id = p_id and not b.provisioned
         and (p_capacity, p_refill_seconds, p_refill) is distinct from (b.capacity, b.refill_seconds, b.refill);
    end if;
  end loop;

  raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
    using errcode = 'serialization_failure', hint = 'Call again.';
end
$$;

revoke all on function tollgate.take_v1(text, bigint, bigint, bigint, bigint, numeric, text) from public;
