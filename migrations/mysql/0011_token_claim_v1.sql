-- token_claim_v1: enters a grant in the receipts, unless it is there. The caller holds the bucket's lock, if it exists.
--
-- It inserts first and then looks: to look for what is not there would lock a gap in a REPEATABLE READ transaction of
-- the caller's, and two that then both insert there would wait for each other.
-- Arguments: p_receipt as hyphenated text; p_bucket, p_cost, p_granted, p_acts_at, p_expires_at: the new row's columns
--            p_now      what expired by then is forgotten; 0: nothing is
-- Result:    o_state    what was there; null: nothing, and the new row is; then o_cost, o_granted, o_acts_at and
--                       o_expires_at of what is there
-- Errors:    22023 no such id can be
-- Locks:     the receipt
create procedure token_claim_v1(
  in p_receipt varchar(36) character set ascii, in p_bucket varbinary(1024), in p_cost bigint, in p_granted bigint,
  in p_acts_at bigint, in p_expires_at bigint, in p_now bigint,
  out o_state varchar(9) character set ascii collate ascii_bin, out o_cost bigint, out o_granted bigint,
  out o_acts_at bigint, out o_expires_at bigint)
modifies sql data
sql security definer
begin
  declare v_known boolean default false;
  declare v_id binary(16);
  declare continue handler for 1062 set v_known = true;

  if (length(replace(p_receipt, '-', '')) = 32 and replace(p_receipt, '-', '') regexp '^[0-9a-f]{32}') is not true then
    signal sqlstate '22023' set message_text = 'tollgate: a request''s id is a UUID in hexadecimal';
  end if;
  set v_id = unhex(replace(p_receipt, '-', ''));
  insert into token_receipts (id, bucket, cost, granted, acts_at, state, expires_at)
  values (v_id, p_bucket, p_cost, p_granted, p_acts_at, 'open', p_expires_at);
  if v_known then
    select state, cost, granted, acts_at, expires_at into o_state, o_cost, o_granted, o_acts_at, o_expires_at
      from token_receipts where id = v_id and bucket = p_bucket for update;
  end if;
  if not v_known or o_expires_at <= p_now then
    set o_state = null, o_cost = p_cost, o_granted = p_granted, o_acts_at = p_acts_at, o_expires_at = p_expires_at;
  end if;
  if v_known and o_state is null then
    update token_receipts
       set state = 'open', cost = p_cost, granted = p_granted, acts_at = p_acts_at, expires_at = p_expires_at
     where id = v_id and bucket = p_bucket;
  end if;
end
