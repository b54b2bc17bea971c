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

/// Replaces the one function that reads the clock; every other routine stays as the migrations ship it.
pub async fn inject_time(pool: &PgPool) -> anyhow::Result<()> {
    let mut transaction = pool.begin().await?;
    sqlx::query("select pg_advisory_xact_lock(1)").execute(&mut *transaction).await?;
    let source: String =
        sqlx::query_scalar("select prosrc from pg_proc where oid = 'tollgate.token_clock_v1'::regproc")
            .fetch_one(&mut *transaction)
            .await?;
    if !source.contains("tollgate_test.now") {
        sqlx::raw_sql(
            "create or replace function tollgate.token_clock_v1() returns bigint language sql volatile
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
