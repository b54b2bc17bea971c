-- Whole windows, made if need be.
-- ?1 a JSON array of arrays: key, most, interval_ns, resolution_ns, counts, empty_at, granted, last_wait, since
insert into token_windows (id, most, interval_ns, resolution_ns, counts, empty_at, granted, last_wait, since)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
       value ->> 8
  from json_each(?1)
 where true
    on conflict (id) do update
   set most = excluded.most, interval_ns = excluded.interval_ns, resolution_ns = excluded.resolution_ns,
       counts = excluded.counts, empty_at = excluded.empty_at, granted = excluded.granted,
       last_wait = excluded.last_wait, since = excluded.since;
