-- Broken: rounds the count to whole tokens and stores the time on each call, as a widely copied function does. A caller
-- that makes requests more often than every half second never gets the refilled fractions.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (id text primary key, tokens numeric not null default 2, refreshed_at bigint not null default 0);
insert into buckets (id) values ('bucket');

create function take() returns boolean language plpgsql as $$
declare
  v_left integer;
begin
  update buckets b
     set tokens = greatest(-1, least(2, round(greatest(b.tokens, 0) + (c.now - b.refreshed_at) / 1e9)) - 1),
         refreshed_at = c.now
    from clock c where b.id = 'bucket'
  returning b.tokens into v_left;
  return v_left >= 0;
end
$$;
