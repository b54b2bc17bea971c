-- settle_v1: bring a bucket's state from the terms that it was written under to others.
--
-- Tokens that are there stay, fractions too, up to the new capacity; if the clock was set back, the bucket is empty.
-- Arguments: p_id; p_capacity in tokens, p_refill_seconds, p_refill: the terms; p_overridden: whether an override's
-- Locks:     the bucket's row, so the clock is read after that.
create function tollgate.settle_v1(
  p_id text, p_capacity numeric, p_refill_seconds numeric, p_refill text, p_overridden boolean)
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_old       tollgate.token_buckets;
  v_new       tollgate.token_buckets;
  v_now       bigint;
  v_owed      bigint;
  v_available numeric := 0;  -- in the old terms' ticks; negative while grants still wait for their tokens
  c_year      constant bigint := 31622400000000000;
begin
  select b.* into v_old from tollgate.token_buckets b where b.id = p_id for no key update;
  if not found then
    return;  -- Swept away meanwhile: whoever asked reads it again.
  end if;
  v_new := v_old;
  select t.* into v_new.burst, v_new.step_ns, v_new.step_ticks, v_new.token_ticks
    from tollgate.terms_v1('bucket ' || quote_literal(p_id), p_capacity, p_refill_seconds, p_refill) t;
  if p_refill = 'calendar' then
    v_new.anchor := 0;
  end if;
  if v_old.overridden <> p_overridden
     and (v_new.burst, v_new.step_ns, v_new.step_ticks, v_new.token_ticks, v_new.anchor)
         = (v_old.burst, v_old.step_ns, v_old.step_ticks, v_old.token_ticks, v_old.anchor) then
    -- An override's that are its own: nothing is reckoned anew.
    update tollgate.token_buckets b set overridden = p_overridden where b.id = p_id;
    return;
  end if;

  v_now := tollgate.token_clock_v1();
  v_owed := v_old.full_at - tollgate.bucket_clock_v1(v_old, v_now);
  if v_owed <= tollgate.bucket_furthest_v1(v_old) then
    v_available := v_old.burst - greatest(v_owed, 0);
  end if;
  v_available := v_available * v_new.token_ticks;
  v_available := div(v_available - case when v_available < 0 then v_old.token_ticks - 1 else 0 end,
                     v_old.token_ticks);
  v_new.full_at := least(
    tollgate.bucket_clock_v1(v_new, v_now) + v_new.burst - least(v_available, v_new.burst),
    tollgate.bucket_clock_v1(v_new, v_now + c_year) + v_new.burst);

  update tollgate.token_buckets b
     set burst = v_new.burst,
         step_ns = v_new.step_ns,
         step_ticks = v_new.step_ticks,
         token_ticks = v_new.token_ticks,
         anchor = v_new.anchor,
         full_at = v_new.full_at,
         longest_wait = greatest(v_new.full_at - v_new.burst - tollgate.bucket_clock_v1(v_new, v_now), 0),
         overridden = p_overridden
   where b.id = p_id;
end
$$;

revoke all on function tollgate.settle_v1(text, numeric, numeric, text, boolean) from public;

-- new_terms_v1: the trigger that gives a new bucket its derived columns, and brings one whose own terms were changed,
-- by whatever UPDATE, to the new terms, unless its state is under an override's.
create function tollgate.new_terms_v1() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_terms record;
begin
  if (octet_length(new.id) between 1 and 255) is not true then
    raise exception 'tollgate: bucket % cannot be: its id has % bytes: give 1 to 255',
                    quote_nullable(left(new.id, 255)), coalesce(octet_length(new.id), 0)
      using errcode = 'check_violation';
  elsif left(new.id, 1) = chr(1) then
    raise exception 'tollgate: bucket % cannot be: its id begins with U+0001: put something before it',
                    quote_literal(new.id)
      using errcode = 'check_violation';
  end if;
  if tg_op = 'INSERT' then
    select t.* into new.burst, new.step_ns, new.step_ticks, new.token_ticks
      from tollgate.terms_v1('bucket ' || quote_nullable(new.id), new.capacity, new.refill_seconds, new.refill) t;
    -- Its grid goes through the instant of its making, and all the way back: clocks can be set to before it.
    new.anchor := case when new.refill = 'calendar' then 0 else new.anchor % new.step_ns end;
    return new;
  end if;
  v_terms := tollgate.terms_v1('bucket ' || quote_nullable(new.id), new.capacity, new.refill_seconds, new.refill);
  if not new.overridden
     and (v_terms <> row(new.burst, new.step_ns, new.step_ticks, new.token_ticks)
          or new.refill = 'calendar' and new.anchor <> 0) then
    perform tollgate.settle_v1(new.id, new.capacity, new.refill_seconds, new.refill, false);
  end if;
  return null;
end
$$;

revoke all on function tollgate.new_terms_v1() from public;

-- Before an insert, and after an update: a trigger before updates would lock each row once more. take_many_v1 gives its
-- new rows the derived columns itself, which nobody else may name.
create trigger new_bucket before insert on tollgate.token_buckets
  for each row when (new.burst is null) execute function tollgate.new_terms_v1();

create trigger new_terms after update of capacity, refill_seconds, refill on tollgate.token_buckets
  for each row execute function tollgate.new_terms_v1();

-- Also for rows that a replication tool or a loader of test data writes with session_replication_role = replica. Where
-- triggers are disabled, a row without its derived columns is refused: they are not null.
alter table tollgate.token_buckets enable always trigger new_bucket, enable always trigger new_terms;
