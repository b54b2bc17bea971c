-- token_delete_bucket: forget a bucket, and its key's sliding window. One that is made again by its next request is
-- full then.
--
-- Result: one row: found: whether there was such a bucket. Locks: its row.
create procedure token_delete_bucket(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_found boolean;

  delete from token_buckets where id = cast(p_id as binary);
  set v_found = row_count() > 0;
  delete from token_windows where id = cast(p_id as binary);
  select v_found or row_count() > 0 as found;
end
