-- token_clock_v1() -> now, in nanoseconds since 1970.
--
-- The one clock of every decision: the server's, at this very instant. now() and statement_timestamp() would be
-- older than a wait for a lock, and no setting of a session (TimeZone, search_path) changes this one. A double holds
-- microseconds exactly until the year 2242, and is read three times as fast as the numeric of extract().
create function tollgate.token_clock_v1() returns bigint
language sql volatile
return (date_part('epoch', pg_catalog.clock_timestamp()) * '1000000'::float8)::bigint * 1000;

revoke all on function tollgate.token_clock_v1() from public;
