//! Objects, settings and requests of a login with the application's role: refused, or without effect.

use std::time::Duration;

use anyhow::{Context, ensure};
use sqlx::error::DatabaseError;
use tollgate::{Admin, Key, Quota};

use super::calls::{Draw, Routine, granted};
use crate::cases::privileges::Login;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup { needs: |engine| engine.has_roles, ..Setup::WITHOUT_LAYERS };
        application_role_cannot_gain_rights,
    );
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        objects_of_a_login_are_called_by_no_routine,
        printed_plans_show_a_login_no_key,
        statistics_show_a_login_no_key,
    ));
    cases
}

async fn application_role_cannot_gain_rights(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let owner = &scratch.db;
    let key = owner.bucket(Quota::once(5)?).await?;
    ensure!(owner.take(&key).await?.is_granted());
    let before = owner.row(&key).await?;
    let login = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    let attempts = match db.engine.kind {
        Kind::Postgres => {
            owner.pool.run(format!("grant create on schema public to {}", login.name)).await?;
            ESCALATIONS_ON_POSTGRES
        }
        _ => ESCALATIONS_ON_MYSQL,
    };
    let mut accepted = Vec::new();
    for attempt in attempts {
        let outcome = login.db.pool.run(*attempt).await;
        login.db.pool.run("rollback").await?;
        match outcome {
            Ok(()) => accepted.push((*attempt).to_owned()),
            Err(error) => {
                let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default().into_owned();
                // Privileges: 42501, 42000, 28000. A role without a grant: HY000 on MySQL, OP000 on MariaDB.
                if !["42501", "42000", "28000", "HY000", "OP000"].contains(&&*code) {
                    accepted.push(format!("{attempt}: {error}"));
                }
            }
        }
    }
    ensure!(accepted.is_empty(), "not refused:\n{}", accepted.join("\n"));
    assert_eq!(owner.row(&key).await?, before);
    ensure!(login.db.take(&key).await?.is_granted(), "the login can still do what it may");
    if db.engine.kind == Kind::Postgres {
        owner.pool.run(format!("revoke create on schema public from {}", login.name)).await?;
    }
    login.remove().await
}

/// Calls each granted routine from a login that has filled `public` and `pg_temp`. The effects equal those of an honest login.
async fn objects_of_a_login_are_called_by_no_routine(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let owner = &scratch.db;
    let login = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    owner.pool.run(format!("grant create on schema public to {}", login.name)).await?;
    let app = &login.db;
    let routines = granted(owner, app).await?;
    let expected = effects(owner, owner, &routines).await?;
    app.pool.run(include_str!("shadowing.sql")).await?;
    app.pool.run(TEMPORARY).await?;
    for search_path in ["default", "pg_temp, public, tollgate, pg_catalog"] {
        app.pool.run(format!("set search_path = {search_path}")).await?;
        // The traps work: an unqualified name calls one.
        let entered = app.pool.run("select 1.5 * 2").await.expect_err("a trap").to_string();
        ensure!(entered.contains("entered"), "{entered}");
        let effects = effects(owner, app, &routines).await?;
        for (expected, found) in expected.iter().zip(&effects) {
            assert_eq!(expected, found, "with search_path = {search_path}");
        }
    }
    app.pool.run("discard temp").await?;
    owner.pool.run(format!("drop owned by {}", login.name)).await?;
    login.remove().await
}

/// `ANALYZE` samples keys into the statistics, which a login reads only for tables that it can read.
async fn statistics_show_a_login_no_key(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let owner = &scratch.db;
    for _ in 0..3 {
        owner.bucket(Quota::once(5)?).await?;
    }
    owner.pool.run("analyze tollgate.token_buckets").await?;
    let login = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    let sql = "select tablename from pg_stats where schemaname = 'tollgate'";
    ensure!(!owner.sql(sql).await?.is_empty());
    assert_eq!(login.db.sql(sql).await?, []);
    login.remove().await
}

/// A session can have each plan of its statements sent to itself, with the values that a plan was made for.
async fn printed_plans_show_a_login_no_key(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let settings = scratch
        .db
        .sql("select unnest(proconfig) as setting from pg_proc where oid = 'tollgate.sweep_v1'::regproc")
        .await?;
    let settings = settings.iter().map(|row| row.text("setting")).collect::<Result<Vec<_>, _>>()?;
    for off in ["debug_print_parse=off", "debug_print_rewritten=off", "debug_print_plan=off"] {
        ensure!(settings.iter().flatten().any(|setting| *setting == off), "{off} is not among {settings:?}");
    }
    Ok(())
}

/// The state of a separate bucket after a usual call of each routine, in the order of the routines.
async fn effects(owner: &TestDb, caller: &TestDb, routines: &[Routine]) -> anyhow::Result<Vec<(String, i64, i64)>> {
    let mut effects = Vec::new();
    for routine in routines {
        let key: Key = if routine.name == "rate_limiting_request" {
            owner.key()
        } else {
            owner.bucket(Quota::continuous(5, 5 * DAY)?).await?
        };
        let mut draw = Draw::new(7, owner, std::slice::from_ref(&key));
        let call = draw.call(routine, 0).sql;
        caller.sql(call.clone()).await.with_context(|| call.clone())?;
        let row = owner.row(&key).await?.with_context(|| call.clone())?;
        let level = owner.store().peek(&key).await?.context(call)?;
        effects.push((routine.name.clone(), row.granted, level.available()));
    }
    Ok(effects)
}

/// Tables, types and functions with the names that routines use, where the session looks first.
const TEMPORARY: &str = "
    create temp table token_buckets (id text, capacity bigint, full_at bigint, granted bigint);
    create temp table token_mode (one boolean, mode text, until timestamptz);
    insert into token_mode values (true, 'off', 'infinity');
    create temp table token_plans (name text, mode text);
    create temp table token_overrides (id text, mode text);
    create temp table token_receipts (id uuid, bucket text, state text);
    create temp table token_windows (id text, ends bigint[], counts bigint[]);
    create temp table token_stats (hour timestamptz, id text, denied bigint);
    create temp table pg_proc (oid oid, proname name);
    create temp table pg_class (oid oid, relname name);
    create type pg_temp.taken_v1 as (outcome text);
    create function pg_temp.clock() returns bigint language sql as 'select 1::bigint';
    create function pg_temp.clock_timestamp() returns timestamptz language sql as $$ select timestamptz '2000-01-01' $$";

const ESCALATIONS_ON_POSTGRES: &[&str] = &[
    "set role tollgate_operator",
    "set role postgres",
    "set session authorization postgres",
    "set session_replication_role = replica",
    "grant tollgate_operator to current_user",
    "grant select on tollgate.token_buckets to public",
    "alter role current_user superuser",
    "set row_security = off; select 1 from tollgate.token_receipts",
    "copy tollgate.token_buckets to stdout",
    "copy tollgate.token_overrides to program 'true'",
    "select pg_read_file('PG_VERSION')",
    "select lo_import('/etc/passwd')",
    "begin; lock table tollgate.token_buckets",
    "begin; lock table tollgate.migrations in access share mode",
    "begin; declare c cursor with hold for select * from tollgate.token_buckets",
    "prepare p as select * from tollgate.token_receipts; execute p",
    "create temp view v as select * from tollgate.token_receipts; select * from v",
    "create table public.copied (like tollgate.token_buckets)",
    "create table public.heir () inherits (tollgate.token_buckets)",
    "create table public.referring (id text references tollgate.token_buckets)",
    "create trigger t before update on tollgate.token_buckets for each row execute function tsvector_update_trigger()",
    "create rule r as on insert to tollgate.token_buckets do instead nothing",
    "create policy p on tollgate.token_buckets",
    "create index on tollgate.token_buckets (granted)",
    "create function tollgate.clock(text) returns bigint language sql as 'select 1::bigint'",
    "create or replace function tollgate.clock() returns bigint language sql as 'select 1::bigint'",
    "alter function tollgate.request_token(text) security invoker",
    "alter function tollgate.request_token(text) set search_path = public",
    "drop function tollgate.request_token(text)",
    "alter table tollgate.token_buckets disable trigger all",
    "truncate tollgate.token_receipts",
    "alter schema tollgate rename to t",
    "alter database postgres set search_path = public",
    "create operator class public.o default for type text using btree as operator 1 <",
];

const ESCALATIONS_ON_MYSQL: &[&str] = &[
    "create temporary table token_mode (one boolean, mode varchar(7))",
    "create table made (n int)",
    "create view made as select 1",
    "create function token_made() returns int deterministic return 1",
    "create procedure token_made() begin end",
    "create trigger made before update on token_buckets for each row set new.granted = 0",
    "create event made on schedule every 1 day do begin end",
    "alter procedure request_token sql security invoker",
    "drop procedure request_token",
    "alter table token_buckets add column n int",
    "rename table token_buckets to b",
    "truncate table token_receipts",
    "handler token_buckets open",
    "lock tables token_buckets write",
    "lock tables token_migrations read",
    "flush tables",
    "select * from token_receipts",
    "select reason from token_overrides",
    "show create table token_buckets",
    "show index from token_buckets",
    "explain select * from token_buckets",
    "checksum table token_buckets",
    "select * from mysql.innodb_index_stats",
    "select authentication_string from mysql.user",
    "load data infile '/etc/passwd' into table token_buckets",
    "select 1 into outfile '/tmp/tollgate'",
    "grant select on token_buckets to tollgate_app",
    "grant tollgate_operator to current_user()",
    "set role tollgate_operator",
    "set global sql_mode = ''",
    "set sql_log_bin = 0",
    "insert into token_migrations select * from token_migrations",
];

const DAY: Duration = Duration::from_hours(24);
