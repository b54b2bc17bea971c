-- request_tokens_once: request_tokens with an id of yours, a UUID: a request that is repeated with it within a day
-- takes nothing more.
create procedure request_tokens_once(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_keep decimal(40, 20), in p_request varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_keep, null, p_request);
end
