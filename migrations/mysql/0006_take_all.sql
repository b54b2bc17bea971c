-- token_take_all_v1: takes tokens from all of several buckets, or from none.
--
-- Arguments: p_limits    a JSON array of limits: [id in hexadecimal, cost, min_remaining, capacity, refill_seconds, refill,
--                        plan in hexadecimal], in id order, each bucket once; as for token_take_v1
--            p_max_wait, p_request_id, p_hold, p_exclusive: as for token_take_v1, for all buckets
-- Result:    o_answers   a JSON array with one text per bucket, in any order: its position, then the columns of token_take_v1
--                        from outcome on, with spaces between and - for null. Either all are 'granted'. Or some have another
--                        outcome, the rest are 'spared' (could have been granted), and nothing was taken
-- Errors:    as for token_take_v1 · 22023 a bucket twice
--            22003 capacity or refill_seconds too large (MariaDB takes the largest instead)
-- Locks:     the rows of all buckets in the order given, then the receipts. Rows are locked in id order if one has to be
--            created or more than tokens decides. Calls with another order can deadlock. The routine has its own transaction,
--            unless the caller has one.
--
-- If only tokens decide, all buckets are locked and evaluated at once, and debited if all grant. Else three passes go bucket by
-- bucket. The answer is one text and the caller sorts, because rows cost as much as evaluating several buckets. A request with
-- a wait acts when its last bucket has the tokens. Each bucket is debited for the time of its own tokens.
drop procedure if exists token_take_all_v1;
create procedure token_take_all_v1(
  in p_limits longtext character set utf8mb4, in p_max_wait bigint, in p_request_id varchar(36) character set ascii,
  in p_hold bigint, in p_exclusive boolean, out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare c_year bigint default 31622400000000000;  -- 366 days in nanoseconds
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare c_stale bigint default 2000000;  -- nanoseconds: a longer duration means a wait for a lock
  declare c_stale_per_row bigint default 20000;  -- evaluating a row
  declare v_owns_transaction boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_done, v_spare boolean default false;
  declare v_all boolean default true;
  declare v_reevaluated, v_has_savepoint boolean default false;
  declare v_sql_safe_updates boolean default @@sql_safe_updates;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_mode_rules, v_overrides, v_has_rules boolean;
  declare v_limits, v_ids, v_planned, v_missing, v_plain, v_affording, v_after bigint;
  declare v_denials, v_grants, v_steps longtext character set utf8mb4;  -- arrays, of which one is the answer
  declare v_pass int default 1;  -- 1: lock and prepare, 2: evaluate, 3: take, 4: done
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(80) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_capacity, v_cost, v_min_remaining, v_evaluated_at, v_times bigint;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, cost, min_remaining, capacity, refill_seconds, refill, unhex(plan)
      from json_table(p_limits, '$[*]' columns (
             place for ordinality, id varchar(2048) character set ascii path '$[0]',
             cost bigint path '$[1]' error on error, min_remaining bigint path '$[2]' error on error,
             capacity bigint path '$[3]' error on error, refill_seconds decimal(19, 9) path '$[4]' error on error,
             refill varchar(80) path '$[5]', plan varchar(2048) character set ascii path '$[6]')) as limits
     order by id, place;
  declare continue handler for not found set v_done = true;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
        sql_safe_updates = v_sql_safe_updates, sql_big_selects = v_sql_big_selects;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_exclusive, v_owns_transaction);
  -- MariaDB truncates a longer array silently. A join can exceed the session's max_join_size.
  set innodb_lock_wait_timeout = if(p_exclusive, least(v_lock_wait_timeout, 1), v_lock_wait_timeout),
      group_concat_max_len = 1000000000, sql_big_selects = 1;
  by_tokens: loop
    if (p_request_id is null and p_max_wait between 0 and c_year) is not true then
      leave by_tokens;
    end if;
    call token_clock(v_evaluated_at);
    with locked as (
      select r.place, unhex(r.id) as id, r.cost, b.plan, b.full_at, b.granted, b.burst, b.anchor, b.step_ns, b.step_ticks,
             b.token_ticks,
             (v_evaluated_at - b.anchor) div b.step_ns * b.step_ticks as clock,
             (least(v_evaluated_at + p_max_wait, b.period_end) - b.anchor) div b.step_ns * b.step_ticks as latest,
             -- When the bucket has the tokens; null: never.
             if(r.cost <= b.burst div b.token_ticks - r.min_remaining,
                b.full_at + (r.cost + r.min_remaining - b.burst div b.token_ticks) * b.token_ticks, null) as due,
             b.burst + b.max_granted_wait + (1000000000 div b.step_ns + 1) * b.step_ticks as max_owed,
             b.id is null and (r.capacity is not null or r.plan is not null) as missing,
             (r.cost between 1 and c_max_counted and r.min_remaining between 0 and c_max_counted
              and not b.overridden and b.period_end > v_evaluated_at
              and b.capacity = b.under_capacity and b.refill_seconds = b.under_seconds and b.refill = b.under_refill
              and if(r.capacity is null, r.plan is null or unhex(r.plan) <=> b.plan,
                     b.plan is null and r.capacity = b.capacity
                     and r.refill_seconds = b.refill_seconds and r.refill = b.refill)) is true as own_limits
        from json_table(p_limits, '$[*]' columns (
               place for ordinality, id varchar(512) character set ascii path '$[0]',
               cost bigint path '$[1]' error on error, min_remaining bigint path '$[2]' error on error,
               capacity bigint path '$[3]' error on error,
               refill_seconds decimal(19, 9) path '$[4]' error on error,
               refill varchar(80) character set ascii collate ascii_bin path '$[5]',
               plan varchar(512) character set ascii path '$[6]')) as r
        left join token_buckets b on b.id = unhex(r.id)
         for update /*!80000 of b */  -- MySQL needs this, and MariaDB skips it
    ), evaluated as (
      select l.*,
             case when due is null then 'never' when due <= latest then 'spared' else 'denied' end as outcome,
             -- The step in which the request acts.
             if(due > clock and due <= latest, (due + step_ticks - 1) div step_ticks * step_ticks, clock) as step,
             -- False if the clock was set back.
             own_limits and (due is null or full_at - clock <= max_owed) as tokens_decide
        from locked l
    )
    select count(*), count(distinct id), sum(plan is not null), sum(missing), sum(tokens_decide), sum(outcome = 'spared'),
           json_arrayagg(concat_ws(
             ' ', place, outcome, '-', v_evaluated_at, v_evaluated_at, full_at, granted, burst, anchor, step_ns, step_ticks,
             token_ticks)),
           json_arrayagg(if(outcome = 'spared', concat_ws(
             ' ', place, 'granted', '-', v_evaluated_at,
             if(step > clock, step div step_ticks * step_ns + anchor, v_evaluated_at),
             greatest(full_at, step) + cost * token_ticks, granted + cost, burst, anchor, step_ns, step_ticks, token_ticks),
             null)),
           json_arrayagg(if(step > clock, json_array(place, step), null))
      into v_limits, v_ids, v_planned, v_missing, v_plain, v_affording, v_denials, v_grants, v_steps
      from evaluated;
    call token_clock(v_after);
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    if v_missing > 0 and v_owns_transaction then
      -- Creates the buckets in the order of all ids.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
    end if;
    if v_limits = 0 or v_mode_rules or v_plain < v_limits or v_ids < v_limits then
      leave by_tokens;
    end if;
    if not v_reevaluated and v_after not between v_evaluated_at and v_evaluated_at + c_stale + c_stale_per_row * v_limits then
      set v_reevaluated = true;
      iterate by_tokens;
    end if;
    if v_overrides or v_planned > 0 then
      -- Reads the current rows, because the caller's snapshot can hold older ones.
      select count(*) > 0 into v_has_rules
        from (select r.id, b.plan, b.capacity, b.refill_seconds, b.refill
                from (select unhex(id) as id
                        from json_table(p_limits, '$[*]' columns (
                               id varchar(512) character set ascii path '$[0]')) as limits
                       order by id limit 1000000000) as r
                left join token_buckets b on b.id = r.id
                 for update /*!80000 of b */) as s
        left join token_overrides o on o.id = s.id
        left join token_plans p on p.name = s.plan and p.mode is null and p.capacity = s.capacity
                                   and p.refill_seconds = s.refill_seconds and p.refill = s.refill
       where o.id is not null or s.plan is not null and p.name is null;
      if v_has_rules then
        leave by_tokens;
      end if;
    end if;
    set v_pass = 4, v_spare = v_affording < v_limits, o_answers = if(v_spare, v_denials, v_grants);
    if not v_spare then
      -- Tokens taken from a full bucket return from now on, when its row is locked.
      set v_after = greatest(v_evaluated_at, v_after);
      if v_sql_safe_updates then set sql_safe_updates = 0; end if;
      if p_max_wait > 0 then
        update json_table(v_steps, '$[*]' columns (place bigint path '$[0]', step bigint path '$[1]')) as s
          straight_join json_table(p_limits, '$[*]' columns (
                          place for ordinality, id varchar(512) character set ascii path '$[0]')) as r on r.place = s.place
          straight_join token_buckets b on b.id = unhex(r.id)
           set b.max_granted_wait = greatest(b.max_granted_wait,
                                             s.step - (v_evaluated_at - b.anchor) div b.step_ns * b.step_ticks),
               b.full_at = greatest(b.full_at, s.step);
      end if;
      update json_table(p_limits, '$[*]' columns (
               id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]')) as r
        straight_join token_buckets b force index (primary) on b.id = unhex(r.id)
         set b.granted = b.granted + r.cost,
             b.full_at = greatest(b.full_at, (v_after - b.anchor) div b.step_ns * b.step_ticks) + r.cost * b.token_ticks;
      if v_sql_safe_updates then set sql_safe_updates = 1; end if;
    end if;
    leave by_tokens;
  end loop;

  if v_pass < 4
     and (select count(*) > count(distinct unhex(id))
            from json_table(p_limits, '$[*]' columns (id varchar(2048) character set ascii path '$[0]')) as limits) then
    signal sqlstate '22023' set message_text =
      'tollgate: token_take_all_v1 needs distinct bucket ids in hexadecimal';
  end if;
  while v_pass <= 3 do
    set o_answers = '[]', v_done = false;
    open v_sorted;
    decide: loop
      fetch v_sorted into v_place, v_id, v_cost, v_min_remaining, v_capacity, v_refill_seconds, v_refill, v_plan;
      if v_done then leave decide; end if;
      set v_times = 1;
      call token_take_v1(convert(v_id using utf8mb4), v_cost, p_max_wait, v_min_remaining, v_capacity, v_refill_seconds,
                         v_refill, convert(v_plan using utf8mb4), if(v_pass = 1, null, p_request_id), p_hold,
                         v_pass = 3, false, v_times,
                         v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                         v_step_ticks, v_token_ticks);
      set v_done = false;
      set v_spare = v_spare or (v_pass > 1 and v_outcome <> 'granted');
      set v_all = v_all and v_outcome = 'granted';
      set o_answers = json_array_append(o_answers, '$', concat_ws(
        ' ', v_place, v_outcome, coalesce(v_mode, '-'), v_now, coalesce(v_scheduled_at, '-'), coalesce(v_full_at, '-'),
        coalesce(v_granted, '-'), coalesce(v_burst, '-'), coalesce(v_anchor, '-'), coalesce(v_step_ns, '-'),
        coalesce(v_step_ticks, '-'), coalesce(v_token_ticks, '-')));
    end loop;
    close v_sorted;
    if v_spare and v_pass = 3 then
      rollback to savepoint tollgate_decide_all;
      signal sqlstate '40001' set message_text = 'tollgate: the limits of the buckets changed during the call: repeat it';
    end if;
    -- A bucket that granted before the others were locked still grants afterwards.
    set v_pass = if(v_spare, 4, if(v_pass = 1 and v_all and p_request_id is null, 3, v_pass + 1));
    if v_pass = 3 then
      savepoint tollgate_decide_all;
      set v_has_savepoint = true;
    end if;
  end while;
  if not v_spare and v_has_savepoint then
    release savepoint tollgate_decide_all;
  end if;
  set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
      sql_big_selects = v_sql_big_selects;
  if v_owns_transaction then commit and no chain no release; end if;
  if v_spare then
    set o_answers = replace(o_answers, ' granted ', ' spared ');
  end if;
end;

-- token_take_all_batch_v1: decides several requests in one call. Each takes from all of its buckets, or from none.
--
-- Arguments: p_requests  a JSON array of requests, each as p_limits of token_take_all_v1; no request waits or has an id
--            p_exclusive: as for token_take_v1
-- Result:    o_answers       a JSON array with one text per bucket of each request, in any order. A text is the request's
--                            position from 1 and the answer of token_take_all_v1, with the bucket's state before the call. A
--                            request is granted if all its texts say 'granted'; granted requests take their tokens in order.
--                            A request with a 'denied' or 'never' takes nothing
--            o_replacements  like o_answers, for requests decided later, in order: the answers of token_take_all_v1. These
--                            answers replace those in o_answers
-- Errors:    as for token_take_all_v1, but a request that names a bucket twice is charged twice · 22023 more than 64 requests
--            1205 another session locked one of the buckets for a second
-- Locks:     the rows of all buckets in id order, in one transaction. An earlier transaction creates missing buckets, unless
--            the caller has one. Buckets with an override or a mode are created last: then two calls can deadlock, and one is
--            rolled back.
--
-- Requests that the locked buckets cannot grant are denied. If the buckets of a request afford all requests, the request is
-- granted, and one UPDATE debits the buckets. token_take_all_v1 decides the others, and all requests after the first one with
-- an override, a mode or other limits. The answers are those of deciding the requests one after the other.
drop procedure if exists token_take_all_batch_v1;
create procedure token_take_all_batch_v1(
  in p_requests longtext character set utf8mb4, in p_exclusive boolean,
  out o_answers longtext character set utf8mb4, out o_replacements longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare c_stale bigint default 2000000;  -- nanoseconds: a longer duration means a wait for a lock
  declare c_stale_per_row bigint default 20000;  -- evaluating a row
  declare c_stale_granted bigint default 50000000;  -- evaluating many rows, if no request is denied
  declare v_owns_transaction boolean default false;
  declare v_made, v_reevaluated boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_sql_safe_updates boolean default @@sql_safe_updates;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_mode_rules, v_overrides boolean;
  declare v_now, v_after, v_limits, v_requests, v_missing, v_denials bigint;
  declare v_first bigint;  -- the first request that more than the tokens decides
  -- One bit per request: denied, perhaps denied, decided one by one.
  declare v_denied, v_short, v_one_by_one bigint unsigned;
  declare v_makes, v_plans json;
  declare v_request bigint default 1;
  declare v_each longtext character set utf8mb4 default '';
  declare v_answers longtext character set utf8mb4;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
        sql_safe_updates = v_sql_safe_updates, sql_big_selects = v_sql_big_selects;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_exclusive, v_owns_transaction);
  by_tokens: loop
    call token_clock(v_now);
    -- A session that holds a bucket delays the other requests by a second at most. MariaDB truncates a longer array silently.
    -- A join can exceed the session's max_join_size.
    set innodb_lock_wait_timeout = least(v_lock_wait_timeout, 1), group_concat_max_len = 1000000000, sql_big_selects = 1;
    with requested as (
      select request, place, unhex(id) as id, cost, min_remaining, capacity, refill_seconds, refill, unhex(plan) as plan
        from json_table(p_requests, '$[*]' columns (
               request for ordinality,
               nested path '$[*]' columns (
                 place for ordinality, id varchar(512) character set ascii path '$[0]',
                 -- A value too large would read as null, which has a meaning. So the value is refused here.
                 cost bigint path '$[1]' error on error, min_remaining bigint path '$[2]' error on error,
                 capacity bigint path '$[3]' error on error,
                 refill_seconds decimal(19, 9) path '$[4]' error on error,
                 refill varchar(80) character set ascii collate ascii_bin path '$[5]',
                 plan varchar(512) character set ascii path '$[6]'))) as requests
       -- The limit makes the server materialize the derived table, in this order.
       order by id limit 1000000000
    ), demand as (
      -- Groups by sorting: a temporary table would count as a write even if all requests are denied.
      select sql_big_result id, min(request) as first, sum(cost) as cost, max(min_remaining) as min_remaining
        from requested group by id
    ), locked as (
      select r.request, r.place, r.id, r.cost, r.min_remaining, r.capacity as new_capacity, r.refill_seconds as new_seconds,
             r.refill as new_refill, r.plan as new_plan, d.cost as demand_cost, d.min_remaining as demand_min_remaining,
             b.capacity, b.refill_seconds, b.refill, b.plan, b.full_at, b.granted, b.burst, b.anchor, b.step_ns,
             b.step_ticks, b.token_ticks,
             b.full_at - (v_now - b.anchor) div b.step_ns * b.step_ticks as owed,  -- negative: it was full before
             b.burst + b.max_granted_wait + (1000000000 div b.step_ns + 1) * b.step_ticks as max_owed,
             -- True if the first request that names the bucket can create it.
             b.id is null and r.request = d.first and (r.capacity is not null or r.plan is not null) as missing,
             (r.cost between 1 and c_max_counted and r.min_remaining between 0 and c_max_counted
              and not b.overridden and b.period_end > v_now
              and b.capacity = b.under_capacity and b.refill_seconds = b.under_seconds and b.refill = b.under_refill
              and if(r.capacity is null, r.plan is null or r.plan <=> b.plan,
                     b.plan is null and r.capacity = b.capacity
                     and r.refill_seconds = b.refill_seconds and r.refill = b.refill)) is true as own_limits
        from requested r
        left join demand d on d.id = r.id
        left join token_buckets b on b.id = r.id
         for update /*!80000 of b */  -- MySQL needs this, and MariaDB skips it
    ), evaluated as (
      select l.*,
             -- null: more than the tokens decides, or the clock was set back
             case
               when (own_limits and owed <= max_owed) is not true then null
               when cost > burst div token_ticks - min_remaining then 'never'
               when greatest(owed, 0) > burst - (cost + min_remaining) * token_ticks then 'denied'
               when greatest(owed, 0) > burst - (demand_cost + demand_min_remaining) * token_ticks then 'short'
               else 'granted'
             end as outcome
        from locked l
    )
    select count(*), max(request), coalesce(sum(missing), 0), coalesce(sum(outcome = 'denied'), 0),
           min(if(outcome is null, request, null)),
           -- With null, a bit keeps its type. With 0, MariaDB would use a signed number and lose the last bit.
           bit_or(if(outcome in ('denied', 'never'), 1 << request - 1, null)),
           bit_or(if(outcome = 'short', 1 << request - 1, null)),
           json_arrayagg(if(missing, json_array(hex(id), null, null, null, new_capacity, new_seconds, new_refill,
                                                hex(new_plan)), null)),
           json_arrayagg(if(plan is null, null, json_array(request, hex(plan), capacity, refill_seconds, refill))),
           json_arrayagg(if(outcome is null, null, concat_ws(
             ' ', request, place, if(outcome = 'short', 'spared', outcome), '-', v_now, v_now, full_at, granted, burst, anchor,
             step_ns, step_ticks, token_ticks)))
      into v_limits, v_requests, v_missing, v_denials, v_first, v_denied, v_short, v_makes, v_plans, o_answers
      from evaluated;
    call token_clock(v_after);
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    if v_missing > 0 and v_owns_transaction and not v_made and not v_mode_rules then
      -- A separate transaction: in this one, the rows would be locked out of order.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
      call token_create_batch(v_makes, null, null, null, null);
      commit and no chain no release;
      set v_made = true, v_reevaluated = false;
      set transaction isolation level read committed;
      start transaction;
      iterate by_tokens;
    end if;
    -- Tokens arrived during the wait for a row. An early evaluation can only deny: the debit is computed anew. Many rows take
    -- time without any wait: if all requests are granted, the rows are not evaluated again.
    if not v_reevaluated
       and v_after not between v_now and v_now + if(v_denials > 0, c_stale + c_stale_per_row * v_limits, c_stale_granted) then
      set v_reevaluated = true;
      iterate by_tokens;
    end if;
    leave by_tokens;
  end loop;

  if v_requests > 64 then
    signal sqlstate '22023' set message_text = 'tollgate: token_take_all_batch_v1 takes at most 64 requests';
  end if;
  set v_first = coalesce(v_first, v_requests + 1);
  if v_overrides then
    select least(v_first, coalesce(min(a.request), v_first)) into v_first
      from json_table(p_requests, '$[*]' columns (
             request for ordinality,
             nested path '$[*]' columns (id varchar(512) character set ascii path '$[0]'))) as a
      join token_overrides o on o.id = unhex(a.id);
  end if;
  if v_limits = 0 or v_mode_rules then
    set v_first = 1, v_plans = '[]', o_answers = '[]';
  end if;
  select least(v_first, coalesce(min(a.request), v_first)) into v_first
    from json_table(v_plans, '$[*]' columns (
           request bigint path '$[0]', plan varchar(512) character set ascii path '$[1]', capacity bigint path '$[2]',
           refill_seconds decimal(19, 9) path '$[3]',
           refill varchar(80) character set ascii collate ascii_bin path '$[4]')) as a
    left join token_plans p on p.name = unhex(a.plan) and p.mode is null and p.capacity = a.capacity
                               and p.refill_seconds = a.refill_seconds and p.refill = a.refill
   where a.plan is not null and p.name is null;
  set v_one_by_one = v_short & ~v_denied;
  if v_first <= v_requests then
    set v_one_by_one = v_one_by_one | ~((1 << v_first - 1) - 1);
  end if;
  -- True unless each request has its bit in v_denied or v_one_by_one.
  if ~(v_denied | v_one_by_one) & (~0 >> 64 - v_requests) <> 0 then
    -- Tokens taken from a full bucket return from now on, when its row is locked.
    call token_clock(v_now);
    if v_sql_safe_updates then set sql_safe_updates = 0; end if;
    update (select unhex(a.id) as id, sum(a.cost) as cost
              from json_table(p_requests, '$[*]' columns (
                     request for ordinality,
                     nested path '$[*]' columns (
                       id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]'))) as a
             where (v_denied | v_one_by_one) >> a.request - 1 & 1 = 0
             group by unhex(a.id)) as d
      straight_join token_buckets b on b.id = d.id
       set b.full_at = greatest(b.full_at, (v_now - b.anchor) div b.step_ns * b.step_ticks) + d.cost * b.token_ticks,
           b.granted = b.granted + d.cost;
    if v_sql_safe_updates then set sql_safe_updates = 1; end if;
  end if;
  while v_one_by_one <> 0 and v_request <= v_requests do
    if v_one_by_one >> v_request - 1 & 1 = 1 then
      call token_take_all_v1(
        json_extract(p_requests, concat('$[', v_request - 1, ']')), 0, null, 0, false, v_answers);
      set v_answers = regexp_replace(v_answers, '"(?=[0-9])', concat('"', v_request, ' '));
      set v_each = concat(v_each, ',', substr(v_answers, 2, char_length(v_answers) - 2));
    end if;
    set v_request = v_request + 1;
  end while;
  set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
      sql_big_selects = v_sql_big_selects;
  set o_replacements = concat('[', substr(v_each, 2), ']');
  if v_owns_transaction then commit and no chain no release; end if;
end;

insert into token_migrations (version, name) values (6, '0006_take_all') on duplicate key update applied_at = utc_timestamp(6);
