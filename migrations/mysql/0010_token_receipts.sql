-- A row a grant that must be known again: of a request with an id, so that a repeated one does not pay twice, and of a
-- reservation that was cancelled, refunded or is to be settled.
create table token_receipts (
  id         binary(16) not null,
  bucket     varbinary(256) not null comment 'of a sliding window: x''01'' and its id',
  cost       bigint not null comment 'tokens',
  granted    bigint not null comment 'the bucket''s granted after it',
  acts_at    bigint not null comment 'when the tokens may be used, in nanoseconds since 1970',
  state      varchar(9) character set ascii collate ascii_bin not null comment 'open, cancelled, refunded, settled',
  expires_at bigint not null comment 'in nanoseconds since 1970; from then on what it says stands',
  primary key (id, bucket),
  key token_receipts_open (bucket, state, expires_at) comment 'a sweep asks for any that can be settled still'
) engine = InnoDB comment = 'Grants that must be known again'
