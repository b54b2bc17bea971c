//! Five tasks start together every second and want tokens of a bucket that has two a second.
//!
//! ```text
//! cargo run --example quickstart                             # on a SQLite database that is removed afterwards
//! cargo run --example quickstart -- postgres://localhost/app # or on one of yours; also mysql:// and sqlite://
//! ```
//!
//! Each second prints `done` twice and `no tokens available` three times. Start it in two terminals to see two buckets:
//! each run makes one of its own.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use sqlx::pool::PoolOptions;
use sqlx::{MySql, Postgres, Sqlite};
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
        Some("postgres" | "postgresql") => replay::<Postgres>(&url).await,
        Some("mysql" | "mariadb") => replay::<MySql>(&url).await,
        Some("sqlite") => replay::<Sqlite>(&url).await,
        _ => bail!("give a URL that begins with postgres://, mysql:// or sqlite://"),
    }
}

async fn replay<DB: Migrate>(url: &str) -> anyhow::Result<()> {
    let pool = PoolOptions::<DB>::new().max_connections(TASKS).connect(url).await.context("cannot connect")?;
    tollgate::migrate(&pool).await?;
    open_all(&pool).await?;

    // Provisioned under a new id, as the bucket's first second begins when it is made.
    let id = Uuid::new_v4();
    tollgate::create_bucket(&pool, id, Quota::interval(GRANTED, Duration::from_secs(1))?).await?;
    // A little into each second, so that no difference between two clocks puts a task into the second before.
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

/// Connects beforehand, so that the tasks really start together.
async fn open_all<DB: Migrate>(pool: &sqlx::Pool<DB>) -> anyhow::Result<()> {
    let mut connections = Vec::new();
    for _ in 0..TASKS {
        connections.push(pool.acquire().await?);
    }
    Ok(())
}

const TASKS: u32 = 5;
const GRANTED: u64 = 2;
