-- token_hold_back: lower a provisioned bucket to what somebody else says of it, never raise it; repeated, it changes
-- nothing. MySQL's routines have no defaults: give every argument.
--
-- Arguments: p_id             the bucket
--            p_remaining      no more tokens than these are left; null: not said
--            p_retry_after_ms none comes before so many milliseconds have passed; null: not said
--            p_longest_ms     for how many at most, whatever was said; null: an hour
-- Result:    one row: lowered: whether it held more: 1 or 0
-- Errors:    22023 arguments out of range, or a wait for a bucket that never refills · 45000 no such bucket or plan
-- Locks:     see token_hold_back_v1. In a transaction of yours the bucket stays locked until it ends.
create procedure token_hold_back(
  in p_id varchar(256) character set utf8mb4, in p_remaining decimal(40, 20), in p_retry_after_ms decimal(40, 20),
  in p_longest_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_remaining bigint default p_remaining;
  declare v_retry_after_ms bigint default p_retry_after_ms;
  declare v_longest_ms bigint default p_longest_ms;
  declare v_outcome varchar(10) character set ascii;
  declare v_message varchar(128) character set utf8mb4;
  if p_remaining <> floor(p_remaining) then
    call token_not_whole_v1('token_hold_back', 'remaining', p_remaining);
  end if;
  if p_retry_after_ms <> floor(p_retry_after_ms) then
    call token_not_whole_v1('token_hold_back', 'retry_after_ms', p_retry_after_ms);
  end if;
  if p_longest_ms <> floor(p_longest_ms) then
    call token_not_whole_v1('token_hold_back', 'longest_ms', p_longest_ms);
  end if;
  -- Without strict mode the server has put ? for each byte that it could not convert.
  if (p_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_id is not null and coalesce(v_remaining, 0) >= 0 and coalesce(v_retry_after_ms, 0) >= 0
      and coalesce(v_longest_ms, 0) >= 0 and coalesce(v_remaining, v_retry_after_ms) is not null) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: token_hold_back takes an id, and a number of tokens, a wait in ms, or both, of 0 or more';
  end if;
  call token_lower_v1(p_id, v_remaining,
                      least(coalesce(v_retry_after_ms, 0), coalesce(v_longest_ms, 3600000), 31622400000) * 1000000,
                      null, null, null, null, false, v_outcome);
  if v_outcome in ('unknown', 'unplanned') then
    set v_message = concat('tollgate: no bucket ''', left(p_id, 36), ''', or not its plan',
                           ': call token_create_bucket or token_create_plan');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'endless' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36),
                           ''' never refills: say how many tokens are left, and no wait');
    signal sqlstate '22023' set message_text = v_message;
  end if;
  select v_outcome = 'lowered' as lowered;
end
