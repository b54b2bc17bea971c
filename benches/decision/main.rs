//! Compares a decision with a bare `UPDATE … WHERE id = ?` through the same client, pool and database.
//!
//! ```text
//! cargo bench --bench decision -- --engine postgres15 --seconds 2
//! ```
//!
//! The variables `TOLLGATE_POSTGRES15_URL`, `TOLLGATE_POSTGRES_URL`, `TOLLGATE_MYSQL_URL` and `TOLLGATE_MARIADB_URL`
//! name the servers: `eval "$(scripts/servers env)"`. On each server the benchmark creates its own database, and drops
//! it at the end.

mod arguments;
mod engine;
mod load;
mod mysql;
mod postgres;
mod report;
mod sqlite;

use anyhow::Context;
use clap::Parser;
use sqlx::{MySql, Postgres, Sqlite};

use arguments::{Arguments, Name};
use engine::{Durability, Engine};
use load::{KEYS, Load};
use report::Line;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    for engine in arguments.engines() {
        match engine {
            Name::Sqlite => on_sqlite(&arguments).await?,
            Name::Postgres15 => on_server::<Postgres>("TOLLGATE_POSTGRES15_URL", &arguments).await?,
            Name::Postgres => on_server::<Postgres>("TOLLGATE_POSTGRES_URL", &arguments).await?,
            Name::Mysql => on_server::<MySql>("TOLLGATE_MYSQL_URL", &arguments).await?,
            Name::Mariadb => on_server::<MySql>("TOLLGATE_MARIADB_URL", &arguments).await?,
        }
    }
    Ok(())
}

async fn on_sqlite(arguments: &Arguments) -> anyhow::Result<()> {
    let file = std::env::temp_dir().join(database());
    on_database::<Sqlite>(&format!("sqlite://{}", file.display()), arguments).await
}

async fn on_server<E: Engine>(variable: &str, arguments: &Arguments) -> anyhow::Result<()> {
    let server =
        std::env::var(variable).with_context(|| format!("{variable} names no server, and --engine asks for it"))?;
    let (server, _) = server.rsplit_once('/').context("the server's URL names no database")?;
    on_database::<E>(&format!("{server}/{}", database()), arguments).await
}

fn database() -> String {
    format!("tollgate_bench_{}", std::process::id())
}

/// Measures one server. Always drops the database and restores changed settings.
async fn on_database<E: Engine>(url: &str, arguments: &Arguments) -> anyhow::Result<()> {
    E::create_database(url).await?;
    let pool = E::open(url, 1, Durability::Relaxed).await?;
    let settings = E::settings(&pool).await?;
    let measured = tokio::select! {
        measured = measure::<E>(url, arguments) => measured,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("interrupted"),
    };
    E::restore(&pool, &settings).await?;
    pool.close().await;
    E::drop_database(url).await?;
    measured
}

async fn measure<E: Engine>(url: &str, arguments: &Arguments) -> anyhow::Result<()> {
    let admin = E::open(url, 1, Durability::Relaxed).await?;
    load::provision::<E>(&admin).await?;
    println!("\n## {}", E::version(&admin).await?);
    for durability in arguments.durabilities() {
        E::prepare(&admin, durability).await?;
        for connections in [1, E::CONNECTIONS] {
            let pool = E::open(url, connections, durability).await?;
            if connections == 1 {
                println!("\n{}\n\n{}", E::settings(&pool).await?.join(", "), Line::HEADER);
            }
            for keys in [KEYS, 1] {
                let load = Load::new(&pool, connections, keys)?;
                let rounds = load.rounds(arguments.rounds, arguments.slice()).await?;
                println!("{}", Line::new(connections, keys, &rounds));
            }
            pool.close().await;
        }
    }
    admin.close().await;
    Ok(())
}
