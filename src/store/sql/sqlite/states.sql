-- What requests took from buckets that are there, under terms that have not changed.
-- ?1 a JSON array of arrays: key, anchor, full_at, granted, longest_wait
--
-- Not an update from a join: its planner may go through all buckets, if it was once told that there are few. The terms
-- here are nobody's; every one of these ids is there.
insert into token_buckets (id, anchor, full_at, granted, longest_wait, capacity, refill_seconds)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, 1, 1
  from json_each(?1)
 where true
    on conflict (id) do update
   set anchor = excluded.anchor, full_at = excluded.full_at, granted = excluded.granted,
       longest_wait = excluded.longest_wait;
