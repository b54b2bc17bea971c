-- token_decide_all_v1: take tokens from several buckets, from all of them or from none.
--
-- Arguments: p_limits    a JSON array; a limit is [id in hexadecimal, cost, keep, capacity, refill_seconds, refill, plan in
--                        hexadecimal], in the order of their ids, no bucket twice, each as for token_decide_v1: its cost
--                        and what to keep, and terms or a plan, or neither
--            p_max_wait, p_receipt, p_hold, p_own: as for token_decide_v1, the same for all
-- Result:    o_answers   a JSON array of a text a bucket, in any order: its place, then token_take_v1's columns from
--                        outcome on, with spaces between them and - for null. All are 'granted'; or one or more say
--                        why not, and the others are 'spared': they could have been granted, and nothing was taken
-- Errors:    token_decide_v1's · 22023 a bucket twice · 22003 a capacity or refill_seconds that is too large (MariaDB
--            takes the largest instead)
-- Locks:     the rows of all buckets in the order given, or if they have to be made or something beside their tokens rules
--            one of them, in that of their ids: calls that give another one may meet in a deadlock; then the receipts. In a
--            transaction of its own unless inside the caller's.
--
-- Buckets that nothing but their tokens rules are locked and weighed at once, and debited if all grant. The answer is
-- one text, expressions are repeated, and the caller sorts, because rows sent by themselves or a derived table cost as much
-- as weighing several buckets. Else first all are locked and brought to what rules them; then each is weighed, and then, if
-- all grant, their tokens are taken: what a locked bucket has granted, it grants later, too. A wait acts when the last
-- bucket's does; each bucket's tokens are taken for when they are there.
create procedure token_decide_all_v1(
  in p_limits longtext character set utf8mb4, in p_max_wait bigint, in p_receipt varchar(36) character set ascii,
  in p_hold bigint, in p_own boolean, out o_answers longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_done, v_spare boolean default false;
  declare v_all boolean default true;
  declare v_again, v_taken boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_mode_rules, v_overrides boolean;
  declare v_limits, v_ids, v_planned, v_missing, v_ruled, v_plain, v_granting, v_after bigint;
  declare v_pass int default 1;  -- 1: lock and make ready, 2: weigh, 3: take
  declare v_id, v_plan varbinary(1024);
  declare v_outcome, v_refill varchar(10) character set ascii collate ascii_bin;
  declare v_mode varchar(7) character set ascii;
  declare v_refill_seconds decimal(19, 9);
  declare v_place, v_capacity, v_cost, v_keep, v_at, v_times bigint;
  declare v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_sorted cursor for
    select place, unhex(id) as id, cost, keep, capacity, refill_seconds, refill, unhex(plan)
      from json_table(p_limits, '$[*]' columns (
             place for ordinality, id varchar(2048) character set ascii path '$[0]',
             cost bigint path '$[1]' error on error, keep bigint path '$[2]' error on error,
             capacity bigint path '$[3]' error on error, refill_seconds decimal(19, 9) path '$[4]' error on error,
             refill varchar(10) path '$[5]', plan varchar(2048) character set ascii path '$[6]')) as limits
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
    set sql_safe_updates = v_safe;
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
    if (p_receipt is null and p_max_wait between 0 and 31622400000000000) is not true then
      leave at_once;
    end if;
    call token_clock_v1(v_at);
    select count(*), count(distinct unhex(r.id)), sum(b.plan is not null),
           sum(b.id is null and (r.capacity is not null or r.plan is not null)),
           -- Nothing but its tokens rules it, and the clock was not set back.
           sum((r.cost between 1 and 4611686018427387903 and r.keep between 0 and 4611686018427387903
                and not b.overridden
                and b.capacity = b.under_capacity and b.refill_seconds = b.under_seconds and b.refill = b.under_refill
                and if(r.capacity is null, r.plan is null or unhex(r.plan) <=> b.plan,
                       b.plan is null and r.capacity = b.capacity
                       and r.refill_seconds = b.refill_seconds and r.refill = b.refill)
                and (r.cost > b.burst div b.token_ticks - r.keep
                     or b.full_at - (v_at - b.anchor) div b.step_ns * b.step_ticks
                        <= b.burst + b.longest_wait + (1000000000 div b.step_ns + 1) * b.step_ticks)) is true),
           sum(if(r.cost <= b.burst div b.token_ticks - r.keep,
                  b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    <= (v_at + p_max_wait - b.anchor) div b.step_ns * b.step_ticks, false)),
           json_arrayagg(if(
             r.cost <= b.burst div b.token_ticks - r.keep
             and b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                 <= (v_at + p_max_wait - b.anchor) div b.step_ns * b.step_ticks,
             concat_ws(' ', place, 'granted', '-', v_at,
               if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                    div b.step_ticks * b.step_ns + b.anchor,
                  v_at),
               greatest(
                 b.full_at, (v_at - b.anchor) div b.step_ns * b.step_ticks,
                 if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                      > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                    (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                      div b.step_ticks * b.step_ticks,
                    b.full_at)) + r.cost * b.token_ticks,
               b.granted + r.cost, b.burst, b.anchor, b.step_ns, b.step_ticks, b.token_ticks),
             null))
      into v_limits, v_ids, v_planned, v_missing, v_plain, v_granting, o_answers
      from json_table(p_limits, '$[*]' columns (
             place for ordinality, id varchar(512) character set ascii path '$[0]',
             cost bigint path '$[1]' error on error, keep bigint path '$[2]' error on error,
             capacity bigint path '$[3]' error on error, refill_seconds decimal(19, 9) path '$[4]' error on error,
             refill varchar(10) character set ascii collate ascii_bin path '$[5]',
             plan varchar(512) character set ascii path '$[6]')) as r
      left join token_buckets b on b.id = unhex(r.id)
       for update /*!80000 of b */;
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_mode_rules, v_overrides
      from token_mode where one = true;
    call token_clock_v1(v_after);
    if v_missing > 0 and v_own then
      -- They are made in the order of all ids.
      rollback and no chain no release;
      set transaction isolation level read committed;
      start transaction;
    end if;
    if v_mode_rules or v_plain < v_limits or v_ids < v_limits
       or (json_length(o_answers) = v_limits
           -- MariaDB cuts longer arrays off.
           /*M! and 256 * v_limits < @@group_concat_max_len */) is not true then
      leave at_once;
    end if;
    if not v_again and v_after not between v_at and v_at + 2000000 + 20000 * v_limits then
      set v_again = true;
      iterate at_once;
    end if;
    if v_overrides or v_planned > 0 then
      -- The buckets are read as they are: a snapshot of the caller's may have others.
      select count(*) into v_ruled
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
      if v_ruled > 0 then
        leave at_once;
      end if;
    end if;
    set v_pass = 4, v_spare = v_granting < v_limits;
    if not v_spare then
      set v_after = greatest(v_at, v_after);
      if v_safe then set sql_safe_updates = 0; end if;
      -- From left to right: full_at is what the longest wait is reckoned from. Who need not wait comes to no later step, not
      -- of a clock either that was set back to before its start.
      update json_table(p_limits, '$[*]' columns (
               id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]', keep bigint path '$[2]')) as r
        straight_join token_buckets b force index (primary) on b.id = unhex(r.id)
         set b.granted = b.granted + r.cost,
             b.longest_wait = greatest(
               b.longest_wait,
               if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                    div b.step_ticks * b.step_ticks - (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  0)),
             b.full_at = greatest(
               b.full_at, (v_after - b.anchor) div b.step_ns * b.step_ticks,
               if(b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                    > (v_at - b.anchor) div b.step_ns * b.step_ticks,
                  (b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks + b.step_ticks - 1)
                    div b.step_ticks * b.step_ticks,
                  b.full_at)) + r.cost * b.token_ticks;
      if v_safe then set sql_safe_updates = 1; end if;
    else
      select json_arrayagg(concat_ws(
               ' ', place,
               case
                 when r.cost > b.burst div b.token_ticks - r.keep then 'never'
                 when b.full_at + (r.cost + r.keep - b.burst div b.token_ticks) * b.token_ticks
                      <= (v_at + p_max_wait - b.anchor) div b.step_ns * b.step_ticks then 'spared'
                 else 'denied'
               end, '-', v_at, v_at, b.full_at, b.granted, b.burst, b.anchor, b.step_ns, b.step_ticks, b.token_ticks))
        into o_answers
        from json_table(p_limits, '$[*]' columns (
               place for ordinality, id varchar(512) character set ascii path '$[0]', cost bigint path '$[1]',
               keep bigint path '$[2]')) as r
        straight_join token_buckets b force index (primary) on b.id = unhex(r.id)
         for update /*!80000 of b */;
    end if;
    leave at_once;
  end loop;

  if v_pass < 4
     and (select count(*) > count(distinct unhex(id))
            from json_table(p_limits, '$[*]' columns (id varchar(2048) character set ascii path '$[0]')) as limits) then
    signal sqlstate '22023' set message_text =
      'tollgate: token_decide_all_v1 needs the ids of buckets in hexadecimal, none twice';
  end if;
  while v_pass <= 3 do
    set o_answers = '[]', v_done = false;
    open v_sorted;
    decide: loop
      fetch v_sorted into v_place, v_id, v_cost, v_keep, v_capacity, v_refill_seconds, v_refill, v_plan;
      if v_done then leave decide; end if;
      set v_times = 1;
      call token_decide_v1(convert(v_id using utf8mb4), v_cost, p_max_wait, v_keep, v_capacity, v_refill_seconds,
                           v_refill, convert(v_plan using utf8mb4), if(v_pass = 1, null, p_receipt), p_hold,
                           v_pass = 3, false, v_times,
                           v_outcome, v_mode, v_now, v_acts_at, v_full_at, v_granted, v_burst, v_anchor, v_step_ns,
                           v_step_ticks, v_token_ticks);
      set v_done = false;
      set v_spare = v_spare or (v_pass > 1 and v_outcome <> 'granted');
      set v_all = v_all and v_outcome = 'granted';
      set o_answers = json_array_append(o_answers, '$', concat_ws(
        ' ', v_place, v_outcome, coalesce(v_mode, '-'), v_now, coalesce(v_acts_at, '-'), coalesce(v_full_at, '-'),
        coalesce(v_granted, '-'), coalesce(v_burst, '-'), coalesce(v_anchor, '-'), coalesce(v_step_ns, '-'),
        coalesce(v_step_ticks, '-'), coalesce(v_token_ticks, '-')));
    end loop;
    close v_sorted;
    if v_spare and v_pass = 3 then
      rollback to savepoint tollgate_decide_all;
      signal sqlstate '40001' set message_text = 'tollgate: what rules the buckets changed meanwhile: call again';
    end if;
    -- What each granted while the others were not locked yet, it grants later, too.
    set v_pass = if(v_spare, 4, if(v_pass = 1 and v_all and p_receipt is null, 3, v_pass + 1));
    if v_pass = 3 then
      savepoint tollgate_decide_all;
      set v_taken = true;
    end if;
  end while;
  if not v_spare and v_taken then
    release savepoint tollgate_decide_all;
  end if;
  if v_own then commit and no chain no release; end if;
  if v_spare then
    set o_answers = replace(o_answers, ' granted ', ' spared ');
  end if;
end
