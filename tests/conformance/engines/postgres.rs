use std::str::FromStr;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres};

use super::{Engine, database_name};
use crate::matrix::Time;
use crate::pools::small;

/// A pool on the suite's database, which the first test creates.
pub async fn open(engine: &Engine, time: Time, connections: u32) -> anyhow::Result<PgPool> {
    let name = database_name::<Postgres>(if time == Time::Injected { "_injected" } else { "" });
    let pool = pool(engine, &name, connections).await?;
    tollgate::migrate(&pool).await?;
    if time == Time::Injected {
        inject_time(&pool).await?;
    }
    Ok(pool)
}

/// A pool on a database of this name, created if necessary, and not migrated.
pub async fn pool(engine: &Engine, name: &str, connections: u32) -> anyhow::Result<PgPool> {
    // Without TLS, because proxies read the traffic and count round trips.
    let options = PgConnectOptions::from_str(&engine.url()?)?.ssl_mode(PgSslMode::Disable);
    let mut admin = PgConnection::connect_with(&options).await?;
    let made = sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await;
    if let Err(error) = made {
        // duplicate_database, or a violation of its index if two tests create it at once.
        let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default().into_owned();
        anyhow::ensure!(code == "42P04" || code == "23505", error);
    }
    let options = options.database(name);
    Ok(small(connections).connect_with(options).await?)
}

/// Creates a migrated database as a copy of one that the first test creates.
pub async fn copy(engine: &Engine, name: &str) -> anyhow::Result<()> {
    let mut admin = PgConnection::connect(&engine.url()?).await?;
    let migrated = database_name::<Postgres>("_migrated");
    let is_there = "select exists (select from pg_database where datname = $1)";
    if !sqlx::query_scalar(is_there).bind(&migrated).fetch_one(&mut admin).await? {
        // Unlocked at the end of the session, which ends with the test.
        sqlx::query("select pg_advisory_lock(2)").execute(&mut admin).await?;
        if !sqlx::query_scalar(is_there).bind(&migrated).fetch_one(&mut admin).await? {
            make(engine, &migrated, &mut admin).await?;
        }
        sqlx::query("select pg_advisory_unlock(2)").execute(&mut admin).await?;
    }
    sqlx::query(AssertSqlSafe(format!("create database {name} template {migrated}"))).execute(&mut admin).await?;
    Ok(())
}

/// The database gets its name at the end, so that the leftover of a killed test is created again.
async fn make(engine: &Engine, name: &str, admin: &mut PgConnection) -> anyhow::Result<()> {
    let begun = format!("{name}_begun");
    sqlx::query(AssertSqlSafe(format!("drop database if exists {begun} with (force)"))).execute(&mut *admin).await?;
    let pool = pool(engine, &begun, 1).await?;
    tollgate::migrate(&pool).await?;
    pool.close().await;
    sqlx::query(AssertSqlSafe(format!("alter database {begun} rename to {name}"))).execute(&mut *admin).await?;
    // Forbids connections, because PostgreSQL cannot copy a database with open connections.
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

/// Replaces the function that reads the clock by one that takes a while, and counts the reads of a session.
pub async fn slow_clock(pool: &PgPool, delay: Duration) -> anyhow::Result<()> {
    let sql = format!(
        "create or replace function tollgate.clock() returns bigint language plpgsql volatile as $$ begin
           perform set_config('tollgate_test.reads', (coalesce(
                     nullif(current_setting('tollgate_test.reads', true), ''), '0')::bigint + 1)::text, false),
                   pg_sleep({});
           return (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000;
         end $$",
        delay.as_secs_f64()
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
    Ok(())
}

/// Sets the injected clock, in nanoseconds since 1970. The pool must have one connection.
pub async fn set_time(pool: &PgPool, now: i64) -> anyhow::Result<()> {
    sqlx::query("select set_config('tollgate_test.now', $1::text, false)").bind(now).execute(pool).await?;
    Ok(())
}
