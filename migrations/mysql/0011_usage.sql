-- token_record_usage_step: records the usage of the period that has ended, in one bounded step, or deletes periods that are too
-- old, in the caller's transaction.
--
-- Arguments: p_limit     number of buckets to read: 1 to 1000
--            p_waits     true: waits for the first bucket; false: leaves it out
-- Result:    o_recorded  number of buckets
--            o_finished  whether there is nothing left to do for now. Also true if usage is not recorded, or another session is
--                        recording
-- Errors:    1205 the first bucket stayed locked
-- Locks:     the row of token_usage_recording, unless another session has locked it; then the buckets' rows, each followed by the
--            row of its usage. Waits for the first bucket while it holds no other; leaves out others that are locked
--
-- The first round only begins to count. The usage of a bucket belongs to the period in which the last round ended. The next round
-- records a bucket that stays locked, but the first and the last round wait for it.
drop procedure if exists token_record_usage_step;
create procedure token_record_usage_step(
  in p_limit bigint, in p_waits boolean, out o_recorded bigint, out o_finished boolean)
modifies sql data
sql security definer
step: begin
  declare v_now bigint;
  declare v_at, v_period, v_period_start datetime;
  declare v_every, v_keep_days, v_count bigint;
  declare v_limit bigint default least(greatest(coalesce(p_limit, 1000), 1), 1000);
  declare v_after, v_position, v_first, v_last, v_id varbinary(255);
  declare v_ending, v_missed boolean default false;
  declare v_done boolean default false;
  declare v_buckets cursor for
    select id from token_buckets
     where id >= v_first and id <= v_last and (granted <> recorded or charged <> 0 or refunded <> 0)
     order by id;
  declare continue handler for not found set v_done = true;

  set o_recorded = 0, o_finished = true;
  select every_seconds, keep_days, ending, period_start, recorded_to
    into v_every, v_keep_days, v_ending, v_period_start, v_after
    from token_usage_recording where one = true for update skip locked;
  if v_every is null then
    leave step;
  end if;
  call token_clock(v_now);
  set v_at = timestamp('1970-01-01') + interval v_now div 1000 microsecond;
  set v_period = timestamp(date(v_at)) + interval if(v_every = 3600, hour(v_at), 0) hour;
  if v_after is null and v_period_start = v_period and not v_ending then
    delete from token_usage_records where period_start < v_at - interval v_keep_days day order by period_start, id limit v_limit;
    set o_finished = row_count() < v_limit;
    leave step;
  end if;

  set v_position = coalesce(v_after, '');
  select count(*), max(id) into v_count, v_last
    from (select id from token_buckets where id > v_position order by id limit v_limit) as page;
  select min(id) into v_first
    from token_buckets
   where id > v_position and id <= v_last and (granted <> recorded or charged <> 0 or refunded <> 0);
  if v_first is not null and not p_waits then
    if v_period_start is not null and not v_ending then
      update token_usage_recording set recorded_to = v_first where one = true;
      set o_finished = false;
    end if;
    leave step;
  end if;
  if exists (select 1 from token_buckets where id = v_first for update) then
    set v_done = false;
    open v_buckets;
    buckets: loop
      fetch v_buckets into v_id;
      if v_done then leave buckets; end if;
      if exists (select 1 from token_buckets where id = v_id for update skip locked) then
        call token_keep_usage(v_id);
        set o_recorded = o_recorded + 1;
      else
        set v_missed = true;
      end if;
      if not v_missed then
        set v_position = v_id;
      end if;
      set v_done = false;
    end loop;
    close v_buckets;
  else
    set v_missed = v_first is not null;  -- another session has deleted the bucket
  end if;
  set o_finished = false;
  if v_missed then
    -- Continues with the bucket that another session has locked.
    update token_usage_recording set recorded_to = nullif(v_position, '') where one = true;
  elseif v_count = v_limit then
    update token_usage_recording set recorded_to = v_last where one = true;
  elseif v_ending then
    delete from token_usage_recording where one = true;
    set o_finished = true;
  else
    update token_usage_recording set recorded_to = null, period_start = v_period where one = true;
  end if;
end step;

-- token_record_usage_in_transaction: makes one step in a transaction of its own. token_record_usage_v1 and token_record_usage call
-- it.
--
-- Arguments, result: as for token_record_usage_step
-- Errors:    25001 the caller has a transaction
-- Locks:     as for token_record_usage_step; waits for a second at most
drop procedure if exists token_record_usage_in_transaction;
create procedure token_record_usage_in_transaction(in p_limit bigint, out o_recorded bigint, out o_finished boolean)
modifies sql data
sql security definer
begin
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare v_lock_wait_timeout bigint default @@innodb_lock_wait_timeout;
  declare v_waits boolean default true;
  declare v_again boolean;
  declare exit handler for 1568
    signal sqlstate '25001' set message_text = 'tollgate: recording usage needs a transaction of its own: commit first';

  repeat
    set v_again = false;
    set transaction isolation level read committed;
    start transaction;
    begin
      declare exit handler for sqlexception
      begin
        set innodb_lock_wait_timeout = v_lock_wait_timeout, sql_big_selects = v_sql_big_selects;
        rollback and no chain no release;
        resignal;
      end;
      declare exit handler for 1205
      begin
        rollback and no chain no release;
        set v_again = v_waits, v_waits = false, o_recorded = 0, o_finished = true;
      end;
      -- A step can exceed the session's max_join_size.
      set innodb_lock_wait_timeout = least(v_lock_wait_timeout, 1), sql_big_selects = 1;
      call token_record_usage_step(p_limit, v_waits, o_recorded, o_finished);
      commit and no chain no release;
    end;
  until not v_again end repeat;
  set innodb_lock_wait_timeout = v_lock_wait_timeout, sql_big_selects = v_sql_big_selects;
end;

-- token_record_usage_v1: continues the recording of usage by one bounded step.
--
-- Arguments: p_limit   number of buckets to read: 1 to 1000
-- Result:    one row
--            recorded  number of buckets
--            finished  as for token_record_usage_step
-- Errors and locks: as for token_record_usage_in_transaction
drop procedure if exists token_record_usage_v1;
create procedure token_record_usage_v1(in p_limit bigint)
modifies sql data
sql security definer
begin
  declare v_recorded bigint;
  declare v_finished boolean;

  call token_record_usage_in_transaction(p_limit, v_recorded, v_finished);
  select v_recorded as recorded, v_finished as finished;
end;

-- token_record_usage: runs all steps, for your scheduler: call token_record_usage().
--
-- Result:    one row
--            recorded  number of buckets whose usage was recorded
-- Errors and locks: as for token_record_usage_in_transaction, each step in its own transaction
drop procedure if exists token_record_usage;
create procedure token_record_usage()
modifies sql data
sql security definer
begin
  declare v_recorded bigint;
  declare v_total bigint default 0;
  declare v_finished boolean default false;

  repeat
    call token_record_usage_in_transaction(1000, v_recorded, v_finished);
    set v_total = v_total + v_recorded;
  until v_finished end repeat;
  select v_total as recorded;
end;

-- token_usage: the tokens that each bucket used, one row per bucket, plan and period, if usage is recorded. Reads only.
--
--   select `key`, sum(used) from token_usage
--    where period_start >= '2026-11-01' and period_start < '2026-12-01' group by `key` order by 2 desc;
--
--   id, plan      the bucket, and the plan that it followed; null: none
--   key, limit_name: the id of a further limit's bucket in its parts; limit_name is null for other buckets
--   period_start  start of the hour or day, in UTC
--   granted       tokens that requests took
--   charged       tokens charged or settled in addition
--   refunded      tokens given back by cancels, refunds and settlements
--   used          granted + charged - refunded
--   denied        requests; the true number can be higher
--   id_bytes, plan_bytes: in UTF-8, with every session character set
--
-- Usage is up to date. A token is counted under the period in which the background task last recorded the bucket's usage. In the
-- first minute of a period, tokens can still be counted under the period before.
create or replace sql security definer view token_usage as
select convert(u.id using utf8mb4) as id, convert(substring_index(u.id, x'01', 1) using utf8mb4) as `key`,
       if(locate(x'01', u.id) > 0, convert(substring_index(u.id, x'01', -1) using utf8mb4), null) as limit_name,
       convert(nullif(u.plan, '') using utf8mb4) as plan, u.period_start,
       cast(least(sum(u.granted), 9223372036854775807) as signed) as granted,
       cast(least(sum(u.charged), 9223372036854775807) as signed) as charged,
       cast(least(sum(u.refunded), 9223372036854775807) as signed) as refunded,
       cast(greatest(least(sum(u.granted) + sum(u.charged) - sum(u.refunded), 9223372036854775807), -9223372036854775807)
            as signed) as used,
       cast(sum(u.denied) as signed) as denied, u.id as id_bytes, nullif(u.plan, '') as plan_bytes
  from (select r.id, r.plan, r.period_start, cast(r.granted as decimal(20, 0)) as granted,
               cast(r.charged as decimal(20, 0)) as charged, cast(r.refunded as decimal(20, 0)) as refunded, r.denied
          from token_usage_records r
        union all
        select b.id, substring_index(coalesce(b.plan, ''), x'01', 1), r.period_start,
               cast(b.granted as decimal(20, 0)) - b.recorded, cast(b.charged as decimal(20, 0)),
               cast(b.refunded as decimal(20, 0)), 0
          from token_usage_recording r
         cross join token_buckets b
         where r.period_start is not null and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0)) u
 group by u.id, u.plan, u.period_start
;

-- token_list_usage_v1: reads the usage of some keys in a time: one row per bucket and plan, in the order of the ids. Reads only.
--
-- Arguments: p_after   the id after which the list continues; null: start
--            p_key     only this key, with its further limits; null: every key
--            p_plan    only under this plan; null: under every plan, and under none
--            p_from, p_until: UTC; only periods that start at p_from or later, and before p_until
--            p_limit   number of buckets to read; the last page can have up to twice as many
-- Result:    id_bytes, plan_bytes, granted, charged, refunded, denied: as in token_usage
-- Errors:    none
-- Locks:     none
drop procedure if exists token_list_usage_v1;
create procedure token_list_usage_v1(
  in p_after varbinary(1024), in p_key varbinary(1024), in p_plan varbinary(1024), in p_from datetime, in p_until datetime,
  in p_limit bigint)
reads sql data
sql security definer
begin
  declare v_after varbinary(1024) default coalesce(p_after, '');
  declare v_key varbinary(1024) default coalesce(p_key, '');
  declare v_end varbinary(1026) default coalesce(concat(p_key, x'02'), x'ff');  -- further limits' ids have U+0001 behind the key
  declare v_last varbinary(1026);
  declare v_sql_big_selects boolean default @@sql_big_selects;
  declare exit handler for sqlexception
  begin
    set sql_big_selects = v_sql_big_selects;
    resignal;
  end;

  set sql_big_selects = 1;  -- a page can exceed the session's max_join_size
  select if(count(*) = p_limit, max(n.id), v_end) into v_last
    from (select r.id from token_usage_records r
           where r.id > v_after and r.id >= v_key and r.id < v_end
             and r.period_start >= p_from and r.period_start < p_until and (p_plan is null or r.plan = p_plan)
           group by r.id order by r.id limit p_limit) n;
  -- The buckets whose usage is not recorded yet are among those up to the last of the others, if these fill the page.
  select if(count(*) = p_limit, max(n.id), v_last) into v_last
    from (select b.id from token_usage_recording r cross join token_buckets b
           where b.id > v_after and b.id >= v_key and b.id < v_end and b.id <= v_last
             and r.period_start >= p_from and r.period_start < p_until
             and (p_plan is null or substring_index(b.plan, x'01', 1) = p_plan)
             and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0)
           order by b.id limit p_limit) n;
  select u.id as id_bytes, nullif(u.plan, '') as plan_bytes,
         cast(least(sum(u.granted), 9223372036854775807) as signed) as granted,
         cast(least(sum(u.charged), 9223372036854775807) as signed) as charged,
         cast(least(sum(u.refunded), 9223372036854775807) as signed) as refunded, cast(sum(u.denied) as signed) as denied
    from (select r.id, r.plan, cast(r.granted as decimal(20, 0)) as granted, cast(r.charged as decimal(20, 0)) as charged,
                 cast(r.refunded as decimal(20, 0)) as refunded, r.denied
            from token_usage_records r
           where r.id > v_after and r.id >= v_key and r.id < v_end and r.id <= v_last
             and r.period_start >= p_from and r.period_start < p_until and (p_plan is null or r.plan = p_plan)
          union all
          select b.id, substring_index(coalesce(b.plan, ''), x'01', 1), cast(b.granted as decimal(20, 0)) - b.recorded,
                 cast(b.charged as decimal(20, 0)), cast(b.refunded as decimal(20, 0)), 0
            from token_usage_recording r cross join token_buckets b
           where b.id > v_after and b.id >= v_key and b.id < v_end and b.id <= v_last
             and r.period_start >= p_from and r.period_start < p_until
             and (p_plan is null or substring_index(b.plan, x'01', 1) = p_plan)
             and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0)) u
   group by u.id, u.plan order by u.id, u.plan;
  set sql_big_selects = v_sql_big_selects;
end;

insert into token_migrations (version, name) values (11, '0011_usage') on duplicate key update applied_at = utc_timestamp(6);
