-- How far the sweep has come, for all sessions that sweep. One row, made by the first step.
create table token_sweep_position (
  one      boolean not null default true primary key,
  swept_to varbinary(300) null
           comment 'a table, and behind which of its rows the next step begins; null: it begins anew',
  constraint token_sweep_position_has_one_row check (one = true)
) engine = InnoDB comment = 'How far the sweep has come'
