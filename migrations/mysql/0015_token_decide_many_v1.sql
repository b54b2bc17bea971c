-- token_decide_many_v1: decide several requests in one call, each for itself: one that fails does not fail the others.
--
-- Arguments: p_requests  a JSON array; a request is [id in hexadecimal, cost, max_wait, keep, capacity, refill_seconds,
--                        refill, plan in hexadecimal, receipt, hold, times], as token_decide_v1's arguments; times:
--                        it stands for so many equal requests, decided one after the other; what is left out is null,
--                        and times 1
--            p_own       as token_decide_v1's
-- Result:    o_answers   a JSON array of texts, with spaces between what each says and - for null: for how many of the
--                        equal requests it stands; for how many of these the tokens suffice, the first ones; the
--                        request's place, from 1; then token_take_v1's columns from outcome on, about the others, or
--                        all, the state as it is after all. A request may have several answers, in their order; one
--                        of 0 times says nothing
-- Errors:    token_decide_v1's · 22023 fewer than 1 times · 22003 a capacity, refill_seconds, hold or times that is too
--            large (MariaDB takes the largest instead) · 1205 another held one of several buckets for a second
-- Locks:     the buckets' rows, in the order of their ids, so two calls never wait for each other, in one transaction.
--            Requests for one bucket are decided in the order of their places. Buckets that are missing are made in
--            a transaction before, unless inside the caller's.
--
-- Where nothing but their tokens rules the buckets all are decided at once: locked and weighed, then debited. Those
-- that something else rules, or all of a call with a bucket twice, a wait, a receipt, or another mode than 'enforce',
-- are decided one by one. An answer is one text, because an array of its parts costs as much as weighing the bucket, and
-- rows sent by themselves cost as much again. What differs in nothing but the bucket token_take_alike_v1 decides faster.
create procedure token_decide_many_v1(
  in p_requests longtext character set utf8mb4, in p_own boolean, out o_answers json)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_done, v_made, v_again, v_weighed boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_requests, v_ids, v_odd, v_missing, v_planned bigint;
  declare v_grants, v_ruled bigint default 0;
  declare v_debits, v_rest json;  -- v_rest: the places of what is decided one by one; null: all
  declare v_each longtext character set utf8mb4 default '';
  declare v_mode_rules, v_overrides boolean;
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(10) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_receipt varchar(36) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_after, v_cost, v_max_wait, v_keep, v_capacity, v_hold, v_times, v_alike bigint;
  declare v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, cost, max_wait, keep, capacity, refill_seconds, refill, unhex(plan), receipt, hold,
           coalesce(times, 1)
      from json_table(p_requests, '$[*]' columns (
             place for ordinality, id varchar(2048) character set ascii path '$[0]', cost bigint path '$[1]',
             max_wait bigint path '$[2]', keep bigint path '$[3]', capacity bigint path '$[4]',
             refill_seconds decimal(19, 9) path '$[5]', refill varchar(10) path '$[6]',
             plan varchar(2048) character set ascii path '$[7]', receipt varchar(36) path '$[8]',
             hold bigint path '$[9]', times bigint path '$[10]')) as requests
     where v_rest is null or json_contains(v_rest, cast(place as char))
     order by id, place;
  declare continue handler for not found set v_done = true;
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
    set innodb_lock_wait_timeout = if(p_requests like '%[%[%[%', least(v_wait, 1), v_wait);
    select count(*), count(distinct id), coalesce(sum(odd), 0), coalesce(sum(missing), 0),
           sum(planned and word is not null), sum(word is null), sum(grants),
           json_arrayagg(concat_ws(
             ' ', if(word is null, 0, times), grants, place, coalesce(word, '-'), '-', v_now, v_now,
             coalesce(if(grants = 0, full_at, greatest(full_at, clock) + grants * cost * token_ticks), '-'),
             coalesce(granted + grants * cost, '-'), coalesce(burst, '-'), coalesce(anchor, '-'),
             coalesce(step_ns, '-'), coalesce(step_ticks, '-'), coalesce(token_ticks, '-'))),
           json_arrayagg(if(grants > 0, json_array(hex(id), granted + grants * cost), null))
      into v_requests, v_ids, v_odd, v_missing, v_planned, v_ruled, v_grants, o_answers, v_debits
      from (
        select s.*,
               -- Each of equal requests finds what the one before has left.
               if(word = 'denied',
                  greatest(least((burst - keep * token_ticks - greatest(full_at - clock, 0)) div (cost * token_ticks),
                                 times), 0), 0) as grants
          from (
            select s.*,
                   -- null: something else than its tokens rules it, and decides
                   case
                     when not rule <=> 'tokens' then rule
                     when cost > burst div token_ticks - keep then 'never'
                     -- or else the clock was set back
                     when full_at - clock <= burst + longest_wait + (1000000000 div step_ns + 1) * step_ticks
                       then 'denied'
                   end as word
              from (
                select r.id, r.place, r.cost, r.keep, r.times, b.full_at, b.granted, b.burst, b.anchor, b.step_ns,
                       b.step_ticks, b.token_ticks, b.longest_wait, b.plan is not null as planned,
                       (v_now - b.anchor) div b.step_ns * b.step_ticks as clock,
                       (r.cost between 1 and 4611686018427387903 and r.keep between 0 and 4611686018427387903
                        and r.times >= 1 and r.max_wait = 0 and r.receipt is null
                        and length(r.id) between 1 and 255) is not true as odd,
                       b.id is null and (r.capacity is not null or r.plan is not null) as missing,
                       case
                         when r.cost < 1 or r.keep < 0 or json_contains(v_rest, cast(r.place as char)) then null
                         when b.id is null then if(r.capacity is null and r.plan is null, 'unknown', null)
                         when b.overridden or b.capacity <> b.under_capacity
                              or b.refill_seconds <> b.under_seconds or b.refill <> b.under_refill then null
                         when r.capacity is not null
                           then if(b.plan is null and r.capacity = b.capacity
                                   and r.refill_seconds = b.refill_seconds and r.refill = b.refill, 'tokens', null)
                         when r.plan is null or r.plan = b.plan then 'tokens'
                       end as rule
                  from (
                    select place, unhex(id) as id, cost, max_wait, keep, capacity, refill_seconds, refill,
                           unhex(plan) as plan, receipt, coalesce(times, 1) as times
                      from json_table(p_requests, '$[*]' columns (
                             place for ordinality, id varchar(512) character set ascii path '$[0]',
                             cost bigint path '$[1]', max_wait bigint path '$[2]', keep bigint path '$[3]',
                             -- What would say something else as a null: refused here, where all are read first.
                             capacity bigint path '$[4]' error on error,
                             refill_seconds decimal(19, 9) path '$[5]' error on error,
                             refill varchar(10) character set ascii collate ascii_bin path '$[6]',
                             plan varchar(512) character set ascii path '$[7]', receipt varchar(36) path '$[8]',
                             hold bigint path '$[9]' error on error,
                             times bigint path '$[10]' error on error)) as requests
                     -- With a limit it is made as it is written: in this order.
                     order by id limit 1000000000) as r
                  left join token_buckets b on b.id = r.id
                   for update /*!80000 of b */) as s  -- what MySQL wants to be told, it alone reads
             limit 1000000000) as s) as s;
    call token_clock_v1(v_after);
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    -- MariaDB cuts longer arrays off, and closes a text that it has cut.
    if v_mode_rules or v_odd > 0 or v_ids < v_requests
       or (json_length(o_answers) = v_requests and json_length(v_debits) = v_requests
           /*M! and length(o_answers) + 1000 < @@group_concat_max_len */) is not true then
      if v_missing > 0 and v_own then
        -- They are made in the order of all ids.
        rollback and no chain no release;
        set transaction isolation level read committed;
        start transaction;
      end if;
      set o_answers = '[]', v_grants = 0, v_rest = null;
      leave at_once;
    end if;
    if v_missing > 0 and v_own and not v_made then
      -- Not within the same transaction: they would be locked out of order.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
      call token_make_many_v1(p_requests, null, null, null, null);
      commit and no chain no release;
      set v_made = true, v_again = false, v_rest = null;
      set transaction isolation level read committed;
      start transaction;
      iterate at_once;
    end if;
    -- Tokens came while a row was waited for. What is debited is of now, and so is no grant of long before.
    if not v_again and v_after not between v_now and v_now + 2000000 + 20000 * v_requests then
      set v_again = true;
      iterate at_once;
    end if;
    if v_rest is null and (v_overrides or v_planned > 0) then
      -- Those whose terms have to be settled first are decided one by one already. The buckets are read as they are, as
      -- above: a snapshot of the caller's may have others.
      select json_arrayagg(s.place) into v_rest
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
      if v_rest is not null then
        iterate at_once;
      end if;
    end if;
    if v_ruled > 0 then
      select json_arrayagg(cast(substring_index(substring_index(answer, ' ', 3), ' ', -1) as signed)) into v_rest
        from json_table(o_answers, '$[*]' columns (answer varchar(400) character set ascii path '$')) as answers
       where answer like '0 %';
    end if;
    set v_weighed = true;
    leave at_once;
  end loop;

  if not v_weighed or v_ruled > 0 then
    open v_sorted;
    decide: loop
      fetch v_sorted into v_place, v_id, v_cost, v_max_wait, v_keep, v_capacity, v_refill_seconds, v_refill, v_plan,
                          v_receipt, v_hold, v_times;
      if v_done then leave decide; end if;
      if v_times < 1 then
        signal sqlstate '22023' set message_text = 'tollgate: a request stands for 1 or more';
      end if;
      while v_times > 0 do
        set v_alike = 1;
        call token_decide_v1(convert(v_id using utf8mb4), v_cost, v_max_wait, v_keep, v_capacity, v_refill_seconds,
                             v_refill, convert(v_plan using utf8mb4), v_receipt, v_hold, true, false, v_alike,
                             v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                             v_step_ticks, v_token_ticks);
        -- Only tokens that were taken make the next one another matter.
        set v_alike = if(v_outcome = 'granted' and v_mode is null, 1, v_times);
        set v_each = concat(v_each, ',"', concat_ws(
          ' ', v_alike, if(v_outcome = 'granted' and v_mode is null, v_alike, 0), v_place, v_outcome,
          coalesce(v_mode, '-'), v_now, coalesce(v_acts_at, '-'), coalesce(v_full_at, '-'), coalesce(v_granted, '-'),
          coalesce(v_burst, '-'), coalesce(v_anchor, '-'), coalesce(v_step_ns, '-'), coalesce(v_step_ticks, '-'),
          coalesce(v_token_ticks, '-')), '"');
        set v_times = v_times - v_alike;
      end while;
      set v_done = false;
    end loop;
    close v_sorted;
  end if;
  if v_grants > 0 then
    -- What is taken from a full bucket comes back from now on, when its row is locked.
    call token_clock_v1(v_now);
    if v_safe then set sql_safe_updates = 0; end if;
    update json_table(v_debits, '$[*]' columns (
             id varchar(512) character set ascii path '$[0]', granted bigint path '$[1]')) as d
      straight_join token_buckets b on b.id = unhex(d.id)
       set b.full_at = greatest(b.full_at, (v_now - b.anchor) div b.step_ns * b.step_ticks)
                       + (d.granted - b.granted) * b.token_ticks,
           b.granted = d.granted;
    if v_safe then set sql_safe_updates = 1; end if;
  end if;
  set innodb_lock_wait_timeout = v_wait;
  if v_each <> '' then
    set o_answers = json_merge_preserve(o_answers, concat('[', substr(v_each, 2), ']'));
  end if;
  if v_own then commit and no chain no release; end if;
end
