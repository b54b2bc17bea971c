//! The schema is created automatically, once, next to any other objects of the database.

use std::borrow::Cow;
use std::time::Duration;

use anyhow::ensure;
use sqlx::AssertSqlSafe;
use sqlx::migrate::{Migration as HostMigration, MigrationType, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use tokio::task::JoinSet;
use tollgate::{Error, Quota, store::Migration};

use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, small, with_pool, with_session};
use crate::rig::{AnyPool, Rig};

pub fn cases() -> Vec<Case> {
    [
        list!(Levels::Pools, Time::Real, |_| true;
            a_second_run_finds_nothing_to_do,
            twenty_instances_start_at_once,
            a_dry_run_changes_nothing,
            migrations_run_by_hand_are_recognized,
            the_hosts_own_migrations_stay_apart,
            newer_schema_works_with_this_version,
            newer_schema_without_required_objects_is_refused,
            host_object_of_the_same_name_is_refused_and_kept,
            a_request_before_the_migrations_says_how_to_run_them)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind != Kind::Sqlite;
            a_database_of_the_longest_name_is_migrated)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::Postgres && engine.has_sessions;
            twenty_instances_migrate_at_once_under_serializable)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind != Kind::Sqlite && engine.has_sessions;
            session_that_holds_the_migration_lock_is_named,
            migration_gives_up_behind_an_open_transaction)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::Postgres;
            tables_have_fillfactor_and_vacuum_for_their_writes)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::MySql;
            run_killed_at_any_statement_is_finished_by_the_next,
            without_autocommit_every_step_is_noted)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::Sqlite;
            a_file_of_another_encoding_is_refused)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind != Kind::MySql;
            failed_migration_leaves_nothing)
        .to_vec(),
    ]
    .concat()
}

async fn a_second_run_finds_nothing_to_do(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    assert_eq!(migrate(&scratch.rig).await?, all(&rig));
    assert_eq!(migrate(&scratch.rig).await?, []);
    works(&scratch.rig).await
}

async fn twenty_instances_start_at_once(rig: Rig) -> anyhow::Result<()> {
    start_twenty(&Scratch::new(&rig).await?).await
}

async fn twenty_instances_migrate_at_once_under_serializable(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    let set = "'alter database %I set default_transaction_isolation = serializable'";
    scratch.rig.pool.run(format!("do $$ begin execute format({set}, current_database()); end $$")).await?;
    start_twenty(&scratch).await
}

async fn start_twenty(scratch: &Scratch) -> anyhow::Result<()> {
    let mut instances = JoinSet::new();
    for _ in 0..20 {
        let instance = scratch.rig.on(scratch.rig.pool.clone());
        instances.spawn(async move { migrate(&instance).await });
    }
    let mut did = 0;
    while let Some(migrated) = instances.join_next().await {
        did += migrated??.len();
    }
    assert_eq!(did, all(&scratch.rig).len(), "each migration is run once");
    works(&scratch.rig).await
}

async fn session_that_holds_the_migration_lock_is_named(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    let (holds, waits, end) = match rig.engine.kind {
        Kind::MySql => (
            "select get_lock(concat('tollgate.', left(sha2(database(), 256), 48)), 0)",
            "set session lock_wait_timeout = 1",
            "end it: kill ",
        ),
        _ => (
            "select pg_advisory_lock(8390043843661231205)",
            "set lock_timeout = '200ms'",
            "end it: select pg_terminate_backend(",
        ),
    };
    let (holder, _) = with_session(&scratch.rig, holds).await?;
    let (waiter, _) = with_session(&scratch.rig, waits).await?;
    let error = migrate(&waiter).await.expect_err("another session holds the lock").to_string();
    assert!(error.contains(end), "{error}");
    drop(holder);
    migrate(&scratch.rig).await?;
    if rig.engine.kind == Kind::Postgres {
        // Once a ledger exists, only roles that can write it can delay others.
        let (_holder, _) = with_session(&scratch.rig, holds).await?;
        with_pool!(&waiter.pool, pool => tollgate::store::repair(pool).await)?;
    }
    works(&scratch.rig).await
}

/// Otherwise all decisions would wait behind the migration.
async fn migration_gives_up_behind_an_open_transaction(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let key = scratch.rig.bucket(Quota::once(5)?).await?;
    let (user, _) = with_session(&scratch.rig, "select 1").await?;
    let take = scratch.rig.calling("request_token", &scratch.rig.literal(&key));
    user.pool.run(format!("begin; {take}")).await?;
    let repaired = with_pool!(&scratch.rig.pool, pool => tollgate::store::repair(pool).await);
    // MariaDB replaces a routine that an open transaction has called.
    let waits = rig.engine.kind == Kind::Postgres || repaired.is_err();
    if waits {
        let error = repaired.expect_err("the transaction is open");
        assert!(matches!(error, Error::Contended { .. }), "{error:?}");
    }
    user.pool.run("rollback").await?;
    with_pool!(&scratch.rig.pool, pool => tollgate::store::repair(pool).await)?;
    works(&scratch.rig).await
}

async fn a_database_of_the_longest_name_is_migrated(rig: Rig) -> anyhow::Result<()> {
    let longest = if rig.engine.kind == Kind::MySql { 64 } else { 63 };
    let name = format!("tollgate_scratch_{}_{}", uuid::Uuid::new_v4().simple(), "x".repeat(64));
    let scratch = Scratch::named(&rig, &name[..longest]).await?;
    assert_eq!(migrate(&scratch.rig).await?, all(&rig));
    works(&scratch.rig).await
}

async fn a_dry_run_changes_nothing(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    for _ in 0..2 {
        assert_eq!(pending(&scratch.rig).await?, all(&rig));
    }
    migrate(&scratch.rig).await?;
    assert_eq!(pending(&scratch.rig).await?, []);
    Ok(())
}

async fn migrations_run_by_hand_are_recognized(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    for migration in all(&rig) {
        scratch.rig.pool.run(migration.sql()).await?;
    }
    assert_eq!(migrate(&scratch.rig).await?, []);
    works(&scratch.rig).await
}

async fn the_hosts_own_migrations_stay_apart(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    let host = |versions: &[i64]| {
        let migrations = versions.iter().map(|&version| {
            let sql = AssertSqlSafe(format!("create table host_{version} (n int)"));
            HostMigration::new(
                version,
                Cow::Owned(format!("host {version}")),
                MigrationType::Simple,
                sqlx::SqlSafeStr::into_sql_str(sql),
                false,
            )
        });
        Migrator::with_migrations(migrations.collect())
    };
    with_pool!(&scratch.rig.pool, pool => host(&[1]).run(pool).await?);
    migrate(&scratch.rig).await?;
    with_pool!(&scratch.rig.pool, pool => host(&[1, 2]).run(pool).await?);
    assert_eq!(migrate(&scratch.rig).await?, []);
    works(&scratch.rig).await
}

/// An old service version restarts during a rolling deployment.
async fn newer_schema_works_with_this_version(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    scratch.rig.pool.run(format!("alter table {} add column later int", rig.table())).await?;
    scratch.rig.pool.run(later(&rig)).await?;
    assert_eq!(migrate(&scratch.rig).await?, []);
    assert_eq!(pending(&scratch.rig).await?, []);
    works(&scratch.rig).await
}

async fn newer_schema_without_required_objects_is_refused(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    scratch.rig.pool.run(later(&rig)).await?;
    scratch.rig.pool.run(format!("delete from {} where version = 2", ledger(&rig))).await?;
    for refused in [migrate(&scratch.rig).await, pending(&scratch.rig).await] {
        let error = refused.expect_err("the database is newer");
        assert!(matches!(error, Error::NewerSchema { found: 999, .. }), "{error:?}");
        assert!(error.to_string().contains("update the tollgate dependency"), "{error}");
    }
    Ok(())
}

fn later(rig: &Rig) -> String {
    format!("insert into {} (version, name) values (999, 'later')", ledger(rig))
}

fn ledger(rig: &Rig) -> &'static str {
    if rig.engine.kind == Kind::Postgres { "tollgate.migrations" } else { "token_migrations" }
}

async fn host_object_of_the_same_name_is_refused_and_kept(rig: Rig) -> anyhow::Result<()> {
    let foreign: &[(&str, &str)] = match rig.engine.kind {
        Kind::Postgres => &[
            (
                "create schema tollgate; create table tollgate.token_buckets (id int)",
                "select id from tollgate.token_buckets",
            ),
            (
                "create schema tollgate; create function tollgate.peek(id text) returns int language sql return 7",
                "select tollgate.peek('a')",
            ),
        ],
        Kind::MySql => &[
            ("create table token_buckets (id int)", "select id from token_buckets"),
            ("create procedure request_token(in p_bucket int) select p_bucket", "call request_token(7)"),
        ],
        Kind::Sqlite => &[("create table token_buckets (id int)", "select id from token_buckets")],
    };
    for (create, call) in foreign {
        let scratch = Scratch::new(&rig).await?;
        scratch.rig.pool.run(*create).await?;
        for attempt in 1..=2 {
            let error = migrate(&scratch.rig).await.expect_err("the name is taken");
            assert!(matches!(error, Error::Database(_)), "attempt {attempt}: {error:?}");
            scratch.rig.pool.run(*call).await?;
        }
    }
    Ok(())
}

async fn a_request_before_the_migrations_says_how_to_run_them(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    let error = scratch.rig.take(&rig.key()).await.expect_err("there is no table");
    let error = error.downcast::<Error>()?;
    assert!(matches!(error, Error::NotMigrated(_)), "{error:?}");
    assert!(error.to_string().contains("tollgate::migrate"), "{error}");
    Ok(())
}

/// Covers the states of a killed run: a migration was announced, and some of its statements have run.
async fn run_killed_at_any_statement_is_finished_by_the_next(rig: Rig) -> anyhow::Result<()> {
    let all = all(&rig);
    for (at, killed) in all.iter().enumerate() {
        let statements: Vec<_> = killed.statements().collect();
        ensure!(statements.len() > 2, "{}: {statements:?}", killed.name());
        for ran in 0..statements.len() {
            let scratch = Scratch::new(&rig).await?;
            for migration in &all[..at] {
                scratch.rig.pool.run(migration.sql()).await?;
            }
            if at > 0 {
                let (version, name) = (killed.version(), killed.name());
                let announce = format!("insert into token_migrations values ({version}, '{name}', null)");
                scratch.rig.pool.run(announce).await?;
            }
            for statement in &statements[..ran] {
                scratch.rig.pool.run(*statement).await?;
            }
            assert_eq!(migrate(&scratch.rig).await?, all[at..], "{} was killed after {ran} statements", killed.name());
            works(&scratch.rig).await?;
        }
    }
    Ok(())
}

async fn without_autocommit_every_step_is_noted(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    let (session, _) = with_session(&scratch.rig, "set autocommit = 0").await?;
    assert_eq!(migrate(&session).await?, all(&rig));
    assert_eq!(pending(&scratch.rig).await?, []);
    works(&scratch.rig).await
}

async fn a_file_of_another_encoding_is_refused(_: Rig) -> anyhow::Result<()> {
    for encoding in ["UTF-16le", "UTF-16be"] {
        let options = SqliteConnectOptions::new().in_memory(true).pragma("encoding", format!("'{encoding}'"));
        let pool = small(1).connect_with(options).await?;
        let refused = tollgate::migrate::<sqlx::Sqlite>(&pool).await.expect_err("no text there is the bytes of a key");
        assert!(refused.to_string().contains(encoding), "{refused}");
        assert_eq!(
            tollgate::store::pending_migrations(&pool).await?,
            tollgate::store::migrations::<sqlx::Sqlite>(),
            "nothing was made"
        );
    }
    Ok(())
}

async fn failed_migration_leaves_nothing(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::new(&rig).await?;
    // An obstacle with the name of the last migration's view.
    let obstacle = match rig.engine.kind {
        Kind::Sqlite => ("create table token_bucket_levels (n int)", "drop table token_bucket_levels"),
        _ => {
            // The schema must not exist beforehand, so the obstacle is a trigger on object creation.
            (
                "create function stop() returns event_trigger language plpgsql as $$ begin
                if exists (select from pg_event_trigger_ddl_commands() c where c.object_identity like '%levels%') then
                  raise exception 'stopped';
                end if; end $$;
              create event trigger stop on ddl_command_end execute function stop()",
                "drop event trigger stop",
            )
        }
    };
    scratch.rig.pool.run(obstacle.0).await?;
    migrate(&scratch.rig).await.expect_err("it is stopped at its last step");
    assert_eq!(pending(&scratch.rig).await?, all(&rig), "nothing of it stays");
    scratch.rig.pool.run(obstacle.1).await?;
    assert_eq!(migrate(&scratch.rig).await?, all(&rig));
    works(&scratch.rig).await
}

async fn migrate(rig: &Rig) -> Result<Vec<Migration>, Error> {
    with_pool!(&rig.pool, pool => tollgate::migrate(pool).await)
}

async fn pending(rig: &Rig) -> Result<Vec<Migration>, Error> {
    with_pool!(&rig.pool, pool => tollgate::store::pending_migrations(pool).await)
}

fn all(rig: &Rig) -> Vec<Migration> {
    match rig.pool {
        AnyPool::MySql(_) => tollgate::store::migrations::<sqlx::MySql>().to_vec(),
        AnyPool::Postgres(_) => tollgate::store::migrations::<sqlx::Postgres>().to_vec(),
        AnyPool::Sqlite(_) => tollgate::store::migrations::<sqlx::Sqlite>().to_vec(),
    }
}

/// Checks that a migrated database works.
async fn works(rig: &Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::interval(1, Duration::from_secs(86_400))?).await?;
    assert!(rig.take(&key).await?.is_granted());
    assert!(!rig.take(&key).await?.is_granted());
    Ok(())
}

/// Tables that are not named here are small and written by hand.
async fn tables_have_fillfactor_and_vacuum_for_their_writes(rig: Rig) -> anyhow::Result<()> {
    let settings = "select c.relname, array_to_string(c.reloptions, ' ') as options
                      from pg_class c join pg_namespace n on n.oid = c.relnamespace
                     where n.nspname = 'tollgate' and c.relkind = 'r' and c.reloptions is not null
                     order by c.relname";
    let mut found = Vec::new();
    for row in rig.sql(settings).await? {
        found.push((
            row.text("relname")?.unwrap_or_default().to_owned(),
            row.text("options")?.unwrap_or_default().to_owned(),
        ));
    }
    let early = "autovacuum_vacuum_scale_factor=0.02 autovacuum_vacuum_cost_delay=0";
    let expected = [
        ("token_buckets", format!("fillfactor=90 {early}")),
        ("token_receipts", early.to_owned()),
        ("token_stats", "fillfactor=50".to_owned()),
        ("token_windows", format!("fillfactor=75 {early}")),
    ];
    assert_eq!(found, expected.map(|(table, options)| (table.to_owned(), options)));
    Ok(())
}
