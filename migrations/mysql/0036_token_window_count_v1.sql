-- token_window_count_v1: counts requests in a window at an instant, and forgets what counts no more.
--
-- Arguments: p_id; p_interval, p_resolution in nanoseconds; p_cost in requests; p_now, p_at in nanoseconds since 1970;
--            io_counts, io_newest: the window's columns
-- Locks:     the window's row, which the caller holds already.
create procedure token_window_count_v1(
  in p_id varbinary(1024), in p_interval bigint, in p_resolution bigint, in p_cost bigint, in p_now bigint,
  in p_at bigint, inout io_counts longtext character set ascii, inout io_newest bigint)
modifies sql data
sql security definer
begin
  declare v_end bigint default (p_at div p_resolution + 1) * p_resolution;

  if io_newest > p_now - p_interval then
    set v_end = greatest(v_end, io_newest);
  end if;
  select json_arrayagg(json_array(e, c)) into io_counts
    from (select e, cast(sum(c) as signed) as c
            from (select e, c
                    from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
                   where e > p_now - p_interval
                   union all select v_end, p_cost) as u
           group by e) as s;
  set io_newest = v_end;
  update token_windows
     set counts = io_counts, newest = v_end, granted = granted + p_cost,
         longest_wait = greatest(longest_wait, p_at - p_now), interval_ns = p_interval, resolution_ns = p_resolution
   where id = p_id;
end
