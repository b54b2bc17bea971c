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
create function tollgate.take_v1(
  p_id text, p_cost bigint, p_max_wait bigint, p_keep bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text,
  out outcome text, out now bigint, out full_at bigint, out granted bigint, out capacity bigint,
  out anchor bigint, out step_ns bigint, out step_ticks bigint, out token_ticks bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_refill_seconds numeric;
  v_refill         text;
  v_provisioned    boolean;
  v_furthest       bigint;
  c_stale constant bigint := 2000000;
begin
  if (p_cost >= 1 and p_keep >= 0 and p_max_wait between 0 and 31622400000000000) is not true then
    raise exception 'tollgate: take_v1 needs a cost of 1 or more, 0 or more to keep, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  for v_attempt in 1 .. 100 loop
    now := tollgate.token_clock_v1();
    if p_max_wait > 0 or v_attempt > 1 then
      -- After a step of the clock backwards a bucket is empty, once: nobody is locked out for longer than a refill.
      update tollgate.token_buckets b
         set full_at = tollgate.bucket_clock_v1(b, take_v1.now) + b.capacity * b.token_ticks, longest_wait = 0
       where b.id = p_id
         and p_cost <= b.capacity - p_keep
         and (p_capacity is null
              or (b.capacity = p_capacity and b.refill_seconds = p_refill_seconds and b.refill = p_refill))
         and b.full_at > tollgate.bucket_clock_v1(b, take_v1.now) + tollgate.bucket_furthest_v1(b);
    end if;

    update tollgate.token_buckets b
       set granted = b.granted + p_cost,
           longest_wait = greatest(
             b.longest_wait,
             tollgate.bucket_step_v1(b, b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks)
               - tollgate.bucket_clock_v1(b, take_v1.now)),
           full_at = greatest(
             b.full_at,
             tollgate.bucket_step_v1(b, b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks),
             tollgate.bucket_clock_v1(b, take_v1.now)) + p_cost * b.token_ticks
     where b.id = p_id
       and p_cost <= b.capacity - p_keep
       and b.full_at + (p_cost + p_keep - b.capacity) * b.token_ticks
           <= tollgate.bucket_clock_v1(b, take_v1.now + p_max_wait)
       and (p_capacity is null
            or (b.capacity = p_capacity and b.refill_seconds = p_refill_seconds and b.refill = p_refill))
    returning b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks, b.token_ticks
         into full_at, granted, capacity, anchor, step_ns, step_ticks, token_ticks;

    if capacity is not null then
      outcome := 'granted';
      if tollgate.token_clock_v1() - now > c_stale then
        now := tollgate.token_clock_v1();
        update tollgate.token_buckets b
           set full_at = greatest(b.full_at, tollgate.bucket_clock_v1(b, take_v1.now) + p_cost * b.token_ticks)
         where b.id = p_id
        returning b.full_at into full_at;
      end if;
      return;
    end if;

    select b.full_at, b.granted, b.capacity, b.anchor, b.step_ns, b.step_ticks, b.token_ticks,
           b.refill_seconds, b.refill, b.provisioned, tollgate.bucket_furthest_v1(b)
      into full_at, granted, capacity, anchor, step_ns, step_ticks, token_ticks,
           v_refill_seconds, v_refill, v_provisioned, v_furthest
      from tollgate.token_buckets b where b.id = p_id;

    if capacity is null then
      if p_capacity is null then
        outcome := 'unknown';
        return;
      end if;
      insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor)
      values (p_id, p_capacity, p_refill_seconds, p_refill, false, 0)
      on conflict do nothing;
    elsif (p_capacity, p_refill_seconds, p_refill) is distinct from (capacity, v_refill_seconds, v_refill)
          and p_capacity is not null then
      if v_provisioned then
        outcome := 'conflict';
        return;
      end if;
      update tollgate.token_buckets b
         set capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill
       where b.id = p_id and not b.provisioned;
    elsif p_cost > capacity - p_keep then
      outcome := 'never';
      return;
    elsif full_at + (p_cost + p_keep - capacity) * token_ticks > (now + p_max_wait - anchor) / step_ns * step_ticks
          and full_at <= (now - anchor) / step_ns * step_ticks + v_furthest
          and tollgate.token_clock_v1() - now <= c_stale then
      outcome := 'denied';
      return;
    end if;
  end loop;

  raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
    using errcode = 'serialization_failure', hint = 'Call again.';
end
$$;

revoke all on function tollgate.take_v1(text, bigint, bigint, bigint, bigint, numeric, text) from public;
