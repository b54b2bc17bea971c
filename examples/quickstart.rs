//! Five tasks start at the same time every second, and request tokens of a bucket with two tokens a second.
//!
//! ```text
//! cargo run --example quickstart # on a SQLite database that is removed afterwards
//! cargo run --example quickstart --features postgres -- postgres://localhost/app # or on one of yours; also mysql
//! ```
//!
//! Prints `done` twice and `no tokens available` three times each second. Each run creates its own bucket, so two runs at the
//! same time do not affect each other.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
#[cfg(feature = "mysql")]
use sqlx::MySql;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
use sqlx::Sqlite;
use sqlx::pool::PoolOptions;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{LimitError, Quota, SqlTokenRequester, limit, store::Migrate};
use uuid::Uuid;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Some(url) = std::env::args().nth(1) else {
        let directory = std::env::temp_dir().join(format!("tollgate-{}", Uuid::new_v4()));
        std::fs::create_dir(&directory)?;
        let replayed = replay::<Sqlite>(&format!("sqlite://{}?mode=rwc", directory.join("app.db").display())).await;
        std::fs::remove_dir_all(&directory)?;
        return replayed;
    };
    match url.split(':').next() {
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => replay::<Postgres>(&url).await,
        #[cfg(feature = "mysql")]
        Some("mysql" | "mariadb") => replay::<MySql>(&url).await,
        Some("sqlite") => replay::<Sqlite>(&url).await,
        _ => bail!("give a URL of sqlite://, or with --features postgres,mysql one of postgres:// or mysql://"),
    }
}

async fn replay<DB: Migrate>(url: &str) -> anyhow::Result<()> {
    let pool = PoolOptions::<DB>::new().max_connections(TASKS).connect(url).await.context("cannot connect")?;
    tollgate::migrate(&pool).await?;
    open_all(&pool).await?;

    // Provisioned under a new id, because the bucket's first second begins when it is created.
    let id = Uuid::new_v4();
    tollgate::create_bucket(&pool, id, Quota::interval(GRANTED, Duration::from_secs(1))?).await?;
    // Starts shortly after the begin of each second, so that a difference of clocks puts no task into the second before.
    sleep(Duration::from_millis(20)).await;
    let start = Instant::now();

    for second in 0..3 {
        sleep_until(start + Duration::from_secs(second)).await;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let task = limit(SqlTokenRequester::new(pool.clone(), id)?, || async { "done" });
            tasks.spawn(async move { (task.call().await, start.elapsed().as_millis()) });
        }
        let mut done = 0;
        while let Some(task) = tasks.join_next().await {
            match task? {
                (Ok(result), ms) => {
                    done += 1;
                    println!("{ms:>5} ms  {result}");
                }
                (Err(none @ LimitError::Denied { .. }), ms) => println!("{ms:>5} ms  {none}"),
                (Err(error), _) => return Err(error).context("a task had no answer"),
            }
        }
        ensure!(done == GRANTED, "second {second} granted {done} tokens, not {GRANTED}");
    }
    pool.close().await;
    Ok(())
}

/// Connects beforehand, so that the tasks start at the same time.
async fn open_all<DB: Migrate>(pool: &sqlx::Pool<DB>) -> anyhow::Result<()> {
    let mut connections = Vec::new();
    for _ in 0..TASKS {
        connections.push(pool.acquire().await?);
    }
    Ok(())
}

const TASKS: u32 = 5;
const GRANTED: u64 = 2;
