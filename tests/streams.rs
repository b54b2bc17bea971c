//! Streams at the rate of a limit.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use tokio::time::Instant;
use tollgate::{
    Admin, Decision, Error, Key, LimitError, Limiter, MemoryStore, TakeError, TokenRequester, clock::RuntimeClock,
    stream::limit_stream,
};

#[tokio::test]
async fn items_come_in_their_order_each_with_a_token() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), "200/s burst 1")?;
    let key = Key::try_from("jobs")?;
    let mut items = pin!(limit_stream(limiter.bind(&key)?, stream::iter(0..10)));
    for expected in 0..10 {
        let before = limiter.store().peek(&key).await?.map_or(0, |level| level.granted());
        assert_eq!(items.next().await.expect("ten of them")?, expected);
        assert_eq!(limiter.store().peek(&key).await?.expect("it is there").granted(), before + 1);
    }
    assert!(items.next().await.is_none() && items.next().await.is_none());
    assert_eq!(
        limiter.store().peek(&key).await?.expect("it is there").granted(),
        10,
        "the end of the stream takes no token"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn stream_item_takes_its_cost_and_free_item_does_not_wait() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(RuntimeClock::default()), "10/s burst 100")?;
    let jobs = stream::iter([100_u64, 0, 50, 10, 200]);
    let mut items = pin!(limit_stream(limiter.bind("jobs")?, jobs).cost(|cost| *cost));
    let began = Instant::now();
    for (item, seconds) in [(100, 0), (0, 0), (50, 5), (10, 6)] {
        assert_eq!(items.next().await.expect("five of them")?, item);
        assert_eq!(began.elapsed().as_secs(), seconds, "{item}");
    }
    for _ in 0..2 {
        let never = items.next().await.expect("the item is kept");
        assert!(matches!(never, Err(LimitError::Request(Error::Take(TakeError::ExceedsCapacity { .. })))), "{never:?}");
    }
    Ok(())
}

#[tokio::test]
async fn streams_share_a_limit_and_a_dropped_stream_takes_no_more() -> anyhow::Result<()> {
    let limiter = Limiter::builder(MemoryStore::new()).max_wait(Duration::from_hours(2)).build("1/h")?;
    let key = Key::try_from("jobs")?;
    let mut first = Box::pin(limit_stream(limiter.bind(&key)?, stream::iter(0..10)));
    assert_eq!(first.next().await.expect("ten of them")?, 0);
    let level = async || anyhow::Ok(limiter.store().peek(&key).await?.expect("it is there"));
    while level().await?.available() == 0 {
        assert!(first.next().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(level().await?.available(), -1);
    drop(first);
    while level().await?.available() < 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(level().await?.granted(), 1, "only the item that came out is charged");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waiting_stream_makes_no_calls() -> anyhow::Result<()> {
    struct Counting(Arc<AtomicU64>);

    impl TokenRequester for Counting {
        async fn request_token(&self) -> Result<Decision, Error> {
            let calls = self.0.fetch_add(1, Ordering::SeqCst);
            Ok(if calls % 2 == 1 { Decision::grant(0) } else { Decision::denial(Duration::from_secs(10)) })
        }
    }

    let calls = Arc::new(AtomicU64::new(0));
    let requester = Counting(Arc::clone(&calls));
    let mut items = pin!(limit_stream(requester, stream::iter(0..3)));
    let began = Instant::now();
    while let Some(item) = items.next().await {
        item?;
    }
    // The clock advances only by sleeps.
    assert_eq!((calls.load(Ordering::SeqCst), began.elapsed().as_secs()), (6, 30));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn stream_polled_after_errors_backs_off() -> anyhow::Result<()> {
    struct Failing(AtomicU64);

    impl TokenRequester for Failing {
        async fn request_token(&self) -> Result<Decision, Error> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                20 => Ok(Decision::grant(0)),
                _ => Err(Error::Overloaded(5)),
            }
        }
    }

    let mut items = pin!(limit_stream(Failing(AtomicU64::new(0)), stream::iter(0..2)));
    // The clock advances only by sleeps.
    let mut since = Instant::now();
    let mut pauses = Vec::new();
    loop {
        let item = items.next().await.expect("the item is kept");
        pauses.push(since.elapsed().as_millis());
        since = Instant::now();
        if item.is_ok() {
            break;
        }
    }
    assert_eq!(pauses[..12], [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]);
    assert!(pauses[12..].iter().all(|pause| *pause == 1000), "{pauses:?}");
    assert!(items.next().await.expect("the item is kept").is_err());
    assert_eq!(since.elapsed().as_millis(), 0, "a grant ends the backoff");
    Ok(())
}

#[tokio::test]
async fn stream_item_outlives_a_denial_and_an_error() -> anyhow::Result<()> {
    struct Moody(AtomicU64);

    impl TokenRequester for Moody {
        async fn request_token(&self) -> Result<Decision, Error> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(Decision::denial(None)),
                1 => Err(Error::Overloaded(5)),
                _ => Ok(Decision::grant(0)),
            }
        }
    }

    let mut items = pin!(limit_stream(Moody(AtomicU64::new(0)), stream::iter(["a", "b"])));
    let never = items.next().await;
    assert!(matches!(never, Some(Err(LimitError::Denied { retry_after: None }))), "{never:?}");
    assert!(matches!(items.next().await, Some(Err(LimitError::Request(Error::Overloaded(5))))));
    assert_eq!(items.size_hint(), (2, None));
    assert_eq!(items.next().await.transpose()?, Some("a"));
    assert_eq!(items.next().await.transpose()?, Some("b"));
    assert!(items.next().await.is_none());
    Ok(())
}
