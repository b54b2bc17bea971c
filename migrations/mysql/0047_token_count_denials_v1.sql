-- token_count_denials_v1: add what a process has counted, and forget what is older than two days.
--
-- Arguments: p_denials  a JSON array of [hex of the id's bytes, denied], 1000 at most:
--                       '[["757365723a31", 5], ["757365723a32", 1]]'
-- Errors:    22023 arguments out of range
-- Locks:     the rows of these keys in this hour, in the order of their ids, so two calls never wait for each other, and
--            up to 1000 old rows, in a transaction of its own unless inside the caller's. No decision looks at any of
--            them.
create procedure token_count_denials_v1(in p_denials longtext character set utf8mb4)
modifies sql data
sql security definer
begin
  declare v_own boolean default @@autocommit;
  declare v_now bigint;
  declare v_at datetime(6);
  declare v_hour datetime;
  declare continue handler for 1568 set v_own = false;  -- inside a transaction of the caller's

  if (json_valid(p_denials) and json_type(p_denials) = 'ARRAY' and json_length(p_denials) <= 1000
      and json_length(p_denials) = (
        select count(*)
          from json_table(p_denials, '$[*]' columns (
                 id varchar(1024) character set ascii path '$[0]', denied bigint path '$[1]')) as d
         where length(unhex(d.id)) between 1 and 255 and left(unhex(d.id), 1) <> x'01' and locate(x'00', unhex(d.id)) = 0
           and cast(convert(unhex(d.id) using utf8mb4) as binary) <=> unhex(d.id) and d.denied between 1 and 1000000000000000)) is not true then
    signal sqlstate '22023' set message_text =
      'tollgate: token_count_denials_v1 takes a JSON array of up to 1000 [hex of a valid id, denials]: [["6b", 5]]';
  end if;
  if v_own then
    set transaction isolation level read committed;
  end if;
  if v_own then
    start transaction;
  end if;

  begin
    declare exit handler for sqlexception
    begin
      if v_own then rollback and no chain no release; end if;
      resignal;
    end;

    call token_clock_v1(v_now);
    set v_at = timestamp('1970-01-01') + interval v_now div 1000 microsecond;
    set v_hour = timestamp(date(v_at)) + interval hour(v_at) hour;
    insert into token_stats (hour, id, denied, last_denied_at)
    select v_hour, unhex(d.id), d.denied, v_at
      from json_table(p_denials, '$[*]' columns (
             id varchar(1024) character set ascii path '$[0]', denied bigint path '$[1]')) as d
     order by unhex(d.id)
        on duplicate key update
           denied = least(cast(token_stats.denied as decimal(20, 0)) + values(denied), 9223372036854775807),
           last_denied_at = greatest(token_stats.last_denied_at, v_at);
    delete from token_stats where hour < v_hour - interval 48 hour order by hour, id limit 1000;
    if v_own then commit and no chain no release; end if;
  end;
end
