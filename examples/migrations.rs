//! The crate's migrations: to print and run with a tool of yours, to look at before, or to apply.
//!
//! ```text
//! cargo run --example migrations -- --print postgres | psql --single-transaction --set ON_ERROR_STOP=1 app
//! cargo run --example migrations -- --print mysql | mysql app
//! cargo run --example migrations -- --print sqlite | sqlite3 -bail app.db
//! cargo run --example migrations -- --pending postgres://localhost/app
//! cargo run --example migrations -- --apply postgres://localhost/app
//! ```
//!
//! What was run from the printed script counts as applied: `tollgate::migrate` finds it in its ledger.

use anyhow::{Context, bail};
use clap::{Args, Parser, ValueEnum};
use sqlx::{MySql, Pool, Postgres, Sqlite};
use tollgate::{Migrate, Migration, migrate, migrations, pending_migrations};

/// Prints, looks at or applies tollgate's migrations.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    action: Action,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Action {
    /// Prints the whole script for an engine's own client; connects to nothing
    #[arg(long, value_name = "ENGINE")]
    print: Option<Engine>,
    /// Lists what is not applied yet, and changes nothing
    #[arg(long, value_name = "URL")]
    pending: Option<String>,
    /// Applies what is not applied yet
    #[arg(long, value_name = "URL")]
    apply: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    Postgres,
    Mysql,
    Sqlite,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().action {
        Action { print: Some(Engine::Postgres), .. } => print::<Postgres>(),
        Action { print: Some(Engine::Mysql), .. } => print_mysql(),
        Action { print: Some(Engine::Sqlite), .. } => print::<Sqlite>(),
        Action { pending: Some(url), .. } => connect(&url, false).await?,
        Action { apply: Some(url), .. } => connect(&url, true).await?,
        Action { print: None, pending: None, apply: None } => unreachable!("clap requires one of them"),
    }
    Ok(())
}

fn print<DB: Migrate>() {
    for migration in migrations::<DB>() {
        println!("{}\n{};\n", migration.sql().trim_end(), migration.record());
    }
}

/// The mysql client ends a statement at the first semicolon, even inside a routine, unless told of another end.
fn print_mysql() {
    println!("-- Routines keep the mode that they are made in.");
    println!("set @host_sql_mode = @@session.sql_mode;");
    println!("set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';\n\ndelimiter //\n");
    for migration in migrations::<MySql>() {
        println!("{}\n//\n{}\n//\n", migration.sql().trim_end(), migration.record());
    }
    println!("delimiter ;\n\nset session sql_mode = @host_sql_mode;");
}

async fn connect(url: &str, apply: bool) -> anyhow::Result<()> {
    match url.split(':').next() {
        Some("postgres" | "postgresql") => run::<Postgres>(url, apply).await,
        Some("mysql" | "mariadb") => run::<MySql>(url, apply).await,
        Some("sqlite") => run::<Sqlite>(url, apply).await,
        _ => bail!("give a URL that begins with postgres://, mysql:// or sqlite://"),
    }
}

async fn run<DB: Migrate>(url: &str, apply: bool) -> anyhow::Result<()> {
    let pool = Pool::<DB>::connect(url).await.context("cannot connect")?;
    let (word, steps) =
        if apply { ("applied", migrate(&pool).await?) } else { ("pending", pending_migrations(&pool).await?) };
    for step in &steps {
        println!("{word}: {}", step.name());
    }
    if steps.is_empty() {
        println!("nothing is pending: the schema is at version {}", newest::<DB>());
    }
    pool.close().await;
    Ok(())
}

fn newest<DB: Migrate>() -> i64 {
    migrations::<DB>().last().map_or(0, Migration::version)
}
