-- token_sizes: how large each table of tollgate's is. Reads only, and only what the server estimates: MySQL renews that
-- once a day unless information_schema_stats_expiry says otherwise.
--
--   live_rows   about
--   bytes       with indexes
--   free_bytes  allotted and not used
create sql security definer view token_sizes as
select t.table_name as name, t.table_rows as live_rows, t.data_length + t.index_length as bytes,
       t.data_free as free_bytes
  from information_schema.tables t
 where t.table_schema = database() and t.table_type = 'BASE TABLE' and t.table_name like 'token\_%'
