-- request_tokens_many: take tokens from several provisioned buckets in one call, each for itself.
--
-- Arguments: p_requests  a JSON array of ids and numbers of tokens, 1 or more: '[["crawler", 1], ["third-party-api", 2]]'
-- Result:    a row a request, in the order given: id; outcome: 'granted', 'denied', 'unknown' (no such bucket) or
--            'never' (more than the bucket holds); remaining and retry_after_ms as in request_tokens_v1, null if undecided
-- Errors:    22023 anything but such an array
-- Locks:     see token_decide_many_v1.
create procedure request_tokens_many(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_answers longtext character set utf8mb4;

  if (json_valid(p_requests) and json_type(p_requests) = 'ARRAY'
      and json_length(p_requests) = (
        select count(*)
          from json_table(p_requests, '$[*]' columns (
                 id text path '$[0]', tokens bigint path '$[1]', more int exists path '$[2]')) as r
         where r.id is not null and r.tokens >= 1 and r.more = 0)) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens_many takes a JSON array of [id, tokens], 1 token or more: [["a", 1], ["b", 5]]';
  end if;
  call token_decide_many_v1(p_requests, v_answers);
  select r.id, a.outcome,
         if(a.outcome in ('granted', 'denied'), greatest(
              (a.capacity * a.token_ticks - greatest(a.full_at - (a.now - a.anchor) div a.step_ns * a.step_ticks, 0))
              div a.token_ticks, 0), null) as remaining,
         if(a.outcome in ('granted', 'denied'), cast(greatest(ceiling((
              (greatest(a.full_at, (a.now - a.anchor) div a.step_ns * a.step_ticks)
               + (r.tokens - a.capacity) * a.token_ticks + a.step_ticks - 1)
              div a.step_ticks * a.step_ns + a.anchor - a.now) / 1000000), 0) as signed), null) as retry_after_ms
    from json_table(p_requests, '$[*]' columns (
           entry for ordinality, id text path '$[0]', tokens bigint path '$[1]')) as r
    join json_table(v_answers, '$[*]' columns (
           entry bigint path '$[0]', outcome varchar(10) path '$[1]', now bigint path '$[2]',
           full_at bigint path '$[3]', capacity bigint path '$[5]', anchor bigint path '$[6]',
           step_ns bigint path '$[7]', step_ticks bigint path '$[8]', token_ticks bigint path '$[9]')) as a
      on a.entry = r.entry
   order by r.entry;
end
