-- bucket_instant_v1(p_bucket, p_tick) -> the first instant at which the bucket's own clock shows that tick, in
-- nanoseconds since 1970; of a clock that stands still, its start. The inverse of bucket_clock_v1.
create function tollgate.bucket_instant_v1(p_bucket tollgate.token_buckets, p_tick bigint) returns bigint
language sql immutable
return p_bucket.anchor
       + case when p_bucket.step_ns < 9223372036854775807 or p_tick > 0
           then (p_tick / p_bucket.step_ticks + (p_tick % p_bucket.step_ticks > 0)::int) * p_bucket.step_ns
           else 0 end;

revoke all on function tollgate.bucket_instant_v1(tollgate.token_buckets, bigint) from public;

-- bucket_step_v1(p_bucket, p_tick, p_clock) -> what the bucket's own clock, which shows p_clock, shows first from that tick
-- on.
create function tollgate.bucket_step_v1(p_bucket tollgate.token_buckets, p_tick bigint, p_clock bigint) returns bigint
language sql immutable
as $$
  select case when p_tick <= p_clock then p_clock
           else (p_tick + p_bucket.step_ticks - 1) / p_bucket.step_ticks * p_bucket.step_ticks end
$$;

revoke all on function tollgate.bucket_step_v1(tollgate.token_buckets, bigint, bigint) from public;
