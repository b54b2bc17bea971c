-- Broken: reads the bucket without a lock, and writes it afterwards. Two transactions that read the same state both take
-- its last token: the second waits for the row lock, and then writes the value that it computed before.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (
  id varbinary(36) primary key, tokens decimal(30, 9) not null default 2, refreshed_at bigint not null default 0
);
insert into buckets (id) values ('bucket');

create procedure take()
begin
  declare v_tokens decimal(30, 9);
  declare v_now bigint;
  select now into v_now from clock;
  select least(2, tokens + (v_now - refreshed_at) / 1000000000) into v_tokens from buckets where id = 'bucket';
  if v_tokens >= 1 then
    update buckets set tokens = v_tokens - 1, refreshed_at = v_now where id = 'bucket';
  end if;
  select cast(v_tokens >= 1 as signed) as granted;
end;
