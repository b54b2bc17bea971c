-- request_token: take one token from a provisioned bucket, now or not at all.
--
-- Arguments, results, errors and locks: those of request_tokens_v1.
create function tollgate.request_token(
  p_id text,
  out granted boolean, out remaining bigint, out wait_ms bigint, out retry_after_ms bigint, out reset_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  select t.granted, t.remaining, t.wait_ms, t.retry_after_ms, t.reset_after_ms
    into granted, remaining, wait_ms, retry_after_ms, reset_after_ms
    from tollgate.request_tokens_v1(p_id, 1, 0, 0, null, null) t;
end
$$;

revoke all on function tollgate.request_token(text) from public;
