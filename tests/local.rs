//! A limit within one process, with the arithmetic of the buckets in a database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{LimitError, LocalBucket, Quota, TokenRequester, clock::ManualClock, limit, model::QuotaError};

#[tokio::test]
async fn two_a_second_grants_two_in_each_second() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    clock.set(1_800_000_000_123_456_789);
    let runs = AtomicU32::new(0);
    let bucket = LocalBucket::with_clock(Quota::interval(2, SECOND)?, clock.clone());
    let limited = limit(bucket, || async { runs.fetch_add(1, Ordering::SeqCst) });
    for tenth in 0..30 {
        match (tenth % 10, limited.call().await) {
            (0 | 1, granted) => assert_eq!(granted?, tenth / 10 * 2 + tenth % 10, "the action's own result"),
            (_, Err(LimitError::Denied { retry_after })) => assert_eq!(retry_after, Some(TENTH * (10 - tenth % 10))),
            (_, other) => anyhow::bail!("{other:?} after {tenth} tenths of a second"),
        }
        clock.advance(TENTH);
    }
    assert_eq!(runs.into_inner(), 6);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_share_exactly_the_tokens_of_a_bucket() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let bucket = Arc::new(LocalBucket::with_clock(Quota::continuous(1000, SECOND)?, clock.clone()));
    for expected in [1000, 250] {
        let mut tasks = JoinSet::new();
        for _ in 0..16 {
            let bucket = Arc::clone(&bucket);
            tasks.spawn(async move {
                let mut granted = 0;
                for _ in 0..200 {
                    granted += usize::from(bucket.request_token().await?.is_granted());
                }
                anyhow::Ok(granted)
            });
        }
        let mut granted = 0;
        while let Some(task) = tasks.join_next().await {
            granted += task??;
        }
        assert_eq!(granted, expected);
        clock.advance(SECOND / 4);
    }
    Ok(())
}

#[test]
fn invalid_quota_values_make_no_bucket() {
    assert_eq!(LocalBucket::new(0, SECOND).map(drop), Err(QuotaError::ZeroCapacity));
    assert_eq!(LocalBucket::new(1, Duration::ZERO).map(drop), Err(QuotaError::ZeroRefillTime));
    assert_eq!(LocalBucket::new(1, Duration::MAX).map(drop), Err(QuotaError::RefillTooLong));
}

const SECOND: Duration = Duration::from_secs(1);
const TENTH: Duration = Duration::from_millis(100);
