-- token_rule_checks_v1: refuses a plan, a mode or an override that can never be.
--
-- Arguments: p_kind 'plan', 'override' or 'mode'; p_name: whose; p_mode
-- Errors:    23514
create procedure token_rule_checks_v1(
  in p_kind varchar(20) character set ascii, in p_name varbinary(1024),
  in p_mode varchar(7) character set ascii collate ascii_bin)
no sql
sql security definer
begin
  declare v_message varchar(128) character set utf8mb4;

  set v_message = case
    when (length(p_name) between 1 and 255 and locate(x'00', p_name) = 0) is not true
      then concat('the name of a plan and the id of an override have 1 to 255 bytes, none of them 0')
    when p_mode not in ('enforce', 'shadow', 'off', 'block')
      then concat(p_kind, ' ''', left(coalesce(convert(p_name using utf8mb4), ''), 24), ''': mode is ''', p_mode,
                  ''': give ''enforce'', ''shadow'', ''off'' or ''block''')
  end;
  if v_message is not null then
    set v_message = left(concat('tollgate: ', v_message), 128);
    signal sqlstate '23514' set message_text = v_message;
  end if;
end
