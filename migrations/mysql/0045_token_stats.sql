-- How often keys were denied, in each hour: what services that count their denials have told. A denial itself writes
-- nothing; so these are the keys that were denied most in each process, up to when it last told.
create table token_stats (
  hour           datetime not null comment 'in UTC',
  id             varbinary(255) not null comment 'the bucket; it need not exist any more',
  denied         bigint not null comment 'requests',
  last_denied_at datetime(6) not null comment 'in UTC: when it was last told of',
  primary key (hour, id)
) engine = InnoDB comment = 'Denials by hour and key; read them through token_most_denied'
