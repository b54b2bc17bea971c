-- Gives a new bucket the columns that follow from its terms, or says why there can be no such bucket.
create trigger token_bucket_made before insert on token_buckets for each row
begin
  declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;

  if (length(new.id) between 1 and 255 and locate(x'00', new.id) = 0) is not true then
    signal sqlstate '23514' set message_text = 'tollgate: a bucket id has 1 to 255 bytes, none of them 0';
  end if;
  call token_terms_v1('bucket', new.id, new.capacity, new.refill_seconds, new.refill,
                      v_burst, v_step_ns, v_step_ticks, v_token_ticks);
  -- Its grid goes through the instant of its making, and all the way back: clocks can be set to before it.
  set new.burst = v_burst, new.step_ns = v_step_ns, new.step_ticks = v_step_ticks, new.token_ticks = v_token_ticks,
      new.anchor = if(new.refill = 'calendar', 0, if(new.anchor < 0, token_clock_v1(), new.anchor) mod v_step_ns);
end
