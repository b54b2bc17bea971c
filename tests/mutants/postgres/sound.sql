-- Not broken: the reference for the others. One bucket holds 2 tokens and refills one each second. The routine locks the
-- bucket before it reads the clock, and a denial changes nothing. The clock is a table in nanoseconds, which tests set.
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
  insert into buckets (id, refreshed_at) select 'bucket', c.now from clock c on conflict do nothing;
  select * into v_bucket from buckets where id = 'bucket' for update;
  select now into v_now from clock;
  v_tokens := least(2, v_bucket.tokens + (v_now - v_bucket.refreshed_at) / 1e9);
  if v_tokens < 1 then
    return false;
  end if;
  update buckets set tokens = v_tokens - 1, refreshed_at = v_now where id = 'bucket';
  return true;
end
$$;

create function take_many(p_ids text[]) returns setof boolean language sql as $$
  select take() from unnest(p_ids)
$$;
