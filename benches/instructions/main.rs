//! Makes a number of decisions in one part of the crate, so that callgrind counts instructions: `scripts/bench
//! instructions`.
//!
//! ```text
//! tollgate-instructions                    # names the parts
//! tollgate-instructions 'memory store' 10000
//! ```

// Part of this crate, as of the benchmark, so that the compiler can inline it.
#[path = "../side-by-side/micro/null.rs"]
mod null;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::process::ExitCode;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use tokio::runtime::{Builder, Runtime};
use tollgate::model::bucket::{self, Bucket, BucketQuota};
use tollgate::{
    Decision, Key, Limiter, MemoryStore, Quota, Rule, Store, Take,
    clock::ManualClock,
    layers::{Batcher, DenyCache, Lease},
    model::Source,
};
use tollgate_http::RateLimitLayer;
use tower_layer::Layer;
use tower_service::Service;

use self::null::Null;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [part, count] = &arguments[..] else {
        for (name, _) in PARTS {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    };
    if let (Some((_, decide)), Ok(count)) = (PARTS.iter().find(|(name, _)| name == part), count.parse()) {
        decide(count);
        return ExitCode::SUCCESS;
    }
    eprintln!("no part is called {part:?}, or {count:?} is no number");
    ExitCode::from(2)
}

/// The name of a part, and a function that makes a number of decisions. The setup is the same for any number.
type Part = (&'static str, fn(usize));

const PARTS: &[Part] = &[
    ("bucket arithmetic, granted", |count| bucket(count, false)),
    ("bucket arithmetic, denied", |count| bucket(count, true)),
    ("memory store, granted", |count| memory(count, Quota::per_second(1_000_000_000))),
    ("memory store, denied", |count| memory(count, Quota::per_day(1))),
    ("a store that answers at once", |count| layer(count, &Null(Decision::grant(1)), Source::Store)),
    ("deny cache, denied", |count| {
        let denied = Decision::denial(Duration::from_hours(1));
        layer(count, &DenyCache::new(Null(denied)), Source::DenyCache);
    }),
    ("deny cache, granted", |count| layer(count, &DenyCache::new(Null(Decision::grant(1))), Source::Store)),
    ("lease", |count| layer(count, &Lease::new(still()), Source::Lease)),
    ("batcher", |count| {
        let _entered = runtime().enter();
        layer(count, &Batcher::new(Null(Decision::grant(1))), Source::Store);
    }),
    ("limiter over a store that answers at once", |count| limiter(count, Null(Decision::grant(1)))),
    ("limiter over the memory store", |count| limiter(count, still())),
    ("tower layer over the memory store", served),
];

fn bucket(count: usize, denied: bool) {
    let quota = Quota::continuous(1000, Duration::from_hours(1)).expect("a quota");
    let (limits, request) =
        (BucketQuota::at(&quota, 0), bucket::BucketRequest { cost: 1, max_wait: 0, min_remaining: 0 });
    let mut bucket = Bucket::full(&limits, NOW);
    let all = bucket::BucketRequest { cost: 1000, ..request };
    assert!(!denied || bucket.take(&limits, NOW, all).granted, "a new bucket is full");
    for _ in 0..count {
        let _ = black_box(black_box(bucket).take(black_box(&limits), black_box(NOW), request));
    }
}

fn memory(count: usize, quota: impl TryInto<Rule, Error: std::fmt::Debug>) {
    let (store, take) = (still(), take(quota));
    assert!(store.decide(&take).expect("possible").is_granted(), "a new bucket is full");
    for _ in 0..count {
        let _ = black_box(store.decide(black_box(&take)));
    }
}

fn layer<S: Store>(count: usize, store: &S, by: Source) {
    let take = take(Quota::per_second(1_000_000_000));
    runtime().block_on(async {
        // A lease begins after frequent requests for a key.
        while store.take_one(&take).await.expect("it answers").expect("possible").source() != by {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..count {
            let _ = black_box(store.take_one(black_box(&take)).await);
        }
    });
}

fn limiter(count: usize, store: impl Store) {
    runtime().block_on(async {
        let limiter = Limiter::new(store, Quota::per_second(1_000_000_000)).expect("a quota");
        let key = Key::try_from("user:42").expect("a key");
        for _ in 0..count {
            let _ = black_box(limiter.allow(black_box(&key)).await);
        }
    });
}

fn served(count: usize) {
    let limiter = Limiter::new(still(), Quota::per_second(1_000_000_000)).expect("a quota");
    let layer = RateLimitLayer::new(limiter).key(|_: &Parts| Some("user:42"));
    let mut service = layer.layer(AtOnce);
    runtime().block_on(async {
        for _ in 0..count {
            let _ = black_box(service.call(black_box(Request::new(()))).await);
        }
    });
}

/// A service that answers at once.
#[derive(Clone)]
struct AtOnce;

impl Service<Request<()>> for AtOnce {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

/// A store with a paused clock, because the number of reads of a real clock depends on the speed.
fn still() -> MemoryStore<ManualClock> {
    MemoryStore::with_clock(ManualClock::default())
}

fn take(quota: impl TryInto<Rule, Error: std::fmt::Debug>) -> Take {
    Take::from(Key::try_from("user:42").expect("a key")).rule(quota.try_into().expect("a quota"))
}

/// Runs the background work of a layer on another thread than the caller's.
fn runtime() -> &'static Runtime {
    static RUNTIME: std::sync::OnceLock<Runtime> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime"))
}

/// A time in November 2023.
const NOW: i64 = 1_700_000_000_000_000_000;
