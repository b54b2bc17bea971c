-- A row a plan: the quota of every bucket that follows it. A changed row rules from the next request on; tokens that
-- are there stay, up to the new capacity.
--
--   insert into token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. Of a plan, a key's override and token_mode, the nearest to the key that says one rules.
create table token_plans (
  name           varbinary(255) not null primary key,
  capacity       bigint not null comment 'tokens',
  refill_seconds decimal(19, 9) not null comment 'from empty to full',
  refill         varchar(10) character set ascii collate ascii_bin not null default 'continuous'
                 comment 'as in token_buckets',
  mode           varchar(7) character set ascii collate ascii_bin null comment 'null: what token_mode says',
  mode_reason    text character set utf8mb4 null,
  mode_until     timestamp(6) null default null comment 'null: until it is changed'
) engine = InnoDB comment = 'Plans that token buckets follow'
