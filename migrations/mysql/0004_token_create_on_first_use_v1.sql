-- token_create_on_first_use_v1: the row of a bucket that its first request makes, unless somebody else just made it.
--
-- Arguments: p_id; p_capacity in tokens, p_refill_seconds, p_refill: its terms
-- Locks:     the new row.
create procedure token_create_on_first_use_v1(
  in p_id varbinary(1024), in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii)
modifies sql data
sql security definer
begin
  -- Without strict mode a longer id would be cut off in silence, and share another's bucket.
  if length(p_id) > 255 then
    signal sqlstate '22023' set message_text = 'tollgate: a bucket id has 1 to 255 bytes';
  end if;
  insert into token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor)
  values (p_id, p_capacity, p_refill_seconds, p_refill, false, 0)
  on duplicate key update id = token_buckets.id;
end
