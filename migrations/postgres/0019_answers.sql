-- taken_clock_v1(p_taken) -> what the bucket's own clock showed at the decision, in ticks.
create function tollgate.taken_clock_v1(p_taken tollgate.taken_v1) returns bigint
language sql immutable
as $$
  select (p_taken.now - p_taken.anchor) / p_taken.step_ns * p_taken.step_ticks
$$;

revoke all on function tollgate.taken_clock_v1(tollgate.taken_v1) from public;

-- taken_remaining_v1(p_taken) -> the whole tokens left.
create function tollgate.taken_remaining_v1(p_taken tollgate.taken_v1) returns bigint
language sql immutable
as $$
  select greatest((p_taken.burst - greatest(p_taken.full_at - tollgate.taken_clock_v1(p_taken), 0))
                  / p_taken.token_ticks, 0)
$$;

revoke all on function tollgate.taken_remaining_v1(tollgate.taken_v1) from public;

-- taken_until_v1(p_taken, p_tokens) -> milliseconds, rounded up, from the decision until so many tokens are there;
-- null: they never are.
create function tollgate.taken_until_v1(p_taken tollgate.taken_v1, p_tokens bigint) returns bigint
language plpgsql immutable
as $$
declare
  v_tick bigint;
begin
  if p_tokens > p_taken.burst / p_taken.token_ticks then
    return null;
  end if;
  v_tick := greatest(p_taken.full_at, tollgate.taken_clock_v1(p_taken))
            + (p_tokens * p_taken.token_ticks - p_taken.burst);
  if p_taken.step_ns = 9223372036854775807 then
    return case when v_tick <= 0 then 0 end;
  end if;
  -- Of a clock that was set back to before its start, too.
  if v_tick <= tollgate.taken_clock_v1(p_taken) then
    return 0;
  end if;
  -- In whole numbers: a quotient of numeric is rounded, and of years by more than a nanosecond.
  return (greatest(
    p_taken.anchor + (v_tick + p_taken.step_ticks - 1) / p_taken.step_ticks * p_taken.step_ns - p_taken.now, 0)
    + 999999) / 1000000;
end
$$;

revoke all on function tollgate.taken_until_v1(tollgate.taken_v1, bigint) from public;
