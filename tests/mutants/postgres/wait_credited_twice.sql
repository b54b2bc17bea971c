-- Broken: reads the time after the lock, but stores the time from before it, like now() beside clock_timestamp(). The
-- wait for the lock is credited to the request that waited, and again to the next one.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (id text primary key, tokens numeric not null default 2, refreshed_at bigint not null default 0);
insert into buckets (id) values ('bucket');

create function take() returns boolean language plpgsql as $$
declare
  v_bucket buckets;
  v_tokens numeric;
  v_began  bigint;
  v_now    bigint;
begin
  select now into v_began from clock;
  select * into v_bucket from buckets where id = 'bucket' for update;
  select now into v_now from clock;
  v_tokens := least(2, v_bucket.tokens + (v_now - v_bucket.refreshed_at) / 1e9);
  if v_tokens < 1 then
    return false;
  end if;
  update buckets set tokens = v_tokens - 1, refreshed_at = v_began where id = 'bucket';
  return true;
end
$$;
