//! Layers forward each method to the underlying store.

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use tollgate::{
    Adjusted, Adjustment, AnyStore, Decision, Error, Key, MemoryStore, Rule, Store, Take, TakeError, Throttle, Window,
    admin::{AdminError, BucketLevel, SweepResult},
    layers::{Batcher, DenyCache, Lease, LocalReads},
    model::{Checked, Outcome, WindowLevel, WindowUsage},
    store::{Capabilities, Maintenance, MaintenanceFuture, SharedWindows, TestStore},
};

use super::underlying::take;

#[tokio::test]
async fn forwarding_store_calls_each_method_of_its_inner_store() -> anyhow::Result<()> {
    let within = Recording::default();
    let store = AnyStore::new(within.clone());
    assert_eq!(called_methods(&store, &within).await?, ALL);
    Ok(())
}

/// Layers that are stacked by hand get the same requests as the store would.
#[tokio::test]
async fn layers_forward_requests_unchanged() -> anyhow::Result<()> {
    let within = Recording::default();
    assert_eq!(called_methods(&DenyCache::new(within.clone()), &within).await?, ALL);
    // These layers answer `try_take` from their own state, or not at all.
    let others: Vec<&str> = ALL.into_iter().filter(|method| *method != "try_take").collect();
    let within = Recording::default();
    assert_eq!(called_methods(&LocalReads::new(within.clone()), &within).await?, others);
    let within = Recording::default();
    assert_eq!(called_methods(&Lease::new(within.clone()), &within).await?, others);
    let within = Recording::default();
    assert_eq!(called_methods(&Batcher::new(within.clone()), &within).await?, others);
    Ok(())
}

/// `Batcher` is never `in_process`, because requests queue in it.
#[test]
fn layers_report_the_capabilities_of_the_store() {
    let within = Recording::default();
    let capabilities = Store::capabilities(&within);
    assert_eq!(AnyStore::new(within.clone()).capabilities(), capabilities);
    assert_eq!(DenyCache::new(within.clone()).capabilities(), capabilities);
    assert_eq!(LocalReads::new(within.clone()).capabilities(), capabilities);
    assert_eq!(Lease::new(within.clone()).capabilities(), capabilities);
    let queued = Batcher::new(within).capabilities();
    assert_eq!((queued.in_process, queued.max_take_all, queued.concurrent_calls), (false, 7, 3));
    assert_eq!(Capabilities::default().concurrent_calls(usize::MAX).concurrent_calls, 64);
}

const ALL: [&str; 8] = ["take", "adjust", "throttle", "try_take", "level", "window_level", "sweep", "count_denials"];

/// Calls each method of a layer, and returns the methods that the layer called on the store.
async fn called_methods<S: Store>(layer: &S, within: &Recording) -> anyhow::Result<Vec<&'static str>> {
    let takes = [take("a", "100/h")?, take("b", "100/h")?];
    assert_eq!(layer.take(&takes).await?.len(), 2);
    assert!(layer.adjust(&[]).await?.is_empty());
    assert!(layer.throttle(takes[0].key(), &Rule::Provisioned, Throttle::remaining(0)).await?);
    let _ = layer.try_take(Checked::try_from(&takes[1])?);
    let layer = layer.maintenance().context("the store has it")?;
    assert_eq!(layer.level(takes[0].key(), &Rule::try_from("3 once")?).await?.available(), 3);
    assert_eq!(layer.window_level(takes[0].key(), &"3 in 60s at 5s".parse()?).await?.available(), 3);
    assert_eq!(layer.sweep(1).await?, SweepResult::default());
    layer.count_denials(&[]).await?;
    Ok(within.0.lock().clone())
}

/// A store that records which methods are called. Its answers differ from those of default methods.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<&'static str>>>, Arc<MemoryStore>);

impl Recording {
    fn note(&self, method: &'static str) {
        self.0.lock().push(method);
    }
}

impl TestStore for Recording {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().in_process().max_take_all(7).concurrent_calls(3)
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.note("take");
        self.1.take(takes).await
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.note("adjust");
        Ok(Vec::new())
    }

    async fn throttle(&self, _: &Key, _: &Rule, _: Throttle) -> Result<bool, Error> {
        self.note("throttle");
        Ok(true)
    }

    fn try_take(&self, _: &Take) -> Option<Outcome> {
        self.note("try_take");
        Some(Ok(Decision::grant(1)))
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }
}

impl Maintenance for Recording {
    fn level<'a>(&'a self, key: &'a Key, rule: &'a Rule) -> MaintenanceFuture<'a, BucketLevel, AdminError> {
        self.note("level");
        self.1.level(key, rule)
    }

    fn window_level<'a>(&'a self, key: &'a Key, window: &'a Window) -> MaintenanceFuture<'a, WindowLevel, AdminError> {
        self.note("window_level");
        self.1.window_level(key, window)
    }

    fn sweep(&self, _: u32) -> MaintenanceFuture<'_, SweepResult> {
        self.note("sweep");
        Box::pin(async { Ok(SweepResult::default()) })
    }

    fn count_denials<'a>(&'a self, _: &'a [(Key, u64)]) -> MaintenanceFuture<'a, ()> {
        self.note("count_denials");
        Box::pin(async { Ok(()) })
    }
}

impl SharedWindows for Recording {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<WindowUsage, Error> {
        MemoryStore::new().count(key, window, cost).await
    }
}
