-- One row a bucket. To provision one, name the first three columns; the others are the library's.
--
--   insert into token_buckets (id, capacity, refill_seconds) values ('third-party-api', 2, 1);
--
-- refill says how tokens come back: all at once at the end of each period ('interval', from the row's making on;
-- 'calendar', in UTC's), one by one ('continuous'), or not at all ('once', whatever refill_seconds says).
--
-- Ids are bytes, so no collation merges 'A' with 'a', or 'a' with 'a '.
--
-- The state counts ticks of the bucket's own clock, which starts at anchor and advances by step_ticks every step_ns.
-- For 'continuous' a tick is a nanosecond; for the others it is a token, and a step is the whole period, or never.
-- burst to token_ticks are the terms that the state was last written under: the row's own, or an override's.
--
-- Terms are checked by triggers: check constraints and generated columns are evaluated anew by every UPDATE, and would
-- cost it an eighth.
create table token_buckets (
  id             varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(10) character set ascii collate ascii_bin not null default 'interval'
                 comment 'how tokens come back',
  plan           varbinary(255) null comment 'the plan that it follows, if any',
  provisioned    boolean not null default true comment 'false: made by its first request, may be swept',
  overridden     boolean not null default false comment 'whether its state is under an override''s terms',
  anchor         bigint not null default -1 comment 'nanoseconds since 1970; -1 in an INSERT: now',
  full_at        bigint not null default 0 comment 'ticks: when it is full again',
  granted        bigint not null default 0 comment 'tokens, ever',
  longest_wait   bigint not null default 0 comment 'ticks: the longest that was granted',
  burst          bigint not null default 0 comment 'ticks from empty to full',
  step_ns        bigint not null default 0,
  step_ticks     bigint not null default 0,
  token_ticks    bigint not null default 0
) engine = InnoDB comment = 'Token buckets; read them through token_bucket_levels'
