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

/// Replaces each routine that reads the clock by one that reads a session variable.
pub async fn inject_time(pool: &MySqlPool) -> anyhow::Result<()> {
    let mut connection = pool.acquire().await?;
    replace_clock(&mut connection, "@tollgate_test_now").await?;
    // A view cannot read a session variable, but can call a function that does.
    let function = "create function token_test_clock() returns bigint no sql return @tollgate_test_now";
    sqlx::raw_sql(function).execute(&mut *connection).await?;
    let mut views = 0;
    for sql in statements() {
        if sql.starts_with("create or replace sql security definer view") && sql.contains(VIEWS_CLOCK) {
            let view = sql.replace(VIEWS_CLOCK, "token_test_clock()");
            sqlx::raw_sql(AssertSqlSafe(view)).execute(&mut *connection).await?;
            views += 1;
        }
    }
    anyhow::ensure!(views == 2, "{views} views read the clock: token_bucket_levels and token_most_denied should");
    Ok(())
}

/// Replaces the clock in each routine that reads it by one that takes a while, and counts the reads of a session.
pub async fn slow_clock(pool: &MySqlPool, delay: Duration) -> anyhow::Result<()> {
    let mut connection = pool.acquire().await?;
    let function = format!(
        "drop function if exists token_test_slow_clock;
         create function token_test_slow_clock() returns bigint no sql
         begin
           declare v_uuid char(36) character set ascii;
           set @tollgate_test_reads = coalesce(@tollgate_test_reads, 0) + 1;
           do sleep({});
           set v_uuid = uuid();
           return {CLOCK};
         end",
        delay.as_secs_f64()
    );
    sqlx::raw_sql(AssertSqlSafe(function)).execute(&mut *connection).await?;
    replace_clock(&mut connection, "token_test_slow_clock()").await
}

/// Replaces the expression for the clock in each routine that reads it.
async fn replace_clock(connection: &mut MySqlConnection, clock: &str) -> anyhow::Result<()> {
    let mut clocks = 0;
    let all = statements();
    for (drop, sql) in all.iter().zip(&all[1..]) {
        if sql.starts_with("create procedure") && sql.contains(CLOCK) {
            let sql = format!("{drop} {}", sql.replace(CLOCK, clock));
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await?;
            clocks += 1;
        }
    }
    anyhow::ensure!(
        clocks == 3,
        "{clocks} routines read the clock: token_clock, token_take_v1 and token_take_uniform_v1 should"
    );
    Ok(())
}

/// The statements of the migrations.
fn statements() -> Vec<String> {
    let migrations = tollgate::store::migrations::<MySql>();
    migrations.iter().flat_map(|migration| migration.statements().map(without_comments)).collect()
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

/// The table that shows that a database is complete.
const LAST: &str = "token_test_complete";

/// The routines' expression for the clock, with white space folded.
const CLOCK: &str = "(cast(conv(concat(substr(v_uuid, 16, 3), substr(v_uuid, 10, 4), left(v_uuid, 8)), 16, 10) \
                     as signed) - 122192928000000000) * 100";

/// The view's expression for the clock.
const VIEWS_CLOCK: &str = "(cast(conv(concat(substr(u.uuid, 16, 3), substr(u.uuid, 10, 4), left(u.uuid, 8)), 16, 10) \
                           as signed) - 122192928000000000) * 100";
