//! A store that stalls, under a limiter without a fallback.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{
    Adjusted, Adjustment, Error, Fallback, Limiter, LimiterBuilder, MemoryStore, Store, Take, TakeError,
    model::Outcome, store::TestStore,
};

/// A store that fails after a delay while `with` is set, and answers otherwise.
#[derive(Default)]
struct Failing {
    with: Mutex<Option<(Duration, Error)>>,
    calls: AtomicU32,
    store: MemoryStore,
}

impl Failing {
    fn with(after: Duration, error: Error) -> Arc<Self> {
        Arc::new(Self { with: Mutex::new(Some((after, error))), ..Self::default() })
    }

    /// Fails as the store of a database that does not answer.
    fn stalling() -> Arc<Self> {
        Self::with(STALL, Error::DeadlineExceeded(STALL))
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

impl TestStore for Failing {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let with = self.with.lock().clone();
        if let Some((after, error)) = with {
            sleep(after).await;
            return Err(error);
        }
        self.store.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }
}

/// Returns a builder without batching, so that each request is one call.
fn builder(store: &Arc<Failing>) -> LimiterBuilder<Arc<Failing>> {
    Limiter::builder(Arc::clone(store)).without_batching()
}

/// Makes `count` requests at once, with alternating methods and a bucket each. Returns their errors and when they ended.
async fn call_at_once(limiter: &Limiter<Arc<Failing>>, count: u32) -> anyhow::Result<Vec<(Option<Error>, Duration)>> {
    let (mut calls, start) = (JoinSet::new(), Instant::now());
    for n in 0..count {
        let (limiter, key) = (limiter.clone(), format!("user:{n}"));
        calls.spawn(async move {
            let answer = match n % 3 {
                0 => limiter.allow(key).await.map(drop),
                1 => limiter.reserve(key).await.map(drop),
                _ => limiter.wait(key).await.map(drop),
            };
            (answer.err(), start.elapsed())
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = calls.join_next().await {
        answers.push(answer?);
    }
    Ok(answers)
}

#[tokio::test(start_paused = true)]
async fn stalled_store_is_probed_once_beside_many_requests() -> anyhow::Result<()> {
    let store = Failing::stalling();
    let limiter = builder(&store).build("1000/h")?;
    for (error, waited) in call_at_once(&limiter, 16).await? {
        assert!(matches!(error, Some(Error::DeadlineExceeded(STALL))) && waited == STALL, "{error:?} after {waited:?}");
    }
    let mut rejected = 0;
    for (error, waited) in call_at_once(&limiter, 100).await? {
        match error.expect("there is no answer") {
            error @ Error::CircuitOpen { .. } => {
                assert_eq!(waited, Duration::ZERO);
                assert!(error.is_failure() && !error.is_outcome_unknown(), "nothing was taken");
                let (text, cause) = (error.to_string(), std::error::Error::source(&error).map(ToString::to_string));
                assert!(
                    text.contains("circuit breaker is open") && text.contains("LimiterBuilder::fallback"),
                    "{text}"
                );
                assert_eq!(cause, Some(Error::DeadlineExceeded(STALL).to_string()));
                rejected += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((rejected, store.calls()), (100, 17));

    *store.with.lock() = None;
    sleep(2 * STALL).await;
    assert!(matches!(limiter.allow("a").await, Err(Error::CircuitOpen { .. })));
    limiter.close().await?;
    for _ in 0..2 {
        assert!(limiter.allow("a").await?.is_granted(), "a probe has found that the store answers");
    }
    assert!(call_at_once(&limiter, 100).await?.iter().all(|(error, _)| error.is_none()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn quick_errors_and_contention_open_no_circuit() -> anyhow::Result<()> {
    let broken = || Arc::new(io::Error::other("broken"));
    let local = || Fallback::Closed(Duration::from_secs(1));
    for (after, error, falls_back) in [
        (Duration::ZERO, Error::NotMigrated(broken()), false),
        (Duration::ZERO, Error::Unavailable(broken()), false),
        (Duration::ZERO, Error::Overloaded(5), false),
        (Duration::ZERO, Error::Overloaded(5), true),
        (BRIEF, Error::Contended { attempts: 9, source: broken() }, false),
        (BRIEF, Error::Contended { attempts: 9, source: broken() }, true),
    ] {
        let store = Failing::with(after, error.clone());
        let builder = builder(&store);
        let builder = if falls_back { builder.deadline(2 * STALL).fallback(local()) } else { builder };
        let limiter = builder.build("1000/h")?;
        for _ in 0..2 {
            for (failure, waited) in call_at_once(&limiter, 50).await? {
                let failure = failure.map(|failure| failure.to_string());
                assert_eq!((failure, waited), ((!falls_back).then(|| error.to_string()), after), "{error:?}");
            }
        }
        assert_eq!(store.calls(), 100, "{error:?}");
    }
    Ok(())
}

/// As if the whole table were locked.
#[tokio::test(start_paused = true)]
async fn contention_for_seconds_opens_the_circuit() -> anyhow::Result<()> {
    let contended = Error::Contended { attempts: 9, source: Arc::new(io::Error::other("locked")) };
    let store = Failing::with(STALL, contended);
    let limiter = builder(&store).build("1000/h")?;
    for (error, waited) in call_at_once(&limiter, 16).await? {
        assert!(matches!(error, Some(Error::Contended { .. })) && waited == STALL, "{error:?} after {waited:?}");
    }
    for (error, waited) in call_at_once(&limiter, 50).await? {
        assert!(matches!(error, Some(Error::CircuitOpen { .. })) && waited.is_zero(), "{error:?} after {waited:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_circuit_breaker_all_call_the_store() -> anyhow::Result<()> {
    let store = Failing::stalling();
    let limiter = builder(&store).without_circuit_breaker().build("1000/h")?;
    for _ in 0..2 {
        for (error, waited) in call_at_once(&limiter, 50).await? {
            assert!(matches!(error, Some(Error::DeadlineExceeded(STALL))) && waited == STALL, "{error:?}");
        }
    }
    assert_eq!(store.calls(), 100);
    Ok(())
}

const STALL: Duration = Duration::from_secs(5);
/// Too short for a failure that counts.
const BRIEF: Duration = Duration::from_millis(999);

/// A store in which another transaction keeps the row of one bucket locked.
struct LockedRowStore(MemoryStore);

impl TestStore for LockedRowStore {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if takes.iter().flat_map(Take::keys).any(|key| key.as_str() == "locked") {
            sleep(STALL).await;
            return Err(Error::DeadlineExceeded(STALL));
        }
        self.0.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.0.adjust(adjustments).await
    }
}

#[tokio::test(start_paused = true)]
async fn locked_bucket_opens_no_circuit_for_others() -> anyhow::Result<()> {
    let limiter = Limiter::builder(LockedRowStore(MemoryStore::new())).without_batching().build("1000/h")?;
    let mut calls = JoinSet::new();
    for n in 0..200_u64 {
        let limiter = limiter.clone();
        calls.spawn(async move {
            sleep(Duration::from_millis(100 * n)).await;
            limiter.allow("locked").await
        });
    }
    // Until now, all requests were for the locked bucket.
    sleep(3 * STALL).await;
    for n in 0..100 {
        assert!(limiter.allow(format!("user:{n}")).await?.is_granted());
    }
    for answer in calls.join_all().await {
        assert!(answer.is_err());
    }
    Ok(())
}
