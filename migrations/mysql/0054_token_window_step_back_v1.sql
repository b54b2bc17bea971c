-- token_window_step_back_v1: a window as of a clock that was set back, if it was. What was counted since then counts as of
-- now: nobody is locked out for longer than an interval. Reckons only.
--
-- Arguments: p_last_wait, p_resolution: the window's columns; p_now in nanoseconds since 1970
--            io_counts, io_newest: the window's columns, then the new ones
-- Errors:    22023 group_concat_max_len is too small (MariaDB)
create procedure token_window_step_back_v1(
  in p_last_wait bigint, in p_resolution bigint, in p_now bigint,
  inout io_counts longtext character set ascii, inout io_newest bigint)
no sql
sql security definer
begin
  declare v_back bigint default io_newest - p_now - p_resolution;
  declare v_parts bigint;

  if v_back > p_last_wait + 1000000000 then
    select json_arrayagg(json_array(e - v_back, c)), count(*) into io_counts, v_parts
      from json_table(io_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j;
    if (json_valid(io_counts) and json_length(io_counts) = v_parts) is not true then
      -- MariaDB cuts it off in silence.
      signal sqlstate '22023' set message_text =
        'tollgate: group_concat_max_len is too small for this window: set it to 131072 or more, or count in fewer parts';
    end if;
    set io_newest = io_newest - v_back;
  end if;
end
