use std::str::FromStr;

use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, MySqlPool};

use super::{Engine, database_name};
use crate::matrix::Time;
use crate::pools::small;

/// A pool on the suite's database, which the first test creates.
pub async fn open(engine: &Engine, time: Time, connections: u32) -> anyhow::Result<MySqlPool> {
    let name = database_name::<MySql>(if time == Time::Injected { "_timed" } else { "" });
    let pool = pool(engine, &name, connections).await?;
    // While one process replaces routines, another process would find them missing and create the real ones.
    let mut alone = MySqlConnection::connect_with(&options(engine)?).await?;
    sqlx::query("do get_lock('tollgate_test_open', 60)").execute(&mut alone).await?;
    tollgate::migrate(&pool).await?;
    if time == Time::Injected {
        inject_time(&pool).await?;
    }
    alone.close().await?;
    Ok(pool)
}

/// A pool on a database of this name, created if necessary, and not migrated.
pub async fn pool(engine: &Engine, name: &str, connections: u32) -> anyhow::Result<MySqlPool> {
    let options = options(engine)?;
    let mut admin = MySqlConnection::connect_with(&options).await?;
    sqlx::query(AssertSqlSafe(format!("create database if not exists {name}"))).execute(&mut admin).await?;
    let options = options.database(name);
    Ok(small(connections).connect_with(options).await?)
}

/// Without TLS, because proxies read the traffic and count round trips.
fn options(engine: &Engine) -> anyhow::Result<MySqlConnectOptions> {
    Ok(MySqlConnectOptions::from_str(&engine.url()?)?.ssl_mode(MySqlSslMode::Disabled))
}

/// Replaces each routine that reads the clock by one that reads a session variable.
pub async fn inject_time(pool: &MySqlPool) -> anyhow::Result<()> {
    let mut connection = pool.acquire().await?;
    sqlx::query("do get_lock('tollgate_test', 60)").execute(&mut *connection).await?;
    sqlx::query("create table if not exists time_is_injected (it_is boolean)").execute(&mut *connection).await?;
    let done: i64 = sqlx::query_scalar("select count(*) from time_is_injected").fetch_one(&mut *connection).await?;
    if done == 0 {
        let mut clocks = 0;
        let all: Vec<String> = tollgate::store::migrations::<MySql>()
            .iter()
            .flat_map(|migration| migration.statements().map(without_comments))
            .collect();
        for (drop, sql) in all.iter().zip(&all[1..]) {
            if sql.starts_with("create procedure") && sql.contains(CLOCK) {
                let sql = format!("{drop} {}", sql.replace(CLOCK, "@tollgate_test_now"));
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await?;
                clocks += 1;
            }
        }
        // A view cannot read a session variable, but can call a function that does.
        let function = "create function token_test_clock() returns bigint no sql return @tollgate_test_now";
        sqlx::raw_sql(function).execute(&mut *connection).await?;
        let mut views = 0;
        for sql in all {
            if sql.starts_with("create or replace sql security definer view") && sql.contains(VIEWS_CLOCK) {
                let view = sql.replace(VIEWS_CLOCK, "token_test_clock()");
                sqlx::raw_sql(AssertSqlSafe(view)).execute(&mut *connection).await?;
                views += 1;
            }
        }
        anyhow::ensure!(views == 2, "{views} views read the clock: token_bucket_levels and token_most_denied should");
        anyhow::ensure!(
            clocks == 3,
            "{clocks} routines read the clock: token_clock, token_take_v1 and token_take_uniform_v1 should"
        );
        sqlx::query("insert into time_is_injected values (true)").execute(&mut *connection).await?;
    }
    sqlx::query("do release_lock('tollgate_test')").execute(&mut *connection).await?;
    drop(connection);
    set_time(pool, 0).await
}

/// Sets the injected clock, in nanoseconds since 1970. The pool must have one connection.
pub async fn set_time(pool: &MySqlPool, now: i64) -> anyhow::Result<()> {
    sqlx::query("set @tollgate_test_now = ?").bind(now).execute(pool).await?;
    Ok(())
}

fn without_comments(sql: &str) -> String {
    let lines = sql.lines().filter(|line| !line.starts_with("--")).map(|line| line.split("-- ").next().unwrap_or(line));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// The routines' expression for the clock, with white space folded.
const CLOCK: &str = "(cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) \
                     as signed) - 122192928000000000) * 100";

/// The view's expression for the clock.
const VIEWS_CLOCK: &str = "(cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)), 16, 10) \
                           as signed) - 122192928000000000) * 100";
