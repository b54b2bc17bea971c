-- adjust_many_v1: give back, or pay for, what several granted requests took; once for each receipt.
--
-- Arguments: p_kinds, p_receipts, p_ids, p_costs, p_granted, p_acts_at, p_tokens: as adjust_v1's, an array each, all of
--            one length
--            p_in_window  whether the key's sliding window granted, and adjust_window_v1 is to do it; null: none was
--            p_max_debts  as adjust_v1's
-- Result:    outcomes, given_back: what these answer, in the order given: the same as if it was done one after the other
-- Errors:    22023 arguments out of range · 55P03 several keys, and one was locked for longer than 100 ms. Then nothing was
--            done
-- Locks:     the buckets' rows in the order of their ids, each and then its receipts, and the windows' likewise. Of one
--            key all is done in the order given.
create function tollgate.adjust_many_v1(
  p_kinds text[], p_receipts uuid[], p_ids text[], p_costs bigint[], p_granted bigint[], p_acts_at bigint[],
  p_tokens bigint[], p_in_window boolean[], p_max_debts bigint[] default null, out outcomes text[], out given_back bigint[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else each call would plan anew for its arrays
as $$
declare
  v_lock       text := current_setting('lock_timeout');
  v_limited    boolean := false;
  v_one        record;
  v_outcome    text;
  v_given_back bigint;
begin
  if p_ids[1] <> any (p_ids) and (v_lock = '0' or v_lock::interval > interval '100 ms') then
    v_limited := true;
    perform set_config('lock_timeout', '100ms', true);
  end if;
  outcomes := array_fill(null::text, array[coalesce(cardinality(p_ids), 0)]);
  given_back := array_fill(null::bigint, array[coalesce(cardinality(p_ids), 0)]);
  for v_one in
    select u.*
      from unnest(p_kinds, p_receipts, p_ids, p_costs, p_granted, p_acts_at, p_tokens, p_in_window,
                  p_max_debts) with ordinality
           as u (kind, receipt, id, cost, granted, acts_at, tokens, in_window, max_debt, place)
     order by u.in_window is true, u.id collate "C", u.place
  loop
    if v_one.in_window then
      select a.outcome, a.given_back into v_outcome, v_given_back
        from tollgate.adjust_window_v1(v_one.kind, v_one.receipt, v_one.id, v_one.cost, v_one.acts_at, v_one.tokens) a;
    else
      select a.outcome, a.given_back into v_outcome, v_given_back
        from tollgate.adjust_v1(v_one.kind, v_one.receipt, v_one.id, v_one.cost, v_one.granted, v_one.acts_at,
                                v_one.tokens, v_one.max_debt) a;
    end if;
    outcomes[v_one.place] := v_outcome;
    given_back[v_one.place] := v_given_back;
  end loop;
  if v_limited then
    perform set_config('lock_timeout', v_lock, true);
  end if;
end
$$;

revoke all on function tollgate.adjust_many_v1(
  text[], uuid[], text[], bigint[], bigint[], bigint[], bigint[], boolean[], bigint[]) from public;
