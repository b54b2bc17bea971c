-- Broken: runs an UPDATE, and an INSERT if there is no row to update. Two transactions that find no row both create the
-- bucket, and the second gives back the tokens that the first took.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (
  id varbinary(36) primary key, tokens decimal(30, 9) not null default 2, refreshed_at bigint not null default 0
);
insert into buckets (id) values ('bucket');

create procedure take()
take: begin
  declare v_now bigint;
  select now into v_now from clock;
  update buckets
     set tokens = least(2, tokens + (v_now - refreshed_at) / 1000000000) - 1, refreshed_at = v_now
   where id = 'bucket' and tokens + (v_now - refreshed_at) / 1000000000 >= 1;
  if row_count() > 0 then
    select 1 as granted;
    leave take;
  end if;
  if exists (select 1 from buckets where id = 'bucket') then
    select 0 as granted;
    leave take;
  end if;
  insert into buckets (id, tokens, refreshed_at) values ('bucket', 1, v_now)
  on duplicate key update tokens = 1, refreshed_at = v_now;
  select 1 as granted;
end;
