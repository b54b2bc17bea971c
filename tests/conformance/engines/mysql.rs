use std::str::FromStr;
use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};
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

/// Adds time zones to the server's tables, as `mysql_tzinfo_to_sql` does, unless the server knows them.
pub async fn load_zones(pool: &MySqlPool, zones: &[&str]) -> anyhow::Result<()> {
    let mut connection = pool.acquire().await?;
    sqlx::query("do get_lock('tollgate_test_zones', 60)").execute(&mut *connection).await?;
    for zone in zones {
        let is_known = "select convert_tz('2020-01-01', '+00:00', ?) is not null";
        if sqlx::query_scalar(is_known).bind(zone).fetch_one(&mut *connection).await? {
            continue;
        }
        sqlx::query("insert into mysql.time_zone (use_leap_seconds) values ('N')").execute(&mut *connection).await?;
        let id: u64 = sqlx::query_scalar("select last_insert_id()").fetch_one(&mut *connection).await?;
        let last = "2101-01-01T00:00:00Z".parse::<Timestamp>()?;
        let zone_data = TimeZone::get(zone)?;
        let changes =
            zone_data.following("1969-01-01T00:00:00Z".parse()?).take_while(|change| change.timestamp() < last);
        let before = zone_data.to_offset("1969-01-01T00:00:00Z".parse()?).seconds();
        // A zone without changes has one in the distant past, because a statement without rows is an error.
        let (mut types, mut transitions) = (vec![before], vec![format!("({id}, -2000000000, 0)")]);
        for change in changes {
            let offset = change.offset().seconds();
            let place = types.iter().position(|other| *other == offset).unwrap_or(types.len());
            if place == types.len() {
                types.push(offset);
            }
            transitions.push(format!("({id}, {}, {place})", change.timestamp().as_second()));
        }
        let types = types.iter().enumerate().map(|(place, offset)| format!("({id}, {place}, {offset}, 0, '')"));
        let types = types.collect::<Vec<_>>().join(", ");
        let transitions = transitions.join(", ");
        let sql = format!(
            "insert into mysql.time_zone_transition_type (time_zone_id, transition_type_id, `offset`, is_dst, abbreviation)
             values {types};
             insert into mysql.time_zone_transition (time_zone_id, transition_time, transition_type_id) values {transitions};
             insert into mysql.time_zone_name (name, time_zone_id) values ('{zone}', {id})"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await?;
    }
    sqlx::query("do release_lock('tollgate_test_zones')").execute(&mut *connection).await?;
    Ok(())
}

/// The starts and ends of the calendar periods that contain instants.
pub async fn period_bounds(pool: &MySqlPool, instants: &[(String, i64)]) -> anyhow::Result<Vec<(i64, i64)>> {
    let mut connection = pool.acquire().await?;
    let mut bounds = Vec::new();
    for (refill, now) in instants {
        let call = sqlx::query("call token_period_bounds(?, ?, @tollgate_test_start, @tollgate_test_end)");
        call.bind(refill).bind(now).execute(&mut *connection).await?;
        let read = "select @tollgate_test_start, @tollgate_test_end";
        bounds.push(sqlx::query_as(read).fetch_one(&mut *connection).await?);
    }
    Ok(bounds)
}

/// The table that shows that a database is complete.
const LAST: &str = "token_test_complete";
