-- peek: a bucket as people think of it, at this instant: its row of token_bucket_levels. Reads, locks and changes nothing.
--
-- Arguments: p_id    the bucket
-- Result:    one row, or none: it was not made yet, or was swept
--
-- For those who may look at a bucket whose name they know, and not at all of them.
create function tollgate.peek(p_id text) returns setof tollgate.token_bucket_levels
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select l.* from tollgate.token_bucket_levels l where l.id = p_id
$$;

revoke all on function tollgate.peek(text) from public;
