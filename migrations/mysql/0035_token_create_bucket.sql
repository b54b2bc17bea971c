-- token_create_bucket: provision a bucket. Repeated with the same figures it changes nothing; with others it changes
-- the terms: tokens that are there stay, up to the new capacity.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval', 'calendar', 'continuous' or 'once': see token_buckets
-- Errors:    23514 figures that make no bucket
-- Locks:     the bucket's row, in a transaction of its own unless inside the caller's.
create procedure token_create_bucket(
  in p_id varchar(256) character set utf8mb4, in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_id varbinary(1024) default cast(p_id as binary);

  -- Without strict mode a longer id would be cut off in silence, and share another's bucket.
  if (length(v_id) between 1 and 255) is not true then
    signal sqlstate '23514' set message_text = 'tollgate: a bucket id has 1 to 255 bytes';
  end if;
  insert into token_buckets (id, capacity, refill_seconds, refill) values (v_id, p_capacity, p_refill_seconds, p_refill)
  on duplicate key update
    provisioned = true, capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill;
end
