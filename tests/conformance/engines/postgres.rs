use std::str::FromStr;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres};

use super::{Engine, database_name};
use crate::matrix::Time;
use crate::pools::small;

/// A pool on the suite's database, which the first test to come makes.
pub async fn open(engine: &Engine, time: Time, connections: u32) -> anyhow::Result<PgPool> {
    let name = database_name::<Postgres>(if time == Time::Injected { "_injected" } else { "" });
    let pool = pool(engine, &name, connections).await?;
    tollgate::migrate(&pool).await?;
    if time == Time::Injected {
        inject_time(&pool).await?;
    }
    Ok(pool)
}

/// A pool on a database of this name, made if need be, and not migrated.
pub async fn pool(engine: &Engine, name: &str, connections: u32) -> anyhow::Result<PgPool> {
    // The proxies read what goes over the wire, and its round trips are counted.
    let options = PgConnectOptions::from_str(&engine.url()?)?.ssl_mode(PgSslMode::Disable);
    let mut admin = PgConnection::connect_with(&options).await?;
    let made = sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await;
    if let Err(error) = made {
        // duplicate_database, or its index when two come at once
        let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default().into_owned();
        anyhow::ensure!(code == "42P04" || code == "23505", error);
    }
    let options = options.database(name);
    Ok(small(connections).connect_with(options).await?)
}

/// Makes a migrated database: a copy of one, which the first test to come makes.
pub async fn copy(engine: &Engine, name: &str) -> anyhow::Result<()> {
    let mut admin = PgConnection::connect(&engine.url()?).await?;
    let migrated = database_name::<Postgres>("_migrated");
    let is_there = "select exists (select from pg_database where datname = $1)";
    if !sqlx::query_scalar(is_there).bind(&migrated).fetch_one(&mut admin).await? {
        // Ends with the session, as that does with the test.
        sqlx::query("select pg_advisory_lock(2)").execute(&mut admin).await?;
        if !sqlx::query_scalar(is_there).bind(&migrated).fetch_one(&mut admin).await? {
            make(engine, &migrated, &mut admin).await?;
        }
        sqlx::query("select pg_advisory_unlock(2)").execute(&mut admin).await?;
    }
    sqlx::query(AssertSqlSafe(format!("create database {name} template {migrated}"))).execute(&mut admin).await?;
    Ok(())
}

/// It has its name once it is done: what a test left that was killed at it is made anew.
async fn make(engine: &Engine, name: &str, admin: &mut PgConnection) -> anyhow::Result<()> {
    let begun = format!("{name}_begun");
    sqlx::query(AssertSqlSafe(format!("drop database if exists {begun} with (force)"))).execute(&mut *admin).await?;
    let pool = pool(engine, &begun, 1).await?;
    tollgate::migrate(&pool).await?;
    pool.close().await;
    sqlx::query(AssertSqlSafe(format!("alter database {begun} rename to {name}"))).execute(&mut *admin).await?;
    // Nobody connects to it: a database that somebody is in cannot be copied.
    sqlx::query(AssertSqlSafe(format!("alter database {name} allow_connections false"))).execute(admin).await?;
    Ok(())
}

/// Replaces the one function that reads the clock; every other routine stays as the migrations ship it.
pub async fn inject_time(pool: &PgPool) -> anyhow::Result<()> {
    let mut transaction = pool.begin().await?;
    sqlx::query("select pg_advisory_xact_lock(1)").execute(&mut *transaction).await?;
    let source: String = sqlx::query_scalar("select prosrc from pg_proc where oid = 'tollgate.clock'::regproc")
        .fetch_one(&mut *transaction)
        .await?;
    if !source.contains("tollgate_test.now") {
        sqlx::raw_sql(
            "create or replace function tollgate.clock() returns bigint language sql volatile
             as $$ select current_setting('tollgate_test.now')::bigint $$",
        )
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    set_time(pool, 0).await
}

/// Sets the injected clock, in nanoseconds since 1970. The pool must have one connection.
pub async fn set_time(pool: &PgPool, now: i64) -> anyhow::Result<()> {
    sqlx::query("select set_config('tollgate_test.now', $1::text, false)").bind(now).execute(pool).await?;
    Ok(())
}
