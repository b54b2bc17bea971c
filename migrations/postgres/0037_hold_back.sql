-- hold_back_v1: lower a bucket to what somebody else says of it, never raise it; repeated, it changes nothing.
--
-- Arguments: p_id        the bucket
--            p_remaining no more tokens than these are left; null: not said
--            p_wait      none comes before so many nanoseconds have passed, a year at most; 0: not said. Of an interval
--                        they come with the first period that begins then
--            p_capacity, p_refill_seconds, p_refill, p_plan: as take_v1's
-- Result:    'lowered'; 'unchanged': it held no more, or its mode is 'off'; 'endless': it never refills, and there is
--            a wait; 'unknown', 'unplanned' or 'conflict', as take_v1 answers
-- Errors:    22023 arguments out of range, or terms given in part · 23514 terms that make no bucket
--            · 40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, so the clock is read after that.
create function tollgate.hold_back_v1(
  p_id text, p_remaining bigint, p_wait bigint,
  p_capacity bigint, p_refill_seconds numeric, p_refill text, p_plan text)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b         tollgate.token_buckets;
  v_rule    record;
  v_now     bigint;
  v_clock   bigint;
  v_full_at bigint;
  v_before  bigint;
  v_lowered boolean;
begin
  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and p_wait between 0 and 31622400000000000) is not true then
    raise exception 'tollgate: hold_back_v1 takes a bucket, 0 tokens or more, and a wait of 0 to a year'
      using errcode = 'invalid_parameter_value';
  end if;
  for v_attempt in 1 .. 100 loop
    select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
    v_now := tollgate.token_clock_v1();
    select t.* into v_rule
      from tollgate.rule_v1(p_id, p_capacity, p_refill_seconds, p_refill, p_plan, v_now, false) t;
    -- Changed, or made by others since it was read.
    continue when v_rule.changed
                  or (b.id is null and v_rule.outcome is null and v_rule.mode is distinct from 'off');
    if v_rule.outcome is not null then
      return v_rule.outcome;
    elsif v_rule.mode = 'off' then
      return 'unchanged';
    elsif p_wait > 0 and b.step_ns = 9223372036854775807 then
      return 'endless';
    end if;

    v_clock := tollgate.bucket_clock_v1(b, v_now);
    v_before := b.full_at;
    if b.full_at - v_clock > tollgate.bucket_furthest_v1(b) then
      -- The clock was set back since: it is empty.
      b.full_at := v_clock + b.burst;
      b.longest_wait := 0;
    end if;
    -- What was not said is null, which greatest() leaves out, and least() would not.
    v_full_at := greatest(
      b.full_at,
      v_clock,
      case when p_remaining is not null
        then v_clock + b.burst - least(p_remaining, b.burst / b.token_ticks) * b.token_ticks end,
      case when p_wait > 0
        then tollgate.bucket_clock_v1(b, v_now + p_wait - 1) + 1 + b.burst - b.token_ticks end);
    v_lowered := v_full_at > greatest(b.full_at, v_clock);
    if v_lowered then
      b.full_at := v_full_at;
      b.longest_wait := greatest(b.longest_wait, v_full_at - v_clock - b.burst);
    end if;
    if b.full_at <> v_before then
      update tollgate.token_buckets t
         set room = null, full_at = b.full_at, longest_wait = b.longest_wait
       where t.id = p_id;
    end if;
    return case when v_lowered then 'lowered' else 'unchanged' end;
  end loop;
  raise exception 'tollgate: bucket % changed during each of 100 attempts', quote_literal(p_id)
    using errcode = 'serialization_failure', hint = 'Call again.';
end
$$;

revoke all on function tollgate.hold_back_v1(text, bigint, bigint, bigint, numeric, text, text) from public;

-- hold_back: the same for people, with a provisioned bucket or one that follows a plan.
--
-- Arguments: p_id             the bucket
--            p_remaining      no more tokens than these are left; null: not said
--            p_retry_after_ms none comes before so many milliseconds have passed; null: not said
--            p_longest_ms     for how many at most, whatever was said: an hour, unless given
--            p_plan           the plan of a bucket that its first request makes; null: it exists
-- Result:    whether it held more
-- Errors:    22023 arguments out of range, or a wait for a bucket that never refills · P0002 no such bucket or plan
-- Locks:     see hold_back_v1. In a transaction of yours the bucket stays locked until it ends.
create function tollgate.hold_back(
  p_id text, p_remaining double precision default null, p_retry_after_ms double precision default null,
  p_longest_ms double precision default 3600000, p_plan text default null)
returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_outcome text;
begin
  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and coalesce(p_retry_after_ms, 0) >= 0 and p_longest_ms >= 0
      and coalesce(p_remaining, p_retry_after_ms) is not null
      and coalesce(p_remaining, 0) < 9007199254740992 and greatest(p_retry_after_ms, p_longest_ms) <= 'infinity'
      and coalesce(p_remaining = trunc(p_remaining), true) and coalesce(p_retry_after_ms = trunc(p_retry_after_ms), true)
      and p_longest_ms = trunc(p_longest_ms)) is not true then
    raise exception 'tollgate: hold_back(%, %, %, %): give a bucket''s id, and a number of tokens, a wait in '
                    'milliseconds, or both, of 0 or more, in whole numbers; of tokens, below 2^53',
                    quote_nullable(left(p_id, 255)), p_remaining, p_retry_after_ms, p_longest_ms
      using errcode = 'invalid_parameter_value';
  end if;
  v_outcome := tollgate.hold_back_v1(
    p_id, p_remaining::bigint, least(coalesce(p_retry_after_ms, 0), p_longest_ms, 31622400000)::bigint * 1000000,
    null, null, null, p_plan);
  case v_outcome
    when 'unknown' then
      raise exception 'tollgate: there is no bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Provision it: select tollgate.create_bucket(%L, 100, 60); -- 100 tokens a minute',
                            left(p_id, 255));
    when 'unplanned' then
      raise exception 'tollgate: there is no plan for bucket %', quote_literal(left(p_id, 255))
        using errcode = 'no_data_found',
              hint = format('Make it: select tollgate.create_plan(%L, 100, 60); -- 100 tokens a minute',
                            left(coalesce(p_plan, (select b.plan from tollgate.token_buckets b where b.id = p_id), 'free'),
                                 255));
    when 'conflict' then
      raise exception 'tollgate: bucket % was provisioned with terms of its own', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Ask without a plan, or use another id.';
    when 'endless' then
      raise exception 'tollgate: bucket % never refills, so it cannot be held back for a time', quote_literal(p_id)
        using errcode = 'invalid_parameter_value', hint = 'Say how many tokens are left.';
    else
      null;
  end case;
  return v_outcome = 'lowered';
end
$$;

revoke all on function tollgate.hold_back(text, double precision, double precision, double precision, text) from public;
