-- token_clock_v1() -> now, in nanoseconds since 1970.
--
-- The one clock of every decision: the server's, at this very instant. now() and statement_timestamp() would be
-- older than a wait for a lock, and no setting of a session (TimeZone, search_path) changes this one.
create function tollgate.token_clock_v1() returns bigint
language sql volatile
as $$
  select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint * 1000
$$;

revoke all on function tollgate.token_clock_v1() from public;
