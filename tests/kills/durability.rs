//! What a crash of PostgreSQL forgets, of stores that commit synchronously and asynchronously.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::ensure;
use tokio::task::JoinSet;
use tollgate::{Admin, Durability, Key, Limiter, PgStore, Quota, Store, Take};

use crate::database::Engine;
use crate::server::Server;

/// All buckets are asked until the server dies, and afterwards until they are empty.
pub async fn a_crash_forgets_nothing_that_was_answered_or_at_most_a_capacity() -> anyhow::Result<()> {
    let mut server = Server::start(Engine::Postgres).await?;
    server.connect().await?.migrate().await?;
    let connect = |(durability, _): &(Durability, u64)| PgStore::connect(server.url(), *durability);
    let stores: Vec<PgStore> = DURABILITIES.iter().map(connect).collect::<Result<_, _>>()?;

    let answered = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for (which, store) in stores.iter().enumerate() {
        for _ in 0..CALLERS {
            let (limiter, answered) = (Limiter::new(store.clone(), quota()?)?, Arc::clone(&answered));
            callers.spawn(async move { (which, until_it_dies(&limiter, which, &answered).await) });
        }
    }
    while answered.load(Ordering::Relaxed) < ENOUGH {
        tokio::task::yield_now().await;
    }
    server.kill().await?;
    let mut granted = vec![HashMap::new(); DURABILITIES.len()];
    while let Some(caller) = callers.join_next().await {
        let (which, keys) = caller?;
        for key in keys {
            *granted[which].entry(key).or_insert(0) += 1;
        }
    }
    for store in &stores {
        store.pool().close().await;
    }

    server.restart()?;
    server.connect().await?;
    for ((durability, most), granted) in DURABILITIES.into_iter().zip(granted) {
        let store = PgStore::connect(server.url(), durability)?;
        for (key, known) in granted {
            let mut all = known;
            if durability == Durability::Synchronous {
                let there = store.peek(&key).await?.map_or(0, |level| level.granted);
                ensure!(there >= all, "{key}: {there} of {all} are there");
            }
            let take = Take::from(key.clone()).rule(quota()?.into());
            while store.take_one(&take).await??.is_granted() {
                all += 1;
            }
            ensure!(all <= most, "{key}: {all} tokens of {CAPACITY} with {durability:?} commits");
        }
    }
    Ok(())
}

/// Takes a token of one bucket after the other, and says of which it had one.
async fn until_it_dies(limiter: &Limiter<PgStore>, which: usize, answered: &AtomicUsize) -> Vec<Key> {
    let mut granted = Vec::new();
    for n in 0_u64.. {
        let key = Key::try_from(format!("{which}:{}", n / 2)).expect("a key");
        match limiter.allow(&key).await {
            Ok(decision) if decision.is_granted() => granted.push(key),
            Ok(_) => {}
            Err(_) => break,
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    granted
}

fn quota() -> Result<Quota, tollgate::QuotaError> {
    Quota::once(CAPACITY)
}

/// And how many tokens a bucket grants at most, in both lives.
const DURABILITIES: [(Durability, u64); 2] =
    [(Durability::Synchronous, CAPACITY), (Durability::Asynchronous, 2 * CAPACITY)];

const CAPACITY: u64 = 5;
const CALLERS: usize = 4;
const ENOUGH: usize = 2000;
