-- request_tokens_v1: take tokens from a provisioned bucket, or from one that follows a plan, all or none.
--
-- Arguments: p_id           the bucket
--            p_tokens       how many, 1 or more; this and the next two are whole numbers, tokens below 2^53
--            p_max_wait_ms  how long you would wait for them; 0: take them now or not at all
--            p_keep         how many must remain for others
--            p_plan         the plan of a bucket that its first request makes; null: it exists
--            p_request      an id of yours: a request that is repeated with it within a day takes nothing more
-- Result:    granted        whether you have them
--            remaining      whole tokens left
--            wait_ms        milliseconds until you may use them: 0, or up to p_max_wait_ms
--            retry_after_ms milliseconds until the tokens of another request like this one are there; 0: at once; null:
--                           never, or nobody knows
--            reset_after_ms milliseconds until the bucket is full; null: never
-- Errors:    22023 arguments out of range, or more tokens than the bucket ever holds · P0002 no such bucket or plan
-- Locks:     see take_v1. In a transaction of yours the bucket stays locked until it ends, and a rollback gives back.
create function tollgate.request_tokens_v1(
  p_id text, p_tokens double precision, p_max_wait_ms double precision, p_keep double precision, p_plan text,
  p_request uuid,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t         tollgate.taken_v1;
  v_tokens  bigint;
  v_keep    bigint;
  c_day     constant bigint := 86400000000000;
  c_year_ms constant bigint := 31622400000;
  c_beyond  constant double precision := 9007199254740992;
begin
  if (p_id is not null and p_tokens >= 1 and p_tokens < c_beyond and p_tokens = trunc(p_tokens)
      and p_max_wait_ms between 0 and 'infinity' and p_max_wait_ms = trunc(p_max_wait_ms)
      and p_keep >= 0 and p_keep < c_beyond and p_keep = trunc(p_keep)) is not true then
    raise exception 'tollgate: request_tokens(%, %, %, %): give a bucket''s id, 1 token or more, and a longest wait '
                    'and a number of tokens to keep of 0 or more, in whole numbers; of tokens, below 2^53',
                    quote_nullable(left(p_id, 255)), p_tokens, p_max_wait_ms, p_keep
      using errcode = 'invalid_parameter_value';
  end if;
  v_tokens := p_tokens;
  v_keep := p_keep;

  t := tollgate.take_v1(p_id, v_tokens, least(p_max_wait_ms, c_year_ms)::bigint * 1000000, v_keep, null, null, null,
                        p_plan, p_request, c_day);
  case t.outcome
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
    when 'reused' then
      raise exception 'tollgate: the id % is that of another request', p_request
        using errcode = 'invalid_parameter_value', hint = 'Give each request an id of its own.';
    when 'never' then
      raise exception 'tollgate: bucket % holds % tokens, so % and % to keep can never be had at once',
                      quote_literal(p_id), t.burst / t.token_ticks, v_tokens, v_keep
        using errcode = 'invalid_parameter_value', hint = 'Ask for fewer tokens, or give the bucket a larger capacity.';
    else
      null;
  end case;

  granted := t.outcome = 'granted';
  wait_ms := case when granted then (t.acts_at - t.now + 999999) / 1000000 else 0 end;
  if t.token_ticks is null then
    -- The mode is 'off', and there is no such bucket yet.
    remaining := t.burst;
    retry_after_ms := 0;
    reset_after_ms := 0;
    return;
  end if;
  remaining := tollgate.taken_remaining_v1(t);
  retry_after_ms := tollgate.taken_until_v1(t, v_tokens + v_keep);
  if t.outcome = 'denied' and t.mode = 'block' then
    retry_after_ms := (t.acts_at - t.now + 999999) / 1000000;
  end if;
  reset_after_ms := tollgate.taken_until_v1(t, t.burst / t.token_ticks);
end
$$;

revoke all on function tollgate.request_tokens_v1(text, double precision, double precision, double precision, text, uuid) from public;

-- request_tokens: the current version's friendly name.
create function tollgate.request_tokens(
  p_id text, p_tokens double precision default 1, p_max_wait_ms double precision default 0,
  p_keep double precision default 0, p_plan text default null, p_request uuid default null,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_keep, p_plan, p_request)
$$;

revoke all on function tollgate.request_tokens(text, double precision, double precision, double precision, text, uuid) from public;
