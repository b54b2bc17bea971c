-- token_reset_bucket: make a bucket full, under the terms that rule it now, and forget what its key's sliding window has
-- counted. It counts as a grant of its capacity, so that no earlier reservation gives anything back any more.
--
-- Result: one row: found: whether there is such a bucket, or a window that something was counted in. Locks: its row,
-- then the window's, in a transaction of its own unless inside the caller's.
create procedure token_reset_bucket(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_now, v_number bigint;
  declare v_times bigint default 1;
  declare v_word varchar(10) character set ascii;
  declare v_found boolean;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's
  declare exit handler for sqlexception
  begin
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  if exists (select 1 from token_buckets where id = cast(p_id as binary) for update) then
    -- Of a request that takes nothing only this is wanted: that the bucket is brought to what rules it.
    call token_decide_v1(p_id, 1, 0, 0, null, null, null, null, null, 0, false, false, v_times, v_word, v_word,
                         v_number, v_number, v_number, v_number, v_number, v_number, v_number, v_number, v_number);
  end if;
  call token_clock_v1(v_now);
  update token_buckets
     set full_at = (v_now - anchor) div step_ns * step_ticks, longest_wait = 0,
         granted = least(cast(granted as decimal(65, 0)) + burst div token_ticks, 4611686018427387903)
   where id = cast(p_id as binary);
  set v_found = row_count() > 0;
  set v_found = v_found or exists (select 1 from token_windows where id = cast(p_id as binary) and granted > 0);
  delete from token_windows where id = cast(p_id as binary);

  if v_own then commit and no chain no release; end if;
  select v_found as found;
end
