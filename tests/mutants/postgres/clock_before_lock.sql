-- Broken: reads the clock before it takes the lock. A transaction that waited for the lock stores a time in the past, so
-- the next request is credited with the same refill again.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (id text primary key, tokens numeric not null default 2, refreshed_at bigint not null default 0);
insert into buckets (id) values ('bucket');

create function take() returns boolean language plpgsql as $$
declare
  v_bucket buckets;
  v_tokens numeric;
  v_now    bigint;
begin
  select now into v_now from clock;
  select * into v_bucket from buckets where id = 'bucket' for update;
  v_tokens := least(2, v_bucket.tokens + (v_now - v_bucket.refreshed_at) / 1e9);
  if v_tokens < 1 then
    return false;
  end if;
  update buckets set tokens = v_tokens - 1, refreshed_at = v_now where id = 'bucket';
  return true;
end
$$;
