-- token_clock_v1: the one clock of every decision, in nanoseconds since 1970.
--
-- It is the time in UUID(): of this very instant, in UTC, and the same for every session. SET timestamp forges NOW()
-- and UTC_TIMESTAMP(), and SYSDATE() is in the session's time zone. (No function, because to make one takes SUPER, or
-- log_bin_trust_function_creators, where the binary log is on.)
create procedure token_clock_v1(out o_now bigint)
no sql
sql security definer
begin
  declare v_uuid char(36) character set ascii default uuid();
  set o_now = (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
               - 122192928000000000) * 100;
end
