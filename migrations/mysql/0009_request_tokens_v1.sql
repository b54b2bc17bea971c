-- request_tokens_v1: take tokens from a provisioned bucket, all or none.
--
-- Arguments: p_id           the bucket
--            p_tokens       how many, 1 or more
--            p_max_wait_ms  how long you would wait for them; 0: take them now or not at all
--            p_keep         how many must remain for others; 0: none
-- Result:    granted        whether you have them: 1 or 0
--            remaining      whole tokens left
--            wait_ms        milliseconds until you may use them: 0, or up to p_max_wait_ms
--            retry_after_ms milliseconds until the next request like this one could be granted; 0: at once
--            reset_after_ms milliseconds until the bucket is full
-- Errors:    22023 arguments out of range, or more tokens than the bucket ever holds · 45000 no such bucket
-- Locks:     see token_decide_v1.
create procedure request_tokens_v1(
  in p_id varchar(256) character set utf8mb4, in p_tokens bigint, in p_max_wait_ms bigint, in p_keep bigint)
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_message varchar(128) character set utf8mb4;
  declare v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_clock bigint;

  if (p_id is not null and p_tokens >= 1 and p_max_wait_ms >= 0 and p_keep >= 0) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens takes an id, 1 token or more, and a wait in ms and a number to keep of 0 or more';
  end if;
  call token_decide_v1(p_id, p_tokens, least(p_max_wait_ms, 31622400000) * 1000000, p_keep, null, null, null,
                       v_outcome, v_now, v_full_at, v_granted, v_capacity, v_anchor, v_step_ns, v_step_ticks,
                       v_token_ticks);
  if v_outcome = 'unknown' then
    set v_message = concat('tollgate: no bucket ''', left(p_id, 36),
                           ''': call token_create_bucket(id, capacity, refill_seconds, refill)');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'never' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36), ''' holds ', v_capacity,
                           ' tokens: ask for fewer, or give it more');
    signal sqlstate '22023' set message_text = v_message;
  end if;

  set v_clock = (v_now - v_anchor) div v_step_ns * v_step_ticks;
  set v_full_at = greatest(v_full_at, v_clock);
  select v_outcome = 'granted' as granted,
         greatest((v_capacity * v_token_ticks - v_full_at + v_clock) div v_token_ticks, 0) as remaining,
         if(v_outcome = 'granted', cast(greatest(ceiling((
              (v_full_at + (p_keep - v_capacity) * v_token_ticks + v_step_ticks - 1)
              div v_step_ticks * v_step_ns + v_anchor - v_now) / 1000000), 0) as signed), 0) as wait_ms,
         cast(greatest(ceiling((
              (v_full_at + (p_tokens + p_keep - v_capacity) * v_token_ticks + v_step_ticks - 1)
              div v_step_ticks * v_step_ns + v_anchor - v_now) / 1000000), 0) as signed) as retry_after_ms,
         cast(greatest(ceiling((
              (v_full_at + v_step_ticks - 1) div v_step_ticks * v_step_ns + v_anchor - v_now) / 1000000), 0) as signed)
           as reset_after_ms;
end
