-- take_many_v1: decide several requests in one call, each for itself: one that fails does not fail the others.
--
-- Arguments: the same as take_v1's, an array each, all of one length.
-- Result:    a row a request: its place in the arrays (from 1), then take_v1's columns.
-- Locks:     the rows of granted requests, in the order of their ids, so two calls never wait for each other. Requests
--            for one bucket are decided in the order given.
create function tollgate.take_many_v1(
  p_ids text[], p_costs bigint[], p_max_waits bigint[], p_keeps bigint[],
  p_capacities bigint[], p_refill_seconds numeric[], p_refills text[], p_plans text[],
  p_receipts uuid[], p_holds bigint[])
returns table (entry bigint, taken tollgate.taken_v1)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_request record;
begin
  for v_request in
    select r.*
      from unnest(p_ids, p_costs, p_max_waits, p_keeps, p_capacities, p_refill_seconds, p_refills, p_plans, p_receipts,
                  p_holds)
           with ordinality
           as r (id, cost, max_wait, keep, capacity, refill_seconds, refill, plan, receipt, hold, entry)
     order by r.id collate "C", r.entry
  loop
    entry := v_request.entry;
    taken := tollgate.take_v1(v_request.id, v_request.cost, v_request.max_wait, v_request.keep, v_request.capacity,
                              v_request.refill_seconds, v_request.refill, v_request.plan, v_request.receipt,
                              v_request.hold);
    return next;
  end loop;
end
$$;

revoke all on function tollgate.take_many_v1(
  text[], bigint[], bigint[], bigint[], bigint[], numeric[], text[], text[], uuid[], bigint[]) from public;
