-- Least privilege for MySQL and MariaDB: optional, for an administrator to run after the migrations, as often as
-- wanted, with the database selected: mysql app < mysql.sql
--
--   tollgate_app       takes tokens, looks at a key by its name, and sweeps step by step, as limiters do; can write no table
--   tollgate_operator  also provisions, changes, reads, resets and deletes buckets, plans, overrides and the mode, and sweeps
--                      by hand
--
-- The routines run as the account that ran the migrations, so their helpers and tables need no grants, and that account
-- must stay. Roles belong to the whole server, what they are granted here to this database. Then, for each account of
-- yours, one that has no privileges on the whole database, as those would include the tables; nor CREATE TEMPORARY
-- TABLES, as a temporary table hides the one of its name, token_mode say, from the routines, too:
--
--   grant tollgate_app to my_service@'%';
--   set default role tollgate_app to my_service@'%';    -- MySQL
--   set default role tollgate_app for my_service@'%';   -- MariaDB
create role if not exists tollgate_app, tollgate_operator;

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
grant execute on procedure token_sweep_v1 to tollgate_app;
grant execute on procedure token_count_denials_v1 to tollgate_app;
grant execute on procedure request_token to tollgate_app;
grant execute on procedure request_tokens to tollgate_app;
grant execute on procedure request_tokens_v1 to tollgate_app;
grant execute on procedure request_planned_tokens to tollgate_app;
grant execute on procedure request_tokens_once to tollgate_app;
grant execute on procedure request_tokens_many to tollgate_app;
grant execute on procedure request_tokens_in_window to tollgate_app;
grant execute on procedure request_tokens_in_window_v1 to tollgate_app;
grant execute on procedure rate_limiting_request to tollgate_app;
grant execute on procedure token_peek to tollgate_app;
grant execute on procedure token_peek_window to tollgate_app;
grant execute on procedure token_explain to tollgate_app;

-- By which the crate sees whether anything is pending.
grant select on token_migrations to tollgate_app;

grant tollgate_app to tollgate_operator;
grant execute on procedure token_create_bucket to tollgate_operator;
grant execute on procedure token_create_plan to tollgate_operator;
grant execute on procedure token_reset_bucket to tollgate_operator;
grant execute on procedure token_delete_bucket to tollgate_operator;
grant execute on procedure token_sweep to tollgate_operator;
grant execute on procedure token_list_windows to tollgate_operator;
grant select on token_bucket_levels to tollgate_operator;
grant select on token_windows to tollgate_operator;
grant select on token_most_denied to tollgate_operator;
grant select on token_rules to tollgate_operator;
grant select on token_sizes to tollgate_operator;
grant select, delete on token_stats to tollgate_operator;

-- The terms, not the state: what was taken cannot be given back by an UPDATE.
grant select, insert (id, capacity, refill_seconds, refill, plan),
      update (capacity, refill_seconds, refill, plan, provisioned), delete
   on token_buckets to tollgate_operator;

grant select, insert, update, delete on token_plans to tollgate_operator;
grant select, insert, update, delete on token_overrides to tollgate_operator;
grant select, insert (mode, reason, until), update (mode, reason, until) on token_mode to tollgate_operator;
