-- Least privilege for MySQL and MariaDB. Optional: an administrator can run this file after the migrations, any number of
-- times, with the database selected: mysql app < mysql.sql
--
--   tollgate_app       takes tokens, reads a key by its name, and sweeps step by step, as limiters do; cannot write a table
--   tollgate_operator  also provisions, changes, reads, resets and deletes buckets, plans, overrides and the mode, and sweeps
--                      by hand
--
-- The routines run as the account that ran the migrations, so that account must stay, and its helpers and tables need no
-- grants. Roles belong to the whole server, but these privileges apply to this database only.
--
-- Then grant a role to each of your accounts. The accounts must not have privileges on the whole database, which would include
-- the tables and cannot be revoked for these alone: the last statement lists such accounts. Nor CREATE TEMPORARY TABLES: a
-- temporary table hides the table of its name, even from the routines.
--
--   grant tollgate_app to my_service@'%';
--   set default role tollgate_app to my_service@'%';    -- MySQL
--   set default role tollgate_app for my_service@'%';   -- MariaDB
create role if not exists tollgate_app, tollgate_operator;

-- MySQL takes an account of that name for the role, with its password. Fails before it gains privileges.
drop temporary table if exists tollgate_role;
create temporary table tollgate_role (
  logins int, constraint the_role_is_an_account_that_can_log_in_use_a_prefix check (logins = 0));
insert into tollgate_role
select count(*) from mysql.user
 where user in ('tollgate_app', 'tollgate_operator') and host = '%' /*!80000 and account_locked = 'N' */ /*M! and false */;
drop temporary table tollgate_role;

grant execute on procedure token_take_v1 to tollgate_app;
grant execute on procedure token_take_batch_v1 to tollgate_app;
grant execute on procedure token_take_uniform_v1 to tollgate_app;
grant execute on procedure token_take_all_v1 to tollgate_app;
grant execute on procedure token_take_all_batch_v1 to tollgate_app;
grant execute on procedure token_adjust_v1 to tollgate_app;
grant execute on procedure token_adjust_batch_v1 to tollgate_app;
grant execute on procedure token_take_window_v1 to tollgate_app;
grant execute on procedure token_adjust_window_v1 to tollgate_app;
grant execute on procedure token_throttle_v1 to tollgate_app;
grant execute on procedure token_throttle to tollgate_app;
grant execute on procedure token_charge to tollgate_app;
grant execute on procedure token_sweep_v1 to tollgate_app;
grant execute on procedure token_count_denials_v1 to tollgate_app;
grant execute on procedure token_record_usage_v1 to tollgate_app;
grant execute on procedure request_token to tollgate_app;
grant execute on procedure request_tokens to tollgate_app;
grant execute on procedure request_tokens_v1 to tollgate_app;
grant execute on procedure request_planned_tokens to tollgate_app;
grant execute on procedure request_tokens_once to tollgate_app;
grant execute on procedure request_tokens_many to tollgate_app;
grant execute on procedure request_tokens_all to tollgate_app;
grant execute on procedure token_plan_limits_v1 to tollgate_app;
grant execute on procedure request_tokens_in_window to tollgate_app;
grant execute on procedure request_tokens_in_window_v1 to tollgate_app;
grant execute on procedure rate_limiting_request to tollgate_app;
grant execute on procedure token_peek to tollgate_app;
grant execute on procedure token_peek_window to tollgate_app;
grant execute on procedure token_explain to tollgate_app;

-- Lets the crate check for pending migrations.
grant select on token_migrations to tollgate_app;

grant tollgate_app to tollgate_operator;
grant execute on procedure token_create_bucket to tollgate_operator;
grant execute on procedure token_create_plan to tollgate_operator;
grant execute on procedure token_create_plan_limit to tollgate_operator;
grant execute on procedure token_delete_plan to tollgate_operator;
grant execute on procedure token_reset_bucket to tollgate_operator;
grant execute on procedure token_delete_bucket to tollgate_operator;
grant execute on procedure token_sweep to tollgate_operator;
grant execute on procedure token_record_usage to tollgate_operator;
grant execute on procedure token_list_usage_v1 to tollgate_operator;
grant execute on procedure token_list_windows to tollgate_operator;
grant select on token_bucket_levels to tollgate_operator;
grant select on token_windows to tollgate_operator;
grant select on token_most_denied to tollgate_operator;
grant select on token_rules to tollgate_operator;
grant select on token_sizes to tollgate_operator;
grant select on token_usage to tollgate_operator;
grant select, delete on token_stats to tollgate_operator;

-- The limits, but not the state: no UPDATE can give back tokens that were taken.
grant select, insert (id, capacity, refill_seconds, refill, plan),
      update (capacity, refill_seconds, refill, plan, provisioned), delete
   on token_buckets to tollgate_operator;

grant select, insert, update, delete on token_plans to tollgate_operator;
grant select, insert, update, delete on token_plan_limits to tollgate_operator;
grant select, insert, update, delete on token_overrides to tollgate_operator;
grant select, insert (mode, reason, until), update (mode, reason, until) on token_mode to tollgate_operator;
grant select, insert (every_seconds, keep_days), update (every_seconds, keep_days, ending, recorded_to), delete
   on token_usage_recording to tollgate_operator;

-- The members of the roles: those of existing roles have just gained these privileges.
select /*!80000 from_user */ /*M! role */ as role, /*!80000 to_user */ /*M! user */ as member
  from mysql./*!80000 role_edges */ /*M! roles_mapping */
 where /*!80000 from_user */ /*M! role */ in ('tollgate_app', 'tollgate_operator')
   and /*!80000 to_user */ /*M! user */ <> 'tollgate_operator';

-- The other accounts that can write every bucket by a grant on the whole database.
select distinct grantee as can_write_every_bucket, table_schema as by_a_grant_on
  from information_schema.schema_privileges
 where privilege_type in ('UPDATE', 'DELETE', 'INSERT')
   and database() like replace(replace(table_schema, '|', '||'), char(92 using utf8mb4), '|') escape '|'
   and grantee not in (select concat('''', replace(definer, '@', '''@'''), '''') from information_schema.routines
                        where routine_schema = database() and routine_name = 'token_take_v1');
