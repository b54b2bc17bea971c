-- Brings a bucket whose own terms were changed, by whatever UPDATE, to the new terms, unless its state is under an
-- override's. Its row is locked by then, so the clock may be read.
create trigger token_bucket_changed before update on token_buckets for each row
begin
  if not (new.capacity <=> old.capacity and new.refill_seconds <=> old.refill_seconds and new.refill <=> old.refill
          and new.id <=> old.id) then
    begin
      declare v_burst, v_step_ns, v_step_ticks, v_token_ticks bigint;
      declare w_burst, w_step_ns, w_step_ticks, w_token_ticks, w_anchor, w_full_at, w_longest_wait bigint;

      if (length(new.id) between 1 and 255 and locate(x'00', new.id) = 0) is not true then
        signal sqlstate '23514' set message_text = 'tollgate: a bucket id has 1 to 255 bytes, none of them 0';
      end if;
      call token_terms_v1('bucket', new.id, new.capacity, new.refill_seconds, new.refill,
                          v_burst, v_step_ns, v_step_ticks, v_token_ticks);
      if not new.overridden then
        set w_burst = old.burst, w_step_ns = old.step_ns, w_step_ticks = old.step_ticks,
            w_token_ticks = old.token_ticks, w_anchor = old.anchor, w_full_at = old.full_at,
            w_longest_wait = old.longest_wait;
        call token_settle_v1(token_clock_v1(), v_burst, v_step_ns, v_step_ticks, v_token_ticks, new.refill,
                             w_burst, w_step_ns, w_step_ticks, w_token_ticks, w_anchor, w_full_at, w_longest_wait);
        set new.burst = w_burst, new.step_ns = w_step_ns, new.step_ticks = w_step_ticks,
            new.token_ticks = w_token_ticks, new.anchor = w_anchor, new.full_at = w_full_at,
            new.longest_wait = w_longest_wait;
      end if;
    end;
  end if;
end
