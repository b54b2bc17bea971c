-- token_not_whole_v1: refuses a number with a fraction, which the server would round to a whole number without an error.
--
-- Arguments: p_routine, p_argument: as the caller knows them; p_number
-- Errors:    22023 always
create procedure token_not_whole_v1(
  in p_routine varchar(40) character set ascii, in p_argument varchar(20) character set ascii,
  in p_number decimal(40, 20))
no sql
sql security definer
begin
  declare v_message varchar(128) character set ascii
    default concat('tollgate: ', p_routine, ': ', p_argument, ' must be a whole number: ',
                   trim(trailing '.' from trim(trailing '0' from p_number)));
  signal sqlstate '22023' set message_text = v_message;
end
