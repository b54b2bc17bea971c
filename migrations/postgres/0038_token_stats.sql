-- How often keys were denied, in each hour: what services that count their denials have told. A denial itself writes
-- nothing; so these are the keys that were denied most in each process, up to when it last told.
--
-- A process adds to all of its rows at once: a page keeps room for the next version of each, so that updates are heap-only.
create table tollgate.token_stats (
  hour           timestamptz not null,
  id             text collate "C" not null,                      -- the bucket; it need not exist any more
  denied         bigint not null,                                -- requests
  last_denied_at timestamptz not null,                           -- when it was last told of
  primary key (hour, id),
  constraint id_has_1_to_255_bytes check (octet_length(id) between 1 and 255),
  constraint id_does_not_begin_with_u0001 check (left(id, 1) <> chr(1))
)
with (fillfactor = 50);

revoke all on tollgate.token_stats from public;

-- token_most_denied: the denials of the last 24 hours, a row a key. Reads only.
--
--   select * from tollgate.token_most_denied order by denied desc limit 10;
--
--   denied         requests; at least so many
--   last_denied_at to a few seconds
create view tollgate.token_most_denied as
select s.id, least(greatest(sum(s.denied), -1), 9223372036854775807)::bigint as denied, max(s.last_denied_at) as last_denied_at
  from tollgate.token_stats s
 where s.hour > to_timestamp((tollgate.token_clock_v1()::numeric / 1000000000::numeric)::float8) - interval '24 hours'
 group by s.id;

revoke all on tollgate.token_most_denied from public;

comment on view tollgate.token_most_denied is 'Denials of the last 24 hours, by key, as far as services count them';
