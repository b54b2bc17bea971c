use std::hint::black_box;
use std::time::Duration;

use criterion::Criterion;
use tollgate::Quota;
use tollgate::model::bucket::{Bucket, BucketQuota, BucketRequest};

/// Measures `bucket.rs`, the arithmetic of every decision in this process.
pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bucket");
    let hour = Duration::from_hours(1);
    for (kind, quota) in [("continuous", Quota::continuous(1000, hour)), ("interval", Quota::interval(1000, hour))] {
        let bucket_limits = BucketQuota::at(&quota.expect("a quota"), 0);
        let request = BucketRequest { cost: 1, max_wait: 0, min_remaining: 0 };
        let full = Bucket::full(&bucket_limits, NOW);
        let mut empty = full;
        assert!(
            empty.take(&bucket_limits, NOW, BucketRequest { cost: 1000, ..request }).granted,
            "a new bucket is full"
        );
        group.bench_function(format!("{kind}, granted"), |bencher| {
            bencher.iter(|| black_box(full).take(black_box(&bucket_limits), black_box(NOW), request));
        });
        group.bench_function(format!("{kind}, denied"), |bencher| {
            bencher.iter(|| black_box(empty).take(black_box(&bucket_limits), black_box(NOW), request));
        });
    }
    group.finish();
}

/// A time in November 2023.
const NOW: i64 = 1_700_000_000_000_000_000;
