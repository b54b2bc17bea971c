-- token_adjust_one_v1: token_adjust_v1, in a transaction that the caller has begun.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_granted, p_acts_at, p_tokens: as token_adjust_v1's
--            p_max_debt  'settle': the wait for the next token is at most so many nanoseconds, or that of an empty bucket;
--                        null: a year, the most there can be
-- Result:    o_outcome, o_given_back: its columns
-- Errors:    22023 arguments out of range
-- Locks:     the bucket's row, then the receipt.
create procedure token_adjust_one_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_granted bigint, in p_acts_at bigint,
  in p_tokens bigint, in p_max_debt bigint, out o_outcome varchar(10) character set ascii, out o_given_back bigint)
modifies sql data
sql security definer
adjust: begin
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_receipt binary(16);
  declare v_state varchar(9) character set ascii;
  declare v_new boolean default false;
  declare v_now, v_clock, v_most, v_furthest, v_full_at, v_longest_wait, v_granted, v_burst, v_token_ticks bigint;
  declare v_known_cost, v_known_granted, v_known_acts_at, v_expires_at bigint;
  declare v_owed decimal(65, 0);

  if (p_kind in ('cancel', 'refund', 'settle')
      and length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}'
      and p_id is not null and p_cost between 1 and 3155760000000000000
      and p_granted >= 0 and p_acts_at is not null
      and p_tokens between 0 and 3155760000000000000 and coalesce(p_max_debt, 0) >= 0) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: adjust takes cancel, refund or settle, a UUID, a bucket, a cost of 1 or more, 0 tokens or more and a debt of 0 or more';
  end if;
  set v_receipt = unhex(replace(p_receipt, '-', ''));
  set o_outcome = 'done', o_given_back = 0;

  select full_at, granted, burst, token_ticks into v_full_at, v_granted, v_burst, v_token_ticks
    from token_buckets where id = v_id for update;
  call token_clock_v1(v_now);
  if p_kind = 'settle' then
    select state, cost, expires_at into v_state, v_known_cost, v_expires_at
      from token_receipts where id = v_receipt and bucket = v_id for update;
    if v_state is null or v_expires_at <= v_now then
      set o_outcome = 'late';
      leave adjust;
    end if;
  else
    call token_claim_v1(p_receipt, v_id, p_cost, p_granted, p_acts_at,
                        least(greatest(p_acts_at, v_now + 86400000000000), v_now + 31622400000000000), 0,
                        v_state, v_known_cost, v_known_granted, v_known_acts_at, v_expires_at);
    -- What was remembered counts, whatever the caller says.
    set v_new = v_state is null, p_granted = v_known_granted, p_acts_at = v_known_acts_at;
  end if;
  if p_kind = 'cancel' and v_now > p_acts_at then
    set o_outcome = 'late';
  elseif v_state <> 'open' or v_known_cost <> p_cost then
    set o_outcome = 'repeated';
  elseif v_burst is null then
    set o_outcome = 'unknown';
  elseif p_kind = 'cancel' and v_granted < p_granted then
    set o_outcome = 'late';
  end if;
  if o_outcome <> 'done' then
    if v_new then
      delete from token_receipts where id = v_receipt and bucket = v_id;
    end if;
    leave adjust;
  end if;

  set o_given_back = case p_kind
    when 'cancel' then greatest(p_cost - (v_granted - p_granted), 0)
    when 'refund' then least(p_tokens, p_cost)
    else p_cost - p_tokens
  end;
  if p_kind = 'cancel' and v_granted = p_granted then
    set v_granted = greatest(v_granted - p_cost, 0);
  end if;
  select (v_now - anchor) div step_ns * step_ticks,
         (v_now + least(coalesce(p_max_debt, 31622400000000000), 31622400000000000) - 1 - anchor)
           div step_ns * step_ticks + 1 - token_ticks,
         burst + longest_wait + (1000000000 div step_ns + 1) * step_ticks, longest_wait
    into v_clock, v_most, v_furthest, v_longest_wait from token_buckets where id = v_id for update;
  if o_given_back >= 0 then
    -- More than the bucket holds, too: debts may be from before it held less. What is granted after it is no sum that
    -- overflows.
    set v_full_at = greatest(v_full_at - cast(o_given_back as decimal(65, 0)) * v_token_ticks, -v_burst),
        v_granted = least(v_granted, 4611686018427387903);
  else
    -- The clock was set back: it is empty from now on, as a request would find it.
    if v_full_at - v_clock > v_furthest then
      set v_full_at = v_clock + v_burst, v_longest_wait = 0;
    end if;
    set v_owed = greatest(v_full_at, v_clock) - cast(o_given_back as decimal(65, 0)) * v_token_ticks;
    set v_full_at = greatest(v_full_at, least(v_owed, greatest(v_clock, v_most) + cast(v_burst as decimal(65, 0)))),
        v_granted = least(cast(v_granted as decimal(65, 0)) - o_given_back, 4611686018427387903);
  end if;
  update token_buckets
     set full_at = v_full_at, granted = v_granted,
         longest_wait = greatest(v_longest_wait, if(o_given_back < 0, v_full_at - v_clock - v_burst, 0))
   where id = v_id;
  update token_receipts
     set state = case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end,
         expires_at = greatest(expires_at, least(greatest(acts_at, v_now + 86400000000000), v_now + 31622400000000000))
   where id = v_receipt and bucket = v_id;
end adjust
