//! A token that is taken only if the rest of your transaction commits.
//!
//! ```text
//! cargo run --example own_transaction # on SQLite, in memory
//! cargo run --example own_transaction --features postgres -- postgres://localhost/app # or on a database of yours; also mysql
//! ```
//!
//! ```text
//! $ cargo run --example own_transaction
//! invoice A: sent, 1 left
//! invoice B: not sent, 1 left
//! invoice C: sent, 0 left
//! invoice D: not sent, 0 left
//! ```

use std::time::Duration;

use sqlx::Pool;
use tollgate::{
    Admin, Key, Quota, SqlStore, Take,
    store::{Dialect, take_within},
};

use common::Engine;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let invoices = database.key("invoices")?;
    match database.engine() {
        #[cfg(feature = "mysql")]
        Engine::MySql(pool) => three_invoices(pool, &invoices).await,
        #[cfg(feature = "postgres")]
        Engine::Postgres(pool) => three_invoices(pool, &invoices).await,
        Engine::Sqlite(pool) => three_invoices(pool, &invoices).await,
    }
}

async fn three_invoices<DB: Dialect>(pool: &Pool<DB>, key: &Key) -> anyhow::Result<()> {
    let store = SqlStore::from(pool.clone());
    store.create_bucket(key, Quota::interval(2, Duration::from_hours(24))?).await?;
    for (invoice, paid) in [("A", true), ("B", false), ("C", true), ("D", true)] {
        let done = send(pool, key, paid).await?;
        let left = store.peek(key).await?.map_or(0, |bucket| bucket.available());
        println!("invoice {invoice}: {}, {left} left", if done { "sent" } else { "not sent" });
    }
    Ok(())
}

/// Takes a token and works in one transaction. The bucket stays locked until the transaction ends.
async fn send<DB: Dialect>(pool: &Pool<DB>, key: &Key, paid: bool) -> anyhow::Result<bool> {
    let mut transaction = pool.begin().await?;
    let take = Take::from(key.clone());
    let granted = take_within::<DB::Connection>(&mut transaction, &take).await??.is_granted();
    // Your own statements follow here, in the same transaction.
    if granted && paid {
        transaction.commit().await?;
        return Ok(true);
    }
    transaction.rollback().await?; // gives the token back
    Ok(false)
}
