use criterion::Criterion;
use tokio::runtime::Builder;
use tollgate::{Decision, Key, Limiter, Quota};

use super::null::Null;

/// Measures a limiter over a store that answers at once: the cost of all layers between the caller and the store.
pub(crate) fn bench(criterion: &mut Criterion) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let key = Key::try_from("user:42").expect("a key");
    let mut group = criterion.benchmark_group("limiter over a store that answers at once");
    let limiter = Limiter::new(Null(Decision::grant(1)), Quota::per_second(10)).expect("a quota");
    group.bench_function("allow", |bencher| bencher.to_async(&runtime).iter(|| limiter.allow(&key)));
    group.finish();
}
