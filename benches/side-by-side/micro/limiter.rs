use criterion::Criterion;
use tokio::runtime::Builder;
use tollgate::{Adjusted, Adjustment, Decision, Error, Key, Limiter, Outcome, Quota, Store, Take, TakeError};

/// A limiter over a store that answers at once: what the layers between the caller and the store cost.
pub(crate) fn bench(criterion: &mut Criterion) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let key = Key::try_from("user:42").expect("a key");
    let mut group = criterion.benchmark_group("limiter over a store that answers at once");
    let limiter = Limiter::new(Null, Quota::per_second(10)).expect("a quota");
    group.bench_function("allow", |bencher| bencher.to_async(&runtime).iter(|| limiter.allow(&key)));
    group.finish();
}

struct Null;

impl Store for Null {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        Ok(takes.iter().map(|_| Ok(Decision::grant(1))).collect())
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Ok(adjustments.iter().map(|_| Ok(Adjusted::Done(0))).collect())
    }
}
