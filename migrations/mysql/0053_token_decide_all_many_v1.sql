-- token_decide_all_many_v1: decide several requests in one call, each for several buckets: from all of its buckets or
-- from none.
--
-- Arguments: p_requests  a JSON array; a request is token_decide_all_v1's p_limits. Nobody waits, and none has an id.
--            p_own       as token_decide_v1's
-- Result:    o_standing  a JSON array of a text for each bucket of each request, in any order: the request's place, from
--                        1, and what token_decide_all_v1 says of the bucket, but its state is how it stands before
--                        anything is taken. A request is granted if all its texts say so; then its tokens are taken after
--                        those of the granted requests before it. If one says 'denied' or 'never', nothing is taken.
--            o_rest      the same of requests that were decided after these, in their order: token_decide_all_v1's
--                        answers. What o_standing says of them does not count.
-- Errors:    token_decide_all_v1's, but a bucket twice in a request pays twice · 22023 more than 64 requests
--            · 1205 another held one of the buckets for a second
-- Locks:     the rows of all buckets, in the order of their ids, in one transaction. Those that are missing are made in a
--            transaction before, unless inside the caller's. After the rest are made those that an override or the mode of
--            all, or of a plan, rules: then two calls can meet in a deadlock, and one is undone.
--
-- What cannot be granted as the locked buckets stand is denied; a request whose buckets have enough for all that ask is
-- granted, and what these take is debited by one UPDATE. The others, and all from the first one on that something else
-- than tokens rules, are decided by token_decide_all_v1. So each is granted or denied as if they came one after the other.
create procedure token_decide_all_many_v1(
  in p_requests longtext character set utf8mb4, in p_own boolean,
  out o_standing longtext character set utf8mb4, out o_rest longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_made, v_again boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_mode_rules, v_overrides boolean;
  declare v_now, v_after, v_limits, v_requests, v_missing, v_denials bigint;
  declare v_first bigint;  -- the first request that something else than tokens rules
  declare v_denied, v_short, v_rest bigint unsigned;  -- a bit for each request: denied, perhaps, decided one by one
  declare v_makes, v_plans json;
  declare v_request bigint default 1;
  declare v_each longtext character set utf8mb4 default '';
  declare v_answers longtext character set utf8mb4;
  declare continue handler for 1568  -- inside a transaction of the caller's, or one that was left open
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_own = false;
    end if;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_wait, sql_safe_updates = v_safe;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  at_once: loop
    call token_clock_v1(v_now);
    -- Whoever holds one of the buckets for long holds up the other requests no longer than that.
    set innodb_lock_wait_timeout = least(v_wait, 1);
    with asked as (
      select request, place, unhex(id) as id, cost, keep, capacity, refill_seconds, refill, unhex(plan) as plan
        from json_table(p_requests, '$[*]' columns (
               request for ordinality,
               nested path '$[*]' columns (
                 place for ordinality, id varchar(512) character set ascii path '$[0]',
                 -- What would say something else as a null: refused here, where all are read first.
                 cost bigint path '$[1]' error on error, keep bigint path '$[2]' error on error,
                 capacity bigint path '$[3]' error on error,
                 refill_seconds decimal(19, 9) path '$[4]' error on error,
                 refill varchar(10) character set ascii collate ascii_bin path '$[5]',
                 plan varchar(512) character set ascii path '$[6]'))) as requests
       -- With a limit it is made as it is written: in this order.
       order by id limit 1000000000
    ), demand as (
      -- By sorting: a temporary table would count as writing where all is denied.
      select sql_big_result id, min(request) as first, sum(cost) as cost, max(keep) as keep from asked group by id
    ), weighed as (
      select a.request, a.place, a.id, a.capacity as asked_capacity, a.refill_seconds as asked_seconds,
             a.refill as asked_refill, a.plan as asked_plan, b.capacity, b.refill_seconds, b.refill, b.plan, b.full_at,
             b.granted, b.burst, b.anchor, b.step_ns, b.step_ticks, b.token_ticks,
             -- If the first that names it may make it.
             b.id is null and a.request = d.first and (a.capacity is not null or a.plan is not null) as missing,
             -- null: something else than its tokens rules it, or the clock was set back.
             case
               when (a.cost between 1 and 4611686018427387903 and a.keep between 0 and 4611686018427387903
                     and not b.overridden
                     and b.capacity = b.under_capacity and b.refill_seconds = b.under_seconds and b.refill = b.under_refill
                     and if(a.capacity is null, a.plan is null or a.plan <=> b.plan,
                            b.plan is null and a.capacity = b.capacity
                            and a.refill_seconds = b.refill_seconds and a.refill = b.refill)
                     and b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks
                         <= b.burst + b.longest_wait + (1000000000 div b.step_ns + 1) * b.step_ticks) is not true
                 then null
               when a.cost > b.burst div b.token_ticks - a.keep then 'never'
               when greatest(b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks, 0)
                    > b.burst - (a.cost + a.keep) * b.token_ticks then 'denied'
               when greatest(b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks, 0)
                    > b.burst - (d.cost + d.keep) * b.token_ticks then 'short'
               else 'granted'
             end as word
        from asked a
        left join demand d on d.id = a.id
        left join token_buckets b on b.id = a.id
         for update /*!80000 of b */  -- what MySQL wants to be told, it alone reads
    )
    select count(*), max(request), coalesce(sum(missing), 0), coalesce(sum(word = 'denied'), 0),
           min(if(word is null, request, null)),
           -- Beside null a bit keeps its type; beside 0 MariaDB would take it for a signed number, and lose the last one.
           bit_or(if(word in ('denied', 'never'), 1 << request - 1, null)),
           bit_or(if(word = 'short', 1 << request - 1, null)),
           json_arrayagg(if(missing, json_array(hex(id), null, null, null, asked_capacity, asked_seconds, asked_refill,
                                                hex(asked_plan)), null)),
           json_arrayagg(if(plan is null, null, json_array(request, hex(plan), capacity, refill_seconds, refill))),
           json_arrayagg(if(word is null, null, concat_ws(
             ' ', request, place, if(word = 'short', 'spared', word), '-', v_now, v_now, full_at, granted, burst, anchor,
             step_ns, step_ticks, token_ticks)))
      into v_limits, v_requests, v_missing, v_denials, v_first, v_denied, v_short, v_makes, v_plans, o_standing
      from weighed;
    call token_clock_v1(v_after);
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    -- MariaDB cuts longer arrays off.
    if v_missing > 0 and v_own and not v_made and not v_mode_rules and json_length(v_makes) = v_limits then
      -- Not within the same transaction: they would be locked out of order.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
      call token_make_many_v1(v_makes, null, null, null, null);
      commit and no chain no release;
      set v_made = true, v_again = false;
      set transaction isolation level read committed;
      start transaction;
      iterate at_once;
    end if;
    -- Tokens came while a row was waited for. To decide too early can only deny: what is debited is reckoned anew. So many rows
    -- take their time without any waiting: where all is granted, that is no reason to look again.
    if not v_again
       and v_after not between v_now and v_now + if(v_denials > 0, 2000000 + 20000 * v_limits, 50000000) then
      set v_again = true;
      iterate at_once;
    end if;
    leave at_once;
  end loop;

  if v_requests > 64 then
    signal sqlstate '22023' set message_text = 'tollgate: token_decide_all_many_v1 decides 64 requests at once';
  end if;
  set v_first = coalesce(v_first, v_requests + 1);
  if v_overrides then
    select least(v_first, coalesce(min(a.request), v_first)) into v_first
      from json_table(p_requests, '$[*]' columns (
             request for ordinality,
             nested path '$[*]' columns (id varchar(512) character set ascii path '$[0]'))) as a
      join token_overrides o on o.id = unhex(a.id);
  end if;
  -- MariaDB cuts longer arrays off, and closes a text that it has cut.
  if v_mode_rules or (json_length(o_standing) = v_limits and json_length(v_plans) = v_limits
                      /*M! and length(o_standing) + 1000 < @@group_concat_max_len */) is not true then
    set v_first = 1, v_plans = '[]', o_standing = '[]';
  end if;
  select least(v_first, coalesce(min(a.request), v_first)) into v_first
    from json_table(v_plans, '$[*]' columns (
           request bigint path '$[0]', plan varchar(512) character set ascii path '$[1]', capacity bigint path '$[2]',
           refill_seconds decimal(19, 9) path '$[3]',
           refill varchar(10) character set ascii collate ascii_bin path '$[4]')) as a
    left join token_plans p on p.name = unhex(a.plan) and p.mode is null and p.capacity = a.capacity
                               and p.refill_seconds = a.refill_seconds and p.refill = a.refill
   where a.plan is not null and p.name is null;
  set v_rest = v_short & ~v_denied;
  if v_first <= v_requests then
    set v_rest = v_rest | ~((1 << v_first - 1) - 1);
  end if;
  -- Unless each has its bit in one of them.
  if ~(v_denied | v_rest) & (~0 >> 64 - v_requests) <> 0 then
    -- What is taken from a full bucket comes back from now on, when its row is locked.
    call token_clock_v1(v_now);
    if v_safe then set sql_safe_updates = 0; end if;
    update (select unhex(a.id) as id, sum(a.cost) as cost
              from json_table(p_requests, '$[*]' columns (
                     request for ordinality,
                     nested path '$[*]' columns (
                       id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]'))) as a
             where (v_denied | v_rest) >> a.request - 1 & 1 = 0
             group by unhex(a.id)) as d
      straight_join token_buckets b on b.id = d.id
       set b.full_at = greatest(b.full_at, (v_now - b.anchor) div b.step_ns * b.step_ticks) + d.cost * b.token_ticks,
           b.granted = b.granted + d.cost;
    if v_safe then set sql_safe_updates = 1; end if;
  end if;
  while v_rest <> 0 and v_request <= v_requests do
    if v_rest >> v_request - 1 & 1 = 1 then
      call token_decide_all_v1(
        json_extract(p_requests, concat('$[', v_request - 1, ']')), 0, null, 0, false, v_answers);
      set v_answers = regexp_replace(v_answers, '"(?=[0-9])', concat('"', v_request, ' '));
      set v_each = concat(v_each, ',', substr(v_answers, 2, char_length(v_answers) - 2));
    end if;
    set v_request = v_request + 1;
  end while;
  set innodb_lock_wait_timeout = v_wait;
  set o_rest = concat('[', substr(v_each, 2), ']');
  if v_own then commit and no chain no release; end if;
end
