-- token_peek: a bucket as people think of it, at this instant: its row of token_bucket_levels. Reads, locks and changes
-- nothing.
--
-- Arguments: p_id    the bucket
-- Result:    one row, or none: it was not made yet, or was swept
--
-- For those who may look at a bucket whose name they know, and not at all of them.
create procedure token_peek(in p_id varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  select id, capacity, available, refill_seconds, refill, plan, provisioned, overridden, granted, full_at,
         next_refill_at, id_bytes, plan_bytes
    from token_bucket_levels where id_bytes = cast(p_id as binary);
end
