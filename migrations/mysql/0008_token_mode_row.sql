-- The one row of token_mode.
insert ignore into token_mode (one) values (true)
