-- request_tokens_many: take tokens from several provisioned buckets in one call, each for itself.
--
-- Arguments: p_requests  a JSON array of [id, tokens]: '[["user:1", 1], ["user:2", 5]]'
-- Result:    a row a request, in the order given: id; outcome: 'granted', 'denied', or what token_decide_v1 answers
--            else; remaining and retry_after_ms as in request_tokens_v1, null if undecided
-- Errors:    22023 arguments out of range
-- Locks:     see token_decide_many_v1.
create procedure request_tokens_many(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_requests longtext character set utf8mb4;
  declare v_answers json;

  -- Without strict mode the server has put ? for each byte that it could not convert.
  if (p_requests like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (json_valid(p_requests) and json_type(p_requests) = 'ARRAY'
      and json_length(p_requests) = (
        select count(*)
          from json_table(p_requests, '$[*]' columns (
                 id text character set utf8mb4 path '$[0]', tokens decimal(40, 20) path '$[1]',
                 more int exists path '$[2]')) as r
         where length(r.id) between 1 and 255 and r.tokens >= 1 and r.tokens = floor(r.tokens) and r.more = 0)) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens_many takes a JSON array of [id, tokens], each 1 or more and whole: [["a", 1], ["b", 5]]';
  end if;
  select coalesce(json_arrayagg(
           json_array(hex(cast(id as binary)), tokens, 0, 0, null, null, null, null, null, null, 1, place)), '[]')
    into v_requests
    from json_table(p_requests, '$[*]' columns (
           place for ordinality, id text character set utf8mb4 path '$[0]', tokens bigint path '$[1]')) as r;
  if (json_valid(v_requests) and json_length(v_requests) = json_length(p_requests)) is not true then
    -- MariaDB cuts it off in silence.
    signal sqlstate '22023' set message_text =
      'tollgate: group_concat_max_len is too small for so many requests: raise it, or ask for fewer at once';
  end if;
  call token_decide_many_v1(v_requests, false, v_answers);
  select id, outcome,
         case
           when outcome not in ('granted', 'denied') then null
           when token_ticks is null then burst
           else greatest((burst - full_at + clock) div token_ticks, 0)
         end as remaining,
         case
           when outcome not in ('granted', 'denied') then null
           when token_ticks is null then 0
           when outcome = 'denied' and mode = 'block' then (acts_at - now + 999999) div 1000000
           when step_ns = 9223372036854775807 then if(tick <= 0, 0, null)
           else (greatest((tick div step_ticks + (tick mod step_ticks > 0)) * step_ns + anchor - now, 0) + 999999)
                div 1000000
         end as retry_after_ms
    from (select d.*, greatest(d.at, d.clock) as full_at,
                 if(d.tokens > d.burst div d.token_ticks, null,
                    greatest(d.at, d.clock) + (d.tokens - d.burst div d.token_ticks) * d.token_ticks) as tick
            from (select r.given, convert(unhex(r.id) using utf8mb4) as id, r.tokens, a.*,
                         if(a.grants > 0, 'granted', a.decided) as outcome,
                         (a.now - a.anchor) div a.step_ns * a.step_ticks as clock
                    from json_table(v_requests, '$[*]' columns (
                           place for ordinality, id varchar(2048) path '$[0]', tokens bigint path '$[1]',
                           given bigint path '$[11]')) as r
                    straight_join (
                          select words.*
                            from json_table(v_answers, '$[*]' columns (
                                   answer varchar(400) character set ascii path '$')) as texts
                            straight_join json_table(
                                   concat('["', replace(replace(texts.answer, ' ', '","'), '"-"', 'null'), '"]'),
                                   '$' columns (
                                     times bigint path '$[0]', grants bigint path '$[1]', place bigint path '$[2]',
                                     decided varchar(10) path '$[3]', mode varchar(7) path '$[4]',
                                     now bigint path '$[5]', acts_at bigint path '$[6]', at bigint path '$[7]',
                                     burst bigint path '$[9]', anchor bigint path '$[10]', step_ns bigint path '$[11]',
                                     step_ticks bigint path '$[12]', token_ticks bigint path '$[13]')) as words
                           limit 1000000000) as a  -- made once, and not for each request
                      on a.place = r.place and a.times > 0) as d) as answers
   order by given;
end
