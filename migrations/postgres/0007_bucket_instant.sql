-- bucket_instant_v1(p_bucket, p_tick) -> the first instant at which the bucket's own clock shows that tick, in
-- nanoseconds since 1970, or the clock's first step if that is later. The inverse of bucket_clock_v1.
create function tollgate.bucket_instant_v1(p_bucket tollgate.token_buckets, p_tick bigint) returns bigint
language sql immutable
as $$
  select p_bucket.anchor
         + (greatest(p_tick, 0) + p_bucket.step_ticks - 1) / p_bucket.step_ticks * p_bucket.step_ns
$$;

revoke all on function tollgate.bucket_instant_v1(tollgate.token_buckets, bigint) from public;

-- bucket_step_v1(p_bucket, p_tick) -> the first tick from that one on that the bucket's own clock ever shows.
create function tollgate.bucket_step_v1(p_bucket tollgate.token_buckets, p_tick bigint) returns bigint
language sql immutable
as $$
  select (p_tick + p_bucket.step_ticks - 1) / p_bucket.step_ticks * p_bucket.step_ticks
$$;

revoke all on function tollgate.bucket_step_v1(tollgate.token_buckets, bigint) from public;
