-- token_take_many_v1: token_decide_many_v1 with its answers as one row. For the arguments, result and locks see there.
create procedure token_take_many_v1(in p_requests longtext character set utf8mb4, in p_own boolean)
modifies sql data
sql security definer
begin
  declare v_answers longtext character set utf8mb4;

  call token_decide_many_v1(p_requests, p_own, v_answers);
  select v_answers as answers;
end
