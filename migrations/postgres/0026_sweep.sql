-- How far the sweep has come, for all sessions that sweep. One row: without it, a step waits for another session's first step.
create table tollgate.token_sweep_position (
  swept_to text collate "C",  -- a table, and behind which of its rows the next step begins; null: it begins anew
  one      boolean primary key default true check (one)
);

insert into tollgate.token_sweep_position default values on conflict do nothing;

revoke all on tollgate.token_sweep_position from public;

-- sweep_step_v1: one bounded step of deleting expired rows: buckets that were not provisioned and are full, windows in
-- which nothing counts, but of neither those of requests that can be settled still; receipts and overrides that have
-- expired, denials of two days ago.
--
-- Arguments: p_after  where the last step ended; null: begin
--            p_limit  how many rows to look at, of all tables together: 1 to 1000
-- Result:    deleted  rows
--            next     where the next step begins: a table, and behind which of its rows; null: this one came to the end
-- Locks:     the rows that it deletes, but for those that another session has locked.
--
-- Each table is walked by its primary key, as an index on when a row expires would be written by each decision. Receipts
-- are looked up for each row, and by their index: joined, or of few buckets, all of them might be read.
create function tollgate.sweep_step_v1(p_after text, p_limit bigint, out deleted bigint, out next text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  v_now     constant bigint := tollgate.token_clock_v1();
  v_table   text collate "C" := coalesce(split_part(p_after, '/', 1), 'buckets');
  v_after   text collate "C" := coalesce(substr(p_after, length(v_table) + 2), '');
  v_left    bigint := least(greatest(coalesce(p_limit, 1000), 1), 1000);
  v_last    text collate "C";
  v_receipt uuid := '00000000-0000-0000-0000-000000000000';
  v_to      uuid;
  v_count   bigint;
begin
  deleted := 0;
  if v_table = 'buckets' then
    select count(*), max(s.id) into v_count, v_last
      from (select b.id from tollgate.token_buckets b where b.id > v_after order by b.id limit v_left) s;
    delete from tollgate.token_buckets b
     using (select c.id from tollgate.token_buckets c
             where c.id > v_after and c.id <= v_last
               and not c.provisioned and c.full_at <= tollgate.bucket_clock_v1(c, v_now)
               and (select true from tollgate.token_receipts r
                     where r.bucket = c.id and r.state = 'open' and r.expires_at > v_now limit 1) is null
             order by c.id for update skip locked) f
     where b.id = f.id and not b.provisioned and b.full_at <= tollgate.bucket_clock_v1(b, v_now);
    get diagnostics deleted = row_count;
    if v_count = v_left then
      next := 'buckets/' || v_last;
      return;
    end if;
    v_left := v_left - v_count;
    v_table := 'windows';
    v_after := '';
  end if;

  if v_table = 'windows' then
    select count(*), max(s.id) into v_count, v_last
      from (select w.id from tollgate.token_windows w where w.id > v_after order by w.id limit v_left) s;
    next := case when v_count = v_left then 'windows/' || v_last end;
    v_left := v_left - v_count;
    delete from tollgate.token_windows w
     using (select e.id from tollgate.token_windows e
             where e.id > v_after and e.id <= v_last
               and coalesce(e.ends[array_length(e.ends, 1)], 0) + e.interval_ns <= v_now
               and (select true from tollgate.token_receipts r
                     where r.bucket = chr(1) || e.id and r.state = 'open' and r.expires_at > v_now limit 1) is null
             order by e.id for update skip locked) e
     where w.id = e.id;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
    v_table := 'receipts';
    v_after := '';
  end if;

  if v_table = 'receipts' then
    if v_after <> '' then
      v_receipt := left(v_after, 36)::uuid;
      v_after := substr(v_after, 37);
    end if;
    select count(*), max(s.id::text collate "C" || s.bucket) into v_count, v_last
      from (select r.id, r.bucket from tollgate.token_receipts r where (r.id, r.bucket) > (v_receipt, v_after)
             order by r.id, r.bucket limit v_left) s;
    next := case when v_count = v_left then 'receipts/' || v_last end;
    v_left := v_left - v_count;
    v_to := left(v_last, 36)::uuid;
    v_last := substr(v_last, 37);
    delete from tollgate.token_receipts r
     using (select e.id, e.bucket from tollgate.token_receipts e
             where (e.id, e.bucket) > (v_receipt, v_after) and (e.id, e.bucket) <= (v_to, v_last)
               and e.expires_at <= v_now
             order by e.id, e.bucket for update skip locked) e
     where r.id = e.id and r.bucket = e.bucket;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
    v_table := 'overrides';
    v_after := '';
  end if;

  if v_table = 'overrides' then
    select count(*), max(s.id) into v_count, v_last
      from (select o.id from tollgate.token_overrides o where o.id > v_after order by o.id limit v_left) s;
    next := case when v_count = v_left then 'overrides/' || v_last end;
    v_left := v_left - v_count;
    delete from tollgate.token_overrides o
     using (select e.id from tollgate.token_overrides e
             where e.id > v_after and e.id <= v_last and not tollgate.in_force_v1(e.expires_at, v_now)
             order by e.id for update skip locked) e
     where o.id = e.id;
    get diagnostics v_count = row_count;
    deleted := deleted + v_count;
    if next is not null then
      return;
    end if;
  end if;

  -- No denial in that hour is of the last 48. The oldest come first, so it begins where the table does.
  delete from tollgate.token_stats s
   using (select e.hour, e.id from tollgate.token_stats e
           where e.hour < to_timestamp(v_now / 1000000000.0) - interval '49 hours'
           order by e.hour, e.id limit v_left for update skip locked) e
   where s.hour = e.hour and s.id = e.id;
  get diagnostics v_count = row_count;
  deleted := deleted + v_count;
  next := case when v_count = v_left then 'denials/' end;
end
$$;

revoke all on function tollgate.sweep_step_v1(text, bigint) from public;

-- sweep_v1: one bounded step of sweeping, from where the last one ended.
--
-- Arguments: p_limit   how many rows to look at, of all tables together: 1 to 1000
-- Result:    deleted   rows
--            finished  whether this step came to the end, so that the next one begins anew. Also true if another session
--                      is sweeping: then this one did nothing
-- Errors:    25001 the transaction has written something: a step has a transaction of its own
-- Locks:     the position, then sweep_step_v1's rows; it waits for none of them.
--
-- The position names keys, so it never leaves the server: not in printed plans either, which a session can have sent to
-- itself. A transaction makes one step at most: one that stays open holds no more rows than that.
create function tollgate.sweep_v1(p_limit bigint, out deleted bigint, out finished boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set debug_print_parse = off
set debug_print_rewritten = off
set debug_print_plan = off
as $$
declare
  v_from text collate "C";
  v_to   text collate "C";
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'tollgate: sweeping needs a transaction of its own: commit first'
      using errcode = 'active_sql_transaction';
  end if;
  deleted := 0;
  finished := true;
  select p.swept_to into v_from from tollgate.token_sweep_position p for update skip locked;
  if not found then
    -- Locked, or deleted by hand.
    if exists (select from tollgate.token_sweep_position) then
      return;
    end if;
    insert into tollgate.token_sweep_position default values on conflict do nothing;
  end if;
  select s.deleted, s.next into deleted, v_to from tollgate.sweep_step_v1(v_from, p_limit) s;
  finished := v_to is null;
  update tollgate.token_sweep_position set swept_to = v_to where swept_to is distinct from v_to;
end
$$;

revoke all on function tollgate.sweep_v1(bigint) from public;

-- sweep: all steps, from the beginning to the end, for your scheduler: select tollgate.sweep(). Result: rows deleted. To
-- keep transactions short, call sweep_v1 step by step instead.
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
    select s.* into v_step from tollgate.sweep_step_v1(v_after, 1000) s;
    v_total := v_total + v_step.deleted;
    v_after := v_step.next;
    exit when v_after is null;
  end loop;
  return v_total;
end
$$;

revoke all on function tollgate.sweep() from public;
