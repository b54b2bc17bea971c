-- request_tokens_in_window_v1: at most so many requests in any interval, whenever it begins.
--
-- Arguments: p_id                 the window; its first request makes it
--            p_max_requests       how many pass at most in any interval
--            p_interval_seconds   up to a year, fractions allowed
--            p_resolution_seconds the parts that the interval is counted in: 1 to 1000 of them. Who was counted in a
--                                 part counts until an interval after the part's end
--            p_tokens             how many requests this one stands for
--            p_max_wait_ms        how long you would wait
-- Result:    one row:
--            granted        whether it may go on: 1 or 0
--            remaining      how many more pass now
--            wait_ms        milliseconds until you may go on: 0, or up to p_max_wait_ms
--            retry_after_ms milliseconds until another request like this one passes; 0: now; null: nobody knows
--            reset_after_ms milliseconds until nothing counts any more
-- Errors:    22023 arguments out of range, or more tokens than ever pass at once
-- Locks:     see token_decide_window_v1.
create procedure request_tokens_in_window_v1(
  in p_id varchar(256) character set utf8mb4, in p_max_requests decimal(40, 20), in p_interval_seconds decimal(19, 9),
  in p_resolution_seconds decimal(19, 9), in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_counts longtext character set ascii;
  declare v_max_requests bigint default p_max_requests;
  declare v_tokens bigint default p_tokens;
  declare v_max_wait_ms bigint default p_max_wait_ms;
  declare v_now, v_acts_at, v_resolution, v_interval, v_newest, v_counted, v_next bigint;

  if p_max_requests <> floor(p_max_requests) then
    call token_not_whole_v1('request_tokens_in_window', 'max_requests', p_max_requests);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_not_whole_v1('request_tokens_in_window', 'tokens', p_tokens);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_not_whole_v1('request_tokens_in_window', 'max_wait_ms', p_max_wait_ms);
  end if;
  -- Without strict mode the server has put ? for each byte that it could not convert.
  if (p_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_interval_seconds > 0 and p_interval_seconds <= 31622400 and p_resolution_seconds > 0
      and p_resolution_seconds <= p_interval_seconds and v_max_wait_ms between 0 and 31622400000
      and v_tokens >= 1) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens_in_window takes an interval of a year or less, a resolution within it, and 1 token or more';
  end if;
  set v_interval = p_interval_seconds * 1000000000;
  call token_decide_window_v1(p_id, least(v_tokens, 4611686018427387903), v_max_wait_ms * 1000000, 0, v_max_requests,
                              v_interval, cast(p_resolution_seconds * 1000000000 as signed), null, 0, false, false,
                              v_outcome, v_mode, v_now, v_acts_at, v_counts, v_resolution);
  if v_outcome = 'never' then
    signal sqlstate '22023' set message_text = 'tollgate: more tokens than ever pass in this window: ask for fewer';
  end if;
  select coalesce(max(e), 0), coalesce(sum(if(e > v_now - v_interval, c, 0)), 0) into v_newest, v_counted
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j;
  call token_window_earliest_v1(v_counts, v_newest, v_resolution, v_interval, v_max_requests - v_tokens, v_now, v_next);
  if v_mode = 'block' then
    set v_next = v_acts_at;
  end if;
  select v_outcome = 'granted' as granted, greatest(v_max_requests - v_counted, 0) as remaining,
         if(v_outcome = 'granted', (v_acts_at - v_now + 999999) div 1000000, 0) as wait_ms,
         (v_next - v_now + 999999) div 1000000 as retry_after_ms,
         (greatest(v_newest + v_interval - v_now, 0) + 999999) div 1000000 as reset_after_ms;
end
