//! Waits under several limits, which queue as other waits do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{
    Adjusted, Adjustment, Error, Key, Limit, Limiter, MemoryStore, Rule, Store, Take, TakeError, model::Outcome,
    store::Capabilities, store::TestStore,
};

use super::order::Paused;

/// A store that decides up to 64 requests for several limits in one call. It answers after a millisecond, or fails.
struct Slow {
    store: MemoryStore<Paused>,
    takes: AtomicUsize,
    /// The number of the first call that fails, from 0.
    fails_from: usize,
    fails_after: Option<Duration>,
}

impl Slow {
    fn new(fails_after: Option<Duration>) -> Arc<Self> {
        let store = MemoryStore::with_clock(Paused(Instant::now()));
        Arc::new(Self { store, takes: AtomicUsize::default(), fails_from: 0, fails_after })
    }
}

impl TestStore for Slow {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().max_take_all(64)
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let number = self.takes.fetch_add(1, Ordering::SeqCst);
        if let Some(after) = self.fails_after.filter(|_| number >= self.fails_from) {
            sleep(after).await;
            return Err(Error::other(std::io::Error::other("unavailable")));
        }
        sleep(Duration::from_millis(1)).await;
        self.store.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }
}

fn take(second: &str, cost: u64, longest: Duration) -> anyhow::Result<Take> {
    let limit = |key, rule: &str| anyhow::Ok(Limit::new(Key::try_from(key)?, Rule::try_from(rule)?));
    Ok(Take::from(limit("requests", "100000/s")?).and_limit(limit("tokens", second)?.cost(cost)).max_wait(longest))
}

/// Starts waits one after the other. Each returns its number, and whether it was granted.
fn start_waits(
    limiter: &Limiter<Arc<Slow>>,
    takes: impl IntoIterator<Item = Take>,
) -> JoinSet<(usize, Result<bool, Error>)> {
    let mut waiting = JoinSet::new();
    for (number, take) in takes.into_iter().enumerate() {
        let limiter = limiter.clone();
        waiting.spawn(async move {
            (number, limiter.wait_request(&take).await.map(|reservation| reservation.is_granted()))
        });
    }
    waiting
}

/// Returns the numbers of the waits in the order in which they ended. Fails if one was not granted.
async fn granted_order(mut waiting: JoinSet<(usize, Result<bool, Error>)>) -> anyhow::Result<Vec<usize>> {
    let mut order = Vec::new();
    while let Some(ended) = waiting.join_next().await {
        let (number, granted) = ended?;
        anyhow::ensure!(granted?, "number {number}");
        order.push(number);
    }
    Ok(order)
}

#[tokio::test(start_paused = true)]
async fn granted_requests_for_several_buckets_share_few_calls() -> anyhow::Result<()> {
    let store = Slow::new(None);
    let limiter = Limiter::new(Arc::clone(&store), "unlimited")?;
    let take = take("6400 once", 10, Duration::from_secs(10))?;
    assert_eq!(granted_order(start_waits(&limiter, vec![take.clone(); 640])).await?.len(), 640);
    let calls = store.takes.load(Ordering::SeqCst);
    assert!(calls <= 11, "{calls} calls for 640");
    assert!(!limiter.wait_request(&take).await?.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waits_for_several_buckets_keep_their_order() -> anyhow::Result<()> {
    let limiter = Limiter::new(Slow::new(None), "unlimited")?;
    let (take, begun) = (take("100/s burst 20", 10, Duration::from_secs(60))?, Instant::now());
    assert!(granted_order(start_waits(&limiter, vec![take; 40])).await?.into_iter().eq(0..40));
    let elapsed = begun.elapsed();
    assert!((Duration::from_millis(3790)..Duration::from_millis(3900)).contains(&elapsed), "{elapsed:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_for_several_buckets_is_not_called() -> anyhow::Result<()> {
    let store = Slow::new(None);
    let limiter = Limiter::new(Arc::clone(&store), "unlimited")?;
    let mut waiting = start_waits(&limiter, vec![take("10 once", 10, Duration::from_secs(10))?; 60]);
    assert!(waiting.join_next().await.expect("sixty")?.1?, "the first wait is granted");
    // The other waits share one call now. Without a cancel, each of them would then have its own call.
    tokio::task::yield_now().await;
    waiting.shutdown().await;
    limiter.close().await?;
    let calls = store.takes.load(Ordering::SeqCst);
    assert!((1..=3).contains(&calls), "{calls} calls");
    Ok(())
}

/// A call to an unavailable database fails only at its own deadline. So the last wait could wait for all earlier calls.
#[tokio::test(start_paused = true)]
async fn queue_time_before_a_failing_store_counts_as_waiting() -> anyhow::Result<()> {
    let (longest, call) = (Duration::from_secs(10), Duration::from_secs(5));
    for limits in [1, 2] {
        let limiter = Limiter::new(Slow::new(Some(call)), "1/s")?;
        let take = match limits {
            1 => limiter.request("one")?.max_wait(longest),
            _ => take("1/s", 10, longest)?.id(uuid::Uuid::new_v4(), longest),
        };
        let begun = Instant::now();
        let mut waiting = start_waits(&limiter, vec![take; 100]);
        while let Some(answer) = waiting.join_next().await {
            let (number, answer) = answer?;
            let after = begun.elapsed();
            assert!(answer.is_err() && after <= longest + call, "{limits} limits, number {number}: {after:?}");
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waits_behind_a_stalled_call_fail_in_time() -> anyhow::Result<()> {
    const STALLS: Duration = Duration::from_secs(5);
    let mut store = Slow::new(Some(STALLS));
    Arc::get_mut(&mut store).expect("the store has one owner").fails_from = 2;
    let limiter = Limiter::builder(store).build("1/s")?;
    let take = |seconds| take("1/h", 1, Duration::from_secs(seconds));
    assert!(limiter.wait_request(&take(7200)?).await?.is_granted());
    // One call denies all waits at once. The store fails from then on, before the first wait is called alone.
    let _patient = start_waits(&limiter, (0..64).map(|_| take(7200)).collect::<Result<Vec<_>, _>>()?);
    tokio::task::yield_now().await;
    let answer = tokio::time::timeout(2 * STALLS, limiter.wait_request(&take(1)?)).await?;
    assert!(answer.is_err());
    Ok(())
}
