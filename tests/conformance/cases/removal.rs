//! The removal statements in docs/operations.md remove all of tollgate, and nothing of the host.

use anyhow::{Context, ensure};
use sqlx::AssertSqlSafe;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_pool};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(Setup::DEFAULT; removal_leaves_earlier_objects)
}

async fn removal_leaves_earlier_objects(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::new(&db).await?;
    let db = &scratch.db;
    // Names that resemble tollgate's.
    db.pool.run("create table token_of_the_host (n int)").await?;
    if db.engine.kind == Kind::MySql {
        db.pool.run("create procedure token_refresh() select 1").await?;
    }
    let before = rows(db, objects(db.engine.kind)).await?;
    for _ in 0..2 {
        let migrated = with_pool!(&db.pool, pool => tollgate::migrate(pool).await)?;
        ensure!(!migrated.is_empty(), "nothing was migrated");
        db.bucket("1/h".parse()?).await?;
        ensure!(rows(db, objects(db.engine.kind)).await?.len() > before.len());
        remove(db).await?;
        assert_eq!(rows(db, objects(db.engine.kind)).await?, before);
    }
    Ok(())
}

/// Runs this engine's block of the page. On MySQL, the block's command generates further statements, which run first.
async fn remove(db: &TestDb) -> anyhow::Result<()> {
    let engine = match db.engine.kind {
        Kind::MySql => "mysql",
        Kind::Postgres => "postgres",
        Kind::Sqlite => "sqlite",
    };
    let (_, section) = OPERATIONS.split_once("\n## Removing it\n").context("the page says how to remove it")?;
    let block = section.split_once(&format!("```sql {engine}\n")).and_then(|(_, rest)| rest.split("```").next());
    let block = block.with_context(|| format!("nothing for {engine}"))?;
    if db.engine.kind == Kind::MySql {
        let all = tollgate::store::migrations::<sqlx::MySql>().iter().flat_map(tollgate::store::Migration::statements);
        for statement in all.flat_map(str::lines).filter(|line| line.starts_with("drop procedure ")) {
            db.pool.run(statement).await?;
        }
    }
    db.pool.run(block).await.context(block)
}

/// Lists the user-defined objects in the database's catalogs.
fn objects(kind: Kind) -> &'static str {
    match kind {
        Kind::MySql => {
            "select concat(table_type, ' ', table_name) as object from information_schema.tables
              where table_schema = database()
             union all select concat(routine_type, ' ', routine_name) from information_schema.routines
              where routine_schema = database()
             union all select concat('trigger ', trigger_name) from information_schema.triggers
              where trigger_schema = database()
             union all select concat('event ', event_name) from information_schema.events
              where event_schema = database()
             order by object"
        }
        Kind::Postgres => {
            "select 'schema ' || nspname as object from pg_namespace where oid >= 16384
             union all select 'relation ' || oid::regclass::text from pg_class where oid >= 16384
             union all select 'routine ' || oid::regprocedure::text from pg_proc where oid >= 16384
             union all select 'type ' || oid::regtype::text from pg_type where oid >= 16384
             order by object"
        }
        Kind::Sqlite => "select type || ' ' || name from sqlite_schema order by 1",
    }
}

async fn rows(db: &TestDb, sql: &str) -> anyhow::Result<Vec<String>> {
    let sql = AssertSqlSafe(sql.to_owned());
    Ok(with_pool!(&db.pool, pool => sqlx::query_scalar(sql).fetch_all(pool).await?))
}

const OPERATIONS: &str = include_str!("../../../docs/operations.md");
