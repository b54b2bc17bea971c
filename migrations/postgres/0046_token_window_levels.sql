-- token_window_levels: each sliding window in which anything was counted, as people think of it, at this instant. Reads,
-- locks nothing, changes nothing.
--
--   max_requests, interval_seconds, resolution_seconds: the terms that it was last counted under; the interval is the
--                  longest since it was empty
--   counted        requests that count now; above the maximum: promised to requests that wait
--   available      how many more pass now; negative: promised
--   granted        requests, ever
--   retry_after_ms milliseconds until one more passes, if the mode is enforce; 0: now
--
-- counted is null where the row breaks its bounds: no figure of it can fail the whole read.
create view tollgate.token_window_levels as
select w.id, w.most as max_requests, w.interval_ns * 0.000000001 as interval_seconds,
       w.resolution_ns * 0.000000001 as resolution_seconds, c.counted, w.most - c.counted as available, w.granted,
       case when c.counted is not null
            then (tollgate.window_earliest_v1(w, w.interval_ns, w.most - 1, n.now) - n.now + 999999) / 1000000
       end as retry_after_ms
  from (select tollgate.token_clock_v1() as clock) k
 cross join tollgate.token_windows w
 -- After a step of the clock backwards, what was counted since counts as of now.
 cross join lateral (
   select case when not tollgate.window_is_sound_v1(w) then null
               when w.ends[array_length(w.ends, 1)] - k.clock > w.last_wait + w.resolution_ns + 1000000000
               then w.ends[array_length(w.ends, 1)] - w.resolution_ns else k.clock end as now) n
 cross join lateral (
   select case when n.now is not null
               then coalesce(sum(u.c) filter (where u.e > n.now - w.interval_ns), 0)::bigint end as counted
     from unnest(w.ends, w.counts) as u (e, c)) c
 where w.granted <> 0;

revoke all on tollgate.token_window_levels from public;

comment on view tollgate.token_window_levels is 'Each sliding window: its terms, what counts now, when one more passes';
