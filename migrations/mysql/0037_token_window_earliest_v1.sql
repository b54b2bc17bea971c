-- token_window_earliest_v1: when a request that leaves room for so many others may act: not before any that was
-- granted, and not before so few of those still count.
--
-- Arguments: p_counts, p_newest, p_resolution: the window's columns; p_interval in nanoseconds; p_room in requests;
--            p_now in nanoseconds since 1970
-- Result:    o_acts_at in nanoseconds since 1970
create procedure token_window_earliest_v1(
  in p_counts longtext character set ascii, in p_newest bigint, in p_resolution bigint, in p_interval bigint,
  in p_room bigint, in p_now bigint, out o_acts_at bigint)
no sql
sql security definer
begin
  declare v_full bigint;

  select max(e) into v_full
    from (select e, sum(c) over (order by e desc) as so_far
            from json_table(p_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j) as s
   where so_far > p_room;
  set o_acts_at = greatest(p_now, p_newest - p_resolution, coalesce(v_full + p_interval, 0));
end
