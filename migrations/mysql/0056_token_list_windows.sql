-- token_list_windows: a page of the sliding windows in which anything was counted, as people think of them, at this
-- instant. Reads, locks and changes nothing.
--
-- Arguments: p_prefix           those whose id begins so; null: all
--            p_after            those after this id, in byte order; null: the first ones
--            p_limit            how many at most
-- Result:    a row for each, by id
--            id
--            max_requests       the terms that it was last counted under; the interval is the longest since it was empty
--            interval_seconds, resolution_seconds
--            counted            requests that count now; above the maximum: promised to requests that wait
--            available          how many more pass now; negative: promised
--            granted            requests, ever
--            retry_after_ms     milliseconds until one more passes, if the mode is enforce; 0: now
--            id_bytes           the id in UTF-8, whatever the session's character set is
create procedure token_list_windows(
  in p_prefix varchar(256) character set utf8mb4, in p_after varchar(256) character set utf8mb4,
  in p_limit int unsigned)
reads sql data
sql security definer
begin
  declare v_now bigint;
  declare v_prefix, v_after varbinary(1024) default '';

  set v_prefix = coalesce(cast(p_prefix as binary), ''), v_after = coalesce(cast(p_after as binary), '');
  set p_limit = coalesce(p_limit, 0);
  call token_clock_v1(v_now);
  select convert(s.id using utf8mb4) as id, s.most as max_requests, s.interval_ns * 0.000000001 as interval_seconds,
         s.resolution_ns * 0.000000001 as resolution_seconds,
         if(min(s.c) < 0, null, cast(coalesce(sum(if(s.e > s.now - s.interval_ns, s.c, 0)), 0) as signed)) as counted,
         cast(s.most - coalesce(sum(if(s.e > s.now - s.interval_ns, s.c, 0)), 0) as signed) as available, s.granted,
         (greatest(s.now, s.newest - s.resolution_ns,
                   coalesce(cast(max(if(s.so_far > s.most - 1, s.e, null)) as decimal(20)) + s.interval_ns, 0)) - s.now + 999999)
           div 1000000 as retry_after_ms, s.id as id_bytes
    from (select w.id, w.most, w.interval_ns, w.resolution_ns, w.newest, w.granted, j.e, j.c,
                 sum(j.c) over (partition by w.id order by j.e desc) as so_far,
                 -- After a step of the clock backwards, what was counted since counts as of now.
                 if(w.newest - v_now > w.last_wait + w.resolution_ns + 1000000000, w.newest - w.resolution_ns, v_now)
                   as now
            from (select t.id, t.granted, t.newest,
                         -- What breaks its bounds is answered as null: no figure of it can fail the whole page.
                         if(t.sound, t.most, null) as most, if(t.sound, t.interval_ns, 0) as interval_ns,
                         if(t.sound, t.resolution_ns, 0) as resolution_ns, if(t.sound, t.last_wait, 0) as last_wait,
                         if(t.sound, t.counts, '[]') as counts
                    from (select k.*,
                                 json_valid(k.counts) and k.most >= 1
                                 and k.interval_ns between 1 and 31622400000000000
                                 and k.resolution_ns between 1 and 31622400000000000
                                 and k.last_wait between 0 and 31622400000000000
                                 and k.newest between 0 and 4611686018427387903 as sound
                            from token_windows k) t
                   where t.granted <> 0 and t.id > v_after and t.id >= v_prefix
                     and (v_prefix = '' or t.id <= concat(v_prefix, repeat(x'F48FBFBF', 64)))
                   order by t.id limit p_limit) w
            left join json_table(w.counts, '$[*]' columns (e bigint path '$[0]', c bigint path '$[1]')) as j on true) s
   group by s.id, s.most, s.interval_ns, s.resolution_ns, s.newest, s.granted, s.now
   order by s.id;
end
