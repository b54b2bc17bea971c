-- token_create_bucket: provision a bucket. Repeated with the same figures it changes nothing; with others it changes
-- the terms: tokens that are there stay, up to the new capacity. A bucket that followed a plan has terms of its own
-- from then on.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval', 'calendar', 'continuous' or 'once': see token_buckets
-- Errors:    22023 the id · 23514 figures that make no bucket
-- Locks:     the bucket's row, in a transaction of its own unless inside the caller's.
create procedure token_create_bucket(
  in p_id varchar(256) character set utf8mb4, in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_outcome varchar(10) character set ascii;
  declare v_mode varchar(7) character set ascii;
  declare v_changed boolean;
  declare v_now, v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's

  if (length(v_id) between 1 and 255) is not true then
    signal sqlstate '22023' set message_text = 'tollgate: a bucket id has 1 to 255 bytes';
  end if;
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
    on duplicate key update
      provisioned = true, plan = null, capacity = p_capacity, refill_seconds = p_refill_seconds, refill = p_refill;
    -- The row is locked from here on, and may have been waited for.
    call token_clock_v1(v_now);
    call token_rule_v1(v_id, null, null, null, null, v_now, 0, v_outcome, v_mode, v_burst, v_changed, v_burst);
    if v_own then commit and no chain no release; end if;
  end;
end
