//! Requests whose cost is known only afterwards: take an estimate first, and settle the actual cost later.
//!
//! ```text
//! cargo run --example settle # on SQLite, in memory
//! cargo run --example settle --features postgres -- postgres://localhost/app # or on a database of yours; also mysql
//! ```
//!
//! ```text
//! $ cargo run --example settle
//! 600 estimated: granted, 400 left
//! the same request again: granted, 400 left
//! it used 150: 450 given back
//! 600 estimated: granted, 250 left
//! it used 800: 200 more taken
//! 100 estimated: denied, 50 left, again in 72 min
//! ```

use std::time::Duration;

use anyhow::Context;
use tollgate::{Adjusted, Decision, Limiter, Quota, Rule, Take};
use uuid::Uuid;

use common::in_minutes;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let thousand_a_day = Rule::try_from(Quota::per_day(1000))?;
    let limiter = Limiter::new(database.store(), thousand_a_day.clone())?;
    let key = database.key("language-model")?;
    let estimate = |tokens| {
        // The id is remembered for an hour. Until then, the request can be repeated and settled. Otherwise the estimate stands.
        Take::from(key.clone()).rule(thousand_a_day.clone()).cost(tokens).id(Uuid::new_v4(), Duration::from_hours(1))
    };

    let first = estimate(600);
    let reservation = limiter.reserve_request(&first).await?;
    println!("600 estimated: granted, {} left", left(reservation.decision())?);
    let again = limiter.decide(&first).await?;
    println!("the same request again: granted, {} left", left(&again)?);
    println!("it used 150: {} given back", given_back(reservation.settle(150).await?)?);

    let reservation = limiter.reserve_request(&estimate(600)).await?;
    println!("600 estimated: granted, {} left", left(reservation.decision())?);
    println!("it used 800: {} more taken", -given_back(reservation.settle(800).await?)?);

    let denied = limiter.reserve_request(&estimate(100)).await?;
    let denied = denied.decision();
    println!("100 estimated: denied, {} left, again {}", left(denied)?, in_minutes(denied.retry_after()));
    Ok(())
}

fn left(decision: &Decision) -> anyhow::Result<u64> {
    decision.remaining().context("the quota is unlimited")
}

/// The tokens given back. A negative number of tokens was charged.
fn given_back(adjusted: Adjusted) -> anyhow::Result<i64> {
    match adjusted {
        Adjusted::Done(tokens) => Ok(tokens),
        other => anyhow::bail!("what was taken stands: {other:?}"),
    }
}
