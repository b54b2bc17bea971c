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
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, small, with_pool, with_session};
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    // Without layers: the cases run before a store exists.
    [
        list!(
            Setup::WITHOUT_LAYERS;
            a_second_run_finds_nothing_to_do,
            twenty_instances_start_at_once,
            a_dry_run_changes_nothing,
            migrations_run_by_hand_are_recognized,
            the_hosts_own_migrations_stay_apart,
            newer_schema_works_with_this_version,
            newer_schema_without_required_objects_is_refused,
            host_object_of_the_same_name_is_refused_and_kept,
            a_request_before_the_migrations_says_how_to_run_them,
        ),
        list!(
            Setup { needs: |engine| engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
            a_database_of_the_longest_name_is_migrated,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::Postgres && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            twenty_instances_migrate_at_once_under_serializable,
        ),
        list!(
            Setup { needs: |engine| engine.kind != Kind::Sqlite && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            session_that_holds_the_migration_lock_is_named,
            migration_gives_up_behind_an_open_transaction,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS };
            tables_have_fillfactor_and_vacuum_for_their_writes,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            run_killed_at_any_statement_is_finished_by_the_next,
            without_autocommit_every_step_is_noted,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
            a_file_of_another_encoding_is_refused,
        ),
        list!(
            Setup { needs: |engine| engine.kind != Kind::MySql, ..Setup::WITHOUT_LAYERS };
            failed_migration_leaves_nothing,
        ),
    ]
    .concat()
}

async fn a_second_run_finds_nothing_to_do(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    assert_eq!(migrate(&scratch.db).await?, all(&db));
    assert_eq!(migrate(&scratch.db).await?, []);
    works(&scratch.db).await
}

async fn twenty_instances_start_at_once(db: TestDb) -> anyhow::Result<()> {
    start_twenty(&Scratch::new(&db).await?).await
}

async fn twenty_instances_migrate_at_once_under_serializable(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    let set = "'alter database %I set default_transaction_isolation = serializable'";
    scratch.db.pool.run(format!("do $$ begin execute format({set}, current_database()); end $$")).await?;
    start_twenty(&scratch).await
}

async fn start_twenty(scratch: &Scratch) -> anyhow::Result<()> {
    let mut instances = JoinSet::new();
    for _ in 0..20 {
        let instance = scratch.db.on(scratch.db.pool.clone());
        instances.spawn(async move { migrate(&instance).await });
    }
    let mut did = 0;
    while let Some(migrated) = instances.join_next().await {
        did += migrated??.len();
    }
    assert_eq!(did, all(&scratch.db).len(), "each migration is run once");
    works(&scratch.db).await
}

async fn session_that_holds_the_migration_lock_is_named(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    let (holds, waits, end) = match db.engine.kind {
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
    let (holder, _) = with_session(&scratch.db, holds).await?;
    let (waiter, _) = with_session(&scratch.db, waits).await?;
    let error = migrate(&waiter).await.expect_err("another session holds the lock").to_string();
    assert!(error.contains(end), "{error}");
    drop(holder);
    migrate(&scratch.db).await?;
    if db.engine.kind == Kind::Postgres {
        // Once a ledger exists, only roles that can write it can delay others.
        let (_holder, _) = with_session(&scratch.db, holds).await?;
        with_pool!(&waiter.pool, pool => tollgate::store::repair(pool).await)?;
    }
    works(&scratch.db).await
}

/// Otherwise all decisions would wait behind the migration.
async fn migration_gives_up_behind_an_open_transaction(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(Quota::once(5)?).await?;
    let (user, _) = with_session(&scratch.db, "select 1").await?;
    let take = scratch.db.calling("request_token", &scratch.db.literal(&key));
    user.pool.run(format!("begin; {take}")).await?;
    let repaired = with_pool!(&scratch.db.pool, pool => tollgate::store::repair(pool).await);
    // MariaDB replaces a routine that an open transaction has called.
    let waits = db.engine.kind == Kind::Postgres || repaired.is_err();
    if waits {
        let error = repaired.expect_err("the transaction is open");
        assert!(matches!(error, Error::Contended { .. }), "{error:?}");
    }
    user.pool.run("rollback").await?;
    with_pool!(&scratch.db.pool, pool => tollgate::store::repair(pool).await)?;
    works(&scratch.db).await
}

async fn a_database_of_the_longest_name_is_migrated(db: TestDb) -> anyhow::Result<()> {
    let longest = if db.engine.kind == Kind::MySql { 64 } else { 63 };
    let name = format!("tollgate_scratch_{}_{}", uuid::Uuid::new_v4().simple(), "x".repeat(64));
    let scratch = Scratch::named(&db, &name[..longest]).await?;
    assert_eq!(migrate(&scratch.db).await?, all(&db));
    works(&scratch.db).await
}

async fn a_dry_run_changes_nothing(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    for _ in 0..2 {
        assert_eq!(pending(&scratch.db).await?, all(&db));
    }
    migrate(&scratch.db).await?;
    assert_eq!(pending(&scratch.db).await?, []);
    Ok(())
}

async fn migrations_run_by_hand_are_recognized(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    for migration in all(&db) {
        scratch.db.pool.run(migration.sql()).await?;
    }
    assert_eq!(migrate(&scratch.db).await?, []);
    works(&scratch.db).await
}

async fn the_hosts_own_migrations_stay_apart(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
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
    with_pool!(&scratch.db.pool, pool => host(&[1]).run(pool).await?);
    migrate(&scratch.db).await?;
    with_pool!(&scratch.db.pool, pool => host(&[1, 2]).run(pool).await?);
    assert_eq!(migrate(&scratch.db).await?, []);
    works(&scratch.db).await
}

/// An old service version restarts during a rolling deployment.
async fn newer_schema_works_with_this_version(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    scratch.db.pool.run(format!("alter table {} add column later int", db.table())).await?;
    scratch.db.pool.run(later(&db)).await?;
    assert_eq!(migrate(&scratch.db).await?, []);
    assert_eq!(pending(&scratch.db).await?, []);
    works(&scratch.db).await
}

async fn newer_schema_without_required_objects_is_refused(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    scratch.db.pool.run(later(&db)).await?;
    scratch.db.pool.run(format!("delete from {} where version = 2", ledger(&db))).await?;
    for refused in [migrate(&scratch.db).await, pending(&scratch.db).await] {
        let error = refused.expect_err("the database is newer");
        assert!(matches!(error, Error::NewerSchema { found: 999, .. }), "{error:?}");
        assert!(error.to_string().contains("update the tollgate dependency"), "{error}");
    }
    Ok(())
}

fn later(db: &TestDb) -> String {
    format!("insert into {} (version, name) values (999, 'later')", ledger(db))
}

fn ledger(db: &TestDb) -> &'static str {
    if db.engine.kind == Kind::Postgres { "tollgate.migrations" } else { "token_migrations" }
}

async fn host_object_of_the_same_name_is_refused_and_kept(db: TestDb) -> anyhow::Result<()> {
    let foreign: &[(&str, &str)] = match db.engine.kind {
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
        let scratch = Scratch::new(&db).await?;
        scratch.db.pool.run(*create).await?;
        for attempt in 1..=2 {
            let error = migrate(&scratch.db).await.expect_err("the name is taken");
            assert!(matches!(error, Error::Database(_)), "attempt {attempt}: {error:?}");
            scratch.db.pool.run(*call).await?;
        }
    }
    Ok(())
}

async fn a_request_before_the_migrations_says_how_to_run_them(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    let error = scratch.db.take(&db.key()).await.expect_err("there is no table");
    let error = error.downcast::<Error>()?;
    assert!(matches!(error, Error::NotMigrated(_)), "{error:?}");
    assert!(error.to_string().contains("tollgate::migrate"), "{error}");
    Ok(())
}

/// Covers the states of a killed run: a migration was announced, and some of its statements have run.
async fn run_killed_at_any_statement_is_finished_by_the_next(db: TestDb) -> anyhow::Result<()> {
    let all = all(&db);
    for (at, killed) in all.iter().enumerate() {
        let statements: Vec<_> = killed.statements().collect();
        ensure!(statements.len() > 2, "{}: {statements:?}", killed.name());
        for ran in 0..statements.len() {
            let scratch = Scratch::new(&db).await?;
            for migration in &all[..at] {
                scratch.db.pool.run(migration.sql()).await?;
            }
            if at > 0 {
                let (version, name) = (killed.version(), killed.name());
                let announce = format!("insert into token_migrations values ({version}, '{name}', null)");
                scratch.db.pool.run(announce).await?;
            }
            for statement in &statements[..ran] {
                scratch.db.pool.run(*statement).await?;
            }
            assert_eq!(migrate(&scratch.db).await?, all[at..], "{} was killed after {ran} statements", killed.name());
            works(&scratch.db).await?;
        }
    }
    Ok(())
}

async fn without_autocommit_every_step_is_noted(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    let (session, _) = with_session(&scratch.db, "set autocommit = 0").await?;
    assert_eq!(migrate(&session).await?, all(&db));
    assert_eq!(pending(&scratch.db).await?, []);
    works(&scratch.db).await
}

async fn a_file_of_another_encoding_is_refused(_: TestDb) -> anyhow::Result<()> {
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

async fn failed_migration_leaves_nothing(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    // An obstacle with the name of the last migration's view.
    let obstacle = match db.engine.kind {
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
    scratch.db.pool.run(obstacle.0).await?;
    migrate(&scratch.db).await.expect_err("it is stopped at its last step");
    assert_eq!(pending(&scratch.db).await?, all(&db), "nothing of it stays");
    scratch.db.pool.run(obstacle.1).await?;
    assert_eq!(migrate(&scratch.db).await?, all(&db));
    works(&scratch.db).await
}

async fn migrate(db: &TestDb) -> Result<Vec<Migration>, Error> {
    with_pool!(&db.pool, pool => tollgate::migrate(pool).await)
}

async fn pending(db: &TestDb) -> Result<Vec<Migration>, Error> {
    with_pool!(&db.pool, pool => tollgate::store::pending_migrations(pool).await)
}

fn all(db: &TestDb) -> Vec<Migration> {
    match db.pool {
        AnyPool::MySql(_) => tollgate::store::migrations::<sqlx::MySql>().to_vec(),
        AnyPool::Postgres(_) => tollgate::store::migrations::<sqlx::Postgres>().to_vec(),
        AnyPool::Sqlite(_) => tollgate::store::migrations::<sqlx::Sqlite>().to_vec(),
    }
}

/// Checks that a migrated database works.
async fn works(db: &TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(1, Duration::from_secs(86_400))?).await?;
    assert!(db.take(&key).await?.is_granted());
    assert!(!db.take(&key).await?.is_granted());
    Ok(())
}

/// Tables that are not named here are small and written by hand.
async fn tables_have_fillfactor_and_vacuum_for_their_writes(db: TestDb) -> anyhow::Result<()> {
    let settings = "select c.relname, array_to_string(c.reloptions, ' ') as options
                      from pg_class c join pg_namespace n on n.oid = c.relnamespace
                     where n.nspname = 'tollgate' and c.relkind = 'r' and c.reloptions is not null
                     order by c.relname";
    let mut found = Vec::new();
    for row in db.sql(settings).await? {
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
