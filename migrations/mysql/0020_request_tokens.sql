-- request_tokens: the current version's friendly name. MySQL's routines have no defaults: give every argument.
create procedure request_tokens(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_keep decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_keep, null, null);
end
