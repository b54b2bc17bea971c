-- adjust_v1: give back, or pay for, what a granted request took; once for each receipt.
--
-- Arguments: p_kind      'cancel': it will not be used, and its turn has not come: what no later request queues behind
--                        is given back; 'refund': p_tokens of it were not used; 'settle': it cost p_tokens in the end,
--                        more or fewer than were taken, if the receipt has not expired
--            p_receipt   the request's id, or one made for this adjustment
--            p_id, p_cost, p_granted, p_acts_at: the bucket, and what the grant answered
--            p_tokens    see p_kind; 0 with 'cancel'
-- Result:    outcome     'done'; 'late': its turn has come, or the receipt has expired; 'repeated': it was adjusted
--                        before; 'unknown': no such bucket; nothing changes unless 'done'
--            given_back  tokens; negative: so many more were paid
-- Errors:    22023 arguments out of range
-- Locks:     the receipt, then the bucket's row.
create function tollgate.adjust_v1(
  p_kind text, p_receipt uuid, p_id text, p_cost bigint, p_granted bigint, p_acts_at bigint, p_tokens bigint,
  out outcome text, out given_back bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b       tollgate.token_buckets;
  r       tollgate.token_receipts;
  v_now   bigint := tollgate.token_clock_v1();
  v_clock bigint;
  v_later bigint;
  v_new   boolean := false;  -- whether the receipt was entered just now
  c_year  constant bigint := 31622400000000000;
  c_day   constant bigint := 86400000000000;
begin
  if (p_kind in ('cancel', 'refund', 'settle') and p_receipt is not null and p_id is not null and p_cost >= 1
      and p_tokens between 0 and 3155760000000000000) is not true then
    raise exception 'tollgate: adjust_v1 takes ''cancel'', ''refund'' or ''settle'', a receipt, a bucket, a cost of 1 or '
                    'more and 0 tokens or more' using errcode = 'invalid_parameter_value';
  end if;
  given_back := 0;
  if p_kind = 'cancel' and v_now >= p_acts_at then
    outcome := 'late';
    return;
  end if;
  select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = p_id for update;
  if not found then
    if p_kind = 'settle' then
      outcome := 'late';
      return;
    end if;
    insert into tollgate.token_receipts as t (id, bucket, cost, granted, acts_at, state, expires_at)
    values (p_receipt, p_id, p_cost, p_granted, p_acts_at, 'open', greatest(p_acts_at, v_now + c_day))
    on conflict do nothing
    returning t.* into r;
    v_new := found;
  end if;
  if r.state is distinct from 'open' or r.cost <> p_cost then
    outcome := 'repeated';
    return;
  elsif p_kind = 'settle' and r.expires_at <= v_now then
    outcome := 'late';
    return;
  end if;

  select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
  if not found then
    -- As if it had never been asked. An id that the caller chose stays remembered.
    delete from tollgate.token_receipts t where v_new and t.id = p_receipt and t.bucket = p_id;
    outcome := 'unknown';
    return;
  end if;
  v_now := tollgate.token_clock_v1();
  v_clock := tollgate.bucket_clock_v1(b, v_now);
  outcome := 'done';
  if p_kind = 'cancel' then
    v_later := b.granted - p_granted;
    if v_now >= p_acts_at or v_later < 0 then
      delete from tollgate.token_receipts t where v_new and t.id = p_receipt and t.bucket = p_id;
      outcome := 'late';
      return;
    end if;
    given_back := greatest(p_cost - v_later, 0);
    b.granted := b.granted - case when v_later = 0 then p_cost else 0 end;
  else
    given_back := case p_kind when 'refund' then least(p_tokens, p_cost) else p_cost - p_tokens end;
  end if;
  if given_back >= 0 then
    b.full_at := greatest(b.full_at - least(given_back, b.burst / b.token_ticks) * b.token_ticks, -b.burst);
  else
    b.full_at := greatest(b.full_at, least(
      greatest(b.full_at, v_clock)::numeric - given_back::numeric * b.token_ticks,
      tollgate.bucket_clock_v1(b, v_now + c_year)::numeric + b.burst));
    b.granted := b.granted - given_back;
  end if;
  update tollgate.token_buckets t
     set full_at = b.full_at, granted = b.granted,
         longest_wait = greatest(t.longest_wait, case when given_back < 0 then b.full_at - v_clock - t.burst end)
   where t.id = p_id;
  update tollgate.token_receipts t
     set state = case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end
   where t.id = p_receipt and t.bucket = p_id;
end
$$;

revoke all on function tollgate.adjust_v1(text, uuid, text, bigint, bigint, bigint, bigint) from public;
