-- token_window_step_back: adapts a window to a clock that was set back. Requests counted by the old clock count from now on:
-- keys are denied for one interval at most.
--
-- Arguments: p_last_wait, p_resolution: the window's columns
--            p_now                  nanoseconds since 1970
--            io_counts, io_newest   the window's columns
-- Result:    io_counts, io_newest   the new columns
-- Errors:    none
-- Locks:     none
drop procedure if exists token_window_step_back;
create procedure token_window_step_back(
  in p_last_wait bigint, in p_resolution bigint, in p_now bigint,
  inout io_counts longtext character set ascii, inout io_newest bigint)
no sql
sql security definer
begin
  declare v_back bigint default io_newest - p_now - p_resolution;

  if v_back > p_last_wait + 1000000000 then
    select json_arrayagg(json_array(e - v_back, c)) into io_counts
      from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j;
    set io_newest = io_newest - v_back;
  end if;
end;

-- token_window_earliest: computes the earliest time at which at most p_room granted requests count. The result is never before
-- the time of a granted request.
--
-- Arguments: p_counts, p_newest, p_resolution: the window's columns
--            p_interval      nanoseconds
--            p_room          requests
--            p_now           nanoseconds since 1970
-- Result:    o_scheduled_at  nanoseconds since 1970
-- Errors:    none
-- Locks:     none
drop procedure if exists token_window_earliest;
create procedure token_window_earliest(
  in p_counts longtext character set ascii, in p_newest bigint, in p_resolution bigint, in p_interval bigint,
  in p_room bigint, in p_now bigint, out o_scheduled_at bigint)
no sql
sql security definer
begin
  declare v_full bigint;

  select max(e) into v_full
    from (select e, sum(c) over (order by e desc) as so_far
            from json_table(p_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as s
   where so_far > p_room;
  set o_scheduled_at = greatest(p_now, p_newest - p_resolution, coalesce(v_full + p_interval, 0));
end;

-- token_window_count: counts requests in a window at an instant, and drops the counts that have expired.
--
-- Arguments: p_id            the window
--            p_max_requests  maximum of requests; null: unchanged
--            p_interval, p_resolution: nanoseconds
--            p_cost          requests
--            p_now, p_at     nanoseconds since 1970
--            io_counts, io_newest, io_resolution: the window's columns
-- Result:    io_counts, io_newest, io_resolution: the new columns
-- Errors:    none
-- Locks:     the window's row, which the caller already holds
--
-- A window holds at most 2000 sub-intervals. Beyond, a past sub-interval is merged into the next one, so that its requests
-- count for longer: the one with the smallest delay in relation to its age. The window keeps the newest resolution.
drop procedure if exists token_window_count;
create procedure token_window_count(
  in p_id varbinary(1024), in p_max_requests bigint, in p_interval bigint, in p_resolution bigint, in p_cost bigint,
  in p_now bigint, in p_at bigint, inout io_counts longtext character set ascii, inout io_newest bigint, inout io_resolution bigint)
modifies sql data
sql security definer
begin
  declare v_end bigint default (p_at div p_resolution + 1) * p_resolution;
  declare v_interval, v_entries, v_join, v_next, v_forgotten bigint;

  -- The longer interval applies until this request's counts are the only ones.
  select greatest(p_interval, interval_ns) into v_interval from token_windows where id = p_id for update;
  if io_newest <= p_now - v_interval then
    set v_interval = p_interval;
  elseif io_newest >= v_end then
    set v_end = io_newest;
  end if;
  if v_end > io_newest then
    set io_resolution = p_resolution;
  end if;
  select max(e) into v_forgotten
    from json_table(io_counts, '$[*]' columns (e bigint path '$[0]')) as j where e <= p_now - v_interval;
  select json_arrayagg(json_array(e, c)), count(*) into io_counts, v_entries
    from (select e, cast(sum(c) as signed) as c
            from (select e, c
                    from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
                   where e > p_now - v_interval
                   union all select v_end, p_cost) as u
           group by e) as s;
  if v_entries > 2000 then
    select e, after_e into v_join, v_next
      from (select e, lag(e) over (order by e) as before_e, lead(e) over (order by e) as after_e
              from json_table(io_counts, '$[*]' columns (e bigint path '$[0]')) as j
             where e <= p_now) as k
     where before_e is not null and after_e is not null
     order by (p_now - before_e) div (after_e - before_e) desc, e limit 1;
  end if;
  if v_join is not null then
    select json_arrayagg(json_array(e, c)) into io_counts
      from (select e, cast(sum(c) as signed) as c
              from (select if(e = v_join, v_next, e) as e, c
                      from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as u
             group by e) as s;
  end if;
  set io_newest = v_end;
  update token_windows
     set counts = io_counts, newest = v_end,
         -- An unused window has forgotten nothing, even if the clock was set back since the window was created. Before
         -- granted changes, because assignments are made from left to right.
         since = if(granted = 0, p_now, greatest(since, coalesce(v_forgotten, 0))), granted = granted + p_cost,
         last_wait = p_at - p_now, max_requests = coalesce(p_max_requests, max_requests), interval_ns = v_interval,
         resolution_ns = io_resolution
   where id = p_id;
end;

-- token_take_window_v1: decides one request under a sliding window exactly, or counts the request unconditionally.
--
-- Arguments: p_id             the window; its first request creates it
--            p_cost           requests, 1 or more; 0 with p_counting: only reads
--            p_max_wait       longest wait in nanoseconds; ignored with mode 'shadow'
--            p_min_remaining  requests that must remain for others
--            p_max_requests   maximum in any interval
--            p_interval, p_resolution: nanoseconds; the resolution divides the interval into 1 to 1000 parts
--            p_request_id     id of the request, a UUID: a retry with the id is counted once; null: no id
--            p_hold           nanoseconds for which the id is remembered
--            p_counting       true: counts the request now, even beyond the maximum
--            p_exclusive      as for token_take_v1
-- Result:    o_outcome        'granted' or 'denied'; a wait that needs more than 1000 sub-intervals ahead is denied, too
--                             'never': p_cost + p_min_remaining exceeds the maximum
--                             'reused': the id belongs to another request
--            o_mode           the mode that decided instead of the counts: 'shadow', 'off' or 'block'; else null
--            o_now            instant of the decision, in nanoseconds since 1970
--            o_scheduled_at   when the request acts; with 'block', the end of the mode; null: no end
--            o_counts, o_resolution: the window's columns after the decision
-- Errors:    22023 arguments out of range
-- Locks:     the window's row, then the receipt. In the caller's transaction, the locks last until it ends. Otherwise the
--            routine has its own transaction.
drop procedure if exists token_take_window_v1;
create procedure token_take_window_v1(
  in p_id varchar(256) character set utf8mb4, in p_cost bigint, in p_max_wait bigint, in p_min_remaining bigint,
  in p_max_requests bigint, in p_interval bigint, in p_resolution bigint, in p_request_id varchar(36) character set ascii,
  in p_hold bigint, in p_counting boolean, in p_exclusive boolean,
  out o_outcome varchar(10) character set ascii, out o_mode varchar(7) character set ascii collate ascii_bin,
  out o_now bigint, out o_scheduled_at bigint, out o_counts longtext character set ascii, out o_resolution bigint)
modifies sql data
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_owns_transaction boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_newest, v_was_newest, v_last_wait, v_until, v_over_until bigint;
  declare v_mode varchar(7) character set ascii collate ascii_bin;

  if (length(v_id) between 1 and 255 and left(v_id, 1) <> x'01' and locate(x'00', v_id) = 0
      and cast(convert(v_id using utf8mb4) as binary) <=> v_id
      and p_cost between if(p_counting, 0, 1) and if(p_counting, 1000000000000, c_max_counted)
      and p_min_remaining between 0 and c_max_counted and p_max_wait between 0 and c_year
      and p_max_requests between 1 and 1000000000000 and p_resolution between 1000 and p_interval
      and p_interval <= c_year and (p_interval - 1) div p_resolution < 1000) is not true then
    call token_check_id('window id', v_id);
    signal sqlstate '22023' set message_text =
      'tollgate: a window needs a cost and maximum of 1 or more, at most a year, and 1 to 1000 parts of 1000 ns or more';
  end if;
  call token_begin(p_exclusive, v_owns_transaction);

  decide: begin
    declare exit handler for sqlexception
    begin
      set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
          sql_big_selects = v_sql_big_selects;
      if v_owns_transaction then rollback and no chain no release; end if;
      resignal;
    end;

    -- MariaDB truncates a longer array silently. A join can exceed the session's max_join_size.
    set innodb_lock_wait_timeout = if(p_exclusive, least(v_lock_wait_timeout, 1), v_lock_wait_timeout),
        group_concat_max_len = 1000000000, sql_big_selects = 1;
    set o_outcome = 'granted', o_counts = '[]', o_resolution = p_resolution, v_newest = 0;
    call token_clock(o_now);
    set o_scheduled_at = o_now;
    lock_row: begin
      select counts, newest, resolution_ns, last_wait into o_counts, v_newest, o_resolution, v_last_wait
        from token_windows where id = v_id for update;
      call token_clock(o_now);
      set o_scheduled_at = o_now;
    end lock_row;
    -- Reads the mode under the lock: see token_take_v1.
    select mode, if(until < '2262-01-01', timestampdiff(microsecond, '1970-01-01', until) * 1000, null) into o_mode, v_until
      from token_mode
     where one = true and (until is null or timestampdiff(microsecond, '1970-01-01', least(until, '2262-01-01')) * 1000 > o_now);
    select mode, if(expires_at < '2262-01-01', timestampdiff(microsecond, '1970-01-01', expires_at) * 1000, null)
      into v_mode, v_over_until
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
      insert into token_windows (id, max_requests, interval_ns, resolution_ns, counts, since)
      values (v_id, p_max_requests, p_interval, p_resolution, '[]', o_now)
      on duplicate key update id = token_windows.id;
      select counts, newest, resolution_ns, last_wait into o_counts, v_newest, o_resolution, v_last_wait
        from token_windows where id = v_id for update;
      call token_clock(o_now);
      set o_scheduled_at = o_now;
    end if;
    set v_was_newest = v_newest;
    call token_window_step_back(v_last_wait, o_resolution, o_now, o_counts, v_newest);
    if v_newest < v_was_newest then
      -- An adjustment gives back nothing of a request that acted by the old clock.
      update token_windows set counts = o_counts, newest = v_newest, since = greatest(since, v_was_newest) where id = v_id;
    end if;

    if p_request_id is not null then
      -- A bucket and a window with one key have separate receipts: no bucket id starts with U+0001.
      begin
        declare v_cost, v_granted, v_scheduled_at, v_expires_at bigint;
        declare v_state varchar(9) character set ascii;
        call token_claim(p_request_id, concat(x'01', v_id), p_cost, 0, o_now,
                         o_now + least(greatest(coalesce(p_hold, 0), 0), c_year), o_now,
                         v_state, v_cost, v_granted, v_scheduled_at, v_expires_at);
        if v_state is not null then
          set o_outcome = if(v_cost = p_cost and v_state <> 'cancelled', 'granted', 'reused'),
              o_mode = null, o_scheduled_at = greatest(v_scheduled_at, o_now);
          leave decide;
        end if;
      end;
    end if;

    if o_mode = 'block' then
      set o_outcome = 'denied', o_scheduled_at = v_until;
    elseif not p_counting and p_cost > p_max_requests - p_min_remaining then
      set o_outcome = 'never';
    else
      if p_counting then
        set o_scheduled_at = greatest(o_now, v_newest - o_resolution);
      else
        call token_window_earliest(o_counts, v_newest, o_resolution, p_interval, p_max_requests - p_cost - p_min_remaining, o_now,
                                   o_scheduled_at);
        if o_scheduled_at between o_now + 1 and o_now + p_max_wait
           and v_newest < (o_scheduled_at div p_resolution + 1) * p_resolution
           and (select count(*) from json_table(o_counts, '$[*]' columns (e bigint path '$[0]')) as j where e > o_now)
               > 999 then
          set o_scheduled_at = 9223372036854775807;
        end if;
      end if;
      if p_counting or o_scheduled_at <= o_now + if(o_mode = 'shadow', 0, p_max_wait) then
        set o_mode = if(p_counting, o_mode, null);
        if p_cost > 0 then
          call token_window_count(v_id, p_max_requests, p_interval, p_resolution, p_cost, o_now, o_scheduled_at, o_counts,
                                  v_newest, o_resolution);
        end if;
        if p_counting then
          set o_scheduled_at = o_now;
        end if;
        update token_receipts set scheduled_at = o_scheduled_at
         where p_request_id is not null and id = unhex(replace(p_request_id, '-', '')) and bucket = concat(x'01', v_id);
        leave decide;
      end if;
      set o_outcome = if(o_mode = 'shadow', 'granted', 'denied'), o_scheduled_at = o_now;
    end if;
    if p_request_id is not null then
      delete from token_receipts where id = unhex(replace(p_request_id, '-', '')) and bucket = concat(x'01', v_id);
    end if;
  end decide;

  set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
      sql_big_selects = v_sql_big_selects;
  if v_owns_transaction then commit and no chain no release; end if;
end;

insert into token_migrations (version, name) values (7, '0007_windows') on duplicate key update applied_at = utc_timestamp(6);
