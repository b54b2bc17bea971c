-- lock_all_v1: lock the rows of buckets, and make those that are missing, if the first place that names them may.
--
-- Arguments: p_ids, p_capacities, p_refill_seconds, p_refills, p_plans: as take_all_v1's, but a bucket may be at several
--            places
-- Errors:    as rule_v1's
-- Locks:     the rows of all buckets, made if need be, in the order of their ids.
--
-- If one is missing, each is locked or made before those after it are: whoever makes one meanwhile may take from these,
-- too, and would be waited for by somebody who holds them.
create function tollgate.lock_all_v1(
  p_ids text[], p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[])
returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else each call would plan anew for its arrays
as $$
declare
  v_first record;
begin
  perform from tollgate.token_buckets l
    where l.id = any (p_ids)
      and not exists (select from unnest(p_ids) m (id)
                       where not exists (select from tollgate.token_buckets x where x.id = m.id))
    order by l.id for no key update;
  if found then
    return;
  end if;
  if array_remove(p_plans, null) = '{}'
     and not exists (select from tollgate.token_mode g where g.mode <> 'enforce')
     and not exists (select from tollgate.token_overrides o where o.id = any (p_ids))
     and not exists (select from unnest(p_ids, p_capacities, p_refill_seconds, p_refills)
                              as i (id, capacity, refill_seconds, refill)
                      where (i.capacity is not null and i.refill is not null
                             and i.refill_seconds between 0 and 9999999999) is not true) then
    -- All may be made, and of terms that the column holds. A row that is there is only locked: no condition lets it be updated.
    insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor)
    select distinct on (i.id collate "C") i.id, i.capacity, i.refill_seconds, i.refill, false, 0
      from unnest(p_ids, p_capacities, p_refill_seconds, p_refills) with ordinality
           as i (id, capacity, refill_seconds, refill, place)
     order by i.id collate "C", i.place
        on conflict (id) do update set room = null where false;
    return;
  end if;
  for v_first in
    select distinct on (i.id collate "C") i.*
      from unnest(p_ids, p_capacities, p_refill_seconds, p_refills, p_plans) with ordinality
           as i (id, capacity, refill_seconds, refill, plan, place)
     order by i.id collate "C", i.place
  loop
    perform from tollgate.token_buckets l where l.id = v_first.id for no key update;
    if not found then
      perform tollgate.rule_v1(v_first.id, v_first.capacity, v_first.refill_seconds, v_first.refill, v_first.plan,
                               tollgate.token_clock_v1(), false);
      perform from tollgate.token_buckets l where l.id = v_first.id for no key update;
    end if;
  end loop;
end
$$;

revoke all on function tollgate.lock_all_v1(text[], bigint[], numeric[], text[], text[]) from public;
