//! `MemoryStore` decides as the databases do.

// No other crate uses the items of a test.
#![allow(unreachable_pub)]

mod ids;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::DateTime;
use tollgate::{
    Adjusted, Adjustment, Admin, Error, Key, Limiter, MemoryStore, Mode, Quota, Receipt, Rule, Store, Take, TakeError,
    admin::{Filter, Origin, Override, RecordedUsage, SweepResult},
    clock::{Clock, ManualClock, ProcessClock, SystemClock},
    model::Outcome,
    store::{Maintenance, MaintenanceFuture, TestStore},
};
use tollgate_tests::scenarios::memory::Memory;
use tollgate_tests::scenarios::{self, World};
use uuid::Uuid;

macro_rules! tests {
    ($($module:ident: $scenario:ident),+ $(,)?) => {
        $(#[tokio::test]
        async fn $scenario() -> anyhow::Result<()> {
            scenarios::$module::$scenario(&Memory::new()).await
        })+
    };
}
tollgate_tests::for_each_scenario!(tests);

#[test]
fn memory_clock_is_at_most_ten_microseconds_behind() {
    let clock = ProcessClock::default();
    let off = (0..100_000)
        .map(|_| (SystemClock.now(), clock.now(), SystemClock.now()))
        // The rate of the counter is known to within ten percent.
        .filter(|(before, now, after)| *now < before - 11_000 || now > after);
    assert_eq!(off.collect::<Vec<_>>(), []);
}

#[tokio::test]
async fn request_without_room_for_one_bucket_creates_none() -> anyhow::Result<()> {
    let store = MemoryStore::with_clock(ManualClock::default()).max_keys(1);
    let take = |key: String| anyhow::Ok(Take::from(Key::try_from(key)?).rule(Rule::Quota("1/s".parse()?)));
    let mut names = (0..10_000).map(|n| format!("user:{n}"));
    let full = loop {
        let key = names.next().expect("a key without room");
        if store.decide(&take(key.clone())?).is_err() {
            break key;
        }
    };
    let before = store.len();
    for other in names.take(1000) {
        let both = take(other)?.and(Key::try_from(full.clone())?, Rule::Quota("1/s".parse()?));
        assert!(matches!(store.decide(&both), Err(TakeError::TooManyKeys(_))));
    }
    assert_eq!(store.len(), before, "a failed request creates no bucket");
    Ok(())
}

#[tokio::test]
async fn full_store_deletes_only_full_buckets() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::with_clock(clock.clone()).max_keys(64));
    let limiter = Limiter::new(Arc::clone(&store), "1/s")?;
    let mut refused = 0;
    for n in 0..10_000 {
        match limiter.allow(format!("user:{n}")).await {
            Ok(decision) => assert!(decision.is_granted()),
            Err(Error::Take(TakeError::TooManyKeys(_))) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!((store.len(), refused), (64, 10_000 - 64));
    clock.advance(Duration::from_secs(1));
    assert!(limiter.allow("another key").await?.is_granted());
    assert!(store.len() <= 64);
    Ok(())
}

#[tokio::test]
async fn full_store_has_room_a_refill_after_its_clock_steps_back() -> anyhow::Result<()> {
    for rule in ["1/s", "1 in 1s at 100ms"] {
        let clock = ManualClock::default();
        clock.advance(Duration::from_hours(10));
        // One in each shard.
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()).max_keys(1), rule)?;
        let take_many = async |name: &str| {
            let mut granted = 0;
            for n in 0..1000 {
                granted += usize::from(limiter.allow(format!("{name}:{n}")).await.is_ok_and(|one| one.is_granted()));
            }
            granted
        };
        assert_eq!(take_many("user").await, 64, "{rule}");
        clock.advance(Duration::from_secs(5));
        clock.set(clock.now() - 3_600_000_000_000);
        take_many("too soon").await;
        clock.advance(Duration::from_secs(3));
        assert_eq!(take_many("another key").await, 64, "{rule}");
    }
    Ok(())
}

#[tokio::test]
async fn request_takes_from_all_buckets_or_none_when_full() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    // One in each shard.
    let store = MemoryStore::with_clock(clock.clone()).max_keys(1);
    let (first, rule) = (Key::try_from("first")?, Rule::Quota("1/s".parse()?));
    let mut refused = 0;
    for n in 0..1000 {
        // The first bucket is full again, so the store could delete it to make room for the other.
        assert!(store.decide(&Take::from(first.clone()).rule(rule.clone()))?.is_granted());
        clock.advance(Duration::from_secs(1));
        let other = Key::try_from(format!("user:{n}"))?;
        let both = Take::from(first.clone()).rule(rule.clone()).and(other.clone(), rule.clone());
        match store.decide(&both) {
            Ok(decision) => assert!(decision.is_granted()),
            Err(TakeError::TooManyKeys(_)) => {
                assert!(store.peek(&other).await?.is_none(), "nothing was taken");
                assert!(
                    store.peek(&first).await?.is_none_or(|level| level.available() == 1),
                    "nothing was taken from the first either"
                );
                refused += 1;
            }
            Err(error) => return Err(error.into()),
        }
        clock.advance(Duration::from_secs(1));
    }
    assert!((5..100).contains(&refused), "{refused} of 1000 keys share the shard of the first");
    Ok(())
}

#[tokio::test]
async fn full_store_has_room_once_a_bucket_is_full_again() -> anyhow::Result<()> {
    let one = |key: &str, rule: &str| anyhow::Ok(Take::from(Key::try_from(key)?).rule(rule.try_into()?));
    for given_back in [true, false] {
        let clock = ManualClock::default();
        let store = store_of(&clock, 1);
        let slow = one("a", "1/d")?;
        assert!(store.decide(&slow)?.is_granted());
        // Each shard is out of room now, and has no full bucket to delete.
        let others = (0..10_000).map(|n| one(&format!("user:{n}"), "1/d")).collect::<anyhow::Result<Vec<_>>>()?;
        let refused: Vec<&Take> = others.iter().filter(|take| store.decide(take).is_err()).collect();
        assert_eq!(store.len(), 64);
        if given_back {
            let receipt = Receipt::new(Uuid::new_v4(), slow.key().clone(), 1);
            assert_eq!(store.adjust(&[receipt.refund(1)]).await?, [Ok(Adjusted::Done(1))]);
        } else {
            // The other quota fills the bucket in an hour instead of a day.
            let _ = store.decide(&one("a", "1/h")?)?;
            clock.advance(Duration::from_secs(3600));
        }
        let granted = refused.iter().filter(|take| store.decide(take).is_ok()).count();
        assert_eq!(granted, 1, "given back: {given_back}");
    }
    Ok(())
}

#[tokio::test]
async fn full_store_has_room_once_a_window_is_empty() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let store = store_of(&clock, 2);
    let one = |key: &str, rule: &str| anyhow::Ok(Take::from(Key::try_from(key)?).rule(rule.try_into()?));
    let granted = |keys: u32, name: &str, rule: &str| {
        let takes = (0..keys).map(|n| one(&format!("{name}:{n}"), rule));
        takes.filter(|take| take.as_ref().is_ok_and(|take| store.decide(take).is_ok())).count()
    };
    // Buckets that are soon full take the remaining room of each shard. Windows replace them later.
    let slow = granted(40, "slow", "1/d");
    assert_eq!(slow + granted(2000, "quick", "1/s"), 128);
    clock.advance(Duration::from_secs(1));
    assert_eq!(granted(2000, "window", "1 in 1s at 1s"), 128 - slow);
    clock.advance(Duration::from_secs(2));
    assert_eq!(granted(2000, "other", "1/d"), 128 - slow);
    Ok(())
}

/// Creates a store with room for `keys` keys in each shard.
fn store_of(clock: &ManualClock, keys: usize) -> MemoryStore<ManualClock> {
    MemoryStore::with_clock(clock.clone()).max_keys(64 * keys)
}

#[tokio::test]
async fn global_mode_applies_until_its_end() -> anyhow::Result<()> {
    let memory = Memory::new();
    memory.at_ms(0).await?;
    let until = Some(DateTime::from_timestamp_nanos(scenarios::START + 1_000_000_000));
    memory.store().set_mode(Mode::Block, Some("incident 42"), until).await?;
    let setting = memory.store().mode().await?;
    assert_eq!((setting.mode, setting.reason.as_deref(), setting.until), (Mode::Block, Some("incident 42"), until));
    let limiter = Limiter::new(memory.store(), "1/h")?.bind("one")?;
    assert_eq!(limiter.allow().await?.retry_after(), Some(Duration::from_secs(1)));
    assert_eq!(memory.store().explain(limiter.key(), None).await?.mode_from, Some(Origin::All));
    memory.at_ms(1000).await?;
    assert!(limiter.allow().await?.is_granted());
    Ok(())
}

#[tokio::test]
async fn sweep_deletes_expired_rows_step_by_step() -> anyhow::Result<()> {
    let memory = Memory::new();
    memory.at_ms(0).await?;
    let (fast, slow) = (Limiter::new(memory.store(), "1000/s")?, Limiter::new(memory.store(), "10/h")?);
    for n in 0..20_000 {
        assert!(fast.allow(format!("once:{n}")).await?.is_granted());
    }
    assert!(slow.allow("owing").await?.is_granted());
    let provisioned = Key::try_from("provisioned")?;
    memory.store().create_bucket(&provisioned, "10/h".parse()?).await?;
    let with_id =
        Take::from(Key::try_from("owing")?).rule("10/h".try_into()?).id(Uuid::new_v4(), Duration::from_millis(1));
    assert!(memory.decide(with_id).await?.is_granted());
    let expires_at = Some(DateTime::from_timestamp_nanos(scenarios::START + 1_000_000));
    let over = Override { mode: Some(Mode::Off), expires_at, ..Override::default() };
    memory.store().set_override(&provisioned, over).await?;
    memory.at_ms(1).await?;

    let (mut deleted, mut steps) = (0, 0);
    loop {
        let swept = memory.store().sweep(1000).await?;
        (deleted, steps) = (deleted + swept.deleted, steps + 1);
        if swept.finished {
            break;
        }
    }
    assert_eq!(deleted, 20_002, "the buckets, a receipt and an override");
    assert!((10..=20).contains(&steps), "{steps} steps");
    let left = memory.store().list(&Filter::default(), None, 10).await?;
    assert_eq!(left.iter().map(|level| level.key().as_str()).collect::<Vec<_>>(), ["owing", "provisioned"]);
    assert!(!memory.store().clear_override(&provisioned).await?);
    Ok(())
}

#[tokio::test]
async fn unsettled_receipt_is_kept_until_its_end() -> anyhow::Result<()> {
    let memory = Memory::new();
    memory.at_ms(0).await?;
    let limiter = Limiter::new(memory.store(), "1000/s")?;
    let window = Rule::Window("10 in 1s at 1s".parse()?);
    let remember_for = Duration::from_hours(1);
    let of_bucket = limiter.reserve_request(&limiter.request("a")?.cost(100).id(Uuid::new_v4(), remember_for)).await?;
    let of_window = Take::from(Key::try_from("b")?).rule(window).id(Uuid::new_v4(), remember_for);
    let of_window = limiter.reserve_request(&of_window).await?;
    let without_id = limiter.reserve_request(&limiter.request("c")?.cost(5)).await?;
    memory.at_ms(10_000).await?;
    assert_eq!(memory.store().sweep(1000).await?.deleted, 1, "all are full, and two can be settled");
    assert_eq!(of_bucket.settle(150).await?, Adjusted::Done(-50));
    assert_eq!(of_window.settle(3).await?, Adjusted::Done(-2));
    assert_eq!(limiter.peek("a").await?.available(), 950);
    assert_eq!(without_id.refund(2).await?, 0, "the sweep deleted a full bucket");
    memory.at_ms(20_000).await?;
    assert_eq!(memory.store().sweep(1000).await?.deleted, 2, "settled requests can be swept");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn limiter_sweeps_keys_used_once() -> anyhow::Result<()> {
    for sweeps in [true, false] {
        let memory = Memory::new();
        let limiter = Limiter::builder(memory.store());
        let limiter = if sweeps { limiter } else { limiter.without_sweep() }.build("1000/s")?;
        for n in 0..20_480 {
            memory.at_ms(n).await?;
            assert!(limiter.allow(format!("once:{n}")).await?.is_granted());
            if n % 1024 == 1023 {
                tokio::task::yield_now().await;
            }
        }
        let left = memory.store().len();
        assert_eq!(left < 4096, sweeps, "{left} keys are left");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn sweeps_with_little_to_delete_use_two_percent_of_time() -> anyhow::Result<()> {
    /// A store whose sweeps take 10 ms, and delete a number of rows or fail.
    struct Sweeping(MemoryStore, Option<u64>, Arc<AtomicU64>);

    impl TestStore for Sweeping {
        async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
            self.0.take(takes).await
        }

        async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
            self.0.adjust(adjustments).await
        }

        fn maintenance(&self) -> Option<&dyn Maintenance> {
            Some(self)
        }
    }

    impl Maintenance for Sweeping {
        fn sweep(&self, _: u32) -> MaintenanceFuture<'_, SweepResult> {
            Box::pin(async {
                self.2.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                let mut swept = SweepResult::default();
                swept.deleted = self.1.ok_or_else(|| Error::other(std::io::Error::other("no answer")))?;
                Ok(swept)
            })
        }
    }

    for (found, expected) in [(Some(0), 2..=5), (Some(63), 2..=5), (Some(64), 90..=200), (None, 2..=5)] {
        let sweeps = Arc::new(AtomicU64::new(0));
        let store = Sweeping(MemoryStore::new(), found, Arc::clone(&sweeps));
        let limiter = Limiter::new(store, Quota::once(1_000_000)?)?.bind("one")?;
        // Two seconds.
        for _ in 0..200 {
            for _ in 0..1024 {
                assert!(limiter.allow().await?.is_granted());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let sweeps = sweeps.load(Ordering::SeqCst);
        assert!(expected.contains(&sweeps), "{sweeps} sweeps that found {found:?} rows each");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn limiter_records_usage_once_a_minute_while_requests_come() -> anyhow::Result<()> {
    /// A store with three steps to record each time.
    struct Recording(MemoryStore, Arc<AtomicU64>);

    impl TestStore for Recording {
        async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
            self.0.take(takes).await
        }

        async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
            self.0.adjust(adjustments).await
        }

        fn maintenance(&self) -> Option<&dyn Maintenance> {
            Some(self)
        }
    }

    impl Maintenance for Recording {
        fn record_usage(&self, _: u32) -> MaintenanceFuture<'_, RecordedUsage> {
            let mut recorded = RecordedUsage::default();
            recorded.finished = self.1.fetch_add(1, Ordering::SeqCst) % 3 == 2;
            Box::pin(async { Ok(recorded) })
        }
    }

    for (records, expected) in [(true, [0, 3, 3, 6]), (false, [0; 4])] {
        let steps = Arc::new(AtomicU64::new(0));
        let builder = Limiter::builder(Recording(MemoryStore::new(), Arc::clone(&steps)));
        let limiter = if records { builder } else { builder.without_sweep() }.build("1000/s")?;
        let mut counted = Vec::new();
        // After 59 s, 61 s, ten minutes without a request, and a minute after the next one.
        for (is_request, seconds) in [(true, 59), (true, 2), (false, 600), (true, 61)] {
            if is_request {
                assert!(limiter.allow("a").await?.is_granted());
            }
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            counted.push(steps.load(Ordering::SeqCst));
        }
        assert_eq!(counted, expected);
    }
    Ok(())
}

/// A store without permission to sweep. Its sweeps fail after a delay.
struct Forbidden(MemoryStore, Duration, Arc<AtomicU64>);

impl TestStore for Forbidden {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.0.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.0.adjust(adjustments).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }
}

impl Maintenance for Forbidden {
    fn sweep(&self, _: u32) -> MaintenanceFuture<'_, SweepResult> {
        Box::pin(async {
            tokio::time::sleep(self.1).await;
            self.2.fetch_add(1, Ordering::SeqCst);
            Err(Error::other(std::io::Error::other("not granted")))
        })
    }
}

/// Returns how many sweeps had failed after `requests` × 1,024 requests, and after the limiter was closed.
async fn tries(after: Duration, requests: u64) -> anyhow::Result<[u64; 2]> {
    let tries = Arc::new(AtomicU64::new(0));
    let store = Forbidden(MemoryStore::new(), after, Arc::clone(&tries));
    let limiter = Limiter::new(store, "1000/s burst 20000")?;
    for _ in 0..requests * 1024 {
        assert!(limiter.allow("one").await?.is_granted());
        tokio::task::yield_now().await;
    }
    let before = tries.load(Ordering::SeqCst);
    limiter.close().await?;
    Ok([before, tries.load(Ordering::SeqCst)])
}

#[tokio::test(start_paused = true)]
async fn limiter_works_without_permission_to_sweep() -> anyhow::Result<()> {
    // The pause doubles with each failure. So sweeps start after 1, 3, 7 and 15 times 1,024 requests.
    assert_eq!(tries(Duration::ZERO, 16).await?, [4, 4]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_a_running_sweep() -> anyhow::Result<()> {
    assert_eq!(tries(Duration::from_secs(1), 1).await?, [0, 1]);
    Ok(())
}
