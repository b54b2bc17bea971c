-- take_times_v1: decide equal requests for one bucket, one after the other, in one update of its row.
--
-- Arguments: p_id, p_cost, p_keep, p_capacity, p_refill_seconds, p_refill, p_plan: as take_v1's; p_times: how many, one or
--            more
-- Result:    as take_many_v1's, to an entry 1: a row that grants some, one that denies the others, or either
-- Errors:    as take_v1's
-- Locks:     the bucket's row, if any is granted.
--
-- The same as a batch of one entry, and for that several times faster: a statement for many rows takes longer to begin
-- than to change one. How many are granted follows from what was read. All of them are, if the locked row affords them too;
-- fewer, if it still says what was read. Else all begins anew, with the row locked. What more than tokens rules is
-- take_many_v1's.
create function tollgate.take_times_v1(
  p_id text, p_cost bigint, p_keep bigint, p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text,
  p_times bigint)
returns setof tollgate.answers_v1
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b         tollgate.token_buckets;
  v_ruled   boolean;
  v_now     bigint;
  v_clock   bigint;
  v_granted bigint;
  v_late    boolean;
  c_stale   constant bigint := 2000000;
begin
  for v_attempt in 1 .. 3 loop
    exit when (p_cost between 1 and 4611686018427387903 and p_keep between 0 and 4611686018427387903
               and p_times >= 1
               and (p_capacity is null) = (p_refill_seconds is null)
               and (p_capacity is null) = (p_refill is null)) is not true;
    -- Null, which counts as ruled, where the mode's row is missing.
    select g.mode <> 'enforce' or exists (select from tollgate.token_overrides o where o.id = p_id)
      into v_ruled from tollgate.token_mode g;
    select t.* into b from tollgate.token_buckets t where t.id = p_id;
    -- After the read, as in take_v1.
    v_now := tollgate.token_clock_v1();
    if not v_ruled and p_capacity is null and (p_plan is not null or b.plan is not null) then
      v_ruled := true;
      select p.mode is not null or b.plan is distinct from p.name
             or p.capacity <> b.capacity or p.refill_seconds <> b.refill_seconds or p.refill <> b.refill
        into v_ruled
        from tollgate.token_plans p where p.name = coalesce(p_plan, b.plan);
    end if;
    v_clock := tollgate.bucket_clock_v1(b, v_now);
    exit when b.id is null or v_ruled is not false or b.overridden or (p_capacity is not null and b.plan is not null)
              or p_capacity <> b.capacity or p_refill_seconds <> b.refill_seconds or p_refill <> b.refill
              or p_cost > b.burst / b.token_ticks - p_keep
              or b.full_at - v_clock > tollgate.bucket_furthest_v1(b);

    v_granted := least(p_times, tollgate.bucket_affords_v1(b, b.full_at, p_cost, p_keep, v_now));
    if v_granted > 0 then
      update tollgate.token_buckets t
         set room = null,
             granted = t.granted + v_granted * p_cost,
             full_at = greatest(t.full_at, v_clock) + v_granted * p_cost * b.token_ticks
       where t.id = p_id
         and case when (t.anchor, t.burst, t.step_ns, t.token_ticks) = (b.anchor, b.burst, b.step_ns, b.token_ticks)
               then t.full_at = b.full_at
                    or v_granted = p_times and tollgate.bucket_affords_v1(t, t.full_at, p_cost, p_keep, v_now) >= p_times
             end
      returning t.full_at, t.granted into b.full_at, b.granted;
      continue when not found;
      v_late := tollgate.token_clock_v1() - v_now > c_stale;
      if v_late then
        v_now := tollgate.token_clock_v1();
        if b.full_at < tollgate.bucket_clock_v1(b, v_now) + v_granted * p_cost * b.token_ticks then
          b.full_at := tollgate.bucket_clock_v1(b, v_now) + v_granted * p_cost * b.token_ticks;
          update tollgate.token_buckets t set full_at = b.full_at where t.id = p_id;
        end if;
      end if;
      return next tollgate.answers_of_v1(1, v_granted, ('granted', null, v_now, v_now, b.full_at, b.granted, b.burst,
                                                        b.anchor, b.step_ns, b.step_ticks, b.token_ticks));
      p_times := p_times - v_granted;
      if p_times = 0 then
        return;
      end if;
      -- Tokens may have come while the row had to be waited for.
      continue when v_late;
    end if;
    return next tollgate.answers_of_v1(1, p_times, ('denied', null, v_now, v_now, b.full_at, b.granted, b.burst,
                                                    b.anchor, b.step_ns, b.step_ticks, b.token_ticks));
    return;
  end loop;
  return query
    select m.*
      from tollgate.take_many_v1(
             array[p_id], array[p_cost], array[0::bigint], array[p_keep], array[p_capacity], array[p_refill_seconds],
             array[p_refill], array[p_plan], array[null::uuid], array[0::bigint], array[p_times]) m;
end
$$;

revoke all on function tollgate.take_times_v1(text, bigint, bigint, bigint, numeric, text, text, bigint) from public;
