-- token_take_many_v1: token_decide_many_v1 with its answers as rows. For the arguments and locks see there.
--
-- Result: one or more rows a request, the requests in any order: its place; for how many of the equal requests that it
--         stands for the row is the answer, the first ones first; then the rest of token_take_v1's columns, the state
--         as it is after all of those
create procedure token_take_many_v1(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_answers json;

  call token_decide_many_v1(p_requests, v_answers);
  select entry, if(part = 1, grants, times - grants) as times, if(part = 1, 'granted', outcome) as outcome, mode, now,
         acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks
    from json_table(v_answers, '$[*]' columns (
           number for ordinality, granted bigint path '$[1]', entry bigint path '$[2]', times bigint path '$[3]',
           grants bigint path '$[4]', outcome varchar(10) path '$[5]', mode varchar(7) path '$[6]',
           now bigint path '$[7]', acts_at bigint path '$[8]', full_at bigint path '$[9]', burst bigint path '$[10]',
           anchor bigint path '$[11]', step_ns bigint path '$[12]', step_ticks bigint path '$[13]',
           token_ticks bigint path '$[14]')) as answers
    straight_join (select 1 as part union all select 2) as parts
   where if(part = 1, grants, times - grants) > 0
   order by number, part;
end
