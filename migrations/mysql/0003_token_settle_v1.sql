-- token_settle_v1: bring a bucket to new terms, or to the same ones again if the clock was set back.
--
-- Tokens that are there stay, fractions too, up to the new capacity; if the clock was set back, the bucket is empty.
-- Arguments: p_id; p_now in nanoseconds since 1970; p_capacity in tokens, p_refill_seconds, p_refill: the new terms;
--            null: those that it has
-- Locks:     the bucket's row, which the caller holds already, in a transaction.
create procedure token_settle_v1(
  in p_id varbinary(255), in p_now bigint,
  in p_capacity bigint, in p_refill_seconds decimal(19, 9), in p_refill varchar(10) character set ascii)
modifies sql data
sql security definer
begin
  declare v_anchor, v_owed, v_furthest, v_burst, v_old_ticks, v_new_ticks, v_clock, v_year bigint;
  declare v_available decimal(65, 0);  -- in ticks; negative while grants still wait for their tokens

  select anchor, full_at - (p_now - anchor) div step_ns * step_ticks, capacity * token_ticks, token_ticks,
         capacity * token_ticks + longest_wait + (1000000000 div step_ns + 1) * step_ticks
    into v_anchor, v_owed, v_burst, v_old_ticks, v_furthest
    from token_buckets where id = p_id for update;
  set v_available = if(v_owed > v_furthest, 0, v_burst - greatest(v_owed, 0));

  update token_buckets
     set capacity = coalesce(p_capacity, capacity), refill_seconds = coalesce(p_refill_seconds, refill_seconds),
         refill = coalesce(p_refill, refill)
   where id = p_id;
  select token_ticks, capacity * token_ticks, (p_now - anchor) div step_ns * step_ticks,
         (p_now + 31622400000000000 - anchor) div step_ns * step_ticks - (p_now - anchor) div step_ns * step_ticks
    into v_new_ticks, v_burst, v_clock, v_year
    from token_buckets where id = p_id;

  -- v_available × new ÷ old, rounded down, and kept between a year's debt and a full bucket
  set v_available = least(greatest(v_available * v_new_ticks, -cast(v_year as decimal(65, 0)) * v_old_ticks),
                          cast(v_burst as decimal(65, 0)) * v_old_ticks);
  set v_available = if(v_available < 0, -((v_old_ticks - 1 - v_available) div v_old_ticks),
                       v_available div v_old_ticks);
  update token_buckets
     set full_at = v_clock + v_burst - v_available, longest_wait = greatest(-v_available, 0)
   where id = p_id;
end
