use std::str::FromStr;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres};

use super::{Engine, database_name, once};
use crate::matrix::Time;
use crate::pools::small;

/// A pool on the suite's database, which the first test creates.
pub async fn open(engine: &'static Engine, time: Time, connections: u32) -> anyhow::Result<PgPool> {
    let name = database_name::<Postgres>(engine, if time == Time::Injected { "_injected" } else { "" });
    let fill = async |pool: &PgPool| if time == Time::Injected { inject_time(pool).await } else { Ok(()) };
    // On the heap, because the futures of a migration would make those of all cases large.
    let made = Box::pin(async {
        if engine.copies_databases {
            return make(engine, &name, Box::pin(template(engine)), fill).await;
        }
        let pool = create(engine, &name, 1).await?;
        migrate(engine, &pool).await?;
        fill(&pool).await
    });
    once(&name, made).await?;
    let pool = connect(engine, &name, connections).await?;
    if time == Time::Injected {
        set_time(&pool, 0).await?;
    }
    Ok(pool)
}

/// A pool on a database of this name, created if necessary, and not migrated.
pub async fn create(engine: &Engine, name: &str, connections: u32) -> anyhow::Result<PgPool> {
    let created =
        sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin(engine).await?).await;
    if let Err(error) = created {
        // duplicate_database, or a violation of its index if two tests create it at once.
        let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default().into_owned();
        anyhow::ensure!(code == "42P04" || code == "23505", error);
    }
    let pool = connect(engine, name, connections).await?;
    if engine.is_distributed {
        add_nodes(engine, &pool).await?;
    }
    Ok(pool)
}

/// Adds the nodes of the server's own database, which every database of Citus has to name, unless it has them.
async fn add_nodes(engine: &Engine, pool: &PgPool) -> anyhow::Result<()> {
    let nodes = "select nodename::text, nodeport, groupid from pg_dist_node order by groupid";
    let known: Vec<(String, i32, i32)> = sqlx::query_as(nodes).fetch_all(pool).await?;
    let all: Vec<(String, i32, i32)> = sqlx::query_as(nodes).fetch_all(&mut admin(engine).await?).await?;
    if known.len() == all.len() {
        return Ok(());
    }
    for (host, port, group) in all {
        let add = match group {
            0 => "select 1 from citus_set_coordinator_host($1, $2)",
            _ => "select 1 from citus_add_node($1, $2)",
        };
        sqlx::query(add).bind(host).bind(port).execute(pool).await?;
    }
    Ok(())
}

/// Migrates a database, and distributes the tables if the engine does.
pub async fn migrate(engine: &Engine, pool: &PgPool) -> anyhow::Result<()> {
    if engine.is_distributed && !tollgate::store::pending_migrations(pool).await?.is_empty() {
        tollgate::store::migrate_citus(pool).await?;
    } else {
        tollgate::migrate(pool).await?;
    }
    Ok(())
}

/// A pool on a new database with tollgate's tables and routines, as a copy of one that the first test creates.
pub async fn copy(engine: &'static Engine, name: &str, connections: u32) -> anyhow::Result<PgPool> {
    let template = Box::pin(template(engine)).await?;
    let copied = AssertSqlSafe(format!("create database {name} template {template}"));
    sqlx::query(copied).execute(&mut admin(engine).await?).await?;
    connect(engine, name, connections).await
}

async fn connect(engine: &Engine, name: &str, connections: u32) -> anyhow::Result<PgPool> {
    Ok(small(connections).connect_with(options(engine)?.database(name)).await?)
}

async fn admin(engine: &Engine) -> anyhow::Result<PgConnection> {
    Ok(PgConnection::connect_with(&options(engine)?).await?)
}

/// Without TLS, because proxies read the traffic and count round trips.
fn options(engine: &Engine) -> anyhow::Result<PgConnectOptions> {
    Ok(PgConnectOptions::from_str(&engine.url()?)?.ssl_mode(PgSslMode::Disable))
}

/// The name of a migrated database without connections, so that PostgreSQL can copy it.
async fn template(engine: &'static Engine) -> anyhow::Result<String> {
    let name = database_name::<Postgres>(engine, "_template");
    let migrate = async |pool: &PgPool| Ok(tollgate::migrate(pool).await.map(drop)?);
    let made = Box::pin(make(engine, &name, async { Ok("template1".to_owned()) }, migrate));
    once(&name, made).await?;
    Ok(name)
}

/// Creates a database from a template unless it exists. It gets its name at the end, so a killed test leaves no half-made
/// database under this name.
async fn make(
    engine: &Engine,
    name: &str,
    template: impl Future<Output = anyhow::Result<String>>,
    fill: impl AsyncFnOnce(&PgPool) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut admin, mut locked) = (admin(engine).await?, admin(engine).await?);
    let mut lock = locked.begin().await?;
    // Other processes wait here, and then find the database.
    sqlx::query("select pg_advisory_xact_lock(hashtext($1))").bind(name).execute(&mut *lock).await?;
    let exists = sqlx::query_scalar("select exists (select from pg_database where datname = $1)");
    if exists.bind(name).fetch_one(&mut admin).await? {
        return Ok(());
    }
    let begun = format!("{name}_begun");
    let copied = format!("create database {begun} template {}", template.await?);
    for sql in [format!("drop database if exists {begun} with (force)"), copied] {
        sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await?;
    }
    let pool = connect(engine, &begun, 1).await?;
    fill(&pool).await?;
    pool.close().await;
    sqlx::query(AssertSqlSafe(format!("alter database {begun} rename to {name}"))).execute(&mut admin).await?;
    Ok(())
}

/// Replaces the one function that reads the clock; every other routine stays as the migrations ship it.
pub async fn inject_time(pool: &PgPool) -> anyhow::Result<()> {
    sqlx::raw_sql(
        "create or replace function tollgate.clock() returns bigint language sql volatile
         as $$ select current_setting('tollgate_test.now')::bigint $$",
    )
    .execute(pool)
    .await?;
    Ok(())
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

/// The starts and ends of the calendar periods that contain instants.
pub async fn period_bounds(pool: &PgPool, instants: &[(String, i64)]) -> anyhow::Result<Vec<(i64, i64)>> {
    let (refills, times): (Vec<&str>, Vec<i64>) = instants.iter().map(|(refill, now)| (refill.as_str(), now)).unzip();
    let bounds = "select b.period_start, b.period_end
                    from unnest($1, $2) with ordinality i (refill, now, place)
                   cross join lateral tollgate.period_bounds(i.refill, i.now) b order by i.place";
    Ok(sqlx::query_as(bounds).bind(refills).bind(times).fetch_all(pool).await?)
}
