-- token_sweep_step_v1: one bounded step of deleting expired rows, in a transaction that the caller has begun: buckets that
-- were not provisioned and are full, windows in which nothing counts, but of neither those of requests that can be settled
-- still; receipts and overrides that have expired, denials of two days ago.
--
-- Arguments: p_after    where the last step ended; null: begin
--            p_limit    how many rows to look at, of all tables together: 1 to 1000
-- Result:    o_deleted  rows
--            o_next     where the next step begins: a table, and behind which of its rows; null: this one came to the end
-- Locks:     rows that may have expired, but for those that another session has locked.
--
-- Each table is walked by its primary key, as an index on when a row expires would be written by each decision.
create procedure token_sweep_step_v1(
  in p_after varbinary(300), in p_limit bigint, out o_deleted bigint, out o_next varbinary(300))
modifies sql data
sql security definer
begin
  declare v_now bigint;
  declare v_table varbinary(300) default coalesce(substring_index(p_after, '/', 1), 'buckets');
  declare v_after varbinary(300) default coalesce(substring(p_after, length(v_table) + 2), '');
  declare v_last varbinary(300);
  declare v_id varbinary(256);
  declare v_receipt, v_from, v_to binary(16) default repeat(x'00', 16);
  declare v_hour datetime;
  declare v_left bigint default least(greatest(coalesce(p_limit, 1000), 1), 1000);
  declare v_count bigint;
  declare v_done boolean default false;
  declare v_buckets cursor for
    select id from token_buckets
     where id > v_after and id <= v_last and not provisioned and full_at <= (v_now - anchor) div step_ns * step_ticks;
  declare v_windows cursor for
    select id from token_windows where id > v_after and id <= v_last and newest + interval_ns <= v_now;
  declare v_receipts cursor for
    select id, bucket from token_receipts
     where id >= v_from and (id > v_from or bucket > v_after) and id <= v_to and (id < v_to or bucket <= v_last)
       and expires_at <= v_now;
  declare v_overrides cursor for
    select id from token_overrides
     where id > v_after and id <= v_last
       and timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 <= v_now;
  declare v_stats cursor for  -- no denial in that hour is of the last 48
    select hour, id from token_stats
     where hour < timestamp('1970-01-01') + interval v_now div 1000 microsecond - interval 49 hour
     order by hour, id limit v_left;
  declare continue handler for not found set v_done = true;

  call token_clock_v1(v_now);
  set o_deleted = 0, o_next = null;

  if v_table = 'buckets' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_buckets where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('buckets/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_buckets;
    buckets: loop
      fetch v_buckets into v_id;
      if v_done then leave buckets; end if;
      -- Receipts are looked up one by one, when it is locked, and as they are, whatever a snapshot of the caller's has:
      -- joined, all of them might be read.
      if exists (select 1 from token_buckets where id = v_id for update skip locked)
         and not exists (
               select 1 from token_receipts force index (token_receipts_open)
                where bucket = v_id and state = 'open' and expires_at > v_now limit 1 for update) then
        delete from token_buckets
         where id = v_id and not provisioned and full_at <= (v_now - anchor) div step_ns * step_ticks;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_buckets;
    set v_table = 'windows', v_after = '';
  end if;

  if o_next is null and v_table = 'windows' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_windows where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('windows/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_windows;
    windows: loop
      fetch v_windows into v_id;
      if v_done then leave windows; end if;
      if exists (select 1 from token_windows where id = v_id for update skip locked)
         and not exists (
               select 1 from token_receipts force index (token_receipts_open)
                where bucket = concat(x'01', v_id) and state = 'open' and expires_at > v_now limit 1 for update) then
        delete from token_windows where id = v_id and newest + interval_ns <= v_now;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_windows;
    set v_table = 'receipts', v_after = '';
  end if;

  if o_next is null and v_table = 'receipts' then
    if v_after <> '' then
      set v_from = left(v_after, 16), v_after = substring(v_after, 17);
    end if;
    select count(*), max(concat(id, bucket)) into v_count, v_last
      from (select id, bucket from token_receipts where id >= v_from and (id > v_from or bucket > v_after)
             order by id, bucket limit v_left) as page;
    set o_next = if(v_count = v_left, concat('receipts/', v_last), null), v_left = v_left - v_count, v_done = false;
    set v_to = left(v_last, 16), v_last = substring(v_last, 17);
    open v_receipts;
    receipts: loop
      fetch v_receipts into v_receipt, v_id;
      if v_done then leave receipts; end if;
      if exists (select 1 from token_receipts where id = v_receipt and bucket = v_id for update skip locked) then
        delete from token_receipts where id = v_receipt and bucket = v_id and expires_at <= v_now;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_receipts;
    set v_table = 'overrides', v_after = '';
  end if;

  if o_next is null and v_table = 'overrides' then
    select count(*), max(id) into v_count, v_last
      from (select id from token_overrides where id > v_after order by id limit v_left) as page;
    set o_next = if(v_count = v_left, concat('overrides/', v_last), null), v_left = v_left - v_count, v_done = false;
    open v_overrides;
    overrides: loop
      fetch v_overrides into v_id;
      if v_done then leave overrides; end if;
      if exists (select 1 from token_overrides where id = v_id for update skip locked) then
        delete from token_overrides
         where id = v_id and timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 <= v_now;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_overrides;
  end if;

  if o_next is null then  -- the oldest come first, so it begins where the table does
    set v_done = false, v_count = 0;
    open v_stats;
    stats: loop
      fetch v_stats into v_hour, v_id;
      if v_done then leave stats; end if;
      if exists (select 1 from token_stats where hour = v_hour and id = v_id for update skip locked) then
        delete from token_stats where hour = v_hour and id = v_id;
        set v_count = v_count + row_count();
      end if;
    end loop;
    close v_stats;
    set o_deleted = o_deleted + v_count, o_next = if(v_count = v_left, 'denials/', null);
  end if;
end
