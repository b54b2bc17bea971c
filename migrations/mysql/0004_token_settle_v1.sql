-- token_settle_v1: a bucket's state, brought from the terms that it was written under to others. Reckons only.
--
-- Tokens that are there stay, fractions too, up to the new capacity; if the clock was set back, the bucket is empty.
-- Arguments: p_now in nanoseconds since 1970
--            io_burst to io_token_ticks, io_anchor, io_full_at, io_longest_wait: the bucket's columns, then the new
--            ones
--            p_burst to p_token_ticks, p_refill: the new terms
create procedure token_settle_v1(
  in p_now bigint, in p_burst bigint, in p_step_ns bigint, in p_step_ticks bigint, in p_token_ticks bigint,
  in p_refill varchar(10) character set ascii collate ascii_bin,
  inout io_burst bigint, inout io_step_ns bigint, inout io_step_ticks bigint, inout io_token_ticks bigint,
  inout io_anchor bigint, inout io_full_at bigint, inout io_longest_wait bigint)
no sql
sql security definer
begin
  declare v_owed bigint default io_full_at - (p_now - io_anchor) div io_step_ns * io_step_ticks;
  declare v_available decimal(65, 0) default 0;  -- in ticks; negative while grants still wait for their tokens
  declare v_clock, v_year bigint;

  if v_owed <= io_burst + io_longest_wait + (1000000000 div io_step_ns + 1) * io_step_ticks then
    set v_available = io_burst - greatest(v_owed, 0);
  end if;
  if p_refill = 'calendar' then
    set io_anchor = 0;
  end if;
  set v_clock = (p_now - io_anchor) div p_step_ns * p_step_ticks;
  set v_year = (p_now + 31622400000000000 - io_anchor) div p_step_ns * p_step_ticks - v_clock;
  -- v_available * new / old, rounded down, and kept between a year's debt and a full bucket
  set v_available = least(greatest(v_available * p_token_ticks, -cast(v_year as decimal(65, 0)) * io_token_ticks),
                          cast(p_burst as decimal(65, 0)) * io_token_ticks);
  set v_available = if(v_available < 0, -((io_token_ticks - 1 - v_available) div io_token_ticks),
                       v_available div io_token_ticks);
  set io_full_at = v_clock + p_burst - v_available, io_longest_wait = greatest(-v_available, 0),
      io_burst = p_burst, io_step_ns = p_step_ns, io_step_ticks = p_step_ticks, io_token_ticks = p_token_ticks;
end
