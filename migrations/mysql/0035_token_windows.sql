-- A row a sliding window: how many requests were granted in each sub-interval that still counts. The library's own:
-- request_tokens_in_window makes rows, and the sweep deletes those in which nothing counts any more.
create table token_windows (
  id            varbinary(255) not null primary key,
  most          bigint not null comment 'the terms that it was last counted under: requests in any interval',
  interval_ns   bigint not null,
  resolution_ns bigint not null,
  counts        longtext character set ascii not null
                comment 'a JSON array of [end of the sub-interval in nanoseconds since 1970, granted in it]',
  newest        bigint not null default 0 comment 'the newest sub-interval''s end',
  granted       bigint not null default 0 comment 'requests, ever',
  last_wait     bigint not null default 0 comment 'nanoseconds: of the request that was counted last',
  since         bigint not null default 0 comment 'nanoseconds since 1970: what acted before is perhaps not counted any more',
  constraint token_window_id_has_1_to_255_bytes check (length(id) >= 1 and locate(x'00', id) = 0),
  constraint token_window_id_is_utf_8 check (cast(convert(id using utf8mb4) as binary) <=> id),
  constraint token_window_id_does_not_begin_with_u0001 check (left(id, 1) <> x'01')
) engine = InnoDB comment = 'Sliding windows'
