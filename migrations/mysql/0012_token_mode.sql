-- What holds for every key, unless its plan or an override says otherwise. Always one row.
--
--   update token_mode set mode = 'shadow', reason = 'incident 42', until = now() + interval 2 hour;
--
-- 'enforce' limits; 'shadow' takes tokens, and lets requests pass that find none; 'off' lets everything pass and
-- touches no bucket; 'block' denies everything.
create table token_mode (
  mode      varchar(7) character set ascii collate ascii_bin not null default 'enforce',
  reason    text character set utf8mb4 null,
  until     timestamp(6) null default null comment 'null: until it is changed',
  overrides boolean not null default false comment 'the library''s: whether token_overrides holds any',
  one       boolean not null default true primary key,
  constraint token_mode_has_one_row check (one = true)
) engine = InnoDB comment = 'What holds for all token buckets'
