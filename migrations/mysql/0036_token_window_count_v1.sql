-- token_window_count_v1: counts requests in a window at an instant, and forgets what counts no more.
--
-- Arguments: p_id; p_most in requests, null: as it is; p_interval, p_resolution in nanoseconds; p_cost in requests; p_now, p_at in nanoseconds since 1970;
--            io_counts, io_newest, io_resolution: the window's columns. Of the sub-intervals the newest 1001 are kept,
--            and the resolution stays that of the newest
-- Errors:    22023 group_concat_max_len is too small (MariaDB)
-- Locks:     the window's row, which the caller holds already.
create procedure token_window_count_v1(
  in p_id varbinary(1024), in p_most bigint, in p_interval bigint, in p_resolution bigint, in p_cost bigint,
  in p_now bigint, in p_at bigint, inout io_counts longtext character set ascii, inout io_newest bigint, inout io_resolution bigint)
modifies sql data
sql security definer
begin
  declare v_end bigint default (p_at div p_resolution + 1) * p_resolution;
  declare v_interval, v_entries bigint;

  -- Who asks by a longer interval finds its counts, until there are none but this one's.
  select greatest(p_interval, interval_ns) into v_interval from token_windows where id = p_id;
  if io_newest <= p_now - v_interval then
    set v_interval = p_interval;
  elseif io_newest >= v_end then
    set v_end = io_newest;
  end if;
  if v_end > io_newest then
    set io_resolution = p_resolution;
  end if;
  select json_arrayagg(json_array(e, c)), count(*) into io_counts, v_entries
    from (select e, cast(sum(c) as signed) as c
            from (select e, c
                    from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
                   where e > p_now - v_interval
                   union all select v_end, p_cost) as u
           group by e order by e desc limit 1001) as s;
  if (json_valid(io_counts) and json_length(io_counts) = v_entries) is not true then
    -- MariaDB cuts it off in silence, or what is no JSON any more.
    signal sqlstate '22023' set message_text =
      'tollgate: group_concat_max_len is too small for this window: set it to 65536 or more, or count in fewer parts';
  end if;
  set io_newest = v_end;
  update token_windows
     set counts = io_counts, newest = v_end, granted = granted + p_cost,
         longest_wait = greatest(longest_wait, p_at - p_now), most = coalesce(p_most, most), interval_ns = v_interval,
         resolution_ns = io_resolution
   where id = p_id;
end
