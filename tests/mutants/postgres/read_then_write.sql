-- Broken: reads the bucket in a CTE, and writes it afterwards. Two transactions that read the same state both take its last
-- token: the second waits for the row lock, and then writes the value that it computed before.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (id text primary key, tokens numeric not null default 2, refreshed_at bigint not null default 0);
insert into buckets (id) values ('bucket');

create function take() returns boolean language sql as $$
  with old as (
    select b.id, c.now, least(2, b.tokens + (c.now - b.refreshed_at) / 1e9) as tokens
      from buckets b, clock c where b.id = 'bucket'
  ), taken as (
    update buckets b set tokens = old.tokens - 1, refreshed_at = old.now
      from old where b.id = old.id and old.tokens >= 1
    returning b.id
  )
  select exists (select from taken)
$$;
