-- Receipts, to be remembered.
-- ?1 a JSON array of arrays: id, bucket, cost, granted, acts_at, state, expires_at
insert into token_receipts (id, bucket, cost, granted, acts_at, state, expires_at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
  from json_each(?1)
 where true
    on conflict (id, bucket) do update
   set cost = excluded.cost, granted = excluded.granted, acts_at = excluded.acts_at, state = excluded.state,
       expires_at = excluded.expires_at;
