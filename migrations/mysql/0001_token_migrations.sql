-- Which of these files have run. applied_at is null while one does: MySQL commits each statement of DDL by itself, so
-- a run that was killed is finished by the next, which finds what it had announced.
create table if not exists token_migrations (
  version    bigint not null primary key,
  name       varchar(64) not null,
  applied_at datetime(6) null default (utc_timestamp(6))
) engine = InnoDB comment = 'The ledger of tollgate''s migrations'
