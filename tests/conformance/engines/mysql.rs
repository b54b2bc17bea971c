use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, MySqlPool};

use super::{Engine, database_name, once};
use crate::matrix::Time;
use crate::pools::small;

/// A pool on the suite's database, which the first test creates.
pub async fn open(engine: &'static Engine, time: Time, connections: u32) -> anyhow::Result<MySqlPool> {
    let name = database_name::<MySql>(engine, if time == Time::Injected { "_injected" } else { "" });
    once(&name, Box::pin(make(engine, &name, time))).await?;
    let pool = connect(engine, &name, connections).await?;
    if time == Time::Injected {
        set_time(&pool, 0).await?;
    }
    Ok(pool)
}

/// A pool on a database of this name, created if necessary, and not migrated.
pub async fn create(engine: &Engine, name: &str, connections: u32) -> anyhow::Result<MySqlPool> {
    let mut admin = MySqlConnection::connect_with(&options(engine)?).await?;
    sqlx::query(AssertSqlSafe(format!("create database if not exists {name}"))).execute(&mut admin).await?;
    connect(engine, name, connections).await
}

async fn connect(engine: &Engine, name: &str, connections: u32) -> anyhow::Result<MySqlPool> {
    Ok(small(connections).connect_with(options(engine)?.database(name)).await?)
}

/// Creates a migrated database unless it is complete. Its last table is made at the end, so what a killed test leaves is
/// replaced.
async fn make(engine: &Engine, name: &str, time: Time) -> anyhow::Result<()> {
    let mut admin = MySqlConnection::connect_with(&options(engine)?).await?;
    // Other processes wait here, and then find the database.
    sqlx::query("do get_lock(?, 60)").bind(name).execute(&mut admin).await?;
    let is_complete =
        "select exists (select 1 from information_schema.tables where table_schema = ? and table_name = ?)";
    if !sqlx::query_scalar(is_complete).bind(name).bind(LAST).fetch_one(&mut admin).await? {
        sqlx::raw_sql(AssertSqlSafe(format!("drop database if exists {name}"))).execute(&mut admin).await?;
        let pool = create(engine, name, 1).await?;
        tollgate::migrate(&pool).await?;
        if time == Time::Injected {
            inject_time(&pool).await?;
        }
        sqlx::raw_sql(AssertSqlSafe(format!("create table {LAST} (n int)"))).execute(&pool).await?;
    }
    admin.close().await?;
    Ok(())
}

/// Without TLS, because proxies read the traffic and count round trips.
fn options(engine: &Engine) -> anyhow::Result<MySqlConnectOptions> {
    Ok(MySqlConnectOptions::from_str(&engine.url()?)?.ssl_mode(MySqlSslMode::Disabled))
}

/// Replaces the clock of routines and the clock of views by a session variable.
pub async fn inject_time(pool: &MySqlPool) -> anyhow::Result<()> {
    // A view cannot read a session variable, but can call a function that does.
    let sql = "drop procedure token_clock;
               create procedure token_clock(out o_now bigint) no sql set o_now = @tollgate_test_now;
               create function token_test_clock() returns bigint no sql return @tollgate_test_now;
               create or replace view token_now as select token_test_clock() as now";
    sqlx::raw_sql(sql).execute(pool).await?;
    Ok(())
}

/// Replaces the clock of routines by one that takes a while, and counts the reads of a session.
pub async fn slow_clock(pool: &MySqlPool, delay: Duration) -> anyhow::Result<()> {
    let sql = format!(
        "drop procedure token_clock;
         create procedure token_clock(out o_now bigint) reads sql data
         begin
           set @tollgate_test_reads = coalesce(@tollgate_test_reads, 0) + 1;
           do sleep({});
           select now into o_now from token_now;
         end",
        delay.as_secs_f64()
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
    Ok(())
}

/// Sets the injected clock, in nanoseconds since 1970. The pool must have one connection.
pub async fn set_time(pool: &MySqlPool, now: i64) -> anyhow::Result<()> {
    sqlx::query("set @tollgate_test_now = ?").bind(now).execute(pool).await?;
    Ok(())
}

/// The table that shows that a database is complete.
const LAST: &str = "token_test_complete";
