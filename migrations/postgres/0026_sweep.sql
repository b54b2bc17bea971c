-- sweep_v1: one bounded step of clearing away what carries no information any more: buckets that were not provisioned
-- and are full, windows in which nothing counts, receipts and overrides that have expired, denials of two days ago.
--
-- Arguments: p_after  where the last step ended; null: begin
--            p_limit  how many buckets to look at, and how many rows of each other table to delete at most: 1 to 10000
-- Result:    deleted  rows
--            next     where the next step begins; null: this one came to the end
-- Locks:     rows that nobody else has locked; what is locked is left for another time.
create function tollgate.sweep_v1(p_after text, p_limit bigint, out deleted bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now   constant bigint := tollgate.token_clock_v1();
  v_ids   text[];
  v_count bigint;
begin
  p_limit := least(greatest(coalesce(p_limit, 1000), 1), 10000);
  select array_agg(s.id order by s.id) into v_ids
    from (select b.id from tollgate.token_buckets b where p_after is null or b.id > p_after
           order by b.id limit p_limit) s;
  next := case when cardinality(v_ids) = p_limit then v_ids[p_limit] end;

  delete from tollgate.token_buckets b
   using (select c.id from tollgate.token_buckets c
           where c.id = any (v_ids) and not c.provisioned and c.full_at <= tollgate.bucket_clock_v1(c, v_now)
           order by c.id for update skip locked) f
   where b.id = f.id and not b.provisioned and b.full_at <= tollgate.bucket_clock_v1(b, v_now);
  get diagnostics deleted = row_count;

  if next is null then
    delete from tollgate.token_receipts r
     using (select e.id, e.bucket from tollgate.token_receipts e where e.expires_at <= v_now
             order by e.id, e.bucket limit p_limit for update skip locked) e
     where r.id = e.id and r.bucket = e.bucket;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    delete from tollgate.token_windows w
     using (select e.id from tollgate.token_windows e
             where coalesce(e.ends[array_length(e.ends, 1)], 0) + e.interval_ns <= v_now
             order by e.id limit p_limit for update skip locked) e
     where w.id = e.id;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    delete from tollgate.token_overrides o
     using (select e.id from tollgate.token_overrides e where not tollgate.in_force_v1(e.expires_at, v_now)
             order by e.id limit p_limit for update skip locked) e
     where o.id = e.id;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    -- No denial in that hour is of the last 48.
    delete from tollgate.token_stats s
     using (select e.hour, e.id from tollgate.token_stats e
             where e.hour < to_timestamp(v_now / 1000000000.0) - interval '49 hours'
             order by e.hour, e.id limit p_limit for update skip locked) e
     where s.hour = e.hour and s.id = e.id;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    -- Nobody makes an override while the row is locked, because its trigger waits for that.
    if exists (select from tollgate.token_mode g where g.overrides)
       and not exists (select from tollgate.token_overrides) then
      perform from tollgate.token_mode g for update skip locked;
      if found then
        update tollgate.token_mode g set overrides = false where not exists (select from tollgate.token_overrides);
      end if;
    end if;
  end if;
end
$$;

revoke all on function tollgate.sweep_v1(text, bigint) from public;

-- sweep: all steps, for your scheduler: select tollgate.sweep(). Rows deleted. To keep its transaction short, call
-- sweep_v1 step by step instead.
create function tollgate.sweep() returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_step  record;
  v_after text;
  v_total bigint := 0;
begin
  loop
    select s.* into v_step from tollgate.sweep_v1(v_after, 1000) s;
    v_total := v_total + v_step.deleted;
    v_after := v_step.next;
    exit when v_after is null;
  end loop;
  return v_total;
end
$$;

revoke all on function tollgate.sweep() from public;
