-- adjust_v1: give back, or pay for, what a granted request took; once for each receipt.
--
-- Arguments: p_kind      'cancel': it will not be used, and its time has not passed: what no later request queues behind
--                        is given back; 'refund': p_tokens of it were not used; 'settle': it cost p_tokens in the end,
--                        more or fewer than were taken, if the receipt has not expired
--            p_receipt   the request's id, or one made for this adjustment
--            p_id, p_cost, p_granted, p_acts_at: the bucket, and what the grant answered
--            p_tokens    see p_kind; 0 with 'cancel'
--            p_max_debt  'settle': the wait for the next token is at most so many nanoseconds, or that of an empty bucket;
--                        null: a year, the most there can be
-- Result:    outcome     'done'; 'late': its time has passed, or the receipt has expired; 'repeated': it was adjusted
--                        before; 'unknown': no such bucket; nothing changes unless 'done'
--            given_back  tokens; negative: so many more were paid
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt.
--
-- An adjustment is remembered for a day, and until p_acts_at, but for 366 days at most.
create function tollgate.adjust_v1(
  p_kind text, p_receipt uuid, p_id text, p_cost bigint, p_granted bigint, p_acts_at bigint, p_tokens bigint,
  p_max_debt bigint default null, out outcome text, out given_back bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  b       tollgate.token_buckets;
  r       tollgate.token_receipts;
  v_known boolean;
  v_now   bigint;
  v_clock bigint;
  v_later bigint;
  c_year  constant bigint := 31622400000000000;
  c_day   constant bigint := 86400000000000;
  c_most  constant bigint := 4611686018427387903;  -- so that what is granted after it is no sum that overflows
begin
  if (p_kind in ('cancel', 'refund', 'settle') and p_receipt is not null and p_id is not null
      and p_cost between 1 and 3155760000000000000 and p_granted >= 0 and p_acts_at is not null
      and p_tokens between 0 and 3155760000000000000
      and coalesce(p_max_debt, 0) >= 0) is not true then
    raise exception 'tollgate: adjust_v1 takes ''cancel'', ''refund'' or ''settle'', a receipt, a bucket, a cost of 1 or '
                    'more, 0 tokens or more and a debt of 0 or more' using errcode = 'invalid_parameter_value';
  end if;
  given_back := 0;
  select t.* into b from tollgate.token_buckets t where t.id = p_id for no key update;
  v_now := tollgate.token_clock_v1();
  select t.* into r from tollgate.token_receipts t where t.id = p_receipt and t.bucket = p_id for update;
  v_known := found;
  if v_known then
    -- What was remembered counts, whatever the caller says.
    p_granted := r.granted;
    p_acts_at := r.acts_at;
  end if;
  v_later := b.granted - p_granted;
  outcome := case
    when p_kind = 'cancel' and v_now > p_acts_at then 'late'
    when p_kind = 'settle' and (not v_known or r.expires_at <= v_now) then 'late'
    when v_known and (r.state <> 'open' or r.cost <> p_cost) then 'repeated'
    when b.id is null then 'unknown'
    when p_kind = 'cancel' and v_later < 0 then 'late'
    else 'done'
  end;
  if outcome <> 'done' then
    return;
  end if;

  insert into tollgate.token_receipts as t (id, bucket, cost, granted, acts_at, state, expires_at)
  values (p_receipt, p_id, p_cost, p_granted, p_acts_at,
          case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
          least(greatest(p_acts_at, v_now + c_day), v_now + c_year))
  on conflict (id, bucket) do update
     set state = excluded.state, expires_at = greatest(t.expires_at, excluded.expires_at);
  v_clock := tollgate.bucket_clock_v1(b, v_now);
  if p_kind = 'cancel' then
    given_back := greatest(p_cost - v_later, 0);
    b.granted := greatest(b.granted - case when v_later = 0 then p_cost else 0 end, 0);
  else
    given_back := case p_kind when 'refund' then least(p_tokens, p_cost) else p_cost - p_tokens end;
  end if;
  if given_back >= 0 then
    -- More than the bucket holds, too: debts may be from before it held less.
    b.full_at := greatest(b.full_at - given_back::numeric * b.token_ticks, -b.burst);
    b.granted := least(b.granted, c_most);
  else
    if b.full_at - v_clock > tollgate.bucket_furthest_v1(b) then
      -- The clock was set back: it is empty from now on, as a request would find it.
      b.full_at := v_clock + b.burst;
      b.longest_wait := 0;
    end if;
    b.full_at := greatest(b.full_at, least(
      greatest(b.full_at, v_clock)::numeric - given_back::numeric * b.token_ticks,
      greatest(v_clock, tollgate.bucket_clock_v1(b, v_now + least(p_max_debt, c_year) - 1) + 1 - b.token_ticks)::numeric
        + b.burst));
    b.granted := least(b.granted::numeric - given_back, c_most);
  end if;
  update tollgate.token_buckets t
     set full_at = b.full_at, granted = b.granted,
         longest_wait = greatest(b.longest_wait, case when given_back < 0 then b.full_at - v_clock - t.burst end)
   where t.id = p_id;
end
$$;

revoke all on function tollgate.adjust_v1(text, uuid, text, bigint, bigint, bigint, bigint, bigint) from public;
