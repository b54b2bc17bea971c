//! The store in this process does what the databases do.

// Nothing outside uses a test.
#![allow(unreachable_pub)]

mod scenarios;

use std::sync::Arc;
use std::time::Duration;

use scenarios::memory::Memory;
use tollgate::{Clock, Limiter, ManualClock, MemoryStore, TakeError};

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

#[tokio::test(start_paused = true)]
async fn ten_thousand_wait_on_one_key_in_their_order() -> anyhow::Result<()> {
    struct Paused(tokio::time::Instant);

    impl Clock for Paused {
        fn now(&self) -> i64 {
            i64::try_from(self.0.elapsed().as_nanos()).expect("not that long") + scenarios::START
        }
    }

    let store = MemoryStore::with_clock(Paused(tokio::time::Instant::now()));
    let limiter = Limiter::new(store, "1000/s burst 1")?.bind("one")?;
    let turns = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = tokio::task::JoinSet::new();
    for n in 0..10_000 {
        let (limiter, turns) = (limiter.clone(), Arc::clone(&turns));
        waiting.spawn(async move {
            assert!(limiter.wait().await.expect("the store is this process").is_granted());
            turns.lock().expect("nobody panics").push(n);
        });
    }
    while let Some(waited) = waiting.join_next().await {
        waited?;
    }
    let turns = turns.lock().expect("nobody panics");
    assert!(turns.iter().copied().eq(0..10_000), "some overtook others");
    Ok(())
}
