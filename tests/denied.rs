//! Denials that a limiter counts and reports to its store in the background.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Builder;
use tollgate::{Admin, Key, Limiter, LimiterBuilder, MemoryStore, clock::ManualClock, store::Maintenance};

const REPORT_TIME: Duration = Duration::from_secs(11);

fn counting(store: &Arc<MemoryStore>, max_keys: usize) -> LimiterBuilder<Arc<MemoryStore>> {
    Limiter::builder(Arc::clone(store)).count_denials(max_keys)
}

#[tokio::test(start_paused = true)]
async fn denials_are_reported_once_within_ten_seconds() -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    let limiter = counting(&store, 10).build("1 once")?;
    for round in 1..=3 {
        for _ in 0..5 {
            let _ = limiter.allow("a").await?;
            let _ = limiter.wait_n("b", 1, Duration::ZERO).await?;
        }
        tokio::time::sleep(REPORT_TIME).await;
        let reported: Vec<(Key, u64)> = store.most_denied(10).await?.into_iter().map(|d| (d.key, d.denied)).collect();
        // The first request for each key was granted.
        let denied = 5 * round - 1;
        assert_eq!(reported, [(Key::try_from("a")?, denied), (Key::try_from("b")?, denied)]);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn frequently_denied_keys_survive_a_flood_of_single_denials() -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    let limiter = counting(&store, 16).build("1 once")?;
    for number in 0..20_000 {
        let once = format!("once:{number}");
        for key in [&*once, &*once, "attacker", "attacker"] {
            let _ = limiter.allow(key).await?;
        }
    }
    limiter.close().await?;
    let reported = store.most_denied(100).await?;
    assert!(reported.len() <= 16, "{} keys are reported", reported.len());
    assert_eq!((reported[0].key.as_str(), reported[0].denied), ("attacker", 39_999));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn denials_are_counted_only_on_request() -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    let limiter = Limiter::new(Arc::clone(&store), "1 once")?;
    for _ in 0..3 {
        let _ = limiter.allow("a").await?;
    }
    limiter.close().await?;
    tokio::time::sleep(REPORT_TIME).await;
    assert_eq!(store.most_denied(10).await?, []);
    Ok(())
}

#[test]
fn denials_are_reported_without_or_after_a_runtime() -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    let limiter = counting(&store, 10).build("1 once")?;
    let paused = || Builder::new_current_thread().enable_time().start_paused(true).build();
    for _ in 0..3 {
        let _ = limiter.allow("a").now_or_never().expect("it is in memory")?;
    }
    let _ = paused()?.block_on(limiter.allow("a"))?;
    paused()?.block_on(async {
        let _ = limiter.allow("a").await?;
        tokio::time::sleep(REPORT_TIME).await;
        assert_eq!(store.most_denied(1).await?.first().map(|reported| reported.denied), Some(4));
        Ok(())
    })
}

#[tokio::test]
async fn sweep_deletes_denials_older_than_two_days() -> anyhow::Result<()> {
    const HOUR: Duration = Duration::from_hours(1);

    let clock = ManualClock::default();
    let store = MemoryStore::with_clock(clock.clone());
    store.count_denials(&[(Key::try_from("a")?, 1), (Key::try_from("b")?, 2)]).await?;
    clock.advance(47 * HOUR);
    assert_eq!(store.sweep(100).await?.deleted, 0);
    clock.advance(2 * HOUR);
    assert_eq!(store.sweep(100).await?.deleted, 2);
    assert_eq!(store.sweep(100).await?.deleted, 0);
    Ok(())
}
