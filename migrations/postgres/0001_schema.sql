-- Everything of tollgate's lives in a schema of its own. PUBLIC may not even look into it:
-- ../grants/postgres.sql gives roles of yours what they need.
--
-- Not in a database whose encoding has not every character: one key that it cannot write would fail all requests of its call.
-- SQL_ASCII takes any bytes.
do $$
begin
  if current_setting('server_encoding') not in ('UTF8', 'SQL_ASCII') then
    raise exception 'this database is encoded in %, which has not every character of a key: create database ... encoding ''UTF8'' template template0, and migrate that',
        current_setting('server_encoding')
      using errcode = 'feature_not_supported';
  end if;
  -- An administrator may have made it for a role that may make none.
  if to_regnamespace('tollgate') is null then
    create schema tollgate;
    comment on schema tollgate is 'Exact rate limiting: select * from tollgate.request_token(''my-bucket'')';
  end if;
end
$$;

revoke all on schema tollgate from public;

-- Which of these files have run.
create table tollgate.migrations (
  version    bigint primary key,
  name       text not null,
  applied_at timestamptz not null default now()
);

revoke all on tollgate.migrations from public;

-- applied_migrations() -> the versions that have run, for roles that may not read the table.
create function tollgate.applied_migrations() returns setof bigint
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
  select m.version from tollgate.migrations m order by m.version
$$;

revoke all on function tollgate.applied_migrations() from public;
