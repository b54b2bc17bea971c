//! What layers pass on to the store beneath, whichever of its methods that is.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;
use tollgate::{
    Adjusted, Adjustment, AnyStore, Batcher, BucketLevel, Capabilities, Counted, Decision, DenyCache, Error, HoldBack,
    Key, Lease, LeaseOptions, LocalReads, MemoryStore, Outcome, Rule, RuntimeClock, SharedWindows, Source, Store,
    Swept, Take, TakeError, Window, WindowLevel,
};

use super::beneath::take;

#[tokio::test]
async fn each_method_of_the_store_within_is_asked_and_no_default_in_its_place() -> anyhow::Result<()> {
    let within = Telling::default();
    let store = AnyStore::new(within.clone());
    assert_eq!(asked_for_all(&store, &within).await?, ALL);
    Ok(())
}

/// By hand, too: a limiter, or `Batcher`, above them asks what it would ask the store.
#[tokio::test]
async fn layers_ask_as_they_were_asked() -> anyhow::Result<()> {
    let within = Telling::default();
    assert_eq!(asked_for_all(&DenyCache::new(within.clone()), &within).await?, ALL);
    // At once these answer what they know themselves, or nothing.
    let others: Vec<&str> = ALL.into_iter().filter(|method| *method != "take_now").collect();
    let within = Telling::default();
    assert_eq!(asked_for_all(&LocalReads::new(within.clone()), &within).await?, others);
    let within = Telling::default();
    assert_eq!(asked_for_all(&Lease::new(within.clone()), &within).await?, others);
    // A batch of one is a batch.
    let others: Vec<&str> =
        others.into_iter().map(|method| if method == "take_one" { "take" } else { method }).collect();
    let within = Telling::default();
    assert_eq!(asked_for_all(&Batcher::new(within.clone()), &within).await?, others);
    Ok(())
}

/// But for one in front of which requests queue: whatever is beneath, they are not decided at once.
#[test]
fn layers_can_do_what_the_store_can() {
    let within = Telling::default();
    let capabilities = within.capabilities();
    assert_eq!(AnyStore::new(within.clone()).capabilities(), capabilities);
    assert_eq!(DenyCache::new(within.clone()).capabilities(), capabilities);
    assert_eq!(LocalReads::new(within.clone()).capabilities(), capabilities);
    assert_eq!(Lease::new(within.clone()).capabilities(), capabilities);
    let queued = Batcher::new(within).capabilities();
    assert_eq!((queued.in_process, queued.most_together, queued.calls_at_once), (false, 7, 3));
    assert_eq!(Capabilities::default().calls_at_once(usize::MAX).calls_at_once, 64);
}

/// What was served from memory is used up: nobody can ask for those beside it one by one.
#[tokio::test(start_paused = true)]
async fn a_lease_that_has_served_some_of_them_has_the_store_try_the_others_again() -> anyhow::Result<()> {
    let within = Telling::default();
    let lease = Lease::with_clock(within.clone(), LeaseOptions::default(), RuntimeClock::default());
    let (leased, other, third) = (take("a", "1000000 once")?, take("b", "1/h")?, take("c", "1/h")?);
    let mut asked = 0;
    while lease.take_one(&leased).await??.source() != Source::Lease {
        asked += 1;
        anyhow::ensure!(asked < 10_000, "it never holds any");
        sleep(Duration::from_millis(1)).await;
    }
    for (takes, by) in [([leased, other.clone()], "take"), ([other, third], "take, or fail")] {
        within.0.lock().clear();
        assert_eq!(lease.take(&takes.map(Take::fail_if_locked)).await?.len(), 2);
        assert_eq!(within.0.lock().first(), Some(&by));
    }
    Ok(())
}

const ALL: [&str; 10] = [
    "take",
    "take, or fail",
    "adjust",
    "hold_back",
    "take_one",
    "take_now",
    "level",
    "window_level",
    "sweep",
    "count_denials",
];

/// Asks a layer by each method, and tells by which it asked the store.
async fn asked_for_all<S: Store>(layer: &S, within: &Telling) -> anyhow::Result<Vec<&'static str>> {
    let takes = [take("a", "100/h")?, take("b", "100/h")?];
    let or_fail = takes.clone().map(Take::fail_if_locked);
    assert_eq!((layer.take(&takes).await?.len(), layer.take(&or_fail).await?.len()), (2, 2));
    assert!(layer.adjust(&[]).await?.is_empty());
    assert!(layer.hold_back(takes[0].key(), &Rule::Provisioned, HoldBack::remaining(0)).await?);
    assert!(layer.take_one(&takes[0]).await??.is_granted());
    let _ = layer.take_now(&takes[1]);
    assert_eq!(layer.level(takes[0].key(), &Rule::try_from("3 once")?).await?.available, 3);
    assert_eq!(layer.window_level(takes[0].key(), &"3 in 60s at 5s".parse()?).await?.available(), 3);
    assert_eq!(layer.sweep(1).await?, Swept::default());
    layer.count_denials(&[]).await?;
    Ok(within.0.lock().clone())
}

/// Notes by which method it was asked, and answers what no default would.
#[derive(Clone, Default)]
struct Telling(Arc<Mutex<Vec<&'static str>>>, Arc<MemoryStore>);

impl Telling {
    fn note(&self, method: &'static str) {
        self.0.lock().push(method);
    }
}

impl Store for Telling {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().in_process().most_together(7).calls_at_once(3)
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.note(if takes.iter().all(Take::fails_if_locked) { "take, or fail" } else { "take" });
        self.1.take(takes).await
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.note("adjust");
        Ok(Vec::new())
    }

    async fn hold_back(&self, _: &Key, _: &Rule, _: HoldBack) -> Result<bool, Error> {
        self.note("hold_back");
        Ok(true)
    }

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        self.note("take_one");
        self.1.take_one(take).await
    }

    fn take_now(&self, _: &Take) -> Option<Outcome> {
        self.note("take_now");
        Some(Ok(Decision::grant(1)))
    }

    async fn level(&self, key: &Key, rule: &Rule) -> Result<BucketLevel, Error> {
        self.note("level");
        MemoryStore::new().level(key, rule).await
    }

    async fn window_level(&self, key: &Key, window: &Window) -> Result<WindowLevel, Error> {
        self.note("window_level");
        MemoryStore::new().window_level(key, window).await
    }

    async fn sweep(&self, _: u32) -> Result<Swept, Error> {
        self.note("sweep");
        Ok(Swept::default())
    }

    async fn count_denials(&self, _: &[(Key, u64)]) -> Result<(), Error> {
        self.note("count_denials");
        Ok(())
    }
}

impl SharedWindows for Telling {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<Counted, Error> {
        MemoryStore::new().count(key, window, cost).await
    }
}
