-- token_peek_window: a sliding window as people think of it, at this instant. Reads, locks and changes nothing.
--
-- Arguments: p_id               the window
-- Result:    one row, or none: nothing was ever counted in it, or it was swept
--            max_requests       the terms that it was last counted under; the interval is the longest since it was empty
--            interval_seconds, resolution_seconds
--            counted            requests that count now; above the maximum: promised to requests that wait
--            granted            requests, ever
--            retry_after_ms     milliseconds until one more passes, if the mode is enforce; 0: now
create procedure token_peek_window(in p_id varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  declare v_most, v_interval, v_resolution, v_newest, v_granted, v_last_wait, v_now, v_acts_at bigint;
  declare v_counts longtext character set ascii default '[]';

  select most, interval_ns, resolution_ns, counts, newest, granted, last_wait
    into v_most, v_interval, v_resolution, v_counts, v_newest, v_granted, v_last_wait
    from token_windows where id = cast(p_id as binary);
  if (json_valid(v_counts) and v_most >= 1 and v_interval between 1 and 31622400000000000
      and v_resolution between 1 and 31622400000000000 and v_last_wait between 0 and 31622400000000000
      and v_newest between 0 and 4611686018427387903) is not true then
    -- A row that breaks its bounds: max_requests is null.
    set v_most = null, v_interval = 0, v_resolution = 0, v_counts = '[]', v_newest = 0, v_last_wait = 0;
  end if;
  call token_clock_v1(v_now);
  if v_newest - v_now > v_last_wait + v_resolution + 1000000000 then
    -- After a step of the clock backwards, what was counted since counts as of now.
    set v_now = v_newest - v_resolution;
  end if;
  call token_window_earliest_v1(v_counts, v_newest, v_resolution, v_interval, v_most - 1, v_now, v_acts_at);
  select v_most as max_requests, v_interval * 0.000000001 as interval_seconds,
         v_resolution * 0.000000001 as resolution_seconds,
         cast(coalesce(sum(if(e > v_now - v_interval, c, 0)), 0) as signed) as counted, v_granted as granted,
         (v_acts_at - v_now + 999999) div 1000000 as retry_after_ms
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
  having v_granted <> 0;
end
