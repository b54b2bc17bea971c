-- token_sweep_step_v1: one bounded step of clearing away what carries no information any more: buckets that were not
-- provisioned and are full, windows in which nothing counts, receipts and overrides that have expired, denials of two
-- days ago.
--
-- Arguments: p_after    where the last step ended; null: begin
--            p_limit    how many buckets to look at, and how many rows of each other table to delete at most
-- Result:    o_deleted  rows
--            o_next     where the next step begins; null: this one came to the end
-- Locks:     rows that nobody else has locked, in a transaction of its own unless inside the caller's; what is locked
--            is left for another time.
create procedure token_sweep_step_v1(
  in p_after varchar(256) character set utf8mb4, in p_limit bigint,
  out o_deleted bigint, out o_next varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_now bigint;
  declare v_after varbinary(1024) default coalesce(cast(p_after as binary), '');
  declare v_id varbinary(255);
  declare v_receipt binary(16);
  declare v_hour datetime;
  declare v_seen bigint default 0;
  declare v_idle, v_done boolean default false;
  declare v_buckets cursor for
    select id, not provisioned and full_at <= (v_now - anchor) div step_ns * step_ticks
      from token_buckets where id > v_after order by id limit p_limit;
  declare v_receipts cursor for
    select id, bucket from token_receipts where expires_at <= v_now limit p_limit;
  declare v_windows cursor for
    select id from token_windows where newest + interval_ns <= v_now limit p_limit;
  declare v_overrides cursor for
    select id from token_overrides
     where timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 <= v_now limit p_limit;
  declare v_stats cursor for  -- no denial in that hour is of the last 48
    select hour, id from token_stats
     where hour < timestamp('1970-01-01') + interval v_now div 1000 microsecond - interval 49 hour
     order by hour, id limit p_limit;
  declare continue handler for not found set v_done = true;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's

  set p_limit = least(greatest(coalesce(p_limit, 1000), 1), 10000);
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback and no chain no release; end if;
      resignal;
    end;

    call token_clock_v1(v_now);
    set o_deleted = 0, o_next = null;
    open v_buckets;
    buckets: loop
      fetch v_buckets into v_id, v_idle;
      if v_done then leave buckets; end if;
      set v_seen = v_seen + 1;
      if v_seen = p_limit then
        set o_next = convert(v_id using utf8mb4);
      end if;
      if v_idle and exists (select 1 from token_buckets where id = v_id for update skip locked) then
        delete from token_buckets
         where id = v_id and not provisioned and full_at <= (v_now - anchor) div step_ns * step_ticks;
        set o_deleted = o_deleted + row_count();
      end if;
    end loop;
    close v_buckets;

    if o_next is null then
      set v_done = false;
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
      set v_done = false;
      open v_windows;
      windows: loop
        fetch v_windows into v_id;
        if v_done then leave windows; end if;
        if exists (select 1 from token_windows where id = v_id for update skip locked) then
          delete from token_windows where id = v_id and newest + interval_ns <= v_now;
          set o_deleted = o_deleted + row_count();
        end if;
      end loop;
      close v_windows;
      set v_done = false;
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
      set v_done = false;
      open v_stats;
      stats: loop
        fetch v_stats into v_hour, v_id;
        if v_done then leave stats; end if;
        if exists (select 1 from token_stats where hour = v_hour and id = v_id for update skip locked) then
          delete from token_stats where hour = v_hour and id = v_id;
          set o_deleted = o_deleted + row_count();
        end if;
      end loop;
      close v_stats;
    end if;
    if v_own then commit and no chain no release; end if;
  end;
end
