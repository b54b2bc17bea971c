-- request_token: take one token from a provisioned bucket, now or not at all.
--
-- Arguments, results, errors and locks: those of request_tokens_v1.
create procedure request_token(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, 1, 0, 0, null, null);
end
