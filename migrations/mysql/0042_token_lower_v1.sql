-- token_lower_v1: what token_hold_back_v1 does, for routines: lower a bucket to what somebody else says of it, never
-- raise it.
--
-- Arguments: p_id        the bucket
--            p_remaining no more tokens than these are left; null: not said
--            p_wait      none comes before so many nanoseconds have passed, a year at most; 0: not said. Of an interval
--                        they come with the first period that begins then
--            p_capacity, p_refill_seconds, p_refill, p_plan, p_own: as token_decide_v1's
-- Result:    o_outcome   'lowered'; 'unchanged': it held no more, or its mode is 'off'; 'endless': it never refills, and
--                        there is a wait; 'unknown', 'unplanned' or 'conflict', as token_decide_v1 answers
-- Errors:    22023 arguments out of range · 23514 terms that make no bucket
--            · 40001 the bucket changed during each of 100 attempts
-- Locks:     the bucket's row, so the clock is read after that, in a transaction of its own unless inside the caller's.
create procedure token_lower_v1(
  in p_id varchar(256) character set utf8mb4, in p_remaining bigint, in p_wait bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varchar(256) character set utf8mb4,
  in p_own boolean, out o_outcome varchar(10) character set ascii)
modifies sql data
sql security definer
begin
  declare v_own boolean default false;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_mode varchar(7) character set ascii collate ascii_bin;
  declare v_now, v_until, v_capacity, v_clock, v_before, v_to bigint;
  declare v_full_at, v_longest_wait, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_changed boolean;
  declare v_attempt int default 0;
  declare continue handler for 1568  -- inside a transaction of the caller's, or one that was left open
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_own = false;
    end if;
  declare exit handler for sqlexception
  begin
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if (p_id is not null and coalesce(p_remaining, 0) >= 0 and p_wait between 0 and 31622400000000000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: holding back takes a bucket, 0 tokens or more, and a wait of 0 to a year';
  end if;
  set v_own = @@autocommit or p_own;
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  held: begin
    ready: loop
      set v_burst = null;
      select full_at, longest_wait, burst, anchor, step_ns, step_ticks, token_ticks
        into v_full_at, v_longest_wait, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks
        from token_buckets where id = v_id for update;
      call token_clock_v1(v_now);
      -- It needs more tokens than any bucket holds: whether the clock was set back is looked at here.
      call token_rule_v1(v_id, p_capacity, p_refill_seconds, p_refill, cast(p_plan as binary), v_now,
                         4611686018427387903, o_outcome, v_mode, v_until, v_changed, v_capacity);
      -- A bucket that was not there may be by now: then nothing of it has been read yet.
      if v_changed or v_burst is null and o_outcome is null and not v_mode <=> 'off' then
        set v_attempt = v_attempt + 1;
        if v_attempt = 100 then
          signal sqlstate '40001' set message_text =
            'tollgate: the bucket changed during each of 100 attempts: call again';
        end if;
        iterate ready;
      end if;
      leave ready;
    end loop;
    if o_outcome is not null then
      leave held;
    elseif v_mode = 'off' then
      set o_outcome = 'unchanged';
      leave held;
    elseif p_wait > 0 and v_step_ns = 9223372036854775807 then
      set o_outcome = 'endless';
      leave held;
    end if;

    set v_clock = (v_now - v_anchor) div v_step_ns * v_step_ticks, v_before = v_full_at;
    if v_full_at - v_clock > v_burst + v_longest_wait + (1000000000 div v_step_ns + 1) * v_step_ticks then
      -- The clock was set back since: it is empty.
      set v_full_at = v_clock + v_burst, v_longest_wait = 0;
    end if;
    set v_to = greatest(v_full_at, v_clock);
    if p_remaining is not null then
      set v_to = greatest(v_to, v_clock + v_burst - least(p_remaining, v_burst div v_token_ticks) * v_token_ticks);
    end if;
    if p_wait > 0 then
      set v_to = greatest(v_to, (v_now + p_wait - 1 - v_anchor) div v_step_ns * v_step_ticks + 1 + v_burst
                                - v_token_ticks);
    end if;
    set o_outcome = if(v_to > greatest(v_full_at, v_clock), 'lowered', 'unchanged');
    if o_outcome = 'lowered' then
      set v_full_at = v_to, v_longest_wait = greatest(v_longest_wait, v_to - v_clock - v_burst);
    end if;
    if v_full_at <> v_before then
      update token_buckets set full_at = v_full_at, longest_wait = v_longest_wait where id = v_id;
    end if;
  end held;

  if v_own then commit and no chain no release; end if;
end
