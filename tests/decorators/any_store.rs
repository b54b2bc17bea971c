//! A store whose type is chosen at run time.

use std::fmt::Debug;
use std::time::Duration;

use tollgate::{AnyStore, Bound, Limiter, MemoryStore, Window, clock::ManualClock, layers::LocalReads, model::Source};

use super::underlying::Broken;

#[tokio::test]
async fn memory_store_has_no_layers_and_sees_clock_changes() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let limiter: Limiter = Limiter::new(AnyStore::new(MemoryStore::with_clock(clock.clone())), "1/s")?;
    assert!(limiter.allow("a").await?.is_granted());
    for _ in 0..3 {
        let denied = limiter.allow("a").await?;
        assert_eq!((denied.is_granted(), denied.source()), (false, Source::Store));
    }
    assert_eq!((limiter.peek("a").await?.available(), limiter.peek("b").await?.available()), (0, 1));
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
async fn type_erased_limiter_is_send_without_parameters() -> anyhow::Result<()> {
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
async fn store_errors_pass_through_wrapping_stores() -> anyhow::Result<()> {
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
