-- token_clock_v1() -> now, in nanoseconds since 1970.
--
-- The one clock of every decision: the time in UUID(), of this very instant, in UTC, and the same for every session.
-- SET timestamp forges NOW() and UTC_TIMESTAMP(), and SYSDATE() is in the session's time zone.
create function token_clock_v1() returns bigint
no sql
sql security definer
begin
  declare v_uuid char(36) character set ascii default uuid();
  return (cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) as signed)
          - 122192928000000000) * 100;
end
