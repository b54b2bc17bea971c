-- token_create_batch: creates the missing buckets that their first requests can create.
--
-- Arguments: p_requests  as for token_take_batch_v1; only ids, limits and plans are read
--            p_capacity, p_refill_seconds, p_refill, p_plan: limits or plan of requests that name neither; or null
-- Result:    the buckets exist, full, under these limits or the plan's. The routine skips a bucket with an override, with a
--            plan that is unknown or has a mode, with a calendar period, or with an invalid id or invalid limits:
--            token_prepare_bucket handles these
-- Errors:    none
-- Locks:     the rows that the routine creates, in id order; the caller's transaction must hold no lock of a bucket
drop procedure if exists token_create_batch;
create procedure token_create_batch(
  in p_requests longtext character set utf8mb4, in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(80) character set ascii collate ascii_bin, in p_plan varbinary(1024))
modifies sql data
sql security definer
begin
  -- Invalid limits: the statement creates no bucket. token_prepare_bucket explains the numbers.
  declare continue handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025 begin end;

  insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor)
  select r.id, coalesce(r.capacity, p.capacity) as new_capacity,
         if(r.capacity is null, p.refill_seconds, r.refill_seconds) as new_seconds,
         if(r.capacity is null, p.refill, r.refill) as new_refill, p.name, false, 0
    from (select unhex(id) as id, coalesce(capacity, p_capacity) as capacity,
                 coalesce(refill_seconds, p_refill_seconds) as refill_seconds, coalesce(refill, p_refill) as refill,
                 coalesce(unhex(plan), p_plan) as plan
            from json_table(p_requests, '$[*]' columns (
                   id varchar(512) character set ascii path '$[0]', capacity bigint path '$[4]',
                   refill_seconds decimal(19, 9) path '$[5]',
                   refill varchar(80) character set ascii collate ascii_bin path '$[6]',
                   plan varchar(512) character set ascii path '$[7]')) as requests) as r
    left join token_plans p on r.capacity is null and p.name = r.plan and p.mode is null
    left join token_buckets b on b.id = r.id
   where b.id is null and coalesce(r.capacity, p.capacity) is not null
     and not exists (select 1 from token_overrides o where o.id = r.id)
     -- Repeats the table's checks, because a MariaDB session can disable them.
     and length(r.id) between 1 and 255 and left(r.id, 1) <> x'01' and locate(x'00', r.id) = 0
     and cast(convert(r.id using utf8mb4) as binary) <=> r.id
  -- The same bounds as token_bucket_limits.
  having new_capacity between 1 and 3155760000000000000
     and new_refill in ('interval', 'calendar', 'continuous', 'once')
     and (new_refill = 'once'
          or new_seconds > 0 and new_seconds <= 3155760000 and new_seconds * 1000000000 >= new_capacity
             and (new_refill <> 'continuous'
                  or ((least(new_seconds, 9000000000) * 1000000000 - 1) div greatest(new_capacity, 1) + 1)
                       * cast(new_capacity as decimal(40, 0))
                     <= least(new_seconds * 1001000000, 3155760000000000000)))
   order by r.id
      on duplicate key update id = token_buckets.id;
end;

-- token_take_uniform_v1: the common case of token_take_batch_v1, in half the time: requests under one quota or one plan that
-- differ in the bucket only. The buckets were created by their first request, and only their tokens decide.
--
-- Arguments: p_ids    a JSON array of the buckets' ids in hexadecimal, each once, in id order. [id, times] stands for equal
--                     requests, decided one after the other
--            p_cost, p_min_remaining, p_capacity, p_refill_seconds, p_refill, p_plan, p_exclusive: as for token_take_v1, one value
--                     for all; no request waits
-- Result:    one row
--            now, burst, anchor, step_ns, step_ticks, token_ticks: as for token_take_v1, for all requests
--            answers  for each request, followed by a semicolon: position from 1, number of grants, full_at and granted. The
--                     first requests are granted, and the others are denied. full_at and granted are from before the
--                     decision, full_at at least the bucket's clock. null: token_take_batch_v1 has to decide
-- Errors:    22003 times too large (MariaDB takes the largest instead) · 1411 an id is not hexadecimal (MariaDB answers null)
--            22023 a bucket twice with tokens left: the caller must roll back its transaction
--            1205 another session locked one of several buckets for a second
-- Locks:     the buckets' rows in the order of p_ids; any other order than id order can deadlock. If all are missing, the same
--            transaction creates them. If only some are, an earlier transaction creates them. Inside the caller's transaction,
--            nothing is decided then.
drop procedure if exists token_take_uniform_v1;
create procedure token_take_uniform_v1(
  in p_ids longtext character set utf8mb4, in p_cost bigint, in p_min_remaining bigint, in p_capacity bigint,
  in p_refill_seconds decimal(19, 9), in p_refill varchar(80) character set ascii collate ascii_bin,
  in p_plan varchar(256) character set utf8mb4, in p_exclusive boolean)
modifies sql data
sql security definer
begin
  declare c_stale bigint default 2000000;  -- nanoseconds: a longer duration means a wait for a lock
  declare c_stale_per_row bigint default 20000;  -- evaluating a row
  declare c_stale_insert bigint default 50000000;  -- inserting many rows
  declare v_owns_transaction boolean default false;
  declare v_made, v_taken, v_reevaluated, v_evaluated boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_sql_safe_updates boolean default @@sql_safe_updates;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_plan varbinary(1024) default cast(p_plan as binary);
  declare v_capacity bigint default p_capacity;
  declare v_seconds decimal(19, 9) default p_refill_seconds;
  declare v_refill varchar(80) character set ascii collate ascii_bin default p_refill;
  declare v_requests, v_matching, v_missing, v_creatable, v_grantable, v_cost, v_room, v_now, v_clock, v_after bigint;
  declare v_inserted bigint default 0;
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_max_times bigint;  -- number of equal requests that a full bucket grants
  declare v_all, v_has_rules, v_overrides boolean;
  declare v_answers longtext character set ascii;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
        sql_safe_updates = v_sql_safe_updates, sql_big_selects = v_sql_big_selects;
    if v_owns_transaction then rollback and no chain no release; end if;
    resignal;
  end;

  call token_begin(p_exclusive, v_owns_transaction);
  by_tokens: begin
    if v_plan is not null and v_capacity is null then
      select capacity, refill_seconds, refill into v_capacity, v_seconds, v_refill
        from token_plans where name = v_plan and mode is null;
    end if;
    set v_token_ticks = if(v_refill = 'continuous',
                           (least(v_seconds, 9000000000) * 1000000000 - 1) div greatest(v_capacity, 1) + 1, 1);
    -- The same bounds as token_bucket_limits.
    if ((p_plan is null or p_capacity is null) and p_min_remaining between 0 and v_capacity
        and p_cost between 1 and v_capacity - p_min_remaining
        and v_capacity <= 3155760000000000000 and v_refill in ('interval', 'calendar', 'continuous', 'once')
        and (v_refill = 'once' or v_seconds <= 3155760000 and v_seconds * 1000000000 >= v_capacity)
        and (v_refill <> 'continuous'
             or v_token_ticks * cast(v_capacity as decimal(40, 0)) <= least(v_seconds * 1001000000, 3155760000000000000)))
       is not true then
      leave by_tokens;
    end if;
    set v_step_ns = case v_refill when 'continuous' then 1 when 'once' then 9223372036854775807
                      else v_seconds * 1000000000 end,
        v_step_ticks = if(v_refill in ('continuous', 'once'), 1, v_capacity),
        v_burst = v_capacity * v_token_ticks, v_cost = p_cost * v_token_ticks,
        v_max_times = (v_capacity - p_min_remaining) div p_cost;
    -- A session that holds a bucket delays the other requests by a second at most: three quotes are more than one bucket. A
    -- longer text would be truncated. A join can exceed the session's max_join_size.
    set innodb_lock_wait_timeout = if(p_exclusive or p_ids like '%"%"%"%', least(v_lock_wait_timeout, 1), v_lock_wait_timeout),
        group_concat_max_len = 1000000000, sql_big_selects = 1;
    -- Checked before any row is locked: another routine decides requests under a mode or an override.
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_has_rules, v_overrides
      from token_mode where one = true;
    if v_overrides and not v_has_rules then
      select count(*) > 0 into v_has_rules
        from json_table(p_ids, '$[*]' columns (id varchar(512) character set ascii path '$[0]')) as r
        straight_join token_overrides o on o.id = unhex(r.id);
    end if;
    if v_has_rules then
      leave by_tokens;
    end if;
    evaluate: loop
      call token_clock(v_now);
      set v_clock = v_now div v_step_ns * v_step_ticks,
          v_room = v_clock + v_burst - p_min_remaining * v_token_ticks;
      select count(*), count(b.id), sum(b.full_at <= v_room - v_cost),
             min((v_room - greatest(b.full_at, v_clock)) div v_cost >= r.times),
             group_concat(
               r.place, ' ', least(greatest((v_room - greatest(b.full_at, v_clock)) div v_cost, 0), r.times), ' ',
               greatest(b.full_at, v_clock), ' ', b.granted, ';' separator '')
        into v_requests, v_matching, v_grantable, v_all, v_answers
        from (select place, unhex(id) as id, coalesce(times, 1) as times
                from json_table(p_ids, '$[*]' columns (
                       place for ordinality, id varchar(512) character set ascii path '$[0]',
                       times bigint path '$[1]' error on error)) as requests) as r
        left join token_buckets b
          on b.id = r.id and r.times >= 1 and b.plan <=> v_plan and not b.overridden
             and b.capacity = v_capacity and b.refill_seconds = v_seconds and b.refill = v_refill
             and b.under_capacity = v_capacity and b.under_seconds = v_seconds and b.under_refill = v_refill
             and b.burst = v_burst and b.anchor = 0 and b.step_ns = v_step_ns and b.step_ticks = v_step_ticks
             and b.token_ticks = v_token_ticks
             -- False if the clock was set back.
             and b.full_at - v_clock <= v_burst + b.max_granted_wait + (1000000000 div v_step_ns + 1) * v_step_ticks
         for update /*!80000 of b */;  -- MySQL needs this, and MariaDB skips it
      call token_clock(v_after);
      if v_matching < v_requests then
        if v_made or not v_owns_transaction then
          leave by_tokens;
        end if;
        -- A missing bucket counts as full.
        select sum(b.id is null),
               -- Repeats the table's checks, because a MariaDB session can disable them.
               count(distinct if(v_matching = 0 and b.id is null and length(r.id) between 1 and 255 and left(r.id, 1) <> x'01'
                                 and locate(x'00', r.id) = 0 and cast(convert(r.id using utf8mb4) as binary) <=> r.id
                                 and r.times >= 1, r.id, null)),
               group_concat(if(v_matching > 0, null, concat(r.place, ' ', least(v_max_times, r.times), ' ', v_clock, ' 0;'))
                            separator '')
          into v_missing, v_creatable, v_answers
          from (select place, unhex(id) as id, coalesce(times, 1) as times
                  from json_table(p_ids, '$[*]' columns (
                         place for ordinality, id varchar(512) character set ascii path '$[0]',
                         times bigint path '$[1]')) as requests) as r
          left join token_buckets b on b.id = r.id;
        if v_missing = 0 then
          leave by_tokens;
        end if;
        if v_creatable = v_requests then
          -- Inserts all buckets with their tokens taken, because no row is locked yet. -1 - granted is negative: it marks a bucket
          -- that another session created meanwhile, which row_count() counts twice. The UPDATE below restores granted.
          begin
            -- Invalid limits: the statement creates no bucket. token_prepare_bucket explains the numbers.
            declare continue handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025 begin end;
            insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted)
            select unhex(r.id), v_capacity, v_seconds, v_refill, v_plan, false, 0,
                   v_clock + v_cost * least(v_max_times, coalesce(r.times, 1)),
                   p_cost * least(v_max_times, coalesce(r.times, 1))
              from json_table(p_ids, '$[*]' columns (
                     id varchar(512) character set ascii path '$[0]', times bigint path '$[1]')) as r
                on duplicate key update granted = -1 - token_buckets.granted;
            set v_inserted = row_count();
          end;
        end if;
        if v_inserted >= v_requests then
          call token_clock(v_after);
          -- A longer duration means a wait for a row. The limit allows for inserting many rows.
          set v_taken = v_inserted = v_requests and v_after between v_now and v_now + c_stale_insert,
              v_after = v_after div v_step_ns * v_step_ticks;
          if not v_taken or v_after >= v_clock + v_token_ticks then
            -- Tokens came in the meantime: another session can have created a bucket, and a sweep can have deleted it when
            -- full. So tokens taken return from now on. Or the buckets stay, full: after a rollback, sessions that wait for
            -- their rows would lock gaps and deadlock.
            if v_sql_safe_updates then set sql_safe_updates = 0; end if;
            update json_table(p_ids, '$[*]' columns (id varchar(512) character set ascii path '$[0]')) as r
              straight_join token_buckets b on b.id = unhex(r.id)
               -- Assigned in this order: full_at depends on the former granted.
               set b.full_at = if(v_taken, b.full_at + v_after - v_clock, if(b.granted < 0, b.full_at, 0)),
                   b.granted = if(v_taken, b.granted, if(b.granted < 0, -1 - b.granted, 0));
            if v_sql_safe_updates then set sql_safe_updates = 1; end if;
          end if;
          if v_taken then
            leave evaluate;
          end if;
          set v_made = true;
          iterate evaluate;
        end if;
        -- A separate transaction: in this one, the rows would be locked out of order.
        rollback and no chain no release;
        set transaction isolation level read committed;
        start transaction;
        call token_create_batch(p_ids, p_capacity, p_refill_seconds, p_refill, v_plan);
        commit and no chain no release;
        set v_made = true, v_reevaluated = false;
        set transaction isolation level read committed;
        start transaction;
        iterate evaluate;
      end if;
      -- Tokens arrived during the wait for a lock, so grants count from now.
      if not v_reevaluated and v_after not between v_now and v_now + c_stale + c_stale_per_row * v_requests then
        set v_reevaluated = true;
        iterate evaluate;
      end if;
      leave evaluate;
    end loop;
    set v_evaluated = length(v_answers) - length(replace(v_answers, ';', '')) = v_requests;
    if v_evaluated and v_grantable > 0 then
      -- Tokens taken from a full bucket return from now on, when its row is locked.
      set v_after = v_after div v_step_ns * v_step_ticks;
      if v_sql_safe_updates then set sql_safe_updates = 0; end if;
      update json_table(p_ids, '$[*]' columns (
               id varchar(512) character set ascii path '$[0]', times bigint path '$[1]')) as r
        straight_join token_buckets b on b.id = unhex(r.id) and (v_all or b.full_at <= v_room - v_cost)
         -- Assigned in this order: granted depends on the former full_at.
         set b.granted = b.granted
               + p_cost * if(v_all, coalesce(r.times, 1),
                             least((v_room - greatest(b.full_at, v_clock)) div v_cost, coalesce(r.times, 1))),
             b.full_at = greatest(b.full_at, v_after)
               + v_cost * if(v_all, coalesce(r.times, 1),
                             least((v_room - greatest(b.full_at, v_clock)) div v_cost, coalesce(r.times, 1)));
      if row_count() <> v_grantable then
        signal sqlstate '22023' set message_text = 'tollgate: token_take_uniform_v1 needs distinct bucket ids';
      end if;
      if v_sql_safe_updates then set sql_safe_updates = 1; end if;
    end if;
  end by_tokens;
  set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
      sql_big_selects = v_sql_big_selects;
  if v_owns_transaction then commit and no chain no release; end if;
  select v_now as now, v_burst as burst, 0 as anchor, v_step_ns as step_ns, v_step_ticks as step_ticks,
         v_token_ticks as token_ticks, if(v_evaluated, v_answers, null) as answers;
end;

-- token_take_batch_v1: decides several requests in one call, each by itself. After an error, the caller must roll back its
-- transaction: requests before the refused one have taken their tokens.
--
-- Arguments: p_requests  a JSON array of requests: [id in hexadecimal, cost, max_wait, min_remaining, capacity, refill_seconds,
--                        refill, plan in hexadecimal, request_id, hold, times], as for token_take_v1. times: number of equal
--                        requests, decided one after the other. Missing values are null. Default of times: 1
--            p_exclusive: as for token_take_v1
-- Result:    o_answers   a JSON array of texts, with spaces between the values and - for null. The values are the number of
--                        equal requests, the number of grants among them, the position of the request from 1, then the columns
--                        of token_take_v1 from outcome on. The columns describe the denied rest, or all, with the final state.
--                        A request can have several answers, in order; ignore an answer with 0 requests
-- Errors:    as for token_take_v1 · 22023 times below 1
--            22003 capacity, refill_seconds, hold or times too large (MariaDB takes the largest instead)
--            1205 another session locked one of several buckets for a second
-- Locks:     the buckets' rows in id order, in one transaction, so that calls cannot deadlock. An earlier transaction creates
--            missing buckets, unless the caller has a transaction. Requests for one bucket are decided in order.
--
-- If only tokens decide, all buckets are locked and evaluated at once, then debited. A call with a bucket twice, a wait, a
-- receipt or a mode is decided one by one, and so are buckets that other rules apply to. An answer is one text: an array of
-- parts costs as much as evaluating the bucket, and a row as much again. token_take_uniform_v1 decides uniform requests faster.
drop procedure if exists token_take_batch_v1;
create procedure token_take_batch_v1(
  in p_requests longtext character set utf8mb4, in p_exclusive boolean, out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare c_max_counted bigint default 4611686018427387903;  -- 2^62 - 1: adding two cannot overflow
  declare c_stale bigint default 2000000;  -- nanoseconds: a longer duration means a wait for a lock
  declare c_stale_per_row bigint default 20000;  -- evaluating a row
  declare v_owns_transaction boolean default false;
  declare v_done, v_made, v_reevaluated, v_evaluated boolean default false;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_group_concat_max_len bigint unsigned default @@group_concat_max_len;
  declare v_sql_safe_updates boolean default @@sql_safe_updates;
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_requests, v_ids, v_unbatchable, v_missing, v_planned bigint;
  declare v_grants, v_undecided bigint default 0;
  declare v_answers, v_debits, v_one_by_one json;  -- v_one_by_one: positions of the requests to decide one by one; null: all
  declare v_each longtext character set utf8mb4 default '';
  declare v_mode_rules, v_overrides boolean;
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(80) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_receipt varchar(36) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_after, v_cost, v_max_wait, v_min_remaining, v_capacity, v_hold, v_times, v_equal bigint;
  declare v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, cost, max_wait, min_remaining, capacity, refill_seconds, refill, unhex(plan), receipt,
           hold, coalesce(times, 1)
      from json_table(p_requests, '$[*]' columns (
             place for ordinality, id varchar(2048) character set ascii path '$[0]', cost bigint path '$[1]',
             max_wait bigint path '$[2]', min_remaining bigint path '$[3]', capacity bigint path '$[4]',
             refill_seconds decimal(19, 9) path '$[5]', refill varchar(80) path '$[6]',
             plan varchar(2048) character set ascii path '$[7]', receipt varchar(36) path '$[8]',
             hold bigint path '$[9]', times bigint path '$[10]')) as requests
     where v_one_by_one is null or json_contains(v_one_by_one, cast(place as char))
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
  by_tokens: loop
    call token_clock(v_now);
    -- A session that holds a bucket delays the other requests by a second at most: three brackets are more than one request.
    -- MariaDB truncates a longer array silently. A join can exceed the session's max_join_size.
    set innodb_lock_wait_timeout =
          if(p_exclusive or p_requests like '%[%[%[%', least(v_lock_wait_timeout, 1), v_lock_wait_timeout),
        group_concat_max_len = 1000000000, sql_big_selects = 1;
    -- The limits make the server materialize the tables, requests in the order in which their rows are locked.
    with requests as (
      select place, unhex(id) as id, cost, max_wait, min_remaining, capacity, refill_seconds, refill,
             unhex(plan) as plan, receipt, coalesce(times, 1) as times
        from json_table(p_requests, '$[*]' columns (
               place for ordinality, id varchar(512) character set ascii path '$[0]',
               cost bigint path '$[1]', max_wait bigint path '$[2]', min_remaining bigint path '$[3]',
               -- A value too large would read as null, which has a meaning. So the value is refused here.
               capacity bigint path '$[4]' error on error,
               refill_seconds decimal(19, 9) path '$[5]' error on error,
               refill varchar(80) character set ascii collate ascii_bin path '$[6]',
               plan varchar(512) character set ascii path '$[7]', receipt varchar(36) path '$[8]',
               hold bigint path '$[9]' error on error,
               times bigint path '$[10]' error on error)) as entries
       order by id limit 1000000000),
    locked as (
      select r.id, r.place, r.cost, r.min_remaining, r.times, b.full_at, b.granted, b.burst, b.anchor, b.step_ns,
             b.step_ticks, b.token_ticks, b.max_granted_wait, b.plan is not null as planned,
             (v_now - b.anchor) div b.step_ns * b.step_ticks as clock,
             (r.cost between 1 and c_max_counted and r.min_remaining between 0 and c_max_counted
              and r.times >= 1 and r.max_wait = 0 and r.receipt is null
              and length(r.id) between 1 and 255) is not true as unbatchable,
             b.id is null and (r.capacity is not null or r.plan is not null) as missing,
             -- 'tokens', 'unknown', or null: one by one
             case
               when r.cost < 1 or r.min_remaining < 0 or json_contains(v_one_by_one, cast(r.place as char)) then null
               when b.id is null then if(r.capacity is null and r.plan is null, 'unknown', null)
               when b.overridden or b.period_end <= v_now or b.capacity <> b.under_capacity
                    or b.refill_seconds <> b.under_seconds or b.refill <> b.under_refill then null
               when r.capacity is not null
                 then if(b.plan is null and r.capacity = b.capacity
                         and r.refill_seconds = b.refill_seconds and r.refill = b.refill, 'tokens', null)
               when r.plan is null or r.plan = b.plan then 'tokens'
             end as decided_by
        from requests r
        left join token_buckets b on b.id = r.id
         for update /*!80000 of b */),  -- MySQL needs this, and MariaDB skips it
    evaluated as (
      select l.*,
             -- null: more than the tokens decides
             case
               when not decided_by <=> 'tokens' then decided_by
               when cost > burst div token_ticks - min_remaining then 'never'
               -- False if the clock was set back.
               when full_at - clock <= burst + max_granted_wait + (1000000000 div step_ns + 1) * step_ticks then 'denied'
             end as outcome
        from locked l
       limit 1000000000),
    decided as (
      select e.*,
             -- Each of equal requests finds the tokens that the one before left.
             if(outcome = 'denied',
                greatest(least((burst - min_remaining * token_ticks - greatest(full_at - clock, 0))
                               div (cost * token_ticks),
                               times), 0), 0) as grants
        from evaluated e)
    select count(*), count(distinct id), coalesce(sum(unbatchable), 0), coalesce(sum(missing), 0),
           sum(planned and outcome is not null), sum(outcome is null), sum(grants),
           json_arrayagg(concat_ws(
             ' ', if(outcome is null, 0, times), grants, place, coalesce(outcome, '-'), '-', v_now, v_now,
             coalesce(if(grants = 0, full_at, greatest(full_at, clock) + grants * cost * token_ticks), '-'),
             coalesce(granted + grants * cost, '-'), coalesce(burst, '-'), coalesce(anchor, '-'),
             coalesce(step_ns, '-'), coalesce(step_ticks, '-'), coalesce(token_ticks, '-'))),
           json_arrayagg(if(grants > 0, json_array(hex(id), grants * cost), null))
      into v_requests, v_ids, v_unbatchable, v_missing, v_planned, v_undecided, v_grants, v_answers, v_debits
      from decided;
    call token_clock(v_after);
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    if v_requests = 0 or v_mode_rules or v_unbatchable > 0 or v_ids < v_requests then
      if v_missing > 0 and v_owns_transaction then
        -- Creates the buckets in the order of all ids.
        rollback and no chain no release;
        set transaction isolation level read committed;
        start transaction;
      end if;
      set v_answers = '[]', v_grants = 0, v_one_by_one = null;
      leave by_tokens;
    end if;
    if v_missing > 0 and v_owns_transaction and not v_made then
      -- A separate transaction: in this one, the rows would be locked out of order.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
      call token_create_batch(p_requests, null, null, null, null);
      commit and no chain no release;
      set v_made = true, v_reevaluated = false, v_one_by_one = null;
      set transaction isolation level read committed;
      start transaction;
      iterate by_tokens;
    end if;
    -- Tokens arrived during the wait for a lock, so grants count from now.
    if not v_reevaluated and v_after not between v_now and v_now + c_stale + c_stale_per_row * v_requests then
      set v_reevaluated = true;
      iterate by_tokens;
    end if;
    if v_one_by_one is null and (v_overrides or v_planned > 0) then
      -- Buckets whose state has to be converted are already decided one by one. Reads the current rows, as above: the caller's
      -- snapshot can hold older ones.
      select json_arrayagg(s.place) into v_one_by_one
        from (select r.place, r.id, b.plan, b.capacity, b.refill_seconds, b.refill,
                     coalesce(not b.overridden and b.capacity = b.under_capacity
                              and b.refill_seconds = b.under_seconds and b.refill = b.under_refill, true) as settled
                from (select place, unhex(id) as id
                        from json_table(p_requests, '$[*]' columns (
                               place for ordinality, id varchar(512) character set ascii path '$[0]')) as requests
                       order by id limit 1000000000) as r
                left join token_buckets b on b.id = r.id
                 for update /*!80000 of b */) as s
        left join token_overrides o on o.id = s.id
        left join token_plans p on p.name = s.plan and p.mode is null and p.capacity = s.capacity
                                   and p.refill_seconds = s.refill_seconds and p.refill = s.refill
       where s.settled and (o.id is not null or s.plan is not null and p.name is null);
      if v_one_by_one is not null then
        iterate by_tokens;
      end if;
    end if;
    if v_undecided > 0 then
      select json_arrayagg(cast(substring_index(substring_index(answer, ' ', 3), ' ', -1) as signed)) into v_one_by_one
        from json_table(v_answers, '$[*]' columns (answer varchar(400) character set ascii path '$')) as answers
       where answer like '0 %';
    end if;
    set v_evaluated = true;
    leave by_tokens;
  end loop;

  if not v_evaluated or v_undecided > 0 then
    set v_done = false;
    open v_sorted;
    decide: loop
      fetch v_sorted into v_place, v_id, v_cost, v_max_wait, v_min_remaining, v_capacity, v_refill_seconds, v_refill, v_plan,
                          v_receipt, v_hold, v_times;
      if v_done then leave decide; end if;
      if v_times < 1 then
        signal sqlstate '22023' set message_text = 'tollgate: times is 1 or more';
      end if;
      while v_times > 0 do
        set v_equal = 1;
        call token_take_v1(convert(v_id using utf8mb4), v_cost, v_max_wait, v_min_remaining, v_capacity, v_refill_seconds,
                           v_refill, convert(v_plan using utf8mb4), v_receipt, v_hold, true, false, v_equal,
                           v_outcome, v_mode, v_now, v_scheduled_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                           v_step_ticks, v_token_ticks);
        -- After a grant, the next equal request finds fewer tokens. Otherwise all get the same answer.
        set v_equal = if(v_outcome = 'granted' and v_mode is null, 1, v_times);
        set v_each = concat(v_each, ',"', concat_ws(
          ' ', v_equal, if(v_outcome = 'granted' and v_mode is null, v_equal, 0), v_place, v_outcome,
          coalesce(v_mode, '-'), v_now, coalesce(v_scheduled_at, '-'), coalesce(v_full_at, '-'), coalesce(v_granted, '-'),
          coalesce(v_burst, '-'), coalesce(v_anchor, '-'), coalesce(v_step_ns, '-'), coalesce(v_step_ticks, '-'),
          coalesce(v_token_ticks, '-')), '"');
        set v_times = v_times - v_equal;
      end while;
      set v_done = false;
    end loop;
    close v_sorted;
  end if;
  if v_grants > 0 then
    -- Tokens taken from a full bucket return from now on, when its row is locked.
    call token_clock(v_now);
    if v_sql_safe_updates then set sql_safe_updates = 0; end if;
    update json_table(v_debits, '$[*]' columns (
             id varchar(512) character set ascii path '$[0]', tokens bigint path '$[1]')) as d
      straight_join token_buckets b on b.id = unhex(d.id)
       set b.full_at = greatest(b.full_at, (v_now - b.anchor) div b.step_ns * b.step_ticks) + d.tokens * b.token_ticks,
           b.granted = b.granted + d.tokens;
    if v_sql_safe_updates then set sql_safe_updates = 1; end if;
  end if;
  set innodb_lock_wait_timeout = v_lock_wait_timeout, group_concat_max_len = v_group_concat_max_len,
      sql_big_selects = v_sql_big_selects;
  if v_each <> '' then
    set v_answers = json_merge_preserve(v_answers, concat('[', substr(v_each, 2), ']'));
  end if;
  set o_answers = v_answers;
  if v_owns_transaction then commit and no chain no release; end if;
end;

insert into token_migrations (version, name) values (5, '0005_take_batch') on duplicate key update applied_at = utc_timestamp(6);
