//! `allow`, `reserve` and `wait`, each with and without available tokens.
//!
//! ```text
//! cargo run --example three_methods # on SQLite, in memory
//! cargo run --example three_methods --features postgres -- postgres://localhost/app # or on a database of yours; also mysql
//! ```
//!
//! ```text
//! $ cargo run --example three_methods
//! allow 1: granted, 2 left
//! allow 2: granted, 1 left
//! allow 3: granted, 0 left
//! allow 4: denied, again in 10 min
//! reserve: granted, to be used in 10 min
//! reserve: granted, to be used in 20 min
//! cancel: 1 given back
//! wait for 1 s at most: granted false
//! wait 1: granted after 0 s
//! wait 2: granted after 1 s
//! wait 3: granted after 2 s
//! ```

use std::time::Duration;

use anyhow::Context;
use tollgate::{Limiter, Quota};

use common::{in_minutes, seconds};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let slow =
        Limiter::builder(database.store()).max_wait(Duration::from_hours(1)).build(Quota::per_hour(6).burst(3))?;
    let slow = slow.bind(database.key("reports")?)?;

    // Takes a token now, or denies.
    for n in 1..=4 {
        let decision = slow.allow().await?;
        if decision.is_granted() {
            let left = decision.remaining().context("the quota is unlimited")?;
            println!("allow {n}: granted, {left} left");
        } else {
            println!("allow {n}: denied, again {}", in_minutes(decision.retry_after()));
        }
    }

    // Takes a token now or later. The answer states when to use it.
    let first = slow.reserve().await?;
    println!("reserve: granted, to be used {}", in_minutes(first.delay()));
    let second = slow.reserve().await?;
    println!("reserve: granted, to be used {}", in_minutes(second.delay()));
    println!("cancel: {} given back", second.cancel().await?);

    // Sleeps until the scheduled time. Denies at once, and takes nothing, if the wait would be too long.
    let too_long = slow.wait_n(1, Duration::from_secs(1)).await?;
    println!("wait for 1 s at most: granted {}", too_long.is_granted());

    let fast = Limiter::new(database.store(), Quota::per_second(1))?.bind(database.key("third-party-api")?)?;
    let turns = tokio::join!(fast.wait(), fast.wait(), fast.wait());
    for (n, turn) in [turns.0?, turns.1?, turns.2?].iter().enumerate() {
        println!("wait {}: granted after {} s", n + 1, seconds(turn.decision().wait()));
    }
    Ok(())
}
