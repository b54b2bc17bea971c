-- A row a sliding window: how many requests were granted in each sub-interval that still counts. The library's own:
-- request_tokens_in_window makes rows, and the sweep deletes those in which nothing counts any more.
--
-- A page keeps room for some rows' next version, so that updates are heap-only: rows grow with what they count.
create table tollgate.token_windows (
  id            text collate "C" primary key,  -- 1 to 255 bytes
  most          bigint not null,               -- the terms that it was last counted under: requests in any interval
  interval_ns   bigint not null,
  resolution_ns bigint not null,
  ends          bigint[] not null default '{}', -- the sub-intervals' ends, oldest first, in nanoseconds since 1970
  counts        bigint[] not null default '{}', -- granted in each
  granted       bigint not null default 0,     -- requests, ever
  last_wait     bigint not null default 0,     -- nanoseconds: of the request that was counted last
  since         bigint not null default 0,     -- nanoseconds since 1970: what acted before is perhaps not counted any more
  constraint id_has_1_to_255_bytes check (octet_length(id) between 1 and 255),
  constraint id_does_not_begin_with_u0001 check (left(id, 1) <> chr(1)) -- as the receipts' buckets do: see take_window_v1
)
with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

revoke all on tollgate.token_windows from public;

-- window_is_sound_v1(p_window) -> whether its figures are within their bounds, so that none overflows what is computed from
-- them.
create function tollgate.window_is_sound_v1(p_window tollgate.token_windows) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select p_window.most >= 1 and p_window.interval_ns between 1 and 31622400000000000
         and p_window.resolution_ns between 1 and 31622400000000000
         and p_window.last_wait between 0 and 31622400000000000
         and cardinality(p_window.ends) = cardinality(p_window.counts)
         and not exists (select from unnest(p_window.ends, p_window.counts) as u (e, c)
                          where (u.e between 0 and 4611686018427387903 and u.c between 0 and 1000000000000000) is not true)
$$;

revoke all on function tollgate.window_is_sound_v1(tollgate.token_windows) from public;
