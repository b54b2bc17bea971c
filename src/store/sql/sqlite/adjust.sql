-- Reads all rows that adjustments need, as one text, like read.sql.
-- ?1 keys of buckets, ?2 keys of windows, ?3 arrays of a receipt's id and its bucket, each once: JSON arrays
--
-- AdjustmentRows::enter of adjust.rs parses a row by ResultRow of rows.rs: a bucket has the places of read.sql.
select group_concat(line, ',')
  from (
select format('bucket %s %s %s %s %s %s %s %s %s %s %s %s %s',
              asked.key, anchor, full_at, granted, max_granted_wait, capacity, refill_ns, replace(refill, ' ', '|'),
              provisioned, hex(plan), over_capacity, over_refill_ns, replace(over_refill, ' ', '|')) as line
  from json_each(?1) asked cross join token_buckets bucket on bucket.id = asked.value
union all
select format('window %s %s %s %s %s %s %s %s', asked.key, max_requests, interval_ns, resolution_ns,
              replace(replace(counts, ', ', ';'), ' ', ':'), granted, last_wait, since)
  from json_each(?2) asked cross join token_windows counted on counted.id = asked.value
union all
select format('receipt %s %s %s %s %s %s', asked.key, cost, granted, scheduled_at, state, expires_at)
  from json_each(?3) asked
 cross join token_receipts receipt on receipt.id = asked.value ->> 0 and receipt.bucket = asked.value ->> 1
);
