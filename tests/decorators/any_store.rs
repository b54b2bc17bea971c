//! A store whose kind is chosen while the program runs.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate::{
    Adjusted, Adjustment, AnyStore, Bound, Decision, Error, HoldBack, Key, Limiter, LocalReads, ManualClock,
    MemoryStore, Outcome, Rule, Source, Store, SweepCursor, Swept, Take, TakeError, Window,
};

use super::beneath::{Broken, take};

#[tokio::test]
async fn each_method_of_the_store_within_is_asked_and_no_default_in_its_place() -> anyhow::Result<()> {
    let within = Telling::default();
    let (store, one) = (AnyStore::new(within.clone()), take("a", "1/h")?);
    assert_eq!((store.is_in_process(), store.most_together()), (true, 7));
    assert!(store.take(&[]).await?.is_empty());
    assert!(store.try_take(&[]).await?.is_empty());
    assert!(store.adjust(&[]).await?.is_empty());
    assert!(store.hold_back(one.key(), &Rule::Provisioned, HoldBack::remaining(0)).await?);
    assert!(store.take_one(&one).await??.is_granted());
    assert!(store.take_now(&one).is_some());
    assert_eq!(store.sweep(None, 1).await?, Swept::default());
    store.count_denials(&[]).await?;
    let asked = ["take", "try_take", "adjust", "hold_back", "take_one", "take_now", "sweep", "count_denials"];
    assert_eq!(*within.0.lock(), asked);
    Ok(())
}

#[tokio::test]
async fn memory_is_asked_without_layers_so_that_a_clock_that_is_moved_is_seen_at_once() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let limiter: Limiter = Limiter::new(AnyStore::new(MemoryStore::with_clock(clock.clone())), "1/s")?;
    assert!(limiter.allow("a").await?.is_granted());
    for _ in 0..3 {
        let denied = limiter.allow("a").await?;
        assert_eq!((denied.is_granted(), denied.source()), (false, Source::Store));
    }
    clock.advance(Duration::from_secs(1));
    assert!(limiter.allow("a").await?.is_granted());
    Ok(())
}

/// The state of a service.
#[derive(Clone, Debug)]
struct App {
    limiter: Limiter,
    upstream: Bound,
}

#[tokio::test]
async fn whatever_holds_a_limiter_needs_no_parameter_and_goes_to_other_threads() -> anyhow::Result<()> {
    fn shared<T: Clone + Debug + Send + Sync + 'static>(state: T) -> T {
        state
    }
    let store = AnyStore::new(MemoryStore::new());
    let limiter = Limiter::new(store.clone(), "2 once")?;
    let app = shared(App { limiter, upstream: Limiter::new(store, "2 once")?.bind("a")? });
    let other = app.clone();
    let waited = tokio::spawn(async move { other.limiter.wait("a").await }).await??;
    assert!(waited.is_granted());
    assert!(app.upstream.allow().await?.is_granted());
    assert!(!app.limiter.allow("a").await?.is_granted(), "clones of the store have the same buckets");
    let kind = format!("{:?}", AnyStore::new(MemoryStore::new()));
    assert!(kind.contains("MemoryStore"), "{kind}");
    Ok(())
}

#[tokio::test]
async fn a_store_that_fails_fails_and_one_over_another_goes_in_as_a_whole() -> anyhow::Result<()> {
    let limiters = [
        (AnyStore::new(Broken::default()), None),
        (AnyStore::new(MemoryStore::new()), Some(Source::Store)),
        (AnyStore::new(LocalReads::new(MemoryStore::new())), Some(Source::LocalReads)),
    ];
    let window = Window::new(1, Duration::from_secs(3600), Duration::from_secs(60))?;
    for (store, source) in limiters {
        let limiter = Limiter::new(store, window)?;
        assert_eq!(limiter.allow("a").await.ok().map(|granted| granted.source()), source);
    }
    Ok(())
}

/// Notes by which method it was asked, and answers what no default would.
#[derive(Clone, Default)]
struct Telling(Arc<Mutex<Vec<&'static str>>>);

impl Telling {
    fn note(&self, method: &'static str) {
        self.0.lock().push(method);
    }
}

impl Store for Telling {
    fn is_in_process(&self) -> bool {
        true
    }

    fn most_together(&self) -> usize {
        7
    }

    async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.note("take");
        Ok(Vec::new())
    }

    async fn try_take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.note("try_take");
        Ok(Vec::new())
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.note("adjust");
        Ok(Vec::new())
    }

    async fn hold_back(&self, _: &Key, _: &Rule, _: HoldBack) -> Result<bool, Error> {
        self.note("hold_back");
        Ok(true)
    }

    async fn take_one(&self, _: &Take) -> Result<Outcome, Error> {
        self.note("take_one");
        Ok(Ok(Decision::grant(1)))
    }

    fn take_now(&self, _: &Take) -> Option<Outcome> {
        self.note("take_now");
        Some(Ok(Decision::grant(1)))
    }

    async fn sweep(&self, _: Option<&SweepCursor>, _: u32) -> Result<Swept, Error> {
        self.note("sweep");
        Ok(Swept::default())
    }

    async fn count_denials(&self, _: &[(Key, u64)]) -> Result<(), Error> {
        self.note("count_denials");
        Ok(())
    }
}
