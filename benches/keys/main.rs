//! Measures whether a database becomes small again after many random keys are used once.
//!
//! Reports the size of the table of buckets before, with all keys, after the sweep, and after maintenance by an
//! operator. Also measures the requests that create the buckets, and requests for existing buckets.
//!
//! ```text
//! cargo bench --bench keys -- --url postgres://localhost/scratch --keys 10000000
//! ```
//!
//! Use a new database: the benchmark sweeps all expired rows in it, and rebuilds its tables.

mod size;

use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;
use fastrand::Rng;
use sqlx::{MySqlPool, PgPool, SqlitePool};
use tollgate::{
    Key, MySqlStore, PgStore, Rule, SqlStore, SqliteStore, Store, Take, migrate,
    store::{Dialect, Maintenance, Migrate},
};
use uuid::Uuid;

use size::{Database, Size};

#[derive(Parser)]
#[command(about = "Measures how large a database is with many keys, and without them again")]
struct Arguments {
    /// URL of the database: postgres://, mysql:// or sqlite://.
    #[arg(long)]
    url: String,
    /// Number of keys.
    #[arg(long, env = "TOLLGATE_KEYS", default_value_t = 10_000)]
    keys: u64,
    /// Number of rows that a step of the sweep reads.
    #[arg(long, default_value_t = 1000)]
    step: u32,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match arguments.url.split(':').next() {
        Some("postgres" | "postgresql") => {
            let pool = PgPool::connect(&arguments.url).await?;
            migrate(&pool).await?;
            measure(&arguments, PgStore::from(pool.clone()), Database::Postgres(pool)).await
        }
        Some("mysql" | "mariadb") => {
            let pool = MySqlPool::connect(&arguments.url).await?;
            migrate(&pool).await?;
            measure(&arguments, MySqlStore::from(pool.clone()), Database::MySql(pool)).await
        }
        _ => {
            let pool = SqlitePool::connect(&arguments.url).await?;
            migrate(&pool).await?;
            measure(&arguments, SqliteStore::from(pool.clone()), Database::Sqlite(pool)).await
        }
    }
}

async fn measure<DB: Dialect + Migrate>(
    arguments: &Arguments,
    store: SqlStore<DB>,
    database: Database,
) -> anyhow::Result<()>
where
    SqlStore<DB>: Store,
{
    let store = store.deadline(Duration::from_mins(1));
    println!("{}", Size::HEADER);
    println!("{}", database.size().await?.line("before", Duration::ZERO));

    let all = Rng::new();
    for what in [format!("{} keys", arguments.keys), "the same again".to_owned()] {
        let begun = Instant::now();
        come(&store, all.clone(), arguments.keys).await?;
        let took = begun.elapsed();
        println!("{}", database.size().await?.line(&what, took));
    }

    // The sweep keeps a full bucket for a minute.
    tokio::time::sleep(Duration::from_secs(61)).await;
    let begun = Instant::now();
    let deleted = sweep(&store, arguments.step).await?;
    ensure!(deleted >= arguments.keys, "{deleted} rows of {} were swept away", arguments.keys);
    println!("{}", database.size().await?.line("swept", begun.elapsed()));

    for (what, statement) in database.tidying() {
        let begun = Instant::now();
        database.run(statement).await?;
        println!("{}", database.size().await?.line(what, begun.elapsed()));
    }
    Ok(())
}

/// Takes a token from each key. The buckets are full again at once, and do not exist the first time.
async fn come(store: &impl Store, mut all: Rng, keys: u64) -> anyhow::Result<()> {
    let rule = Rule::try_from("1000/s")?;
    let mut left = keys;
    while left > 0 {
        let together = left.min(TOGETHER);
        let mut take = |_| Take::from(Key::from(Uuid::from_u128(all.u128(..)))).rule(rule.clone());
        let takes: Vec<Take> = (0..together).map(&mut take).collect();
        for outcome in store.take(&takes).await? {
            ensure!(outcome?.is_granted(), "a new key has a full bucket");
        }
        left -= together;
    }
    Ok(())
}

async fn sweep(store: &impl Maintenance, step: u32) -> anyhow::Result<u64> {
    let mut deleted = 0;
    loop {
        let swept = store.sweep(step).await?;
        deleted += swept.deleted;
        if swept.finished {
            return Ok(deleted);
        }
    }
}

const TOGETHER: u64 = 1000;
