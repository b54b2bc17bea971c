-- Least privilege for PostgreSQL and YugabyteDB. Optional: an administrator can run this file after the migrations, any number
-- of times. Without it, only superusers and the role that ran the migrations have privileges.
--
--   tollgate_app       takes tokens, reads a key by its name, and sweeps step by step, as limiters do; can neither read nor
--                      write a table
--   tollgate_operator  also provisions, changes, reads, resets and deletes buckets, plans, overrides and the mode, and sweeps
--                      by hand
--
-- The routines run as their owner, so their helpers and tables need no grants. Roles belong to the whole server, but these
-- privileges apply to this database only. Then grant a role to each of your logins:
--
--   grant tollgate_app to my_service;
do $$
declare
  v_role    text;
  v_members text;
  v_grantee text;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  foreach v_role in array '{tollgate_app,tollgate_operator}'::text[] loop
    if not exists (select from pg_roles where rolname = v_role) then
      begin
        execute format('create role %I nologin', v_role);
      exception
        when unique_violation or duplicate_object then null;  -- another database's session created it meanwhile
      end;
    elsif exists (select from pg_roles r
                   where r.rolname = v_role and (r.rolcanlogin or r.rolsuper or r.rolcreaterole or r.rolcreatedb
                                                 or r.rolreplication or r.rolbypassrls)) then
      raise exception 'role % exists, and can log in or has other attributes', v_role
        using hint = 'rename that role, or print the grants with a --prefix';
    elsif not has_function_privilege(v_role, 'tollgate.request_token(text)', 'execute') then
      -- A role of another database, or of another program.
      select string_agg(quote_ident(m.rolname), ', ' order by m.rolname) into v_members
        from pg_auth_members a join pg_roles m on m.oid = a.member
       where a.roleid = (select oid from pg_roles where rolname = v_role)
         and m.rolname not in (current_user, 'tollgate_operator');
      if v_members is not null then
        raise warning 'role % exists: its members gain its privileges in this database: %', v_role, v_members
          using hint = 'to separate databases, print the grants with a --prefix';
      end if;
    end if;
  end loop;

  -- Migrations leave these roles nothing. A restore without privileges does not take back what default privileges give.
  for v_grantee in
    select distinct a.grantee::regrole::text
      from pg_namespace n
      join pg_default_acl d on d.defaclrole = n.nspowner and d.defaclnamespace in (0, n.oid)
     cross join aclexplode(d.defaclacl) a
     where n.nspname = 'tollgate' and d.defaclobjtype in ('r', 'f', 'n') and a.grantee not in (0, n.nspowner)
  loop
    execute format('revoke all on all tables in schema tollgate from %s cascade', v_grantee);
    execute format('revoke all on all functions in schema tollgate from %s cascade', v_grantee);
    execute format('revoke all on schema tollgate from %s cascade', v_grantee);
  end loop;
end
$$;

grant usage on schema tollgate to tollgate_app;

grant execute on function
  tollgate.applied_migrations(),
  tollgate.take_v1(text, bigint, bigint, bigint, bigint, numeric, text, text, uuid, bigint),
  tollgate.grant_v1(text, bigint, bigint, bigint, numeric, text, text),
  tollgate.take_equal_v1(text, bigint, bigint, bigint, numeric, text, text, bigint),
  tollgate.take_batch_v1(
    text[], bigint[], bigint[], bigint[], bigint[], bigint[], numeric[], text[], text[]),
  tollgate.take_each_v1(
    bigint[], text[], bigint[], bigint[], bigint[], bigint[], bigint[], numeric[], text[], text[], uuid[], bigint[]),
  tollgate.take_all_v1(
    text[], bigint[], bigint[], bigint[], numeric[], text[], text[], bigint, uuid, bigint),
  tollgate.take_all_batch_v1(bigint[], text[], bigint[], bigint[], bigint[], numeric[], text[], text[]),
  tollgate.adjust_v1(text, uuid, text, bigint, bigint, bigint, bigint, bigint),
  tollgate.adjust_batch_v1(text[], uuid[], text[], bigint[], bigint[], bigint[], bigint[], boolean[], bigint[]),
  tollgate.take_window_v1(
    text, bigint, bigint, bigint, bigint, bigint, bigint, uuid, bigint, boolean),
  tollgate.adjust_window_v1(text, uuid, text, bigint, bigint, bigint),
  tollgate.throttle_v1(text, bigint, bigint, bigint, numeric, text, text),
  tollgate.throttle(text, double precision, double precision, double precision, text),
  tollgate.charge(text, double precision, text, uuid),
  tollgate.sweep_v1(bigint),
  tollgate.count_denials_v1(text[], bigint[]),
  tollgate.record_usage_v1(bigint),
  tollgate.request_token(text),
  tollgate.request_tokens(text, double precision, double precision, double precision, text, uuid),
  tollgate.request_tokens_v1(text, double precision, double precision, double precision, text, uuid),
  tollgate.request_tokens_many(text[], double precision[]),
  tollgate.request_tokens_all(text[], double precision[], text[], double precision, double precision, uuid),
  tollgate.limit_ids(text, text),
  tollgate.plan_limits_v1(text),
  tollgate.request_tokens_in_window(text, double precision, double precision, double precision, double precision, double precision),
  tollgate.request_tokens_in_window_v1(
    text, double precision, double precision, double precision, double precision, double precision),
  tollgate.rate_limiting_request(text, double precision, double precision),
  tollgate.peek(text),
  tollgate.peek_window(text),
  tollgate.explain(text, text)
to tollgate_app;

grant tollgate_app to tollgate_operator;

-- The functions of a view and of a column default run as the role that reads or inserts.
grant execute on function
  tollgate.create_bucket(text, bigint, numeric, text),
  tollgate.create_bucket(text, double precision, double precision, text),
  tollgate.create_plan(text, bigint, numeric, text),
  tollgate.create_plan(text, double precision, double precision, text),
  tollgate.create_plan_limit(text, text, bigint, numeric, text, text),
  tollgate.delete_plan(text),
  tollgate.reset_bucket(text),
  tollgate.delete_bucket(text),
  tollgate.sweep(),
  tollgate.list_usage_v1(text, text, text, timestamptz, timestamptz, bigint),
  tollgate.clock(),
  tollgate.bucket_limits(text, numeric, numeric, text, bigint),
  tollgate.has_units_of(bigint, bigint, bigint, bigint, bigint, numeric, numeric, text),
  tollgate.period_bounds(text, bigint),
  tollgate.local_instant(timestamp without time zone, text),
  tollgate.in_force(timestamptz, bigint),
  tollgate.ticks_at(bigint, bigint, bigint, bigint),
  tollgate.instant_of(bigint, bigint, bigint, bigint),
  tollgate.window_is_sound(bigint, bigint, bigint, bigint, bigint[], bigint[]),
  tollgate.window_stepped_back(bigint[], bigint, bigint, bigint),
  tollgate.window_earliest(bigint[], bigint[], bigint, bigint, bigint, bigint)
to tollgate_operator;

grant select on
  tollgate.token_bucket_levels, tollgate.token_buckets, tollgate.token_windows, tollgate.migrations,
  tollgate.token_window_levels, tollgate.token_most_denied, tollgate.token_rules, tollgate.token_sizes,
  tollgate.token_usage
to tollgate_operator;
grant select, delete on tollgate.token_stats to tollgate_operator;

grant delete on tollgate.token_buckets to tollgate_operator;
grant select, insert, update, delete on tollgate.token_plans, tollgate.token_plan_limits, tollgate.token_overrides
   to tollgate_operator;
grant select on tollgate.token_mode to tollgate_operator;

-- The limits, but not the state. Changing the limits to refill at once can still fill a bucket, like reset_bucket. Citus refuses
-- grants on columns: see docs/start/citus.md.
grant insert (id, capacity, refill_seconds, refill, plan),
      update (capacity, refill_seconds, refill, plan, provisioned)
   on tollgate.token_buckets to tollgate_operator;
grant insert (mode, reason, until), update (mode, reason, until) on tollgate.token_mode to tollgate_operator;
grant select, insert (every_seconds, keep_days), update (every_seconds, keep_days, ending, recorded_to), delete
   on tollgate.token_usage_recording to tollgate_operator;
