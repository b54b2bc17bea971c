-- token_check_id_v1: refuses what is not a valid id of a bucket or window, or name of a plan. A session of MariaDB can turn
-- the tables' checks off, so routines that insert call this first.
--
-- Arguments: p_what: as the error names it, such as 'bucket id'; p_id: its bytes
-- Errors:    22023 it is not 1 to 255 bytes of UTF-8, begins with U+0001 or contains NUL
create procedure token_check_id_v1(in p_what varchar(20) character set ascii, in p_id varbinary(1024))
no sql
sql security definer
begin
  declare v_message varchar(128) character set ascii
    default concat('tollgate: a ', p_what, ' has 1 to 255 bytes of UTF-8, without NUL, and does not begin with U+0001');
  if (length(p_id) between 1 and 255 and left(p_id, 1) <> x'01' and locate(x'00', p_id) = 0
      and cast(convert(p_id using utf8mb4) as binary) <=> p_id) is not true then
    signal sqlstate '22023' set message_text = v_message;
  end if;
end
