-- Not broken: the reference for the others. One bucket holds 2 tokens and refills one each second. The routine locks the
-- bucket before it reads the clock, and a denial changes nothing. The clock is a table in nanoseconds, which tests set.
-- The caller opens a transaction at READ COMMITTED.
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
  insert into buckets (id, refreshed_at) select 'bucket', now from clock on duplicate key update id = 'bucket';
  select tokens, refreshed_at into v_tokens, v_refreshed_at from buckets where id = 'bucket' for update;
  select now into v_now from clock;
  set v_tokens = least(2, v_tokens + (v_now - v_refreshed_at) / 1000000000);
  if v_tokens >= 1 then
    update buckets set tokens = v_tokens - 1, refreshed_at = v_now where id = 'bucket';
  end if;
  select cast(v_tokens >= 1 as signed) as granted;
end;
