-- How far the sweep has come, for all sessions that sweep. One row, made by the first step.
create table token_sweep_position (
  one      integer primary key check (one = 1),
  swept_to text                            -- a table, and behind which of its rows the next step begins; null: it begins anew
) strict;
