-- Everything of tollgate's lives in a schema of its own. PUBLIC may not even look into it:
-- ../grants/postgres.sql gives a role of yours what it needs.
create schema if not exists tollgate;

revoke all on schema tollgate from public;

comment on schema tollgate is 'Exact rate limiting: select * from tollgate.request_token(''my-bucket'')';
