-- reset_bucket: make a bucket full, under the terms that rule it now, and forget what its key's sliding window has
-- counted. It counts as a grant of its capacity, so that no earlier reservation gives anything back any more.
--
-- Result: whether there is such a bucket, or a window that something was counted in. Locks: its row.
create function tollgate.reset_bucket(p_id text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_found   boolean;
  v_window  boolean;
  v_changed boolean;
begin
  perform from tollgate.token_buckets b where b.id = p_id for no key update;
  if found then
    -- From an override to its plan it comes in two steps.
    for v_step in 1 .. 4 loop
      select r.changed into v_changed
        from tollgate.rule_v1(p_id, null, null, null, null, tollgate.token_clock_v1(), true) r;
      exit when v_changed is not true;
    end loop;
  end if;
  update tollgate.token_buckets b
     set full_at = tollgate.bucket_clock_v1(b, tollgate.token_clock_v1()), longest_wait = 0,
         granted = least(b.granted::numeric + b.burst / b.token_ticks, 4611686018427387903)
   where b.id = p_id;
  v_found := found;
  delete from tollgate.token_windows w where w.id = p_id returning w.granted > 0 into v_window;
  return v_found or v_window is true;
end
$$;

revoke all on function tollgate.reset_bucket(text) from public;

-- delete_bucket: forget a bucket, and its key's sliding window. One that is made again by its next request is full
-- then.
--
-- Result: whether there was such a bucket, or a window that something was counted in. Locks: its row.
create function tollgate.delete_bucket(p_id text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_found  boolean;
  v_window boolean;
begin
  delete from tollgate.token_buckets b where b.id = p_id;
  v_found := found;
  delete from tollgate.token_windows w where w.id = p_id returning w.granted > 0 into v_window;
  return v_found or v_window is true;
end
$$;

revoke all on function tollgate.delete_bucket(text) from public;
