-- token_bucket_levels: the state of each bucket in tokens and timestamps, as of now, in UTC. Reads only; locks nothing.
--
--   id_bytes, plan_bytes: id as in the index, and plan; in UTF-8 with every session character set
--   capacity, refill_seconds, refill: the limits that the last request used
--   overridden      whether the limits are an override's
--   available       whole tokens; negative: promised to requests that wait for them
--   full_at         when the bucket is full again; null: full, or never
--   next_refill_at  when the next token comes; null: full, or never
--
-- available is null if the row's values are out of bounds, so that one row cannot fail the whole read.
create or replace sql security definer view token_bucket_levels as
select convert(b.id using utf8mb4) as id, b.burst div b.token_ticks as capacity,
       (b.burst - b.owed) div b.token_ticks - ((b.burst - b.owed) mod b.token_ticks < 0) as available,
       b.under_seconds as refill_seconds, b.under_refill as refill, convert(b.plan using utf8mb4) as plan, b.provisioned,
       b.overridden, b.granted,
       case when b.owed > 0 and b.step_ns < 9223372036854775807
            then timestamp('1970-01-01') + interval (
              b.anchor + (b.full_at div b.step_ticks + (b.full_at mod b.step_ticks > 0)) * b.step_ns)
              div 1000 microsecond
       end as full_at,
       case when b.owed > 0 and b.step_ns < 9223372036854775807
            then timestamp('1970-01-01') + interval (
              b.anchor + (b.next div b.step_ticks + (b.next mod b.step_ticks > 0)) * b.step_ns)
              div 1000 microsecond
       end as next_refill_at,
       b.id as id_bytes, b.plan as plan_bytes
  from (select o.*, o.full_at - (o.owed - 1) div o.token_ticks * o.token_ticks as next
          from (select t.*,
                       if(t.burst between 1 and 4611686018427387903 and t.token_ticks >= 1
                          and t.step_ticks between 1 and t.step_ns and t.anchor between 0 and 4611686018427387903
                          and t.full_at >= -4611686018427387904
                          and (t.step_ns = 9223372036854775807
                               or t.full_at div t.step_ticks + (t.full_at mod t.step_ticks > 0)
                                  <= (9223372036854775807 - t.anchor) div t.step_ns),
                          greatest(t.full_at - (n.now - t.anchor) div t.step_ns * t.step_ticks, 0), null) as owed
                  from token_buckets t
                 cross join token_now n) o) b
;

-- token_raise_undecided: raises the error of a request that has no decision.
--
-- Arguments: p_id, p_request_id: the request, for the message
--            p_outcome   the outcome of token_take_v1
--            p_capacity  tokens that the bucket holds when full
-- Result:    none
-- Errors:    22023, 45000: as for request_tokens_v1
-- Locks:     none
drop procedure if exists token_raise_undecided;
create procedure token_raise_undecided(
  in p_id varchar(256) character set utf8mb4, in p_request_id varchar(36) character set ascii,
  in p_outcome varchar(10) character set ascii, in p_capacity bigint)
no sql
sql security definer
begin
  declare v_message varchar(128) character set utf8mb4;

  if p_outcome = 'unknown' then
    set v_message = concat('tollgate: no bucket ''', left(p_id, 36),
                           ''': call token_create_bucket(id, capacity, refill_seconds, refill)');
    signal sqlstate '45000' set message_text = v_message;
  elseif p_outcome = 'unplanned' then
    set v_message = concat('tollgate: no plan for bucket ''', left(p_id, 32),
                           ''': call token_create_plan(name, capacity, refill_seconds, refill)');
    signal sqlstate '45000' set message_text = v_message;
  elseif p_outcome = 'conflict' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36),
                           ''' is provisioned with another limit: ask without a plan');
    signal sqlstate '22023' set message_text = v_message;
  elseif p_outcome = 'reused' then
    set v_message = concat('tollgate: the id ', p_request_id, ' belongs to another request: use a new id for each request');
    signal sqlstate '22023' set message_text = v_message;
  elseif p_outcome = 'never' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36), ''' holds ', p_capacity,
                           ' tokens: request fewer, or raise its capacity');
    signal sqlstate '22023' set message_text = v_message;
  end if;
end;

-- token_request_all: takes tokens from all of several buckets, or from none, for callers in SQL.
--
-- Arguments: p_limits       as for token_take_all_v1
--            p_max_wait_ms, p_request_id: as for request_tokens_v1
-- Result:    o_levels       a JSON array with one array per bucket: id in hexadecimal, granted, affords, remaining, wait_ms,
--                           retry_after_ms, reset_after_ms: see request_tokens_all
-- Errors:    as for request_tokens_v1
-- Locks:     as for token_take_all_v1
drop procedure if exists token_request_all;
create procedure token_request_all(
  in p_limits longtext character set utf8mb4, in p_max_wait_ms bigint, in p_request_id varchar(36) character set ascii,
  out o_levels longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare c_day bigint default 86400000000000;  -- one day in nanoseconds
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_answers longtext character set utf8mb4;
  declare v_id varchar(2048) character set utf8mb4;
  declare v_outcome varchar(10) character set ascii;
  declare v_capacity bigint;
  declare exit handler for sqlexception
  begin
    set group_concat_max_len = v_group_concat_max_len, sql_big_selects = v_sql_big_selects;
    resignal;
  end;

  call token_take_all_v1(p_limits, least(p_max_wait_ms, 31622400000) * 1000000, p_request_id, c_day, false, v_answers);
  -- MariaDB truncates a longer array silently. A join can exceed the session's max_join_size.
  set group_concat_max_len = 1000000000, sql_big_selects = 1;
  with answer as (
    select words.*, limits.id, limits.cost + limits.min_remaining as demand,
           (words.now - words.anchor) div words.step_ns * words.step_ticks as clock
      from json_table(v_answers, '$[*]' columns (answer varchar(400) character set ascii path '$')) as texts
      straight_join json_table(
             concat('["', replace(replace(texts.answer, ' ', '","'), '"-"', 'null'), '"]'),
             '$' columns (
               place bigint path '$[0]', outcome varchar(10) path '$[1]', mode varchar(7) path '$[2]', now bigint path '$[3]',
               scheduled_at bigint path '$[4]', at bigint path '$[5]', burst bigint path '$[7]', anchor bigint path '$[8]',
               step_ns bigint path '$[9]', step_ticks bigint path '$[10]', token_ticks bigint path '$[11]')) as words
      straight_join json_table(p_limits, '$[*]' columns (
             place for ordinality, id varchar(2048) path '$[0]', cost bigint path '$[1]',
             min_remaining bigint path '$[2]')) as limits
        on limits.place = words.place
  ), due as (
    select a.*, greatest(a.at, a.clock) as full_at,
           if(a.demand > a.burst div a.token_ticks, null,
              greatest(a.at, a.clock) + (a.demand - a.burst div a.token_ticks) * a.token_ticks) as tick
      from answer a
  )
  select min(if(outcome in ('granted', 'denied', 'spared'), null,
                concat(id, ' ', outcome, ' ', coalesce(burst div token_ticks, 0)))),
         json_arrayagg(json_array(
           id, outcome = 'granted', outcome <> 'denied',
           if(token_ticks is null, burst, greatest((burst - full_at + clock) div token_ticks, 0)),
           if(outcome = 'granted', coalesce((scheduled_at - now + 999999) div 1000000, 0), 0),
           case
             when token_ticks is null then 0
             when outcome = 'denied' and mode = 'block' then (scheduled_at - now + 999999) div 1000000
             when step_ns = 9223372036854775807 then if(tick <= 0, 0, null)
             else (greatest((tick div step_ticks + (tick mod step_ticks > 0)) * step_ns + anchor - now, 0) + 999999) div 1000000
           end,
           case
             when token_ticks is null then 0
             when step_ns = 9223372036854775807 then if(full_at <= 0, 0, null)
             else (greatest((full_at div step_ticks + (full_at mod step_ticks > 0)) * step_ns + anchor - now, 0) + 999999)
                  div 1000000
           end))
    into v_id, o_levels
    from due;
  set group_concat_max_len = v_group_concat_max_len, sql_big_selects = v_sql_big_selects;
  if v_id is not null then
    set v_outcome = substring_index(substring_index(v_id, ' ', 2), ' ', -1), v_capacity = substring_index(v_id, ' ', -1);
    call token_raise_undecided(convert(unhex(substring_index(v_id, ' ', 1)) using utf8mb4), p_request_id, v_outcome, v_capacity);
  end if;
end;

-- request_tokens_all: takes tokens from all of several buckets, or from none.
--
-- Arguments: p_requests       a JSON array of [id, tokens], or of [id, tokens, plan] for a bucket that its first request
--                             creates, each bucket once: '[["user:1", 1, "free"], ["upstream", 5]]'
--            p_max_wait_ms, p_min_remaining, p_request_id: as for request_tokens_v1, for all buckets
-- Result:    one row per bucket, in the order given
--            id               the bucket
--            granted          whether the tokens of all buckets were taken: 1 or 0
--            affords          whether this bucket has the tokens: 1 or 0
--            remaining, wait_ms, retry_after_ms, reset_after_ms: as for request_tokens_v1, of this bucket
-- Errors:    as for request_tokens_v1
-- Locks:     as for token_take_all_v1
drop procedure if exists request_tokens_all;
create procedure request_tokens_all(
  in p_requests longtext character set utf8mb4, in p_max_wait_ms decimal(40, 20), in p_min_remaining decimal(40, 20),
  in p_request_id varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_limits, v_levels longtext character set utf8mb4;
  declare exit handler for sqlexception
  begin
    set group_concat_max_len = v_group_concat_max_len;
    resignal;
  end;

  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_requests like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_max_wait_ms >= 0 and p_max_wait_ms = floor(p_max_wait_ms) and p_max_wait_ms < 1000000000000000000
      and p_min_remaining >= 0 and p_min_remaining = floor(p_min_remaining) and p_min_remaining < 1000000000000000000
      and json_valid(p_requests) and json_type(p_requests) = 'ARRAY' and json_length(p_requests) between 1 and 256
      and json_length(p_requests) = (
        select count(*)
          from json_table(p_requests, '$[*]' columns (
                 id text character set utf8mb4 path '$[0]', tokens decimal(40, 20) path '$[1]',
                 more int exists path '$[3]')) as r
         where length(r.id) between 1 and 255 and r.tokens >= 1 and r.tokens = floor(r.tokens)
           and r.tokens < 1000000000000000000 and r.more = 0)) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens_all takes a JSON array of 1 to 256 [id, tokens, plan], a wait in ms and a minimum remaining';
  end if;
  set group_concat_max_len = 1000000000;
  select concat('[', group_concat(
           json_array(hex(cast(id as binary)), tokens, cast(p_min_remaining as signed), null, null, null,
                      hex(cast(plan as binary)))
           order by cast(id as binary), place separator ','), ']')
    into v_limits
    from json_table(p_requests, '$[*]' columns (
           place for ordinality, id text character set utf8mb4 path '$[0]', tokens bigint path '$[1]',
           plan text character set utf8mb4 path '$[2]')) as r;
  set group_concat_max_len = v_group_concat_max_len;
  call token_request_all(v_limits, p_max_wait_ms, p_request_id, v_levels);
  select r.id, (select min(x.granted) from json_table(v_levels, '$[*]' columns (granted int path '$[1]')) as x) as granted,
         l.affords, l.remaining, l.wait_ms, l.retry_after_ms, l.reset_after_ms
    from json_table(p_requests, '$[*]' columns (
           place for ordinality, id text character set utf8mb4 path '$[0]')) as r
    join json_table(v_levels, '$[*]' columns (
           id varchar(2048) path '$[0]', affords int path '$[2]', remaining bigint path '$[3]', wait_ms bigint path '$[4]',
           retry_after_ms bigint path '$[5]', reset_after_ms bigint path '$[6]')) as l
      on unhex(l.id) = cast(r.id as binary)
   order by r.place;
end;

-- token_request_planned: takes tokens from all limits of a plan, or from none.
--
-- Arguments, result, errors and locks: as for request_tokens_v1, with a plan that has rows in token_plan_limits
drop procedure if exists token_request_planned;
create procedure token_request_planned(
  in p_id varchar(256) character set utf8mb4, in p_plan varchar(256) character set utf8mb4, in p_tokens bigint,
  in p_max_wait_ms bigint, in p_min_remaining bigint, in p_request_id varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_limits, v_levels longtext character set utf8mb4;
  declare v_cost_name varchar(32) character set ascii;
  declare exit handler for sqlexception
  begin
    set group_concat_max_len = v_group_concat_max_len;
    resignal;
  end;

  set group_concat_max_len = 1000000000;
  select concat('[', group_concat(
           json_array(hex(concat(cast(p_id as binary), suffix)), p_tokens, p_min_remaining, null, null, null,
                      hex(concat(cast(p_plan as binary), suffix)))
           order by suffix separator ','), ']'), max(cost_name)
    into v_limits, v_cost_name
    from (select if(place = 1, cast('' as binary), concat(x'01', limit_name)) as suffix, cost_name
            from token_plan_limits where plan = cast(p_plan as binary)) as l;
  if v_cost_name is not null then
    signal sqlstate '22023' set message_text =
      'tollgate: a limit of this plan counts a cost with a name: state the tokens of each limit to request_tokens_all';
  end if;
  call token_request_all(v_limits, p_max_wait_ms, p_request_id, v_levels);
  select min(granted) as granted,
         cast(substring_index(group_concat(remaining order by affords, retry_after_ms is not null, retry_after_ms desc, remaining),
                              ',', 1) as signed) as remaining,
         max(wait_ms) as wait_ms, if(sum(retry_after_ms is null) > 0, null, max(retry_after_ms)) as retry_after_ms,
         if(sum(reset_after_ms is null) > 0, null, max(reset_after_ms)) as reset_after_ms
    from json_table(v_levels, '$[*]' columns (
           granted int path '$[1]', affords int path '$[2]', remaining bigint path '$[3]', wait_ms bigint path '$[4]',
           retry_after_ms bigint path '$[5]', reset_after_ms bigint path '$[6]')) as l;
  set group_concat_max_len = v_group_concat_max_len;
end;

-- request_tokens_v1: takes tokens from a provisioned bucket, or from one that follows a plan. Takes all or none.
--
-- Arguments: p_id             the bucket
--            p_tokens         tokens to take, 1 or more
--            p_max_wait_ms    longest wait in milliseconds; 0: no wait
--            p_min_remaining  tokens that must remain for others; 0: none
--            p_plan           plan of a bucket that its first request creates; null: the bucket exists. With several limits,
--                             takes from all of them, and answers with the values of the tightest
--            p_request_id     id of the request, a UUID: a retry with the id within a day is charged once
-- Result:    one row
--            granted          whether the tokens were taken: 1 or 0
--            remaining        whole tokens left
--            wait_ms          milliseconds until you can use the tokens: 0, or up to p_max_wait_ms
--            retry_after_ms   milliseconds until an equal request would be granted; 0: now; null: never, or unknown
--            reset_after_ms   milliseconds until the bucket is full; null: never
-- Errors:    22023 arguments out of range, or more tokens than the bucket can hold · 45000 no such bucket or plan
-- Locks:     as for token_take_v1
drop procedure if exists request_tokens_v1;
create procedure request_tokens_v1(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_min_remaining decimal(40, 20), in p_plan varchar(256) character set utf8mb4, in p_request_id varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  declare c_day bigint default 86400000000000;  -- one day in nanoseconds
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_tokens bigint default p_tokens;
  declare v_max_wait_ms bigint default p_max_wait_ms;
  declare v_min_remaining bigint default p_min_remaining;
  declare v_tick bigint;
  declare v_times bigint default 1;
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow

  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('request_tokens', 'tokens', p_tokens);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_require_whole_number('request_tokens', 'max_wait_ms', p_max_wait_ms);
  end if;
  if p_min_remaining <> floor(p_min_remaining) then
    call token_require_whole_number('request_tokens', 'min_remaining', p_min_remaining);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_id like '%??%' or p_plan like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_id is not null and v_tokens >= 1 and v_max_wait_ms >= 0 and v_min_remaining >= 0) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: request_tokens takes an id, 1 token or more, and a wait in ms and a minimum remaining of 0 or more';
  end if;
  answer: begin
    if p_plan is not null and exists (select 1 from token_plan_limits where plan = cast(p_plan as binary)) then
      call token_request_planned(p_id, p_plan, least(v_tokens, c_max_counted), v_max_wait_ms, least(v_min_remaining, c_max_counted),
                                 p_request_id);
      leave answer;
    end if;
    call token_take_v1(p_id, least(v_tokens, c_max_counted), least(v_max_wait_ms, 31622400000) * 1000000,
                       least(v_min_remaining, c_max_counted), null, null, null, p_plan, p_request_id, c_day, true, false,
                       v_times, v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                       v_step_ticks, v_token_ticks);
    if v_outcome not in ('granted', 'denied') then
      call token_raise_undecided(p_id, p_request_id, v_outcome, v_burst div v_token_ticks);
    end if;

    -- A missing token_ticks means that the mode is 'off' and the bucket does not exist.
    if v_token_ticks is null then
      select true as granted, v_burst as remaining, 0 as wait_ms, 0 as retry_after_ms, 0 as reset_after_ms;
    else
      set v_full_at = greatest(v_full_at, (v_now - v_anchor) div v_step_ns * v_step_ticks);
      set v_tick = if(v_tokens > v_burst div v_token_ticks - v_min_remaining, null,
                      v_full_at + (v_tokens + v_min_remaining - v_burst div v_token_ticks) * v_token_ticks);
      select v_outcome = 'granted' as granted,
             greatest((v_burst - v_full_at + (v_now - v_anchor) div v_step_ns * v_step_ticks) div v_token_ticks, 0)
               as remaining,
             if(v_outcome = 'granted', (v_scheduled_at - v_now + 999999) div 1000000, 0) as wait_ms,
             case
               when v_outcome = 'denied' and v_mode = 'block' then (v_scheduled_at - v_now + 999999) div 1000000
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
  end answer;
end;

-- request_tokens: calls the current version, request_tokens_v1. MySQL routines have no defaults: pass every argument.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_tokens;
create procedure request_tokens(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_min_remaining decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, null, null);
end;

-- request_planned_tokens: request_tokens for a bucket that follows a plan and that its first request creates.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_planned_tokens;
create procedure request_planned_tokens(
  in p_id varchar(256) character set utf8mb4, in p_plan varchar(256) character set utf8mb4,
  in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20), in p_min_remaining decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, p_plan, null);
end;

-- request_tokens_once: request_tokens with an id of the request, a UUID: a retry with the id within a day is charged once.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_tokens_once;
create procedure request_tokens_once(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20),
  in p_min_remaining decimal(40, 20), in p_request_id varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, p_tokens, p_max_wait_ms, p_min_remaining, null, p_request_id);
end;

-- request_token: takes one token from a provisioned bucket, without a wait.
--
-- Arguments, result, errors and locks: as for request_tokens_v1
drop procedure if exists request_token;
create procedure request_token(in p_id varchar(256) character set utf8mb4)
modifies sql data
sql security definer
begin
  call request_tokens_v1(p_id, 1, 0, 0, null, null);
end;

-- request_tokens_many: takes tokens from several provisioned buckets in one call, each by itself.
--
-- Arguments: p_requests  a JSON array of [id, tokens]: '[["user:1", 1], ["user:2", 5]]'
-- Result:    one row per request, in the order given
--            id          the bucket
--            outcome     'granted', 'denied', or another outcome of token_take_v1
--            remaining, retry_after_ms: as for request_tokens_v1; null: undecided
-- Errors:    22023 arguments out of range
-- Locks:     as for token_take_batch_v1
drop procedure if exists request_tokens_many;
create procedure request_tokens_many(in p_requests longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_requests longtext character set utf8mb4;
  declare v_answers json;
  declare exit handler for sqlexception
  begin
    set group_concat_max_len = v_group_concat_max_len, sql_big_selects = v_sql_big_selects;
    resignal;
  end;

  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
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
  -- MariaDB truncates a longer array silently. A join can exceed the session's max_join_size.
  set group_concat_max_len = 1000000000, sql_big_selects = 1;
  select coalesce(json_arrayagg(
           json_array(hex(cast(id as binary)), tokens, 0, 0, null, null, null, null, null, null, 1, place)), '[]')
    into v_requests
    from json_table(p_requests, '$[*]' columns (
           place for ordinality, id text character set utf8mb4 path '$[0]', tokens bigint path '$[1]')) as r;
  call token_take_batch_v1(v_requests, false, v_answers);
  select id, outcome,
         case
           when outcome not in ('granted', 'denied') then null
           when token_ticks is null then burst
           else greatest((burst - full_at + clock) div token_ticks, 0)
         end as remaining,
         case
           when outcome not in ('granted', 'denied') then null
           when token_ticks is null then 0
           when outcome = 'denied' and mode = 'block' then (scheduled_at - now + 999999) div 1000000
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
                                     now bigint path '$[5]', scheduled_at bigint path '$[6]', at bigint path '$[7]',
                                     burst bigint path '$[9]', anchor bigint path '$[10]', step_ns bigint path '$[11]',
                                     step_ticks bigint path '$[12]', token_ticks bigint path '$[13]')) as words
                           limit 1000000000) as a  -- materialized once instead of per request
                      on a.place = r.place and a.times > 0) as d) as answers
   order by given;
  set group_concat_max_len = v_group_concat_max_len, sql_big_selects = v_sql_big_selects;
end;

-- rate_limiting_request: takes one token from a bucket that its first request creates, full, with continuous refill.
--
-- Arguments: p_rate_id         the bucket
--            p_refill_per_sec  tokens per second; null: 2
--            p_window_seconds  seconds' worth of tokens that the bucket holds; null: 60
-- Result:    one row
--            tokens_left       the tokens left, or -1 if the request is denied; a denied call changes nothing
-- Errors:    22023 invalid limits, or the bucket was provisioned with other limits
-- Locks:     as for token_take_v1
drop procedure if exists rate_limiting_request;
create procedure rate_limiting_request(
  in p_rate_id varchar(256) character set utf8mb4, in p_refill_per_sec decimal(40, 20),
  in p_window_seconds decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_times bigint default 1;
  declare v_rate bigint default coalesce(p_refill_per_sec, 2);
  declare v_window bigint default coalesce(p_window_seconds, 60);

  if p_refill_per_sec <> floor(p_refill_per_sec) then
    call token_require_whole_number('rate_limiting_request', 'refill_per_sec', p_refill_per_sec);
  end if;
  if p_window_seconds <> floor(p_window_seconds) then
    call token_require_whole_number('rate_limiting_request', 'window_seconds', p_window_seconds);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_rate_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_rate_id is not null and v_rate between 1 and 1000000000 and v_window between 1 and 3155760000) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: rate_limiting_request takes an id, 1 to 10^9 tokens a second and a window of 1 s to a century';
  end if;
  call token_take_v1(p_rate_id, 1, 0, 0, v_rate * v_window, v_window, 'continuous', null, null, null, true, false,
                     v_times, v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                     v_step_ticks, v_token_ticks);
  if v_outcome = 'conflict' then
    signal sqlstate '22023' set message_text =
      'tollgate: this bucket was provisioned with other limits: take its tokens with request_token';
  end if;
  -- A missing token_ticks means that the mode is 'off' and the bucket does not exist.
  select case
           when v_outcome = 'denied' then -1
           when v_token_ticks is null then v_burst
           else greatest((v_burst - greatest(v_full_at - (v_now - v_anchor) div v_step_ns * v_step_ticks, 0))
                         div v_token_ticks, 0)
         end as tokens_left;
end;

-- request_tokens_in_window_v1: grants at most p_max_requests requests in any interval, whenever the interval starts.
--
-- Arguments: p_id                  the window; its first request creates it
--            p_max_requests        maximum in any interval
--            p_interval_seconds    up to one year, fractions allowed
--            p_resolution_seconds  length of the 1 to 1000 parts of the interval; a request counts until one interval after the
--                                  end of its part
--            p_tokens              requests that this one stands for
--            p_max_wait_ms         longest wait in milliseconds
-- Result:    one row
--            granted               whether you can proceed: 1 or 0
--            remaining             requests that can still be granted
--            wait_ms               milliseconds until you can proceed: 0, or up to p_max_wait_ms
--            retry_after_ms        milliseconds until an equal request would be granted; 0: now; null: unknown
--            reset_after_ms        milliseconds until no request counts
-- Errors:    22023 arguments out of range, or more tokens than the maximum
-- Locks:     as for token_take_window_v1
drop procedure if exists request_tokens_in_window_v1;
create procedure request_tokens_in_window_v1(
  in p_id varchar(256) character set utf8mb4, in p_max_requests decimal(40, 20), in p_interval_seconds decimal(19, 9),
  in p_resolution_seconds decimal(19, 9), in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_counts longtext character set ascii;
  declare v_max_requests bigint default p_max_requests;
  declare v_tokens bigint default p_tokens;
  declare v_max_wait_ms bigint default p_max_wait_ms;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_now, v_scheduled_at, v_resolution, v_interval, v_newest, v_counted, v_next bigint;
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_sql_big_selects;
    resignal;
  end;

  if p_max_requests <> floor(p_max_requests) then
    call token_require_whole_number('request_tokens_in_window', 'max_requests', p_max_requests);
  end if;
  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('request_tokens_in_window', 'tokens', p_tokens);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_require_whole_number('request_tokens_in_window', 'max_wait_ms', p_max_wait_ms);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
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
  call token_take_window_v1(p_id, least(v_tokens, c_max_counted), v_max_wait_ms * 1000000, 0, v_max_requests,
                            v_interval, cast(p_resolution_seconds * 1000000000 as signed), null, 0, false, false,
                            v_outcome, v_mode, v_now, v_scheduled_at, v_counts, v_resolution);
  if v_outcome = 'never' then
    signal sqlstate '22023' set message_text = 'tollgate: the request exceeds the maximum of this window: request fewer tokens';
  end if;
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  select coalesce(max(e), 0), coalesce(sum(if(e > v_now - v_interval, c, 0)), 0) into v_newest, v_counted
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j;
  call token_window_earliest(v_counts, v_newest, v_resolution, v_interval, v_max_requests - v_tokens, v_now, v_next);
  set sql_big_selects = v_sql_big_selects;
  if v_mode = 'block' then
    set v_next = v_scheduled_at;
  end if;
  select v_outcome = 'granted' as granted, greatest(v_max_requests - v_counted, 0) as remaining,
         if(v_outcome = 'granted', (v_scheduled_at - v_now + 999999) div 1000000, 0) as wait_ms,
         (v_next - v_now + 999999) div 1000000 as retry_after_ms,
         (greatest(v_newest + v_interval - v_now, 0) + 999999) div 1000000 as reset_after_ms;
end;

-- request_tokens_in_window: calls the current version, request_tokens_in_window_v1. MySQL routines have no defaults: pass every
-- argument.
--
-- Arguments, result, errors and locks: as for request_tokens_in_window_v1
drop procedure if exists request_tokens_in_window;
create procedure request_tokens_in_window(
  in p_id varchar(256) character set utf8mb4, in p_max_requests decimal(40, 20), in p_interval_seconds decimal(19, 9),
  in p_resolution_seconds decimal(19, 9), in p_tokens decimal(40, 20), in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  call request_tokens_in_window_v1(p_id, p_max_requests, p_interval_seconds, p_resolution_seconds, p_tokens,
                                   p_max_wait_ms);
end;

-- token_charge: takes tokens that were used already, also if the bucket holds fewer: it then denies requests until it has refilled.
-- MySQL routines have no defaults: pass every argument.
--
-- Arguments: p_id           the bucket
--            p_tokens       tokens, 1 or more
--            p_plan         plan of a bucket that its first request creates; null: the bucket exists. With several limits, charges
--                           those that count the tokens of the request
--            p_request_id   id of the charge: a retry with the id within a day charges nothing; null: not remembered
-- Result:    one row
--            charged        0: a charge with this id was made before
--            available      tokens left, of the limit with the fewest; negative: owed
-- Errors:    22023 arguments out of range · 45000 no such bucket or plan
-- Locks:     the bucket's row, then the receipt; with several limits in the order of their names
drop procedure if exists token_charge;
create procedure token_charge(
  in p_id varchar(256) character set utf8mb4, in p_tokens decimal(40, 20), in p_plan varchar(256) character set utf8mb4,
  in p_request_id varchar(36) character set ascii)
modifies sql data
sql security definer
begin
  declare v_owns_transaction, v_done boolean default false;
  declare v_charged boolean default true;
  declare v_charges int default 0;
  declare v_suffix varchar(33) character set ascii;
  declare v_id, v_plan varchar(256) character set utf8mb4;
  declare v_outcome varchar(10) character set ascii;
  declare v_given_back, v_available, v_least bigint;
  declare v_limits cursor for
    select coalesce(concat(char(1 using ascii), limit_name), '') from (
      select if(place = 1, null, limit_name) as limit_name from token_plan_limits
       where plan = cast(p_plan as binary) and cost_name is null
      union all
      select null from (select 1 as one) as only_limit
       where not exists (select 1 from token_plan_limits where plan = cast(p_plan as binary))) as limits
     order by limit_name;
  declare continue handler for not found set v_done = true;
  declare exit handler for sqlexception
  begin
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  if p_tokens <> floor(p_tokens) then
    call token_require_whole_number('token_charge', 'tokens', p_tokens);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_id like '%??%' or p_plan like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_id is not null and p_tokens between 1 and 3155760000000000000) is not true then
    signal sqlstate '22023' set message_text = 'tollgate: token_charge takes an id, and 1 token or more';
  end if;
  call token_begin(false, v_owns_transaction);
  open v_limits;
  charge: loop
    fetch v_limits into v_suffix;
    if v_done then leave charge; end if;
    set v_id = concat(p_id, v_suffix), v_plan = concat(p_plan, v_suffix), v_charges = v_charges + 1;
    call token_adjust('charge', p_request_id, v_id, 1, 0, 0, p_tokens, null, v_outcome, v_given_back);
    if v_outcome = 'unknown' and v_plan is not null then
      -- Creates the bucket.
      call token_throttle_v1(v_id, null, 0, null, null, null, v_plan, false, v_outcome);
      if v_outcome = 'unchanged' then
        call token_adjust('charge', p_request_id, v_id, 1, 0, 0, p_tokens, null, v_outcome, v_given_back);
        -- The mode is 'off', and there is still no bucket.
        set v_outcome = if(v_outcome = 'unknown', 'done', v_outcome);
      end if;
    end if;
    if v_outcome not in ('done', 'repeated') then
      call token_raise_undecided(v_id, p_request_id, v_outcome, null);
    end if;
    set v_charged = v_charged and v_outcome = 'done';
    select max(available) into v_least from token_bucket_levels where id_bytes = cast(v_id as binary);
    set v_available = coalesce(least(v_available, v_least), v_available, v_least), v_done = false;
  end loop;
  close v_limits;
  if v_charges = 0 then
    signal sqlstate '22023' set message_text =
      'tollgate: each limit of this plan counts a cost with a name: charge the bucket of the limit';
  end if;
  if v_owns_transaction then commit and no chain no release; end if;
  select v_charged as charged, v_available as available;
end;

-- token_throttle: lowers a provisioned bucket to the limit that an upstream reports. Never raises it. A repeated call changes
-- nothing. MySQL routines have no defaults: pass every argument.
--
-- Arguments: p_id              the bucket
--            p_remaining       tokens that are left at most; null: unknown
--            p_retry_after_ms  milliseconds until the next token at the earliest; null: unknown
--            p_max_wait_ms     upper bound of p_retry_after_ms; null: one hour
-- Result:    one row
--            lowered           whether the bucket held more: 1 or 0
-- Errors:    22023 arguments out of range, or a wait for a bucket that never refills · 45000 no such bucket or plan
-- Locks:     as for token_throttle_v1. In your transaction, the bucket stays locked until the end.
drop procedure if exists token_throttle;
create procedure token_throttle(
  in p_id varchar(256) character set utf8mb4, in p_remaining decimal(40, 20), in p_retry_after_ms decimal(40, 20),
  in p_max_wait_ms decimal(40, 20))
modifies sql data
sql security definer
begin
  declare v_remaining bigint default p_remaining;
  declare v_retry_after_ms bigint default p_retry_after_ms;
  declare v_longest_ms bigint default p_max_wait_ms;
  declare v_outcome varchar(10) character set ascii;
  declare v_message varchar(128) character set utf8mb4;
  if p_remaining <> floor(p_remaining) then
    call token_require_whole_number('token_throttle', 'remaining', p_remaining);
  end if;
  if p_retry_after_ms <> floor(p_retry_after_ms) then
    call token_require_whole_number('token_throttle', 'retry_after_ms', p_retry_after_ms);
  end if;
  if p_max_wait_ms <> floor(p_max_wait_ms) then
    call token_require_whole_number('token_throttle', 'max_wait_ms', p_max_wait_ms);
  end if;
  -- Without strict mode, the server has replaced each byte that it could not convert by ?.
  if (p_id like '%??%') and @@character_set_results not in ('utf8mb4', 'latin1', 'binary') then
    signal sqlstate '22023' set message_text =
      'tollgate: ?? in a key may be what this session''s character set cannot express: call set names utf8mb4';
  end if;
  if (p_id is not null and coalesce(v_remaining, 0) >= 0 and coalesce(v_retry_after_ms, 0) >= 0
      and coalesce(v_longest_ms, 0) >= 0 and coalesce(v_remaining, v_retry_after_ms) is not null) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: token_throttle takes an id, and a number of tokens, a wait in ms, or both, of 0 or more';
  end if;
  call token_throttle_v1(p_id, v_remaining,
                         least(coalesce(v_retry_after_ms, 0), coalesce(v_longest_ms, 3600000), 31622400000) * 1000000,
                         null, null, null, null, false, v_outcome);
  if v_outcome in ('unknown', 'unplanned') then
    set v_message = concat('tollgate: no bucket ''', left(p_id, 36), ''', or no plan for it',
                           ': call token_create_bucket or token_create_plan');
    signal sqlstate '45000' set message_text = v_message;
  elseif v_outcome = 'endless' then
    set v_message = concat('tollgate: bucket ''', left(p_id, 36),
                           ''' never refills: pass the remaining tokens, and no wait');
    signal sqlstate '22023' set message_text = v_message;
  end if;
  select v_outcome = 'lowered' as lowered;
end;

-- token_peek: reads the row of one bucket in token_bucket_levels.
--
-- Arguments: p_id  the bucket
-- Result:    one row; none if the bucket does not exist
-- Errors:    none
-- Locks:     none
--
-- Serves roles that can read a bucket whose name they know, but that cannot list buckets.
drop procedure if exists token_peek;
create procedure token_peek(in p_id varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  select id, capacity, available, refill_seconds, refill, plan, provisioned, overridden, granted, full_at,
         next_refill_at, id_bytes, plan_bytes
    from token_bucket_levels where id_bytes = cast(p_id as binary);
end;

-- token_peek_window: reads one sliding window as of now.
--
-- Arguments: p_id             the window
-- Result:    one row; none if the window does not exist
--            max_requests, interval_seconds, resolution_seconds: the limits of the last counted request; interval_seconds is
--                             the longest interval since the window was empty
--            counted          requests that count now; above the maximum: promised to requests that wait
--            granted          requests granted since the creation of the window
--            retry_after_ms   milliseconds until one more request is granted with mode 'enforce'; 0: now
-- Errors:    none
-- Locks:     none
drop procedure if exists token_peek_window;
create procedure token_peek_window(in p_id varchar(256) character set utf8mb4)
reads sql data
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_max_requests, v_interval, v_resolution, v_newest, v_granted, v_last_wait, v_now, v_scheduled_at bigint;
  declare v_counts longtext character set ascii default '[]';
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_sql_big_selects;
    resignal;
  end;

  select max_requests, interval_ns, resolution_ns, counts, newest, granted, last_wait
    into v_max_requests, v_interval, v_resolution, v_counts, v_newest, v_granted, v_last_wait
    from token_windows where id = cast(p_id as binary);
  if (json_valid(v_counts) and v_max_requests >= 1 and v_interval between 1 and c_year
      and v_resolution between 1 and c_year and v_last_wait between 0 and c_year
      and v_newest between 0 and c_max_counted) is not true then
    -- The row's values are out of bounds: max_requests is null.
    set v_max_requests = null, v_interval = 0, v_resolution = 0, v_counts = '[]', v_newest = 0, v_last_wait = 0;
  end if;
  call token_clock(v_now);
  if v_newest - v_now > v_last_wait + v_resolution + 1000000000 then
    -- After a backward step of the clock, requests counted by the old clock count from now on.
    set v_now = v_newest - v_resolution;
  end if;
  set sql_big_selects = 1;  -- a join can exceed the session's max_join_size
  call token_window_earliest(v_counts, v_newest, v_resolution, v_interval, v_max_requests - 1, v_now, v_scheduled_at);
  select v_max_requests as max_requests, v_interval * 0.000000001 as interval_seconds,
         v_resolution * 0.000000001 as resolution_seconds,
         cast(coalesce(sum(if(e > v_now - v_interval, c, 0)), 0) as signed) as counted, v_granted as granted,
         (v_scheduled_at - v_now + 999999) div 1000000 as retry_after_ms
    from json_table(v_counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j
  having v_granted <> 0;
  set sql_big_selects = v_sql_big_selects;
end;

insert into token_migrations (version, name) values (9, '0009_requests') on duplicate key update applied_at = utc_timestamp(6);
