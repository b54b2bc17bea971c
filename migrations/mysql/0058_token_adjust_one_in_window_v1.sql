-- token_adjust_one_in_window_v1: token_adjust_window_v1, in a transaction that the caller has begun.
--
-- Arguments: p_kind, p_receipt, p_id, p_cost, p_acts_at, p_tokens: as token_adjust_v1's
-- Result:    o_outcome, o_given_back: its columns
-- Errors:    22023 arguments out of range, or group_concat_max_len is too small (MariaDB)
-- Locks:     the window's row, then the receipt.
create procedure token_adjust_one_in_window_v1(
  in p_kind varchar(6) character set ascii, in p_receipt varchar(36) character set ascii,
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_acts_at bigint, in p_tokens bigint,
  out o_outcome varchar(10) character set ascii, out o_given_back bigint)
modifies sql data
sql security definer
adjust: begin
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_receipt binary(16);
  declare v_state varchar(9) character set ascii;
  declare v_counts longtext character set ascii;
  declare v_found, v_entries bigint default 0;
  declare v_now, v_newest, v_interval, v_resolution, v_last_wait, v_since, v_cost, v_expires_at, v_acts_at,
          v_end bigint;

  if (p_kind in ('cancel', 'refund', 'settle')
      and length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}'
      and p_id is not null and p_cost between 1 and 1000000000000 and p_acts_at >= 0
      and p_tokens between 0 and 3155760000000000000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: adjust takes cancel, refund or settle, a UUID, a window, a cost of 1 or more and 0 requests or more';
  end if;
  set v_receipt = unhex(replace(p_receipt, '-', ''));
  set o_outcome = 'done', o_given_back = 0;

  select counts, newest, interval_ns, resolution_ns, last_wait, since
    into v_counts, v_newest, v_interval, v_resolution, v_last_wait, v_since
    from token_windows where id = v_id for update;
  call token_clock_v1(v_now);
  select state, cost, expires_at, acts_at into v_state, v_cost, v_expires_at, v_acts_at
    from token_receipts where id = v_receipt and bucket = concat(x'01', v_id) for update;
  set v_acts_at = coalesce(v_acts_at, p_acts_at);
  set o_outcome = case
    when p_kind = 'cancel' and v_now > v_acts_at then 'late'
    when p_kind = 'settle' and (v_state is null or v_expires_at <= v_now) then 'late'
    when v_state <> 'open' or v_cost <> p_cost then 'repeated'
    when v_counts is null then 'unknown'
    else 'done'
  end;
  if o_outcome <> 'done' then
    leave adjust;
  end if;

  set v_state = case p_kind when 'cancel' then 'cancelled' when 'refund' then 'refunded' else 'settled' end;
  insert into token_receipts (id, bucket, cost, granted, acts_at, state, expires_at)
  values (v_receipt, concat(x'01', v_id), p_cost, 0, p_acts_at, v_state,
          least(greatest(p_acts_at, v_now + 86400000000000), v_now + 31622400000000000))
  on duplicate key update
    state = v_state,
    expires_at = greatest(token_receipts.expires_at,
                          least(greatest(v_acts_at, v_now + 86400000000000), v_now + 31622400000000000));
  set o_given_back = case p_kind
    when 'cancel' then p_cost when 'refund' then least(p_tokens, p_cost) else p_cost - least(p_tokens, 1000000000000) end;
  if o_given_back < 0 then
    set v_end = v_newest;
    call token_window_step_back_v1(v_last_wait, v_resolution, v_now, v_counts, v_newest);
    if v_newest < v_end then
      update token_windows set since = greatest(since, v_end) where id = v_id;
    end if;
    call token_window_count_v1(v_id, null, v_interval, v_resolution, -o_given_back, v_now,
                               greatest(v_now, v_newest - v_resolution), v_counts, v_newest, v_resolution);
    leave adjust;
  end if;
  -- Those of a sub-interval that is gone cannot be given back in another. Where none is, theirs is the first that ends
  -- after they act, or a later one.
  select min(e) into v_end
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
   where e > v_acts_at and v_acts_at >= v_since;
  select coalesce(sum(c), 0) into v_found
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j where e = v_end;
  set v_found = least(v_found, o_given_back);
  if p_kind = 'cancel' then
    set o_given_back = v_found;
  end if;
  -- Nobody queues behind what is not there.
  select coalesce(json_arrayagg(json_array(e, c)), '[]'), count(*), coalesce(max(e), 0)
    into v_counts, v_entries, v_newest
    from (select e, if(e = v_end, c - v_found, c) as c
            from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as s
   where c > 0;
  if (json_valid(v_counts) and json_length(v_counts) = v_entries) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: group_concat_max_len is too small for this window: set it to 131072 or more';
  end if;
  update token_windows set counts = v_counts, newest = v_newest, granted = granted - v_found where id = v_id;
end adjust
