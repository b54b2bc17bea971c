-- Broken: decides a batch in one UPDATE, which changes each row only once, however often the row is joined. So a bucket
-- that is named twice is debited once, but both requests are granted.
create table clock (now bigint not null);
insert into clock values (0);

create table buckets (id text primary key, tokens numeric not null default 2, refreshed_at bigint not null default 0);
insert into buckets (id) values ('bucket');

create function take_many(p_ids text[]) returns setof boolean language sql as $$
  with taken as (
    update buckets b
       set tokens = least(2, b.tokens + (c.now - b.refreshed_at) / 1e9) - 1, refreshed_at = c.now
      from unnest(p_ids) r (id), clock c
     where b.id = r.id and b.tokens + (c.now - b.refreshed_at) / 1e9 >= 1
    returning b.id
  )
  select exists (select from taken t where t.id = r.id) from unnest(p_ids) r (id)
$$;
