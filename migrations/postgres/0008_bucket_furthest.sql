-- bucket_furthest_v1(p_bucket) -> how far ahead of its clock, in ticks, a bucket may be full: a burst, the longest wait
-- that was granted, and a second's difference between clocks. Further means that the clock was set back.
create function tollgate.bucket_furthest_v1(p_bucket tollgate.token_buckets) returns bigint
language sql immutable
as $$
  select p_bucket.burst + p_bucket.longest_wait
         + (1000000000 / p_bucket.step_ns + 1) * p_bucket.step_ticks
$$;

revoke all on function tollgate.bucket_furthest_v1(tollgate.token_buckets) from public;
