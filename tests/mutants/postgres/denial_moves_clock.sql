-- Broken: charges a denied request like a granted one, which delays the time at which the bucket is full. A caller that
-- makes requests faster than tokens refill is always denied.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (id text primary key, tokens numeric not null default 2, refreshed_at bigint not null default 0);
insert into buckets (id) values ('bucket');

create function take() returns boolean language plpgsql as $$
declare
  v_now     bigint := (select now from clock);
  v_full_at bigint;
begin
  -- refreshed_at is when the bucket is full
  update buckets set refreshed_at = greatest(refreshed_at, v_now) + 1000000000 where id = 'bucket'
  returning refreshed_at into v_full_at;
  return v_full_at <= v_now + 2000000000;
end
$$;
