-- Broken: runs an UPDATE, and an INSERT if there is no row to update. Two transactions that find no row both create the
-- bucket, and the second gives back the tokens that the first took.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (id text primary key, tokens numeric not null default 2, refreshed_at bigint not null default 0);
insert into buckets (id) values ('bucket');

create function take() returns boolean language plpgsql as $$
declare
  v_now bigint := (select now from clock);
begin
  update buckets b
     set tokens = least(2, b.tokens + (v_now - b.refreshed_at) / 1e9) - 1, refreshed_at = v_now
   where b.id = 'bucket' and b.tokens + (v_now - b.refreshed_at) / 1e9 >= 1;
  if found then
    return true;
  end if;
  if exists (select from buckets where id = 'bucket') then
    return false;
  end if;
  insert into buckets (id, tokens, refreshed_at) values ('bucket', 1, v_now)
  on conflict (id) do update set tokens = excluded.tokens, refreshed_at = excluded.refreshed_at;
  return true;
end
$$;
