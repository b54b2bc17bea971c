-- token_make_many_v1: the buckets that their first request may make, and that are not there.
--
-- Arguments: p_requests  as token_decide_many_v1's, of which the id, the terms and the plan count
--            p_capacity, p_refill_seconds, p_refill, p_plan: the terms of all, or their plan, if they name neither; or null
-- Result:    they are there, full, under these terms or the plan's; none with an override, a plan that has a mode or is
--            unknown, or one whose id or terms make no bucket: token_rule_v1 says so, or makes it
-- Locks:     the rows that it makes, in the order of their ids: in a transaction, before which the caller locks no bucket
create procedure token_make_many_v1(
  in p_requests longtext character set utf8mb4, in p_capacity bigint, in p_refill_seconds decimal(19, 9),
  in p_refill varchar(10) character set ascii collate ascii_bin, in p_plan varbinary(1024))
modifies sql data
sql security definer
begin
  -- Figures that make no bucket: none is made here.
  declare continue handler for 1048, 1264, 1292, 1690, 1916, 3819, 4025 begin end;

  insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor)
  select r.id, coalesce(r.capacity, p.capacity) as new_capacity,
         if(r.capacity is null, p.refill_seconds, r.refill_seconds) as new_seconds,
         if(r.capacity is null, p.refill, r.refill) as new_refill, p.name, false, 0
    from (select unhex(id) as id, coalesce(capacity, p_capacity) as capacity,
                 coalesce(refill_seconds, p_refill_seconds) as refill_seconds, coalesce(refill, p_refill) as refill,
                 coalesce(unhex(plan), p_plan) as plan
            from json_table(p_requests, '$[*]' columns (
                   id varchar(512) character set ascii path '$[0]', capacity bigint path '$[4]',
                   refill_seconds decimal(19, 9) path '$[5]',
                   refill varchar(10) character set ascii collate ascii_bin path '$[6]',
                   plan varchar(512) character set ascii path '$[7]')) as requests) as r
    left join token_plans p on r.capacity is null and p.name = r.plan and p.mode is null
    left join token_buckets b on b.id = r.id
   where b.id is null and coalesce(r.capacity, p.capacity) is not null
     and not exists (select 1 from token_overrides o where o.id = r.id)
     -- The table's checks again: a session of MariaDB can turn those off.
     and length(r.id) between 1 and 255 and left(r.id, 1) <> x'01' and locate(x'00', r.id) = 0
     and cast(convert(r.id using utf8mb4) as binary) <=> r.id
  having new_capacity between 1 and 3155760000000000000
     and new_refill in ('interval', 'calendar', 'continuous', 'once')
     and (new_refill = 'once'
          or new_seconds > 0 and new_seconds <= 3155760000 and new_seconds * 1000000000 >= new_capacity
             and (new_refill <> 'continuous'
                  or ceiling(new_seconds * 1000000000 / greatest(new_capacity, 1)) * new_capacity
                     <= least(new_seconds * 1001000000, 3155760000000000000)))
   order by r.id
      on duplicate key update id = token_buckets.id;
end
