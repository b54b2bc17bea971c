use criterion::{BatchSize, Criterion};
use tollgate::{Key, MemoryStore, Quota, Rule, Take};

/// Measures `MemoryStore` with one key and with many.
pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("memory store");
    for keys in [1_usize, 100_000] {
        for (outcome, quota) in [("granted", Quota::per_second(1_000_000_000)), ("denied", Quota::per_day(1))] {
            let rule = Rule::try_from(quota).expect("a quota");
            let key = |n| Key::try_from(format!("user:{n}")).expect("a key");
            let takes: Vec<Take> = (0..keys).map(|n| Take::from(key(n)).rule(rule.clone())).collect();
            let store = MemoryStore::new();
            for take in &takes {
                assert!(store.decide(take).expect("possible").is_granted(), "a new bucket is full");
            }
            let mut next = 0;
            group.bench_function(format!("{keys} keys, {outcome}"), |bencher| {
                let scattered = || {
                    // The stride and the number of keys have no common divisor, so the benchmark uses every key.
                    next = (next + 38_903) % keys;
                    &takes[next]
                };
                bencher.iter_batched(scattered, |take| store.decide(take), BatchSize::SmallInput);
            });
        }
    }
    group.finish();
}
