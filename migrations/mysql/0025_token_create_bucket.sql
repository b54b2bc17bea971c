-- token_create_bucket: provision a bucket. Repeated with the same figures it changes nothing; with others it changes
-- the terms at once, whatever the mode: tokens that are there stay, up to the new capacity. Where the state is under an
-- override's terms, or those before an UPDATE by hand, the next request settles it. A bucket that followed a plan has
-- terms of its own from then on.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval', 'calendar', 'continuous' or 'once': see token_buckets
-- Errors:    22023 the id · 23514 figures that make no bucket
-- Locks:     the bucket's row, in a transaction of its own unless inside the caller's.
create procedure token_create_bucket(
  in p_id varchar(256) character set utf8mb4, in p_capacity decimal(40, 20), in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_settles boolean;
  declare v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_full_at, b_longest_wait bigint;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's

  call token_check_id_v1('bucket id', v_id);
  call token_terms_v1('bucket', v_id, p_capacity, p_refill_seconds, p_refill,
                      v_burst, v_step_ns, v_step_ticks, v_token_ticks);
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;
  begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback and no chain no release; end if;
      resignal;
    end;

    call token_clock_v1(v_now);
    insert into token_buckets (id, capacity, refill_seconds, refill, anchor)
    values (v_id, p_capacity, p_refill_seconds, p_refill, if(p_refill = 'calendar', 0, v_now mod v_step_ns))
    on duplicate key update id = token_buckets.id;
    -- The row is locked from here on, and may have been waited for.
    call token_clock_v1(v_now);
    -- Unless the state is under an override's terms, or others than the row's: what rules the next request settles it.
    select not overridden and capacity = under_capacity and refill_seconds = under_seconds and refill = under_refill
           and not (under_capacity = p_capacity and under_seconds = p_refill_seconds and under_refill = p_refill),
           burst, step_ns, step_ticks, token_ticks, anchor, full_at, longest_wait
      into v_settles, b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_full_at, b_longest_wait
      from token_buckets where id = v_id for update;
    if v_settles then
      call token_settle_v1(v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks, p_refill,
                           b_burst, b_step_ns, b_step_ticks, b_token_ticks, b_anchor, b_full_at, b_longest_wait);
    end if;
    update token_buckets
       set provisioned = true, plan = null, capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill,
           under_capacity = if(v_settles, p_capacity, under_capacity),
           under_seconds = if(v_settles, p_refill_seconds, under_seconds),
           under_refill = if(v_settles, p_refill, under_refill),
           burst = b_burst, step_ns = b_step_ns, step_ticks = b_step_ticks, token_ticks = b_token_ticks,
           anchor = b_anchor, full_at = b_full_at, longest_wait = b_longest_wait
     where id = v_id;
    if v_own then commit and no chain no release; end if;
  end;
end
