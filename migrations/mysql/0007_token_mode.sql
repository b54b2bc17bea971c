-- What holds for every key, unless its plan or an override says otherwise. One row; without it the mode is 'enforce'.
--
--   update token_mode set mode = 'shadow', reason = 'incident 42', until = utc_timestamp() + interval 2 hour
--    where one = true;
--
-- 'enforce' limits; 'shadow' takes tokens, and lets requests pass that find none, without a wait; 'off' lets everything
-- pass and touches no bucket; 'block' denies everything.
create table token_mode (
  one    boolean not null default true primary key,
  mode   varchar(7) character set ascii collate ascii_bin not null default 'enforce',
  reason text character set utf8mb4 null,
  until  datetime(6) null comment 'in UTC; null: until it is changed',
  constraint token_mode_has_one_row check (one = true),
  constraint token_mode_is_enforce_shadow_off_or_block check (cast(mode as binary) in ('enforce', 'shadow', 'off', 'block'))
) engine = InnoDB comment = 'What holds for all token buckets'
