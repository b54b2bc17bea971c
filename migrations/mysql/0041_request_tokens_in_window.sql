-- request_tokens_in_window: the current version's friendly name. MySQL's routines have no defaults: give every
-- argument.
create procedure request_tokens_in_window(
  in p_id varchar(256) character set utf8mb4, in p_max_requests decimal(40, 20), in p_interval_seconds decimal(19, 9),
  in p_resolution_seconds decimal(19, 9), in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_in_window_v1(p_id, p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens,
                                   p_max_wait_ms);
end
