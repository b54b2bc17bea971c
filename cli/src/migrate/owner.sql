-- Gives tollgate's objects in PostgreSQL to a role without other privileges, because the routines run with the privileges of
-- their owner. Run this script as a superuser if a superuser ran the migrations. You can repeat it. Later, migrate as a member
-- of the role (set role tollgate_owner), or run this script again after each upgrade.
--
--   tollgate_owner  owns tables, views and routines, and may create schemas in this database, as migrations do
do $$
declare
  v_what record;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  if not exists (select from pg_catalog.pg_roles where rolname = 'tollgate_owner') then
    create role tollgate_owner nologin;
  end if;
  execute format('grant create on database %I to tollgate_owner', current_database());
  alter schema tollgate owner to tollgate_owner;
  for v_what in
    select oid::regclass as name from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
  loop
    execute format('alter table %s owner to tollgate_owner', v_what.name);
  end loop;
  for v_what in select oid::regprocedure as name from pg_proc where pronamespace = 'tollgate'::regnamespace loop
    execute format('alter function %s owner to tollgate_owner', v_what.name);
  end loop;
end
$$;
