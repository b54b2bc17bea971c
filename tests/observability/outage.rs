//! Events about a store that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::advance;
use tollgate::{
    Adjusted, Adjustment, Error, Limiter, MemoryStore, Store, Take, TakeError, model::Outcome, store::TestStore,
};
use tollgate_tests::logged;

#[tokio::test(start_paused = true)]
async fn failing_store_is_logged_once_or_each_minute_without_fallback() -> anyhow::Result<()> {
    logged::listen();
    let store = Arc::new(Failing { store: MemoryStore::new(), fails: AtomicBool::new(true) });
    let limiter = Limiter::builder(Arc::clone(&store)).name("api").build("1000/h")?;
    let fails = "WARN tollgate: the store does not answer, and nothing does instead limiter=\"api\" error=\"other\"";
    let answers = "INFO tollgate: the store answers again limiter=\"api\"";
    let times_logged = |line| logged::text().matches(line).count();
    for times in [1, 2] {
        store.fails.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            assert!(limiter.allow("a").await.is_err() && limiter.wait("a").await.is_err());
            assert!(
                limiter.allow_n("a", 0).await.is_err(),
                "it is the request's own fault, and says nothing of the store"
            );
        }
        assert_eq!([times_logged(fails), times_logged(answers)], [times, times - 1], "{}", logged::text());
        store.fails.store(false, Ordering::SeqCst);
        for _ in 0..3 {
            assert!(limiter.wait("a").await?.is_granted());
        }
        assert_eq!([times_logged(fails), times_logged(answers)], [times; 2], "{}", logged::text());
        // Further changes within the minute are not logged.
        for fails in [true, false] {
            store.fails.store(fails, Ordering::SeqCst);
            assert_eq!(limiter.allow("a").await.is_err(), fails);
        }
        assert_eq!([times_logged(fails), times_logged(answers)], [times; 2], "{}", logged::text());
        advance(Duration::from_secs(60)).await;
    }
    Ok(())
}

/// A store that fails while `fails` is true.
struct Failing {
    store: MemoryStore,
    fails: AtomicBool,
}

impl TestStore for Failing {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::other(std::io::Error::other("broken")));
        }
        self.store.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }
}
