-- adjust_window_v1: give back, or pay for, what a request under a sliding window took; once for each receipt.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_acts_at, p_tokens: as adjust_v1's
-- Result:    outcome, given_back: as adjust_v1's
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt.
create function tollgate.adjust_window_v1(
  p_kind text, p_receipt uuid, p_id text, p_cost bigint, p_acts_at bigint, p_tokens bigint,
  out outcome text, out given_back bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  w       tollgate.token_windows;
  r       tollgate.token_receipts;
  v_known boolean;
  v_now   bigint;
  v_place int;
  c_year  constant bigint := 31622400000000000;
  c_day   constant bigint := 86400000000000;
  c_bucket constant text := chr(1) || p_id;  -- see take_window_v1
begin
  if (p_kind in ('cancel', 'refund', 'settle') and p_receipt is not null and p_id is not null
      and p_cost between 1 and 1000000000000
      and p_acts_at >= 0 and p_tokens between 0 and 3155760000000000000) is not true then
    raise exception 'tollgate: adjust_window_v1 takes ''cancel'', ''refund'' or ''settle'', a receipt, a window, a cost of '
                    '1 or more and 0 requests or more' using errcode = 'invalid_parameter_value';
  end if;
  given_back := 0;
  select t.* into w from tollgate.token_windows t where t.id = p_id for no key update;
  v_now := tollgate.token_clock_v1();
  select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = c_bucket for update;
  v_known := found;
  if v_known then
    p_acts_at := r.acts_at;
  end if;
  if p_kind = 'cancel' and v_now > p_acts_at then
    outcome := 'late';
  elsif p_kind = 'settle' and (not v_known or r.expires_at <= v_now) then
    outcome := 'late';
  elsif v_known and (r.state <> 'open' or r.cost <> p_cost) then
    outcome := 'repeated';
  elsif w.id is null then
    outcome := 'unknown';
  end if;
  if outcome is not null then
    return;
  end if;

  insert into tollgate.token_receipts as t (id, bucket, cost, granted, acts_at, state, expires_at)
  values (p_receipt, c_bucket, p_cost, 0, p_acts_at,
          case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
          least(greatest(p_acts_at, v_now + c_day), v_now + c_year))
  on conflict (id, bucket) do update
     set state = excluded.state, expires_at = greatest(t.expires_at, excluded.expires_at);
  outcome := 'done';
  given_back := case p_kind when 'cancel' then p_cost when 'refund' then least(p_tokens, p_cost)
                else p_cost - least(p_tokens, 1000000000000) end;
  if given_back < 0 then
    if w.ends[array_length(w.ends, 1)] - v_now > w.last_wait + w.resolution_ns + 1000000000 then
      w := tollgate.window_stepped_back_v1(w, v_now);
    end if;
    w := tollgate.window_count_v1(w, w.interval_ns, w.resolution_ns, -given_back, v_now,
                                  greatest(v_now, w.ends[array_length(w.ends, 1)] - w.resolution_ns));
  else
    -- Those of a sub-interval that is gone cannot be given back in another. Where none is, theirs is the first that ends
    -- after they act, or a later one.
    select u.place into v_place
      from unnest(w.ends) with ordinality as u (e, place)
     where u.e > p_acts_at and p_acts_at >= w.since
     order by u.place limit 1;
    if v_place is null and p_kind = 'cancel' then
      given_back := 0;
    elsif v_place is not null then
      if p_kind = 'cancel' then
        given_back := least(given_back, w.counts[v_place]);
      end if;
      w.granted := w.granted - least(given_back, w.counts[v_place]);
      w.counts[v_place] := greatest(w.counts[v_place] - given_back, 0);
      -- Nobody queues behind what is not there.
      select coalesce(array_agg(e order by e), '{}'), coalesce(array_agg(c order by e), '{}') into w.ends, w.counts
        from unnest(w.ends, w.counts) as u (e, c) where c > 0;
    end if;
  end if;
  update tollgate.token_windows t
     set ends = w.ends, counts = w.counts, granted = w.granted, last_wait = w.last_wait,
         interval_ns = w.interval_ns, resolution_ns = w.resolution_ns, since = w.since
   where t.id = p_id;
end
$$;

revoke all on function tollgate.adjust_window_v1(text, uuid, text, bigint, bigint, bigint) from public;
