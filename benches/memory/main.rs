//! What a decision in this process costs, by the store alone and through a limiter, beside `governor`: the same keys, quota
//! and threads, taking turns.
//!
//! ```text
//! cargo bench --bench memory -- --seconds 2
//! ```

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::{Key, Limiter, MemoryStore, Quota, Rule, Take};

#[derive(Parser)]
#[command(about = "Measures decisions in this process, granted and denied, beside governor")]
struct Arguments {
    /// For how long each figure is measured, all rounds together.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How often the two take turns.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let slice = Duration::from_secs_f64(arguments.seconds / f64::from(arguments.rounds));
    println!(
        "| keys | threads | outcome | governor, M/s | MemoryStore, M/s | ÷ governor | Limiter, M/s | ÷ governor |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for keys in [1, 100_000] {
        for threads in [1, 2] {
            for (outcome, rate) in [("granted", 1_000_000_000), ("denied", 1)] {
                let (theirs, ours) = (Arc::new(Theirs::new(keys, rate)), Arc::new(Ours::new(keys, rate)));
                let limited = Arc::new(Limited::new(keys, rate));
                let mut rounds = Vec::new();
                for _ in 0..=arguments.rounds {
                    rounds.push([
                        turn(&theirs, threads, slice, outcome),
                        turn(&ours, threads, slice, outcome),
                        turn(&limited, threads, slice, outcome),
                    ]);
                }
                rounds.remove(0);
                let column = |of: fn(&[f64; 3]) -> f64| spread(rounds.iter().map(of));
                println!(
                    "| {keys} | {threads} | {outcome} | {} | {} | {} | {} | {} |",
                    column(|round| round[0] / 1e6),
                    column(|round| round[1] / 1e6),
                    column(|round| round[1] / round[0]),
                    column(|round| round[2] / 1e6),
                    column(|round| round[2] / round[0])
                );
            }
        }
    }
}

/// Something that decides requests for the tokens of a key.
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

/// As a service uses it: its counts, modes and policy included.
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
        let limiter = RateLimiter::keyed(quota);
        let this = Self { limiter, keys: (0..keys).map(|n| format!("user:{n}")).collect() };
        for key in 0..keys {
            assert!(this.decide(key), "a new bucket is full");
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

/// Decisions a second, by so many threads, over all keys in a scattered order.
fn turn<D: Decides>(decides: &Arc<D>, threads: usize, slice: Duration, outcome: &str) -> f64 {
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let granted = outcome == "granted";
    let start = Instant::now();
    let callers: Vec<_> = (0..threads)
        .map(|caller| {
            let (decides, over, count) = (Arc::clone(decides), Arc::clone(&over), Arc::clone(&count));
            thread::spawn(move || {
                let (mut key, mut decisions) = (caller, 0_u64);
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..1000 {
                        // The stride shares no divisor with the number of keys, so every key has its turn.
                        key = (key + 38_903) % decides.keys();
                        assert_eq!(decides.decide(key), granted, "key {key}");
                    }
                    decisions += 1000;
                }
                count.fetch_add(decisions, Ordering::Relaxed);
            })
        })
        .collect();
    thread::sleep(slice);
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().expect("no panic");
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate is no more precise")]
    let count = count.load(Ordering::Relaxed) as f64;
    count / start.elapsed().as_secs_f64()
}

/// The median, and the least and the most in brackets.
fn spread(figures: impl Iterator<Item = f64>) -> String {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    format!("{:.2} ({:.2}–{:.2})", figures[figures.len() / 2], figures[0], figures[figures.len() - 1])
}
