-- A row a sliding window: how many requests were granted in each sub-interval that still counts. The library's own: the
-- first request makes a row, and the sweep deletes those in which nothing counts any more.
create table token_windows (
  id            text not null primary key,
  most          integer not null,              -- the terms that it was last counted under
  interval_ns   integer not null,
  resolution_ns integer not null,
  counts        text not null,                 -- 'end count, ...': each sub-interval's end, in nanoseconds since 1970
  empty_at      integer not null,              -- when nothing counts any more, in nanoseconds since 1970
  granted       integer not null default 0,    -- requests, ever
  last_wait     integer not null default 0,    -- nanoseconds: of the request that was counted last
  since         integer not null default 0,    -- nanoseconds since 1970: what acted before is perhaps not counted any more
  constraint id_has_1_to_255_bytes_and_no_nul check (
    length(cast(id as blob)) between 1 and 255 and instr(cast(id as blob), x'00') = 0),
  constraint id_does_not_begin_with_u0001 check (substr(id, 1, 1) <> char(1))  -- as windows' receipts do
) strict, without rowid;
