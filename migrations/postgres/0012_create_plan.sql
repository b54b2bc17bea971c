-- create_plan: make a plan, or give it another quota. Its mode is left alone.
--
-- Arguments: p_name            1 to 255 bytes
--            p_capacity        tokens, a whole number
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'continuous', 'interval', 'calendar' or 'once': see token_buckets
-- Errors:    23514 figures that make no quota
-- Locks:     the plan's row.
create function tollgate.create_plan(
  p_name text, p_capacity bigint, p_refill_seconds numeric, p_refill text default 'continuous')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if abs(round(p_refill_seconds, 9)) >= 10000000000 then
    -- More than the column holds: this says so as the trigger would.
    perform tollgate.terms_v1('plan ' || quote_nullable(left(p_name, 255)), p_capacity,
                              round(p_refill_seconds, 9), p_refill);
  end if;
  insert into tollgate.token_plans as p (name, capacity, refill_seconds, refill)
  values (p_name, p_capacity, p_refill_seconds, p_refill)
  on conflict (name) do update
     set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill;
end
$$;

revoke all on function tollgate.create_plan(text, bigint, numeric, text) from public;

-- The same for drivers that send numbers as double precision.
create function tollgate.create_plan(
  p_name text, p_capacity double precision, p_refill_seconds double precision, p_refill text default 'continuous')
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tollgate.create_plan(
    p_name, tollgate.whole_v1('plan ' || quote_nullable(left(p_name, 255)), p_capacity), p_refill_seconds::numeric,
    p_refill);
end
$$;

revoke all on function tollgate.create_plan(text, double precision, double precision, text) from public;
