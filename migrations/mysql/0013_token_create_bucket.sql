-- token_create_bucket: provision a bucket. Repeated with the same figures it changes nothing; with others it changes
-- the terms: tokens that are there stay, up to the new capacity.
--
-- Arguments: p_id              1 to 255 bytes; 'A', 'a' and 'a ' are three buckets
--            p_capacity        tokens
--            p_refill_seconds  seconds from empty to full, fractions allowed
--            p_refill          'interval': full again at the end of each period; 'continuous': token by token
-- Errors:    22023 the id · 3819 (MySQL), 4025 (MariaDB) figures that make no bucket: the constraint's name says why
-- Locks:     the bucket's row, in a transaction of its own unless inside the caller's.
create procedure token_create_bucket(
  in p_id varchar(256) character set utf8mb4, in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_id varbinary(1024) default cast(p_id as binary);
  declare v_same boolean;
  declare v_uuid char(36) character set ascii;
  declare v_now bigint;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's

  if (length(v_id) between 1 and 255) is not true then
    signal sqlstate '22023' set message_text = 'tollgate: a bucket id has 1 to 255 bytes';
  end if;
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback; end if;
      resignal;
    end;

    insert into token_buckets (id, capacity, refill_seconds, refill, anchor)
    values (v_id, p_capacity, p_refill_seconds, p_refill, -1)
    on duplicate key update provisioned = true;
    -- The row is locked from here on. A new one's grid goes through this instant; until here it says -1.
    set v_uuid = uuid();
    set v_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
                 - 122192928000000000) * 100;
    update token_buckets set anchor = v_now mod step_ns where id = v_id and anchor = -1;
    select capacity = p_capacity and refill_seconds = p_refill_seconds and refill = p_refill
      into v_same from token_buckets where id = v_id for update;
    if not v_same then
      call token_settle_v1(v_id, v_now, p_capacity, p_refill_seconds, p_refill);
    end if;
    if v_own then commit; end if;
  end;
end
