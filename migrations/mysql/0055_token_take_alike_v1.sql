-- token_take_alike_v1: token_decide_many_v1 for the common case, in half the time: requests under one quota or one plan
-- that differ in nothing but their buckets, which were made on first use, and where nothing but their tokens rules these.
--
-- Arguments: p_ids    a JSON array of the buckets' ids in hexadecimal, each once, in their order; instead of one
--                     [id, times], where it stands for so many equal requests, decided one after the other
--            p_cost, p_keep, p_capacity, p_refill_seconds, p_refill, p_plan, p_own: of all, as token_decide_v1's; none
--                     waits
-- Result:    a row: now, burst, anchor, step_ns, step_ticks, token_ticks: of all, as token_take_v1's
--            answers  for each request, with a semicolon after it: its place, from 1; for how many of its equal
--                     requests the tokens suffice, the first ones: the others are denied; and what these add to:
--                     full_at as it was, or the bucket's clock if that is ahead, and granted as it was. null: nothing
--                     was decided, as something out of the ordinary is among them: token_take_many_v1 decides
-- Errors:    22003 times that are too large (MariaDB takes the largest instead) · 22023 a bucket twice, and
--            tokens for it: a transaction of the caller's is to be rolled back · 1411 an id is not hexadecimal
--            (MariaDB answers null instead) · 1205 another held one of several buckets for a second
-- Locks:     the rows of the buckets as they stand in p_ids: if that is not the order of their ids, deadlocks end it.
--            Where all are missing they are made as they are locked; where some are, in a transaction before, unless
--            inside the caller's: then nothing is decided
create procedure token_take_alike_v1(
  in p_ids longtext character set utf8mb4, in p_cost bigint, in p_keep bigint, in p_capacity bigint,
  in p_refill_seconds decimal(19, 9), in p_refill varchar(10) character set ascii collate ascii_bin,
  in p_plan varchar(256) character set utf8mb4, in p_own boolean)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit or p_own;
  declare v_made, v_taken, v_again, v_weighed boolean default false;
  declare v_safe boolean default @@sql_safe_updates;
  declare v_wait bigint default @@innodb_lock_wait_timeout;
  declare v_length bigint unsigned default @@group_concat_max_len;
  declare v_plan varbinary(1024) default cast(p_plan as binary);
  declare v_capacity bigint default p_capacity;
  declare v_seconds decimal(19, 9) default p_refill_seconds;
  declare v_refill varchar(10) character set ascii collate ascii_bin default p_refill;
  declare v_requests, v_alike, v_missing, v_new, v_debits, v_cost, v_room, v_now, v_clock, v_after bigint;
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare v_most bigint;  -- of equal requests: for how many a full bucket suffices
  declare v_all, v_ruled, v_overrides boolean;
  declare v_uuid char(36) character set ascii;
  declare v_answers longtext character set ascii;
  declare continue handler for 1568  -- inside a transaction of the caller's, or one that was left open
    if p_own then
      rollback and no chain no release;
      set transaction isolation level read committed;
    else
      set v_own = false;
    end if;
  declare exit handler for sqlexception
  begin
    set innodb_lock_wait_timeout = v_wait, group_concat_max_len = v_length, sql_safe_updates = v_safe;
    if v_own then rollback and no chain no release; end if;
    resignal;
  end;

  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  at_once: begin
    if v_plan is not null and v_capacity is null then
      select capacity, refill_seconds, refill into v_capacity, v_seconds, v_refill
        from token_plans where name = v_plan and mode is null;
    end if;
    if ((p_plan is null or p_capacity is null) and p_keep between 0 and v_capacity and p_cost between 1 and v_capacity - p_keep
        and v_capacity <= 3155760000000000000 and v_refill in ('interval', 'calendar', 'continuous', 'once')
        and (v_refill = 'once' or v_seconds <= 3155760000 and v_seconds * 1000000000 >= v_capacity)
        and (v_refill <> 'continuous'
             or ceiling(v_seconds * 1000000000 / greatest(v_capacity, 1)) * v_capacity
                <= least(v_seconds * 1001000000, 3155760000000000000))) is not true then
      leave at_once;
    end if;
    set v_step_ns = case v_refill when 'continuous' then 1 when 'once' then 9223372036854775807
                      else v_seconds * 1000000000 end,
        v_step_ticks = if(v_refill in ('continuous', 'once'), 1, v_capacity),
        v_token_ticks = if(v_refill = 'continuous', ceiling(v_seconds * 1000000000 / v_capacity), 1),
        v_burst = v_capacity * v_token_ticks, v_cost = p_cost * v_token_ticks, v_most = (v_capacity - p_keep) div p_cost;
    -- Whoever holds one of the buckets for long holds up the other requests no longer than that. And a longer text
    -- would be cut off.
    set innodb_lock_wait_timeout = if(p_ids like '%"%"%"%', least(v_wait, 1), v_wait),
        group_concat_max_len = 1000000000;
    -- Before a row is locked: what rules beside the tokens is another routine's.
    select coalesce(max(mode <> 'enforce'), false), exists (select 1 from token_overrides) into v_ruled, v_overrides
      from token_mode where one = true;
    if v_overrides and not v_ruled then
      select count(*) > 0 into v_ruled
        from json_table(p_ids, '$[*]' columns (id varchar(512) character set ascii path '$[0]')) as r
        straight_join token_overrides o on o.id = unhex(r.id);
    end if;
    if v_ruled then
      leave at_once;
    end if;
    set v_uuid = uuid();
    weigh: loop
      set v_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                   - 122192928000000000) * 100,
          v_clock = v_now div v_step_ns * v_step_ticks,
          v_room = v_clock + v_burst - p_keep * v_token_ticks;
      select count(*), count(b.id), sum(b.full_at <= v_room - v_cost),
             min((v_room - greatest(b.full_at, v_clock)) div v_cost >= r.times),
             group_concat(
               r.place, ' ', least(greatest((v_room - greatest(b.full_at, v_clock)) div v_cost, 0), r.times), ' ',
               greatest(b.full_at, v_clock), ' ', b.granted, ';' separator '')
        into v_requests, v_alike, v_debits, v_all, v_answers
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
             -- or else the clock was set back
             and b.full_at - v_clock <= v_burst + b.longest_wait + (1000000000 div v_step_ns + 1) * v_step_ticks
         for update /*!80000 of b */;  -- what MySQL wants to be told, it alone reads
      set v_uuid = uuid();
      set v_after = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                     - 122192928000000000) * 100;
      if v_alike < v_requests then
        if v_made or not v_own then
          leave at_once;
        end if;
        -- What is not there counts as full.
        select sum(b.id is null),
               -- The table's checks again: a session of MariaDB can turn those off.
               count(distinct if(v_alike = 0 and b.id is null and length(r.id) between 1 and 255 and left(r.id, 1) <> x'01'
                                 and locate(x'00', r.id) = 0 and cast(convert(r.id using utf8mb4) as binary) <=> r.id
                                 and r.times >= 1, r.id, null)),
               group_concat(if(v_alike > 0, null, concat(r.place, ' ', least(v_most, r.times), ' ', v_clock, ' 0;'))
                            separator '')
          into v_missing, v_new, v_answers
          from (select place, unhex(id) as id, coalesce(times, 1) as times
                  from json_table(p_ids, '$[*]' columns (
                         place for ordinality, id varchar(512) character set ascii path '$[0]',
                         times bigint path '$[1]')) as requests) as r
          left join token_buckets b on b.id = r.id;
        if v_missing = 0 then
          leave at_once;
        end if;
        if v_new = v_requests then
          -- All are made as what is taken leaves them, for no row is locked yet. One that another has made meanwhile is
          -- marked, and counts twice.
          begin
            -- Figures that make no bucket: none is made here.
            declare continue handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025 begin end;
            insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor, full_at, granted)
            select unhex(r.id), v_capacity, v_seconds, v_refill, v_plan, false, 0,
                   v_clock + v_cost * least(v_most, coalesce(r.times, 1)), p_cost * least(v_most, coalesce(r.times, 1))
              from json_table(p_ids, '$[*]' columns (
                     id varchar(512) character set ascii path '$[0]', times bigint path '$[1]')) as r
                on duplicate key update granted = -1 - token_buckets.granted;
            set v_new = row_count();
          end;
        end if;
        if v_new >= v_requests then
          set v_uuid = uuid();
          set v_after = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                         - 122192928000000000) * 100;
          -- Else a row was waited for: so many take their time.
          set v_taken = v_new = v_requests and v_after between v_now and v_now + 50000000,
              v_after = v_after div v_step_ns * v_step_ticks;
          if not v_taken or v_after >= v_clock + v_token_ticks then
            -- A token came meanwhile: another may have made a bucket, and a sweep have deleted it, full again. So what is
            -- taken comes back from now on. Or all is as if nothing was taken: undone, what was made would leave gaps
            -- locked by those who wait for it, and deadlocks.
            if v_safe then set sql_safe_updates = 0; end if;
            update json_table(p_ids, '$[*]' columns (id varchar(512) character set ascii path '$[0]')) as r
              straight_join token_buckets b on b.id = unhex(r.id)
               set b.full_at = if(v_taken, b.full_at + v_after - v_clock, if(b.granted < 0, b.full_at, 0)),
                   b.granted = if(v_taken, b.granted, if(b.granted < 0, -1 - b.granted, 0));
            if v_safe then set sql_safe_updates = 1; end if;
          end if;
          if v_taken then
            leave weigh;
          end if;
          set v_made = true;
          iterate weigh;
        end if;
        -- Not within the same transaction: they would be locked out of order.
        rollback and no chain no release;
        set transaction isolation level read committed;
        start transaction;
        call token_make_many_v1(p_ids, p_capacity, p_refill_seconds, p_refill, v_plan);
        commit and no chain no release;
        set v_made = true, v_again = false;
        set transaction isolation level read committed;
        start transaction;
        set v_uuid = uuid();
        iterate weigh;
      end if;
      -- Tokens came while a row was waited for. What is debited is of now, and so is no grant of long before.
      if not v_again and v_after not between v_now and v_now + 2000000 + 20000 * v_requests then
        set v_again = true;
        iterate weigh;
      end if;
      leave weigh;
    end loop;
    set v_weighed = length(v_answers) - length(replace(v_answers, ';', '')) = v_requests;
    if v_weighed and v_debits > 0 then
      -- What is taken from a full bucket comes back from now on, when its row is locked.
      set v_after = v_after div v_step_ns * v_step_ticks;
      if v_safe then set sql_safe_updates = 0; end if;
      update json_table(p_ids, '$[*]' columns (
               id varchar(512) character set ascii path '$[0]', times bigint path '$[1]')) as r
        straight_join token_buckets b on b.id = unhex(r.id) and (v_all or b.full_at <= v_room - v_cost)
         set b.granted = b.granted
               + p_cost * if(v_all, coalesce(r.times, 1),
                             least((v_room - greatest(b.full_at, v_clock)) div v_cost, coalesce(r.times, 1))),
             b.full_at = greatest(b.full_at, v_after)
               + v_cost * if(v_all, coalesce(r.times, 1),
                             least((v_room - greatest(b.full_at, v_clock)) div v_cost, coalesce(r.times, 1)));
      if row_count() <> v_debits then
        signal sqlstate '22023' set message_text = 'tollgate: token_take_alike_v1 needs the ids of buckets, none twice';
      end if;
      if v_safe then set sql_safe_updates = 1; end if;
    end if;
  end at_once;
  set innodb_lock_wait_timeout = v_wait, group_concat_max_len = v_length;
  if v_own then commit and no chain no release; end if;
  select v_now as now, v_burst as burst, 0 as anchor, v_step_ns as step_ns, v_step_ticks as step_ticks,
         v_token_ticks as token_ticks, if(v_weighed, v_answers, null) as answers;
end
