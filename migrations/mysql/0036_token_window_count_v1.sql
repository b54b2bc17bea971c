-- token_window_count_v1: counts requests in a window at an instant, and forgets what counts no more.
--
-- Arguments: p_id; p_most in requests, null: as it is; p_interval, p_resolution in nanoseconds; p_cost in requests; p_now,
--            p_at in nanoseconds since 1970;
--            io_counts, io_newest, io_resolution: the window's columns. Of more than 2000 sub-intervals one that has
--            passed is counted as the next one, so that its requests count for longer: the one which that delays least
--            for its age. The resolution stays that of the newest
-- Errors:    22023 group_concat_max_len is too small (MariaDB)
-- Locks:     the window's row, which the caller holds already.
create procedure token_window_count_v1(
  in p_id varbinary(1024), in p_most bigint, in p_interval bigint, in p_resolution bigint, in p_cost bigint,
  in p_now bigint, in p_at bigint, inout io_counts longtext character set ascii, inout io_newest bigint, inout io_resolution bigint)
modifies sql data
sql security definer
begin
  declare v_end bigint default (p_at div p_resolution + 1) * p_resolution;
  declare v_interval, v_entries, v_join, v_next, v_forgotten bigint;

  -- Who asks by a longer interval finds its counts, until there are none but this one's.
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
  if (json_valid(io_counts) and json_length(io_counts) = v_entries) is not true then
    -- MariaDB cuts it off in silence, or what is no JSON any more.
    signal sqlstate '22023' set message_text =
      'tollgate: group_concat_max_len is too small for this window: set it to 131072 or more, or count in fewer parts';
  end if;
  if v_entries > 2000 then
    select e, after_e into v_join, v_next
      from (select e, lag(e) over (order by e) as before_e, lead(e) over (order by e) as after_e
              from json_table(io_counts, '$[*]' columns (e bigint path '$[0]')) as j
             where e <= p_now) as k
     where before_e is not null and after_e is not null
     order by (p_now - before_e) div (after_e - before_e) desc, e limit 1;
  end if;
  if v_join is not null then
    -- Shorter than what was not cut off.
    select json_arrayagg(json_array(e, c)) into io_counts
      from (select e, cast(sum(c) as signed) as c
              from (select if(e = v_join, v_next, e) as e, c
                      from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as u
             group by e) as s;
  end if;
  set io_newest = v_end;
  update token_windows
     set counts = io_counts, newest = v_end, granted = granted + p_cost,
         last_wait = p_at - p_now, most = coalesce(p_most, most), interval_ns = v_interval,
         resolution_ns = io_resolution,
         since = greatest(since, coalesce(v_forgotten, 0))
   where id = p_id;
end
