-- Which of these files have run.
create table token_migrations (
  version    integer not null primary key,
  name       text not null,
  applied_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ'))
) strict;
