use std::time::Duration;

use criterion::Criterion;
use tokio::runtime::{Builder, Runtime};
use tollgate::{
    Decision, Key, MemoryStore, Quota, Rule, Store, Take,
    layers::{Batcher, DenyCache, Lease},
    model::Source,
};

use super::null::Null;

/// Measures each layer over a store that costs nothing, and that store alone, to subtract it.
pub(crate) fn bench(criterion: &mut Criterion) {
    // The background work of a layer runs on another thread than the caller's.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let rule = Rule::try_from(Quota::per_second(1_000_000_000)).expect("a quota");
    let take = Take::from(Key::try_from("user:42").expect("a key")).rule(rule);
    let (granted, denied) = (Decision::grant(1), Decision::denial(Duration::from_hours(1)));

    one(criterion, &runtime, "none", &Null(granted.clone()), &take, Source::Store);
    one(
        criterion,
        &runtime,
        "batcher",
        &runtime.block_on(async { Batcher::new(Null(granted.clone())) }),
        &take,
        Source::Store,
    );
    one(criterion, &runtime, "deny cache, denied", &DenyCache::new(Null(denied)), &take, Source::DenyCache);
    one(criterion, &runtime, "deny cache, granted", &DenyCache::new(Null(granted)), &take, Source::Store);
    // A lease needs receipts, which only a store with buckets returns. It prefetches in the background.
    one(criterion, &runtime, "lease", &Lease::new(MemoryStore::new()), &take, Source::Lease);
}

fn one<S: Store>(criterion: &mut Criterion, runtime: &Runtime, name: &str, store: &S, take: &Take, by: Source) {
    assert!(runtime.block_on(answers_by(store, take, by)), "{name}: nothing is answered by {by:?}");
    let mut group = criterion.benchmark_group("layer");
    group.bench_function(name, |bencher| bencher.to_async(runtime).iter(|| store.take_one(take)));
    group.finish();
}

/// Whether the expected source answers within some requests. A lease begins after frequent requests for a key.
async fn answers_by<S: Store>(store: &S, take: &Take, by: Source) -> bool {
    for _ in 0..10_000 {
        let outcome = store.take_one(take).await.expect("it answers");
        if outcome.is_ok_and(|decision| decision.source() == by) {
            return true;
        }
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    false
}
