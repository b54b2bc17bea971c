-- token_most_denied: the denials of the last 24 hours, a row a key, in UTC. Reads only.
--
--   select * from token_most_denied order by denied desc limit 10;
--
--   denied         requests; at least so many
--   last_denied_at to a few seconds
--   id_bytes       the id in UTF-8, whatever the session's character set is
create sql security definer view token_most_denied as
select convert(s.id using utf8mb4) as id, cast(least(greatest(sum(s.denied), -1), 9223372036854775807) as signed) as denied,
       max(s.last_denied_at) as last_denied_at, s.id as id_bytes
  from token_stats s
 cross join (select timestamp('1970-01-01') + interval (
                      (cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)),
                                 16, 10) as signed) - 122192928000000000) * 100) div 1000 microsecond as now
               from (select uuid() as uuid limit 1) u limit 1) n
 where s.hour > n.now - interval 24 hour
 group by s.id
