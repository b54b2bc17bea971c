-- token_until_v1: milliseconds, rounded up, from a decision until so many tokens are there; null: they never are.
--
-- Arguments: p_tokens; p_now and p_full_at to p_token_ticks: as token_decide_v1 answers
create function token_until_v1(
  p_tokens bigint, p_now bigint, p_full_at bigint, p_burst bigint, p_anchor bigint, p_step_ns bigint,
  p_step_ticks bigint, p_token_ticks bigint)
returns bigint
deterministic
no sql
sql security definer
begin
  declare v_tick bigint;

  if p_tokens > p_burst div p_token_ticks then
    return null;
  end if;
  set v_tick = greatest(p_full_at, (p_now - p_anchor) div p_step_ns * p_step_ticks)
               + (p_tokens - p_burst div p_token_ticks) * p_token_ticks;
  if p_step_ns = 9223372036854775807 then
    return if(v_tick <= 0, 0, null);
  end if;
  return (greatest((v_tick + p_step_ticks - 1) div p_step_ticks * p_step_ns + p_anchor - p_now, 0) + 999999)
         div 1000000;
end
