-- Distributes tollgate's tables over the nodes: rows of one key are on one node, in every table. Each node has a copy of the
-- small tables, which every decision reads. Moves existing rows, and checks their number. A table that is distributed already
-- stays as it is.
--
-- A receipt of a sliding window is on the node of its own key, which is that of the window with U+0001 before it.
do $$
declare
  v_table  record;
  v_before bigint;
  v_after  bigint;
begin
  -- Triggers compute the derived columns and check the rules, on the node of the row.
  perform set_config('citus.enable_unsafe_triggers', 'on', true);
  perform set_config('citus.multi_shard_modify_mode', 'sequential', true);
  for v_table in
    select t.name::regclass as name, t.key
      from (values (1, 'tollgate.migrations', null), (2, 'tollgate.token_sweep_position', null),
                   (3, 'tollgate.token_mode', null), (4, 'tollgate.token_plans', null),
                   (5, 'tollgate.token_buckets', 'id'), (6, 'tollgate.token_overrides', 'id'),
                   (7, 'tollgate.token_windows', 'id'), (8, 'tollgate.token_receipts', 'bucket'),
                   (9, 'tollgate.token_stats', 'id'), (10, 'tollgate.token_plan_limits', null),
                   (11, 'tollgate.token_usage_recording', null), (12, 'tollgate.token_usage_records', 'id')) t (place, name, key)
     where not exists (select from pg_dist_partition p where p.logicalrelid = t.name::regclass)
     order by t.place
  loop
    execute format('lock table %s in exclusive mode', v_table.name);
    execute format('select count(*) from %s', v_table.name) into v_before;
    if v_table.key is null then
      perform create_reference_table(v_table.name);
    elsif v_table.name = 'tollgate.token_buckets'::regclass then
      perform create_distributed_table(v_table.name, v_table.key, colocate_with => 'none');
    else
      perform create_distributed_table(v_table.name, v_table.key, colocate_with => 'tollgate.token_buckets');
    end if;
    execute format('select count(*) from %s', v_table.name) into v_after;
    if v_after <> v_before then
      raise exception 'tollgate: % has % rows on the nodes, and had %', v_table.name, v_after, v_before;
    end if;
    perform truncate_local_data_after_distributing_table(v_table.name);
  end loop;
  -- A round of record_usage would lock rows of all nodes.
  if not exists (select from pg_constraint c where c.conname = 'citus_records_no_usage') then
    alter table tollgate.token_usage_recording add constraint citus_records_no_usage check (one is null);
  end if;
end
$$;
