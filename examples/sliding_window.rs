//! A sliding window: at most a maximum of requests in any interval. Decided by the database, and by local reads.
//!
//! ```text
//! cargo run --example sliding_window # on SQLite, in memory
//! cargo run --example sliding_window --features postgres -- postgres://localhost/app # or on a database of yours; also mysql
//! ```
//!
//! ```text
//! $ cargo run --example sliding_window
//! /search 1: granted true, 4 left
//! /search 2: granted true, 3 left
//! /search 3: granted true, 2 left
//! /search 4: granted true, 1 left
//! /search 5: granted true, 0 left
//! /search 6: granted false, 0 left
//! /search again in a day: true
//! /upload: granted true
//! /upload 1: granted true, decided by LocalReads
//! /upload 2: granted true, decided by LocalReads
//! /upload 3: granted true, decided by LocalReads
//! /upload 4: granted true, decided by LocalReads
//! /upload 5: granted false, decided by LocalReads
//! ```

use std::time::Duration;

use anyhow::Context;
use tollgate::{Limiter, Window};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    // 5 in any day, counted in hours.
    let window = Window::new(5, Duration::from_hours(24), Duration::from_hours(1))?;

    let exact = Limiter::new(database.store(), window)?;
    let (search, upload) = (database.key("/search")?, database.key("/upload")?);
    for n in 1..=6 {
        let decision = exact.allow(&search).await?;
        let left = decision.remaining().context("the quota is unlimited")?;
        println!("/search {n}: granted {}, {left} left", decision.is_granted());
    }
    // The requests of this hour count until a day after its end.
    let denied = exact.allow(&search).await?;
    let is_tomorrow = denied.retry_after().is_some_and(|time| time > Duration::from_hours(24));
    println!("/search again in a day: {is_tomorrow}");
    println!("/upload: granted {}", exact.allow(&upload).await?.is_granted());

    // A denial makes no call. A grant is counted in the database for the other processes.
    let near = Limiter::new(database.local_reads(), window)?;
    for n in 1..=5 {
        let decision = near.allow(&upload).await?;
        println!("/upload {n}: granted {}, decided by {:?}", decision.is_granted(), decision.source());
    }
    Ok(())
}
