-- token_take_many_v1: token_decide_many_v1 with its answers as rows, in any order: each request's place in the array
-- (from 1), then token_take_v1's columns. For the arguments, errors and locks see there.
create procedure token_take_many_v1(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_answers longtext character set utf8mb4;

  call token_decide_many_v1(p_requests, v_answers);
  select * from json_table(v_answers, '$[*]' columns (
    entry bigint path '$[0]', outcome varchar(10) path '$[1]', now bigint path '$[2]', full_at bigint path '$[3]',
    granted bigint path '$[4]', capacity bigint path '$[5]', anchor bigint path '$[6]', step_ns bigint path '$[7]',
    step_ticks bigint path '$[8]', token_ticks bigint path '$[9]')) as answers;
end
