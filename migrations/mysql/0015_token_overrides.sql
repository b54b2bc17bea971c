-- What holds for one key instead of its own terms and mode, for a time, and why.
--
--   insert into token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', now() + interval 1 day);
create table token_overrides (
  id             varbinary(255) not null primary key comment 'the bucket; it need not exist yet',
  capacity       bigint null comment 'null: the terms stay, only the mode is another',
  refill_seconds decimal(19, 9) null,
  refill         varchar(10) character set ascii collate ascii_bin not null default 'continuous'
                 comment 'as in token_buckets',
  mode           varchar(7) character set ascii collate ascii_bin null comment 'null: what the plan or token_mode says',
  reason         text character set utf8mb4 not null,
  expires_at     timestamp(6) null default null comment 'null: until it is deleted',
  burst          bigint null comment 'these four follow from the terms',
  step_ns        bigint null,
  step_ticks     bigint null,
  token_ticks    bigint null
) engine = InnoDB comment = 'What holds for single token buckets, for a time'
