//! Compares a decision in this process with `governor`, by the store alone and through a limiter.
//!
//! All use the same keys, quota and threads, and take turns. A turn counts only if no other program used the
//! processors.
//!
//! ```text
//! cargo bench --bench memory -- --seconds 2
//! ```

use std::fmt;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::{Key, Limiter, MemoryStore, Quota, Rule, Take};

#[derive(Parser)]
#[command(about = "Measures decisions in this process, granted and denied, beside governor")]
struct Arguments {
    /// Seconds of turns for each line of the table.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Numbers of keys.
    #[arg(long, default_values_t = [1, 100_000], value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    keys: Vec<usize>,
    /// Numbers of threads.
    #[arg(long, default_values_t = [1, 2], value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    threads: Vec<usize>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    println!(
        "| keys | threads | outcome | governor, M/s | MemoryStore, M/s | ÷ governor | Limiter, M/s | ÷ governor |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for &keys in &arguments.keys {
        for &threads in &arguments.threads {
            for (outcome, rate) in [("granted", 1_000_000_000), ("denied", 1)] {
                let theirs = Arc::new(Theirs::new(keys, rate));
                let ours = Arc::new(Ours::new(keys, rate));
                let limited = Arc::new(Limited::new(keys, rate));
                let (start, mut rates) = (Instant::now(), [const { Vec::new() }; 3]);
                while start.elapsed().as_secs_f64() < arguments.seconds {
                    rates[0].extend(turn(&theirs, threads, outcome));
                    rates[1].extend(turn(&ours, threads, outcome));
                    rates[2].extend(turn(&limited, threads, outcome));
                }
                let [theirs, ours, limited] = rates.map(Spread::of);
                println!(
                    "| {keys} | {threads} | {outcome} | {theirs} | {ours} | {:.2} | {limited} | {:.2} |",
                    ours.median / theirs.median,
                    limited.median / theirs.median
                );
            }
        }
    }
}

/// Decides requests for the tokens of a key.
trait Decides: Send + Sync + 'static {
    fn keys(&self) -> usize;

    fn decide(&self, key: usize) -> bool;
}

struct Ours {
    store: MemoryStore,
    takes: Vec<Take>,
}

impl Ours {
    fn new(keys: usize, rate: u32) -> Self {
        let rule = rule(rate);
        let takes: Vec<Take> = (0..keys).map(|n| Take::from(key(n)).rule(rule.clone())).collect();
        let this = Self { store: MemoryStore::new(), takes };
        for key in 0..keys {
            assert!(this.decide(key), "a new bucket is full");
        }
        this
    }
}

impl Decides for Ours {
    fn keys(&self) -> usize {
        self.takes.len()
    }

    fn decide(&self, key: usize) -> bool {
        self.store.decide(&self.takes[key]).expect("possible").is_granted()
    }
}

/// A limiter as a service uses it, with its counts, modes and policy.
struct Limited {
    limiter: Limiter<MemoryStore>,
    keys: Vec<Key>,
}

impl Limited {
    fn new(keys: usize, rate: u32) -> Self {
        let limiter = Limiter::new(MemoryStore::new(), rule(rate)).expect("a limiter");
        let this = Self { limiter, keys: (0..keys).map(key).collect() };
        for key in 0..keys {
            assert!(this.decide(key), "a new bucket is full");
        }
        this
    }
}

impl Decides for Limited {
    fn keys(&self) -> usize {
        self.keys.len()
    }

    fn decide(&self, key: usize) -> bool {
        let decision = pin!(self.limiter.allow(&self.keys[key]));
        match decision.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision.expect("possible").is_granted(),
            Poll::Pending => unreachable!("a store in this process answers at once"),
        }
    }
}

fn key(n: usize) -> Key {
    Key::try_from(format!("user:{n}")).expect("a key")
}

fn rule(rate: u32) -> Rule {
    let quota = if rate == 1 { Quota::per_day(1) } else { Quota::per_second(rate.into()) };
    Rule::Quota(quota.build().expect("a quota"))
}

struct Theirs {
    limiter: DefaultKeyedRateLimiter<String>,
    keys: Vec<String>,
}

impl Theirs {
    fn new(keys: usize, rate: u32) -> Self {
        let quota = match rate {
            1 => governor::Quota::with_period(Duration::from_hours(24)).expect("a period"),
            rate => governor::Quota::per_second(NonZeroU32::new(rate).expect("a rate")),
        };
        let limiter = RateLimiter::dashmap(quota);
        let this = Self { limiter, keys: (0..keys).map(|n| format!("user:{n}")).collect() };
        for key in &this.keys {
            assert!(this.limiter.check_key(key).is_ok(), "a new bucket is full");
        }
        this
    }
}

impl Decides for Theirs {
    fn keys(&self) -> usize {
        self.keys.len()
    }

    fn decide(&self, key: usize) -> bool {
        self.limiter.check_key(&self.keys[key]).is_ok()
    }
}

/// Returns the decisions per second of a number of threads, over all keys in a scattered order. `None` if another
/// program made a thread wait for a processor.
fn turn<D: Decides>(decides: &Arc<D>, threads: usize, outcome: &str) -> Option<f64> {
    let (over, ready) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(threads + 1)));
    let granted = outcome == "granted";
    let callers: Vec<_> = (0..threads)
        .map(|caller| {
            let (decides, over, ready) = (Arc::clone(decides), Arc::clone(&over), Arc::clone(&ready));
            thread::spawn(move || {
                let waited_before = waited();
                ready.wait();
                let start = Instant::now();
                // The stride and the number of keys have no common divisor, so the caller uses every key.
                let (keys, stride) = (decides.keys(), 38_903 % decides.keys());
                let (mut key, mut decisions) = (caller % keys, 0_u32);
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        key += stride;
                        // A division would cost a tenth of a decision.
                        key -= if key < keys { 0 } else { keys };
                        assert_eq!(decides.decide(key), granted, "key {key}");
                    }
                    decisions += 100;
                }
                let (took, waited) = (start.elapsed(), waited().saturating_sub(waited_before));
                (waited <= took / 20).then(|| f64::from(decisions) / took.as_secs_f64())
            })
        })
        .collect();
    ready.wait();
    thread::sleep(SLICE);
    over.store(true, Ordering::Relaxed);
    let rates: Vec<Option<f64>> = callers.into_iter().map(|caller| caller.join().expect("no panic")).collect();
    rates.into_iter().sum()
}

/// Returns how long this thread waited for a processor. Only Linux reports it, so elsewhere every turn counts.
fn waited() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = schedstat.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(waited.unwrap_or_default())
}

/// The median, and the bounds of the middle half.
struct Spread {
    median: f64,
    middle: [f64; 2],
}

impl Spread {
    fn of(mut rates: Vec<f64>) -> Self {
        rates.sort_unstable_by(f64::total_cmp);
        let at = |part: usize| rates.get(rates.len().saturating_sub(1) * part / 4).copied().unwrap_or(f64::NAN);
        Self { median: at(2), middle: [at(1), at(3)] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.median.is_nan() {
            return f.write_str("disturbed");
        }
        let [median, low, high] = [self.median, self.middle[0], self.middle[1]].map(|rate| rate / 1e6);
        write!(f, "{median:.2} ({low:.2}–{high:.2})")
    }
}

/// Length of a turn. Short, so that some turns are undisturbed on a busy machine.
const SLICE: Duration = Duration::from_millis(2);
