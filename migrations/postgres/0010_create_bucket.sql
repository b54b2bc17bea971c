-- create_bucket: provision a bucket. Repeated with the same figures it changes nothing; with others it changes the
-- terms: tokens that are there stay, up to the new capacity. A bucket that followed a plan has terms of its own from
-- then on.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens, a whole number
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval', 'calendar', 'continuous' or 'once': see token_buckets
-- Errors:    23514 figures that make no bucket
-- Locks:     the bucket's row, if it exists and changes.
create function tollgate.create_bucket(
  p_id text, p_capacity bigint, p_refill_seconds numeric, p_refill text default 'interval')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if abs(round(p_refill_seconds, 9)) >= 10000000000 then
    -- More than the column holds: this says so as the trigger would.
    perform tollgate.terms_v1('bucket ' || quote_nullable(left(p_id, 255)), p_capacity,
                              round(p_refill_seconds, 9), p_refill);
  end if;
  insert into tollgate.token_buckets as b (id, capacity, refill_seconds, refill)
  values (p_id, p_capacity, p_refill_seconds, p_refill)
  on conflict (id) do update
     set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill,
         provisioned = true, plan = null
   where (b.capacity, b.refill_seconds, b.refill, b.provisioned, b.plan)
         is distinct from (excluded.capacity, excluded.refill_seconds, excluded.refill, true, null);
end
$$;

revoke all on function tollgate.create_bucket(text, bigint, numeric, text) from public;

-- The same for drivers that send numbers as double precision.
create function tollgate.create_bucket(
  p_id text, p_capacity double precision, p_refill_seconds double precision, p_refill text default 'interval')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tollgate.create_bucket(
    p_id, tollgate.whole_v1('bucket ' || quote_nullable(left(p_id, 255)), p_capacity), p_refill_seconds::numeric, p_refill);
end
$$;

revoke all on function tollgate.create_bucket(text, double precision, double precision, text) from public;
