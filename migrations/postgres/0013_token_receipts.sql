-- A row a grant that must be known again: of a request with an id, so that a repeated one does not pay twice, and of a
-- reservation that was cancelled, refunded or is to be settled.
--
-- As many rows go as come, and vacuum follows before a fiftieth of them is dead.
create table tollgate.token_receipts (
  id         uuid not null,
  bucket     text collate "C" not null,
  cost       bigint not null,            -- tokens
  granted    bigint not null,            -- the bucket's granted after it
  acts_at    bigint not null,            -- when the tokens may be used, in nanoseconds since 1970
  state      text collate "C" not null,  -- 'open', 'cancelled', 'refunded', 'settled'
  expires_at bigint not null,            -- in nanoseconds since 1970; from then on what it says stands
  primary key (id, bucket)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- A sweep asks whether a bucket has any that can be settled still. Those that were settled, refunded or cancelled are far more
-- at times, and of one bucket.
create index token_receipts_open on tollgate.token_receipts (bucket, expires_at) where state = 'open';

revoke all on tollgate.token_receipts from public;
