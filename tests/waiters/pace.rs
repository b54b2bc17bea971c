//! Waits whose bucket, mode or queue changes meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tollgate::{Admin, Error, Key, Limiter, MemoryStore, Mode, Rule, TokenRequester as _};

use super::order::{Counting, Paused};

#[tokio::test(start_paused = true)]
async fn unbounded_wait_learns_of_earlier_tokens() -> anyhow::Result<()> {
    let begun = Instant::now();
    let one = Limiter::new(MemoryStore::with_clock(Paused(begun)), "1/d")?.bind("one")?;
    assert!(one.allow().await?.is_granted());
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.wait_for_token().await }
    });
    sleep(Duration::from_secs(60)).await;
    assert!(!waiting.is_finished() && one.limiter().store().reset(one.key()).await?);
    assert!(waiting.await??.is_granted() && begun.elapsed() <= Duration::from_secs(90), "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cancelled_late_wait_delays_no_other() -> anyhow::Result<()> {
    let begun = Instant::now();
    let limiter = Limiter::builder(Arc::new(Counting::new(begun))).build("1/s burst 20")?.bind("one")?;
    assert!(limiter.allow_n(20).await?.is_granted());
    let second = Duration::from_secs(1);
    let ahead = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.wait_n(2, 30 * second).await }
    });
    // The wait above is queued before time advances.
    sleep(Duration::from_millis(1)).await;
    assert!(timeout(second, limiter.wait_n(20, 30 * second)).await.is_err(), "its scheduled time is in twenty seconds");
    assert!(limiter.wait_n(1, 30 * second).await?.is_granted());
    assert!(begun.elapsed() < 5 * second, "{:?}", begun.elapsed());
    assert!(ahead.await??.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn denied_wait_returns_at_once() -> anyhow::Result<()> {
    let begun = Instant::now();
    let store = Arc::new(Counting::new(begun));
    let limiter = Limiter::builder(Arc::clone(&store)).build("1/s")?.bind("one")?;
    assert!(limiter.allow().await?.is_granted());
    let second = Duration::from_secs(1);
    let ahead = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.wait_n(1, 30 * second).await }
    });
    sleep(Duration::from_millis(1)).await;
    assert!(!limiter.wait_n(1, Duration::from_millis(100)).await?.is_granted());
    store.store.set_mode(Mode::Off, None, None).await?;
    assert!(limiter.wait_n(1, 30 * second).await?.is_granted(), "nothing limits it");
    assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
    assert!(ahead.await??.is_granted());
    Ok(())
}

/// All requests queue under their first key. The first one waits for its other bucket, which the later ones do not use.
#[tokio::test(start_paused = true)]
async fn waits_depend_on_no_bucket_of_earlier_requests() -> anyhow::Result<()> {
    let begun = Instant::now();
    let limiter = Limiter::builder(Arc::new(Counting::new(begun))).build("1000/s burst 1000")?;
    let minutely = Rule::try_from("1/min")?;
    let second = Duration::from_secs(1);
    let both = limiter.request("shared")?.and(Key::try_from("slow")?, minutely);
    assert!(limiter.decide(&both).await?.is_granted());
    let ahead = tokio::spawn({
        let (limiter, both) = (limiter.clone(), both.max_wait(90 * second));
        async move { Ok::<_, Error>(limiter.wait_request(&both).await?.is_granted()) }
    });
    sleep(Duration::from_millis(1)).await;
    let other = limiter.request("shared")?.and(Key::try_from("fast")?, Rule::try_from("9/s")?);
    assert!(limiter.wait_request(&other.max_wait(second)).await?.is_granted());
    assert!(limiter.wait_n("shared", 1, second).await?.is_granted());
    assert!(begun.elapsed() < second, "{:?}", begun.elapsed());
    assert!(ahead.await??);
    Ok(())
}
