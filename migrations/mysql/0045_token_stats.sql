-- How often keys were denied, in each hour: what services that count their denials have told. A denial itself writes
-- nothing; so these are the keys that were denied most in each process, up to when it last told.
create table token_stats (
  hour           datetime not null comment 'in UTC',
  id             varbinary(255) not null comment 'the bucket; it need not exist any more',
  denied         bigint not null comment 'requests',
  last_denied_at datetime(6) not null comment 'in UTC: when it was last told of',
  primary key (hour, id),
  constraint token_stats_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_stats_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_stats_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01')
) engine = InnoDB comment = 'Denials by hour and key; read them through token_most_denied'
