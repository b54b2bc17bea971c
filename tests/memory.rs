//! The store in this process does what the databases do.

// Nothing outside uses a test.
#![allow(unreachable_pub)]

mod scenarios;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use scenarios::memory::Memory;
use tollgate::{Limiter, ManualClock, MemoryStore, TakeError};

macro_rules! tests {
    ($($module:ident: $scenario:ident),+ $(,)?) => {
        $(#[tokio::test]
        async fn $scenario() -> anyhow::Result<()> {
            scenarios::$module::$scenario(&Memory::new()).await
        })+
    };
}
for_each_scenario!(tests);

#[tokio::test]
async fn a_full_store_forgets_full_buckets_and_never_others() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::with_clock(clock.clone()).most_keys(64));
    let limiter = Limiter::new(Arc::clone(&store), "1/s")?;
    let mut refused = 0;
    for n in 0..10_000 {
        match limiter.allow(format!("user:{n}")).await {
            Ok(decision) => assert!(decision.is_granted()),
            Err(tollgate::Error::Take(TakeError::TooManyKeys(_))) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!((store.len(), refused), (64, 10_000 - 64));
    clock.advance(Duration::from_secs(1));
    assert!(limiter.allow("somebody else").await?.is_granted());
    assert!(store.len() <= 64);
    Ok(())
}
