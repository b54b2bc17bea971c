-- How often keys were denied, in each hour: what services that count their denials have told. A denial itself writes
-- nothing; so these are the keys that were denied most in each process, up to when it last told.
create table token_stats (
  hour           text not null,                          -- UTC, with milliseconds: 2026-01-31 12:00:00.000
  id             text not null,                          -- the bucket; it need not exist any more
  denied         integer not null,                       -- requests
  last_denied_at text not null,                          -- UTC, likewise: when it was last told of
  primary key (hour, id),
  constraint id_has_1_to_255_bytes_and_no_nul check (
    length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1))
) strict, without rowid;

-- token_most_denied: the denials of the last 24 hours, a row a key, in UTC. Reads only.
--
--   select * from token_most_denied order by denied desc limit 10;
--
--   denied         requests; at least so many
--   last_denied_at to a few seconds
create view token_most_denied as
select id, sum(denied) as denied, max(last_denied_at) as last_denied_at
  from token_stats
 where hour > datetime('now', '-24 hours')
 group by id;
