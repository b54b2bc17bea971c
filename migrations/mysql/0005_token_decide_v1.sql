-- token_decide_v1: decide one request, exactly. Everything that takes tokens is built on it.
--
-- Arguments: p_id        the bucket
--            p_cost      tokens to take, 1 or more
--            p_max_wait  nanoseconds that the caller would wait for them
--            p_keep      tokens that must remain
--            p_capacity, p_refill_seconds, p_refill
--                        terms for a bucket that its first request makes, full, on the calendar's grid;
--                        all null: the bucket must exist, and its own terms hold
-- Result:    o_outcome   'granted' · 'denied' · 'unknown' (no such bucket) · 'never' (cost + keep exceed the capacity)
--                        · 'conflict' (it was provisioned with other terms than those given)
--            o_now       the instant of the decision, in nanoseconds since 1970
--            and the bucket's columns after it, from which remaining tokens and waits follow. A prepared call with a
--            placeholder for each has them as one row, at less cost than a SELECT of them.
-- Errors:    22023 arguments out of range · 3819 (MySQL), 4025 (MariaDB) terms that make no bucket
--            40001 the bucket changed during each of 100 attempts: call again
-- Locks:     the bucket's row, first of all, so that the clock can be read when it is held. In a transaction of the
--            caller's (or with autocommit off) it stays locked until that ends; else the routine has one of its own.
--
-- The clock is the time in UUID(): of this very instant, in UTC, and the same for every session. SET timestamp forges
-- NOW() and UTC_TIMESTAMP(), and SYSDATE() is in the session's time zone.
create procedure token_decide_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_keep bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9), in p_refill varchar(10) character set ascii,
  out o_outcome varchar(10) character set ascii, out o_now bigint, out o_full_at bigint, out o_granted bigint,
  out o_capacity bigint, out o_anchor bigint, out o_step_ns bigint, out o_step_ticks bigint, out o_token_ticks bigint)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_uuid char(36) character set ascii;
  declare v_clock, v_longest_wait, v_acts bigint;
  declare v_same, v_provisioned boolean;
  declare v_attempts int default 0;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's

  if (p_cost >= 1 and p_keep >= 0 and p_max_wait between 0 and 31622400000000000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: a take needs a cost of 1 or more, 0 or more to keep, and a wait of 0 to a year';
  end if;
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback; end if;
      resignal;
    end;

    repeat
      select full_at, granted, capacity, anchor, step_ns, step_ticks, token_ticks, longest_wait, provisioned,
             p_capacity is null
             or (p_capacity = capacity and p_refill_seconds = refill_seconds and p_refill = refill)
        into o_full_at, o_granted, o_capacity, o_anchor, o_step_ns, o_step_ticks, o_token_ticks,
             v_longest_wait, v_provisioned, v_same
        from token_buckets where id = v_id for update;
      set v_uuid = uuid();
      set o_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                   - 122192928000000000) * 100;
      set v_clock = (o_now - o_anchor) div o_step_ns * o_step_ticks;

      -- Null: not before the bucket is made, or brought to other terms or to a clock that was set back.
      set o_outcome = case
        when o_capacity is null then if(p_capacity is null, 'unknown', null)
        when not v_same then if(v_provisioned, 'conflict', null)
        when p_cost > o_capacity - p_keep then 'never'
        when o_full_at - v_clock > o_capacity * o_token_ticks + v_longest_wait
                                   + (1000000000 div o_step_ns + 1) * o_step_ticks then null
        when o_full_at + (p_cost + p_keep - o_capacity) * o_token_ticks
             > (o_now + p_max_wait - o_anchor) div o_step_ns * o_step_ticks then 'denied'
        else 'granted'
      end;

      if o_outcome = 'granted' then
        -- All of its tokens are of the step in which it acts: what was left of an earlier one is not carried over.
        set v_acts = (o_full_at + (p_cost + p_keep - o_capacity) * o_token_ticks + o_step_ticks - 1)
                     div o_step_ticks * o_step_ticks;
        set o_full_at = greatest(o_full_at, v_clock, v_acts) + p_cost * o_token_ticks;
        set o_granted = o_granted + p_cost;
        update token_buckets
           set full_at = o_full_at, granted = o_granted, longest_wait = greatest(v_longest_wait, v_acts - v_clock)
         where id = v_id;
      elseif o_outcome is null then
        set v_attempts = v_attempts + 1;
        if v_attempts >= 100 then
          begin
            declare v_message varchar(128) character set utf8mb4
              default concat('tollgate: bucket ''', left(p_id, 36),
                             ''' changed during each of 100 attempts: call again');
            signal sqlstate '40001' set message_text = v_message;
          end;
        elseif o_capacity is null then
          call token_create_on_first_use_v1(v_id, p_capacity, p_refill_seconds, p_refill);
        else
          call token_settle_v1(v_id, o_now, p_capacity, p_refill_seconds, p_refill);
        end if;
      end if;
    until o_outcome is not null end repeat;

    if v_own then commit; end if;
  end;
end
