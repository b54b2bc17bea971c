-- token_bucket_levels: the state of each bucket in tokens and timestamps, as of now, in UTC. Reads only; locks nothing.
--
--   capacity, refill_seconds, refill: the limits that the last request used
--   overridden      whether the limits are an override's
--   available       whole tokens; negative: promised to requests that wait for them
--   full_at         when the bucket is full again; null: full, or never
--   next_refill_at  when the next token comes; null: full, or never
drop view if exists token_bucket_levels;
create view token_bucket_levels as
with levels as (
  select b.*, max(full_at - (n.now - anchor) / step_ns * step_ticks, 0) as owed
    from token_buckets b,
         -- The end of this millisecond, the resolution of SQLite: a request can have used the bucket within it.
         (select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000000 + 999999 as now) n
)
select id, burst / token_ticks as capacity,
       burst / token_ticks - owed / token_ticks - (owed % token_ticks > 0) as available,
       coalesce(over_refill_ns / 1e9, refill_seconds) as refill_seconds, coalesce(over_refill, refill) as refill, plan,
       provisioned, over_capacity is not null as overridden, granted,
       case when owed > 0 and step_ns < 9223372036854775807 then strftime('%Y-%m-%dT%H:%M:%fZ',
         (anchor + (full_at + step_ticks - 1) / step_ticks * step_ns) / 1e9, 'unixepoch') end as full_at,
       case when owed > 0 and step_ns < 9223372036854775807 then strftime('%Y-%m-%dT%H:%M:%fZ',
         (anchor + (full_at - (owed - 1) / token_ticks * token_ticks + step_ticks - 1) / step_ticks * step_ns) / 1e9,
         'unixepoch') end as next_refill_at
  from levels;

-- token_window_levels: the state of each sliding window that counted a request, as of now. Reads only; locks nothing.
--
--   max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is the longest
--                   interval since the window was empty
--   counted         requests that count now; above the maximum: promised to requests that wait
--   available       requests that can still be granted; negative: promised
--   granted         requests granted since the creation of the window
--   retry_after_ms  milliseconds until one more request is granted with mode 'enforce'; 0: now
--
-- counted is null if the row's values are out of bounds, so that one row cannot fail the whole read.
drop view if exists token_window_levels;
create view token_window_levels as
with texts as (
  select *, '[[' || replace(replace(counts, ', ', '],['), ' ', ',') || ']]' as text from token_windows where granted > 0
), windows as (
  select w.*, coalesce((select max(json_extract(value, '$[0]')) from json_each(w.entries)), 0) as newest,
         (select cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000000 + 999999) as clock
    from (select *, case when json_valid(text) and max_requests >= 1 and interval_ns between 1 and 31622400000000000
                              and resolution_ns between 1 and 31622400000000000
                              and last_wait between 0 and 31622400000000000
                              and not exists (
                                    select 1 from json_each(case when json_valid(text) then text end)
                                     where json_extract(value, '$[0]') not between 0 and 4611686018427387903
                                        or json_extract(value, '$[1]') not between 0 and 1000000000000000)
                         then text end as entries
            from texts) w
), levels as (
  -- After a backward step of the clock, requests counted by the old clock count from now on.
  select *, case when newest - clock > last_wait + resolution_ns + 1000000000 then newest - resolution_ns
                 else clock end as now
    from windows
), counted as (
  select l.*,
         case when l.entries is not null then
           (select coalesce(sum(json_extract(value, '$[1]')), 0) from json_each(l.entries)
             where json_extract(value, '$[0]') > l.now - l.interval_ns) end as counted,
         (select max(ends)
            from (select ends, sum(requests) over (order by ends desc) as so_far
                    from (select json_extract(value, '$[0]') as ends, json_extract(value, '$[1]') as requests
                            from json_each(l.entries)))
           where so_far > l.max_requests - 1) as full
    from levels l
)
select id, max_requests, interval_ns / 1e9 as interval_seconds, resolution_ns / 1e9 as resolution_seconds,
       counted, max_requests - counted as available, granted,
       case when counted is not null
            then (max(now, newest - resolution_ns, coalesce(full + interval_ns, 0)) - now + 999999) / 1000000
       end as retry_after_ms
  from counted;

insert into token_migrations (version, name) values (2, '0002_levels') on conflict do nothing;
