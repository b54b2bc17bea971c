-- token_sizes: how large each table of tollgate's is, and how it is kept. Reads only, and only what the server counts.
--
--   live_rows, dead_rows: about; dead ones are what vacuum clears away
--   bytes      with indexes
--   hot_ratio  of the updates, those that wrote no index: near 1, or the table grows; null: no updates yet
create view tollgate.token_sizes as
select s.relname::text as name, s.n_live_tup as live_rows, s.n_dead_tup as dead_rows,
       pg_total_relation_size(s.relid::regclass) as bytes, s.n_tup_upd as updates,
       round(s.n_tup_hot_upd::numeric / nullif(s.n_tup_upd, 0)::numeric, 3) as hot_ratio,
       greatest(s.last_vacuum, s.last_autovacuum) as last_vacuum_at
  from pg_catalog.pg_stat_user_tables s
 where s.schemaname = 'tollgate';

revoke all on tollgate.token_sizes from public;

comment on view tollgate.token_sizes is 'Each table: rows, bytes, ratio of updates that wrote no index';
