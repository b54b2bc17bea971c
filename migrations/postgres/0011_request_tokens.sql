-- request_tokens_v1: take tokens from a provisioned bucket, all or none.
--
-- Arguments: p_id           the bucket
--            p_tokens       how many, 1 or more
--            p_max_wait_ms  how long you would wait for them; 0: take them now or not at all
--            p_keep         how many must remain for others
-- Result:    granted        whether you have them
--            remaining      whole tokens left
--            wait_ms        milliseconds until you may use them: 0, or up to p_max_wait_ms
--            retry_after_ms milliseconds until the next request like this one could be granted; 0: at once
--            reset_after_ms milliseconds until the bucket is full
-- Errors:    22023 arguments out of range, or more tokens than the bucket ever holds · P0002 no such bucket
-- Locks:     see take_v1. In a transaction of yours the bucket stays locked until it ends, and a rollback gives back.
create function tollgate.request_tokens_v1(
  p_id text, p_tokens bigint, p_max_wait_ms bigint, p_keep bigint,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t           record;
  v_clock     bigint;
  v_full_at   bigint;
  v_due       bigint;
  c_ms        constant numeric := 1000000;
  c_year_ms   constant bigint := 31622400000;
  c_most      constant bigint := 4611686018427387903;  -- more than any bucket holds; twice it is a bigint still
begin
  if p_id is null or p_tokens is null or p_tokens < 1 or p_max_wait_ms is null or p_max_wait_ms < 0
     or p_keep is null or p_keep < 0 then
    raise exception 'tollgate: request_tokens(%, %, %, %): give a bucket''s id, 1 token or more, and a longest wait '
                    'and a number of tokens to keep of 0 or more',
                    quote_nullable(left(p_id, 255)), p_tokens, p_max_wait_ms, p_keep
      using errcode = 'invalid_parameter_value';
  end if;

  select * into t
    from tollgate.take_v1(p_id, least(p_tokens, c_most), least(p_max_wait_ms, c_year_ms) * 1000000,
                          least(p_keep, c_most), null, null, null);
  if t.outcome = 'unknown' then
    raise exception 'tollgate: there is no bucket %', quote_literal(left(p_id, 255))
      using errcode = 'no_data_found',
            hint = format('Provision it: select tollgate.create_bucket(%L, 100, 60); -- 100 tokens a minute',
                          left(p_id, 255));
  elsif t.outcome = 'never' then
    raise exception 'tollgate: bucket % holds % tokens, so % and % to keep can never be had at once',
                    quote_literal(p_id), t.capacity, p_tokens, p_keep
      using errcode = 'invalid_parameter_value', hint = 'Ask for fewer tokens, or give the bucket a larger capacity.';
  end if;

  granted := t.outcome = 'granted';
  v_clock := (t.now - t.anchor) / t.step_ns * t.step_ticks;
  v_full_at := greatest(t.full_at, v_clock);
  remaining := greatest((t.capacity * t.token_ticks - v_full_at + v_clock) / t.token_ticks, 0);
  v_due := case when granted then v_full_at + (p_keep - t.capacity) * t.token_ticks else v_clock end;
  wait_ms := ceil(greatest(
    t.anchor + (v_due + t.step_ticks - 1) / t.step_ticks * t.step_ns - t.now, 0) / c_ms);
  v_due := v_full_at + (p_tokens + p_keep - t.capacity) * t.token_ticks;
  retry_after_ms := ceil(greatest(
    t.anchor + (v_due + t.step_ticks - 1) / t.step_ticks * t.step_ns - t.now, 0) / c_ms);
  reset_after_ms := ceil(greatest(
    t.anchor + (v_full_at + t.step_ticks - 1) / t.step_ticks * t.step_ns - t.now, 0) / c_ms);
end
$$;

revoke all on function tollgate.request_tokens_v1(text, bigint, bigint, bigint) from public;

-- request_tokens: the current version's friendly name.
create function tollgate.request_tokens(
  p_id text, p_tokens bigint default 1, p_max_wait_ms bigint default 0, p_keep bigint default 0,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
  select * from tollgate.request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_keep)
$$;

revoke all on function tollgate.request_tokens(text, bigint, bigint, bigint) from public;
