-- Broken: reads the clock before it takes the lock. A transaction that waited for the lock stores a time in the past, so
-- the next request is credited with the same refill again.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (
  id varbinary(36) primary key, tokens decimal(30, 9) not null default 2, refreshed_at bigint not null default 0
);
insert into buckets (id) values ('bucket');

create procedure take()
begin
  declare v_tokens decimal(30, 9);
  declare v_refreshed_at, v_now bigint;
  select now into v_now from clock;
  select tokens, refreshed_at into v_tokens, v_refreshed_at from buckets where id = 'bucket' for update;
  set v_tokens = least(2, v_tokens + (v_now - v_refreshed_at) / 1000000000);
  if v_tokens >= 1 then
    update buckets set tokens = v_tokens - 1, refreshed_at = v_now where id = 'bucket';
  end if;
  select cast(v_tokens >= 1 as signed) as granted;
end;
