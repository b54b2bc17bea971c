-- rate_limiting_request: one token from a bucket that its first request makes, full; continuous refill.
--
-- Arguments: p_rate_id         the bucket
--            p_refill_per_sec  tokens that come each second; null: 2
--            p_window_seconds  the bucket holds that many seconds' worth of tokens; null: 60
-- Result:    tokens_left: the tokens left, or -1 if there was none; a denied call changes nothing
-- Errors:    22023 figures that make no bucket, or the bucket was provisioned with other figures
-- Locks:     see token_decide_v1.
create procedure rate_limiting_request(
  in p_rate_id varchar(256) character set utf8mb4, in p_refill_per_sec decimal(40, 20),
  in p_window_seconds decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_times bigint default 1;
  declare v_rate bigint default coalesce(p_refill_per_sec, 2);
  declare v_window bigint default coalesce(p_window_seconds, 60);

  if p_refill_per_sec <> floor(p_refill_per_sec) then
    call token_not_whole_v1('rate_limiting_request', 'refill_per_sec', p_refill_per_sec);
  end if;
  if p_window_seconds <> floor(p_window_seconds) then
    call token_not_whole_v1('rate_limiting_request', 'window_seconds', p_window_seconds);
  end if;
  -- Without strict mode the server has put ? for each byte that it could not convert.
  if (p_rate_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_rate_id is not null and v_rate between 1 and 1000000000 and v_window between 1 and 3155760000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: rate_limiting_request takes an id, 1 to 10^9 tokens a second and a window of 1 s to a century';
  end if;
  call token_decide_v1(p_rate_id, 1, 0, 0, v_rate * v_window, v_window, 'continuous', null, null, null, true, false,
                       v_times, v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                       v_step_ticks, v_token_ticks);
  if v_outcome = 'conflict' then
    signal sqlstate '22023' set message_text =
      'tollgate: this bucket was provisioned with other figures: take its tokens with request_token';
  end if;
  -- Without token_ticks the mode is 'off', and there is no such bucket yet.
  select case
           when v_outcome = 'denied' then -1
           when v_token_ticks is null then v_burst
           else greatest((v_burst - greatest(v_full_at - (v_now - v_anchor) div v_step_ns * v_step_ticks, 0))
                         div v_token_ticks, 0)
         end as tokens_left;
end
