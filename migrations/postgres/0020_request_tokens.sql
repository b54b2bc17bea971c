-- request_tokens_v1: take tokens from a provisioned bucket, or from one that follows a plan, all or none.
--
-- Arguments: p_id           the bucket
--            p_tokens       how many, 1 or more
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
  p_id text, p_tokens bigint, p_max_wait_ms bigint, p_keep bigint, p_plan text, p_request uuid,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t         tollgate.taken_v1;
  c_day     constant bigint := 86400000000000;
  c_year_ms constant bigint := 31622400000;
  c_most    constant bigint := 4611686018427387903;  -- more than any bucket holds; twice it is a bigint still
begin
  if p_id is null or p_tokens is null or p_tokens < 1 or p_max_wait_ms is null or p_max_wait_ms < 0
     or p_keep is null or p_keep < 0 then
    raise exception 'tollgate: request_tokens(%, %, %, %): give a bucket''s id, 1 token or more, and a longest wait '
                    'and a number of tokens to keep of 0 or more',
                    quote_nullable(left(p_id, 255)), p_tokens, p_max_wait_ms, p_keep
      using errcode = 'invalid_parameter_value';
  end if;

  t := tollgate.take_v1(p_id, least(p_tokens, c_most), least(p_max_wait_ms, c_year_ms) * 1000000,
                        least(p_keep, c_most), null, null, null, p_plan, p_request, c_day);
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
                      quote_literal(p_id), t.burst / t.token_ticks, p_tokens, p_keep
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
  retry_after_ms := tollgate.taken_until_v1(t, least(p_tokens, c_most) + least(p_keep, c_most));
  if t.outcome = 'denied' and t.mode = 'block' then
    retry_after_ms := (t.acts_at - t.now + 999999) / 1000000;
  end if;
  reset_after_ms := tollgate.taken_until_v1(t, t.burst / t.token_ticks);
end
$$;

revoke all on function tollgate.request_tokens_v1(text, bigint, bigint, bigint, text, uuid) from public;

-- request_tokens: the current version's friendly name.
create function tollgate.request_tokens(
  p_id text, p_tokens bigint default 1, p_max_wait_ms bigint default 0, p_keep bigint default 0,
  p_plan text default null, p_request uuid default null,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_keep, p_plan, p_request)
$$;

revoke all on function tollgate.request_tokens(text, bigint, bigint, bigint, text, uuid) from public;
