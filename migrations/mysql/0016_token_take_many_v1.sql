-- token_take_many_v1: token_decide_many_v1 with its answers as rows. For the arguments and locks see there.
--
-- Result: a row a request, in any order: its place, then token_take_v1's columns
create procedure token_take_many_v1(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_answers longtext character set utf8mb4;

  call token_decide_many_v1(p_requests, v_answers);
  select * from json_table(v_answers, '$[*]' columns (
    entry bigint path '$[0]', outcome varchar(10) path '$[1]', mode varchar(7) path '$[2]', now bigint path '$[3]',
    acts_at bigint path '$[4]', full_at bigint path '$[5]', granted bigint path '$[6]', burst bigint path '$[7]',
    anchor bigint path '$[8]', step_ns bigint path '$[9]', step_ticks bigint path '$[10]',
    token_ticks bigint path '$[11]')) as answers;
end
