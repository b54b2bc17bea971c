//! Clients with plans: a bucket for each client, and a row for each plan. One statement changes the plan at run time.
//!
//! ```text
//! cargo run --example plans # on SQLite, in memory
//! cargo run --example plans --features postgres -- postgres://localhost/app # or on a database of yours; also mysql
//! ```
//!
//! ```text
//! $ cargo run --example plans
//! 10 an hour for free, 1000 for paid
//!   ada: 10 granted, 0 left
//!   ada: 1 denied, again in 6 min
//!   bob: 10 granted, 990 left
//! 60 for free, 20 for paid
//!   ada: 1 denied, again in 1 min
//!   bob: 1 granted, 19 left
//!   eve: 1 granted, 59 left
//! ```

use anyhow::Context;
use tollgate::{Limiter, Quota, Rule};

use common::{Database, in_minutes};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let (free, paid) = (database.key("free")?, database.key("paid")?);
    database.create_plan(&free, Quota::per_hour(10).build()?).await?;
    database.create_plan(&paid, Quota::per_hour(1000).build()?).await?;
    // Without the deny cache, because it would deny a client from memory for a second after the plan has changed.
    let limiter = |plan| Limiter::builder(database.store()).without_deny_cache().build(Rule::Plan(plan));
    let limiters = (limiter(free.clone())?, limiter(paid.clone())?);

    // A client's first request creates its bucket, full.
    println!("10 an hour for free, 1000 for paid");
    ask(&database, &limiters.0, "ada", 10).await?;
    ask(&database, &limiters.0, "ada", 1).await?;
    ask(&database, &limiters.1, "bob", 10).await?;

    // Every process uses the new quota within a second. Buckets keep their tokens.
    println!("60 for free, 20 for paid");
    database.create_plan(&free, Quota::per_hour(60).build()?).await?;
    database.create_plan(&paid, Quota::per_hour(20).build()?).await?;
    ask(&database, &limiters.0, "ada", 1).await?;
    ask(&database, &limiters.1, "bob", 1).await?;
    ask(&database, &limiters.0, "eve", 1).await
}

async fn ask(database: &Database, limiter: &Limiter, client: &str, cost: u64) -> anyhow::Result<()> {
    let decision = limiter.allow_n(database.key(client)?, cost).await?;
    if decision.is_granted() {
        let left = decision.remaining().context("the quota is unlimited")?;
        println!("  {client}: {cost} granted, {left} left");
    } else {
        println!("  {client}: {cost} denied, again {}", in_minutes(decision.retry_after()));
    }
    Ok(())
}
