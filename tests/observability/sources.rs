//! Counts decisions by source: the deny cache, leases and local reads decide without a store call.

use std::time::Duration;

use tollgate::{
    Limiter, MemoryStore, Window,
    layers::{Lease, LocalReads},
    model::Source,
};
use tollgate_tests::recorded::{recorder, value};

use crate::Database;

#[tokio::test]
async fn a_denial_from_memory_is_the_deny_caches() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let database = Database::new().await?;
    let limiter = Limiter::new(database.store(), "1 once")?;
    while value(&handle, "tollgate_decisions_total", &[("source", "deny_cache")]) < Some(3.0) {
        let _ = limiter.allow("a").await?;
    }
    let denied = [("outcome", "denied"), ("source", "store")];
    assert!(value(&handle, "tollgate_decisions_total", &denied) >= Some(1.0));
    Ok(())
}

#[tokio::test]
async fn a_grant_of_tokens_taken_before_is_the_leases() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let limiter = Limiter::new(Lease::new(MemoryStore::new()), "1000000 once")?;
    let mut leased = 0;
    while leased < 100 {
        let decision = limiter.allow("busy").await?;
        assert!(decision.is_granted());
        leased += u32::from(decision.source() == Source::Lease);
        tokio::task::yield_now().await;
    }
    let granted = [("outcome", "granted"), ("source", "lease"), ("mode", "enforce")];
    assert_eq!(value(&handle, "tollgate_decisions_total", &granted), Some(f64::from(leased)));
    Ok(())
}

#[tokio::test]
async fn local_window_decision_has_local_reads_as_source() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let database = Database::new().await?;
    let hour = Duration::from_hours(1);
    let limiter = Limiter::new(LocalReads::new(database.store()), Window::new(2, hour, hour / 4)?)?;
    for is_granted in [true, true, false] {
        assert_eq!(limiter.allow("a").await?.is_granted(), is_granted);
    }
    let count = |outcome| {
        let labels = [("outcome", outcome), ("source", "local_reads"), ("mode", "enforce")];
        value(&handle, "tollgate_decisions_total", &labels)
    };
    assert_eq!((count("granted"), count("denied")), (Some(2.0), Some(1.0)));
    Ok(())
}
