-- count_denials_v1: add what a process has counted, and forget what is older than two days.
--
-- Arguments: p_ids     the buckets, 1000 at most; one may be there more than once
--            p_denied  how many requests of each were denied, 1 to 10^15
-- Errors:    22023 arguments out of range
-- Locks:     the rows of these keys in this hour, in the order of their ids. Of old rows, 1000 at most that nobody else
--            has locked are deleted. No decision looks at any of them.
create function tollgate.count_denials_v1(p_ids text[], p_denied bigint[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now  constant timestamptz := to_timestamp(tollgate.token_clock_v1() / 1000000000.0);
  v_hour constant timestamptz := date_trunc('hour', v_now, 'UTC');
begin
  if cardinality(p_ids) is distinct from cardinality(p_denied) or cardinality(p_ids) > 1000
     or exists (select from unnest(p_ids, p_denied) d(id, denied)
                 where (octet_length(d.id) between 1 and 255 and left(d.id, 1) <> chr(1)
                        and d.denied between 1 and 1000000000000000) is not true) then
    raise exception 'tollgate: count_denials takes up to 1000 ids of 1 to 255 bytes that do not begin with U+0001, '
                    'and for each 1 denial or more'
      using errcode = 'invalid_parameter_value';
  end if;
  insert into tollgate.token_stats as s (hour, id, denied, last_denied_at)
  select v_hour, d.id, sum(d.denied), v_now from unnest(p_ids, p_denied) d(id, denied)
   group by d.id order by d.id collate "C"
      on conflict (hour, id) do update
     set denied = least(s.denied::numeric + excluded.denied, 9223372036854775807),
         last_denied_at = greatest(s.last_denied_at, excluded.last_denied_at);
  delete from tollgate.token_stats s
   using (select o.hour, o.id from tollgate.token_stats o where o.hour < v_hour - interval '48 hours'
           order by o.hour, o.id limit 1000 for update skip locked) o
   where s.hour = o.hour and s.id = o.id;
end
$$;

revoke all on function tollgate.count_denials_v1(text[], bigint[]) from public;
