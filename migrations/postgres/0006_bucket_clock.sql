-- bucket_clock_v1(p_bucket, p_now in nanoseconds since 1970) -> what the bucket's own clock shows then, in ticks.
create function tollgate.bucket_clock_v1(p_bucket tollgate.token_buckets, p_now bigint) returns bigint
language sql immutable
return (p_now - p_bucket.anchor) / p_bucket.step_ns * p_bucket.step_ticks;

revoke all on function tollgate.bucket_clock_v1(tollgate.token_buckets, bigint) from public;
