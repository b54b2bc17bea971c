-- token_decide_window_v1: decide one request under a sliding window, exactly; or count it whatever the window says.
--
-- Arguments: p_id         the window; its first request makes it
--            p_cost       requests, 1 or more; 0 with p_counting: only read
--            p_max_wait   nanoseconds that the caller would wait; in the mode 'shadow' nobody waits
--            p_keep       requests that must remain for others
--            p_most       how many pass at most in any interval
--            p_interval, p_resolution: in nanoseconds; the resolution divides the interval into 1 to 1000 parts
--            p_receipt    the request's id, a UUID: repeated with it, the request counts no more; null: it has none
--            p_hold       for how many nanoseconds the id is remembered
--            p_counting   true: count it now, even beyond the maximum
--            p_own        as token_decide_v1's
-- Result:    o_outcome    'granted' or 'denied', as is a wait that would begin a sub-interval beyond the thousandth ahead;
--                         'never': cost + keep exceed the maximum; 'reused': the id is another
--                         request's
--            o_mode       what decided instead of the counts: 'shadow', 'off' or 'block', else null
--            o_now        the instant of the decision, in nanoseconds since 1970
--            o_acts_at    when the request acts; if blocked, until when; null: no end
--            o_counts, o_resolution: the window's columns after it
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, first of all; then the receipt. In a transaction of the caller's they stay locked until
--            that ends; else the routine has one of its own.
create procedure token_decide_window_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_keep bigint,
  in p_most bigint, in p_interval bigint, in p_resolution bigint, in p_receipt varchar(36) character set ascii,
  in p_hold bigint, in p_counting boolean, in p_own boolean,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_now bigint, out o_acts_at bigint, out o_counts longtext character set ascii, out o_resolution bigint)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_newest, v_was_newest, v_last_wait, v_until, v_over_until bigint;
  declare v_mode varchar(7) character set ascii collate ascii_bin;
  declare continue handler for 1568  -- inside a transaction of the caller's, or one that was left open
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_own = false;
    end if;

  if (length(v_id) between 1 and 255 and left(v_id, 1) <> x'01' and locate(x'00', v_id) = 0
      and cast(convert(v_id using utf8mb4) as binary) <=> v_id
      and p_cost between if(p_counting, 0, 1) and if(p_counting, 1000000000000, 4611686018427387903)
      and p_keep between 0 and 4611686018427387903 and p_max_wait between 0 and 31622400000000000
      and p_most between 1 and 1000000000000 and p_resolution between 1000 and p_interval
      and p_interval <= 31622400000000000 and (p_interval - 1) div p_resolution < 1000) is not true then
    call token_check_id_v1('window id', v_id);
    signal sqlstate '22023' set message_text =
      'tollgate: a window needs a cost and maximum of 1 or more, a year at most, and 1 to 1000 parts of 1000 ns or more';
  end if;
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  decide: begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback and no chain no release; end if;
      resignal;
    end;

    set o_outcome = 'granted', o_counts = '[]', o_resolution = p_resolution, v_newest = 0;
    call token_clock_v1(o_now);
    set o_acts_at = o_now;
    lock_row: begin
      select counts, newest, resolution_ns, last_wait into o_counts, v_newest, o_resolution, v_last_wait
        from token_windows where id = v_id for update;
      call token_clock_v1(o_now);
      set o_acts_at = o_now;
    end lock_row;
    -- What rules, read when the lock is held: see token_decide_v1.
    select mode, if(until < '2262-01-01', timestampdiff(microsecond, '1970-01-01', until) * 1000, null) into o_mode, v_until
      from token_mode
     where one = true and (until is null or timestampdiff(microsecond, '1970-01-01', least(until, '2262-01-01')) * 1000 > o_now);
    select mode, if(expires_at < '2262-01-01', timestampdiff(microsecond, '1970-01-01', expires_at) * 1000, null) into v_mode, v_over_until
      from token_overrides
     where id = v_id and mode is not null
       and (expires_at is null or timestampdiff(microsecond, '1970-01-01', least(expires_at, '2262-01-01')) * 1000 > o_now);
    if v_mode is not null then
      set o_mode = v_mode, v_until = v_over_until;
    end if;
    set o_mode = nullif(o_mode, 'enforce');
    if o_mode = 'off' then
      leave decide;
    end if;

    if v_last_wait is null then
      insert into token_windows (id, most, interval_ns, resolution_ns, counts, since)
      values (v_id, p_most, p_interval, p_resolution, '[]', o_now)
      on duplicate key update id = token_windows.id;
      select counts, newest, resolution_ns, last_wait into o_counts, v_newest, o_resolution, v_last_wait
        from token_windows where id = v_id for update;
      call token_clock_v1(o_now);
      set o_acts_at = o_now;
    end if;
    set v_was_newest = v_newest;
    call token_window_step_back_v1(v_last_wait, o_resolution, o_now, o_counts, v_newest);
    if v_newest < v_was_newest then
      -- What acted by the clock as it was gives nothing back by this one.
      update token_windows set counts = o_counts, newest = v_newest, since = greatest(since, v_was_newest) where id = v_id;
    end if;

    if p_receipt is not null then
      -- A bucket and a window of one key have receipts of their own: no bucket's id begins so.
      begin
        declare v_cost, v_granted, v_acts_at, v_expires_at bigint;
        declare v_state varchar(9) character set ascii;
        call token_claim_v1(p_receipt, concat(x'01', v_id), p_cost, 0, o_now,
                            o_now + least(greatest(coalesce(p_hold, 0), 0), 31622400000000000), o_now,
                            v_state, v_cost, v_granted, v_acts_at, v_expires_at);
        if v_state is not null then
          set o_outcome = if(v_cost = p_cost and v_state <> 'cancelled', 'granted', 'reused'),
              o_mode = null, o_acts_at = greatest(v_acts_at, o_now);
          leave decide;
        end if;
      end;
    end if;

    if o_mode = 'block' then
      set o_outcome = 'denied', o_acts_at = v_until;
    elseif not p_counting and p_cost > p_most - p_keep then
      set o_outcome = 'never';
    else
      if p_counting then
        set o_acts_at = greatest(o_now, v_newest - o_resolution);
      else
        call token_window_earliest_v1(o_counts, v_newest, o_resolution, p_interval, p_most - p_cost - p_keep, o_now,
                                      o_acts_at);
        if o_acts_at between o_now + 1 and o_now + p_max_wait
           and v_newest < (o_acts_at div p_resolution + 1) * p_resolution
           and (select count(*) from json_table(o_counts, '$[*]' columns (e bigint path '$[0]')) as j where e > o_now)
               > 999 then
          set o_acts_at = 9223372036854775807;
        end if;
      end if;
      if p_counting or o_acts_at <= o_now + if(o_mode = 'shadow', 0, p_max_wait) then
        set o_mode = if(p_counting, o_mode, null);
        if p_cost > 0 then
          call token_window_count_v1(v_id, p_most, p_interval, p_resolution, p_cost, o_now, o_acts_at, o_counts,
                                     v_newest, o_resolution);
        end if;
        if p_counting then
          set o_acts_at = o_now;
        end if;
        update token_receipts set acts_at = o_acts_at
         where p_receipt is not null and id = unhex(replace(p_receipt, '-', '')) and bucket = concat(x'01', v_id);
        leave decide;
      end if;
      set o_outcome = if(o_mode = 'shadow', 'granted', 'denied'), o_acts_at = o_now;
    end if;
    if p_receipt is not null then
      delete from token_receipts where id = unhex(replace(p_receipt, '-', '')) and bucket = concat(x'01', v_id);
    end if;
  end decide;

  if v_own then commit and no chain no release; end if;
end
