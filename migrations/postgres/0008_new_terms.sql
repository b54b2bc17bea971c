-- new_terms_v1: the trigger that gives a new bucket its derived columns, and brings one whose terms were changed, by
-- whatever UPDATE, to the new terms.
--
-- Tokens that are there stay, fractions too, up to the new capacity; if the clock was set back, the bucket is empty.
-- Locks: nothing beyond the row that the statement has locked already, so the clock is read after the lock.
create function tollgate.new_terms_v1() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now       bigint;
  v_owed      bigint;
  v_available numeric := 0;  -- in the old terms' ticks; negative while grants still wait for their tokens
  v_burst     bigint;
  v_full_at   bigint;
  c_year      constant bigint := 31622400000000000;
begin
  new := tollgate.bucket_terms_v1(new);
  if tg_op = 'INSERT' then
    -- Its grid goes through the instant of its making, and all the way back: clocks can be set to before it.
    new.anchor := new.anchor % new.step_ns;
    return new;
  end if;

  v_now := tollgate.token_clock_v1();
  v_owed := old.full_at - tollgate.bucket_clock_v1(old, v_now);
  if v_owed <= tollgate.bucket_furthest_v1(old) then
    v_available := old.capacity * old.token_ticks - greatest(v_owed, 0);
  end if;
  v_burst := new.capacity * new.token_ticks;
  v_available := v_available * new.token_ticks;
  v_available := div(v_available - case when v_available < 0 then old.token_ticks - 1 else 0 end, old.token_ticks);
  v_full_at := least(tollgate.bucket_clock_v1(new, v_now) + v_burst - least(v_available, v_burst),
                     tollgate.bucket_clock_v1(new, v_now + c_year) + v_burst);

  update tollgate.token_buckets b
     set step_ns = new.step_ns,
         step_ticks = new.step_ticks,
         token_ticks = new.token_ticks,
         full_at = v_full_at,
         longest_wait = greatest(v_full_at - v_burst - tollgate.bucket_clock_v1(new, v_now), 0)
   where b.id = new.id;
  return null;
end
$$;

revoke all on function tollgate.new_terms_v1() from public;

-- Before an insert, and after an update: a trigger before updates would lock each row once more.
create trigger new_bucket before insert on tollgate.token_buckets
  for each row execute function tollgate.new_terms_v1();

create trigger new_terms after update of capacity, refill_seconds, refill on tollgate.token_buckets
  for each row execute function tollgate.new_terms_v1();
