-- request_tokens_v1: take tokens from a provisioned bucket, or from one that follows a plan, all or none.
--
-- Arguments: p_id           the bucket
--            p_tokens       how many, 1 or more
--            p_max_wait_ms  how long you would wait for them; 0: take them now or not at all
--            p_keep         how many must remain for others; 0: none
--            p_plan         the plan of a bucket that its first request makes; null: it exists
--            p_request      an id of yours, a UUID: a request that is repeated with it within a day takes nothing more
-- Result:    one row:
--            granted        whether you have them: 1 or 0
--            remaining      whole tokens left
--            wait_ms        milliseconds until you may use them: 0, or up to p_max_wait_ms
--            retry_after_ms milliseconds until the tokens of another request like this one are there; 0: at once; null:
--                           never, or nobody knows
--            reset_after_ms milliseconds until the bucket is full; null: never
-- Errors:    22023 arguments out of range, or more tokens than the bucket ever holds · 45000 no such bucket or plan
-- Locks:     see token_decide_v1.
create procedure request_tokens_v1(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_keep decimal(40, 20), in p_plan varchar(256) character set utf8mb4, in p_request varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_message varchar(128) character set utf8mb4;
  declare v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_tokens bigint default p_tokens;
  declare v_max_wait_ms bigint default p_max_wait_ms;
  declare v_keep bigint default p_keep;
  declare v_tick bigint;
  declare v_times bigint default 1;
  declare v_most bigint default 4611686018427387903;  -- more than any bucket holds; twice it is a bigint still

  if p_tokens <> floor(p_tokens) then
    call token_not_whole_v1('request_tokens', 'tokens', p_tokens);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_not_whole_v1('request_tokens', 'max_wait_ms', p_max_wait_ms);
  end if;
  if p_keep <> floor(p_keep) then
    call token_not_whole_v1('request_tokens', 'keep', p_keep);
  end if;
  -- Without strict mode the server has put ? for each byte that it could not convert.
  if (p_id like '%??%' or p_plan like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_id is not null and v_tokens >= 1 and v_max_wait_ms >= 0 and v_keep >= 0) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens takes an id, 1 token or more, and a wait in ms and a number to keep of 0 or more';
  end if;
  call token_decide_v1(p_id, least(v_tokens, v_most), least(v_max_wait_ms, 31622400000) * 1000000,
                       least(v_keep, v_most), null, null, null, p_plan, p_request, 86400000000000, true, false,
                       v_times, v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                       v_step_ticks, v_token_ticks);
  if v_outcome = 'unknown' then
    set v_message = concat('tollgate: no bucket ''', left(p_id, 36),
                           ''': call token_create_bucket(id, capacity, refill_seconds, refill)');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'unplanned' then
    set v_message = concat('tollgate: no plan for bucket ''', left(p_id, 32),
                           ''': call token_create_plan(name, capacity, refill_seconds, refill)');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'conflict' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36),
                           ''' was provisioned with terms of its own: ask without a plan');
    signal sqlstate '22023' set message_text = v_message;
  elseif v_outcome = 'reused' then
    set v_message = concat('tollgate: the id ', p_request, ' is that of another request: give each one its own');
    signal sqlstate '22023' set message_text = v_message;
  elseif v_outcome = 'never' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36), ''' holds ', v_burst div v_token_ticks,
                           ' tokens: ask for fewer, or give it more');
    signal sqlstate '22023' set message_text = v_message;
  end if;

  -- Without token_ticks the mode is 'off', and there is no such bucket yet.
  if v_token_ticks is null then
    select true as granted, v_burst as remaining, 0 as wait_ms, 0 as retry_after_ms, 0 as reset_after_ms;
  else
    set v_full_at = greatest(v_full_at, (v_now - v_anchor) div v_step_ns * v_step_ticks);
    set v_tick = if(v_tokens > v_burst div v_token_ticks - v_keep, null,
                    v_full_at + (v_tokens + v_keep - v_burst div v_token_ticks) * v_token_ticks);
    select v_outcome = 'granted' as granted,
           greatest((v_burst - v_full_at + (v_now - v_anchor) div v_step_ns * v_step_ticks) div v_token_ticks, 0)
             as remaining,
           if(v_outcome = 'granted', (v_acts_at - v_now + 999999) div 1000000, 0) as wait_ms,
           case
             when v_outcome = 'denied' and v_mode = 'block' then (v_acts_at - v_now + 999999) div 1000000
             when v_step_ns = 9223372036854775807 then if(v_tick <= 0, 0, null)
             else (greatest((v_tick div v_step_ticks + (v_tick mod v_step_ticks > 0)) * v_step_ns + v_anchor - v_now, 0)
                   + 999999) div 1000000
           end as retry_after_ms,
           case
             when v_step_ns = 9223372036854775807 then if(v_full_at <= 0, 0, null)
             else (greatest((v_full_at div v_step_ticks + (v_full_at mod v_step_ticks > 0)) * v_step_ns
                            + v_anchor - v_now, 0) + 999999) div 1000000
           end as reset_after_ms;
  end if;
end
