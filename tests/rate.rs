//! The basic behaviour of a limiter in one process: bursts, reservations, cancels, waits and changed limits.
//! Each table is the life of one bucket: a time in milliseconds, an action and its result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{
    Decision, Error, Limiter, MemoryStore, Quota, Reservation, Store, Take, TakeError, TokenRequester, Window,
    clock::{Clock, ManualClock},
    model::QuotaError,
};

#[derive(Clone, Copy)]
enum Do {
    Allow(u64),
    Reserve(u64),
    /// The index of the reservation, from 0.
    Cancel(usize),
    /// The number of tokens, and the longest wait in milliseconds.
    Wait(u64, u64),
    Change(&'static str),
    /// Reads the tokens without taking any.
    Peek,
}

#[derive(Debug, PartialEq, Eq)]
enum Is {
    /// The wait in milliseconds.
    Granted(u64),
    Denied,
    /// The number of tokens that were given back.
    Back(u64),
    Never,
    ZeroCost,
    Changed,
    /// The number of tokens available, or negative the number that requests wait for.
    Tokens(i64),
}

use Do::{Allow, Cancel, Change, Peek, Reserve, Wait};
use Is::{Back, Changed, Denied, Granted, Never, Tokens, ZeroCost};

type Life<'a> = &'a [(i64, Do, Is)];

async fn live(quota: &str, life: Life<'_>) -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    let limiter = Limiter::builder(store).max_wait(Duration::from_secs(10)).build(quota)?;
    let mut reservations: Vec<Option<Reservation<_>>> = Vec::new();
    for (line, (ms, call, expected)) in life.iter().enumerate() {
        clock.set(START + ms * 1_000_000);
        let found = match *call {
            Allow(cost) => is(limiter.allow_n("one", cost).await)?,
            Wait(cost, longest) => {
                let waited = limiter.wait_n("one", cost, Duration::from_millis(longest)).await;
                is(waited.map(|made| made.decision().clone()))?
            }
            Reserve(cost) => {
                let reserved = limiter.reserve_n("one", cost).await;
                let found = is(reserved.as_ref().map(|made| made.decision().clone()).map_err(Clone::clone))?;
                reservations.push(reserved.ok());
                found
            }
            Cancel(place) => Back(reservations[place].take().expect("made, and cancelled once").cancel().await?),
            Change(quota) => {
                limiter.set_rule(quota)?;
                Changed
            }
            Peek => Tokens(limiter.peek("one").await?.available()),
        };
        assert_eq!(found, *expected, "in line {line} of the life under {quota}");
    }
    Ok(())
}

fn is(answer: Result<Decision, Error>) -> anyhow::Result<Is> {
    match answer {
        Ok(decision) if decision.is_granted() => Ok(Granted(u64::try_from(decision.wait().as_millis())?)),
        Ok(decision) => {
            assert!(decision.wait().is_zero() && decision.retry_after() != Some(Duration::ZERO), "{decision:?}");
            Ok(Denied)
        }
        Err(Error::Take(TakeError::ExceedsCapacity { .. })) => Ok(Never),
        Err(Error::Take(TakeError::ZeroCost)) => Ok(ZeroCost),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn unlimited_quota_grants_anything_at_once() -> anyhow::Result<()> {
    let life: Life<'_> = &[
        (0, Allow(1), Granted(0)),
        (0, Allow(u64::MAX), Granted(0)),
        (0, Reserve(1_000_000_000), Granted(0)),
        (0, Wait(u64::MAX, 0), Granted(0)),
        (-86_400_000, Allow(7), Granted(0)),
    ];
    live("unlimited", life).await?;
    assert_eq!(Quota::rate(f64::INFINITY).burst(0).build(), Ok(Quota::unlimited()), "whatever the burst");
    Ok(())
}

#[tokio::test]
async fn quota_without_refill_grants_its_burst_once() -> anyhow::Result<()> {
    live(
        "3 once",
        &[
            (0, Allow(1), Granted(0)),
            (0, Reserve(1), Granted(0)),
            (9_000, Allow(2), Denied),
            (9_000, Wait(2, 86_400_000), Denied),
            (9_000, Allow(4), Never),
            (9_000, Wait(1, 0), Granted(0)),
            (999_999_999, Allow(1), Denied),
            (999_999_999, Reserve(1), Denied),
            (999_999_999, Change("10/s"), Changed),
            (999_999_999, Allow(1), Denied),
            (1_000_000_099, Allow(1), Granted(0)),
        ],
    )
    .await
}

#[test]
fn missing_burst_makes_no_limiter() {
    for none in [Quota::per_second(10).burst(0), Quota::rate(0.0), Quota::rate(10.0).burst(0), Quota::per_second(0)] {
        assert_eq!(none.build(), Err(QuotaError::ZeroCapacity), "{none:?}");
    }
}

#[tokio::test]
async fn tokens_come_one_by_one_up_to_the_burst() -> anyhow::Result<()> {
    live(
        "10/s burst 1",
        &[
            (0, Allow(1), Granted(0)),
            (0, Allow(1), Denied),
            (50, Allow(1), Denied),
            (99, Allow(1), Denied),
            (100, Allow(1), Granted(0)),
            (100, Allow(1), Denied),
            // A long time without requests adds no more than the burst.
            (86_400_000, Allow(1), Granted(0)),
            (86_400_000, Allow(1), Denied),
        ],
    )
    .await?;
    live(
        "10/s burst 3",
        &[
            (0, Allow(0), ZeroCost),
            (0, Allow(4), Never),
            (0, Allow(2), Granted(0)),
            (0, Allow(2), Denied),
            (0, Allow(1), Granted(0)),
            // Halves add up.
            (50, Allow(1), Denied),
            (100, Allow(2), Denied),
            (200, Allow(2), Granted(0)),
            (500, Allow(3), Granted(0)),
            // A clock that is set back adds no tokens, and neither does its way to the old time.
            (400, Allow(1), Denied),
            (500, Allow(1), Denied),
            (600, Allow(1), Granted(0)),
        ],
    )
    .await
}

#[tokio::test]
async fn reservation_never_overtakes_earlier_ones() -> anyhow::Result<()> {
    live(
        "10/s burst 2",
        &[
            (0, Reserve(2), Granted(0)),
            (0, Reserve(2), Granted(200)),
            (0, Reserve(1), Granted(300)),
            (0, Reserve(3), Never),
            (0, Reserve(0), ZeroCost),
            (50, Reserve(1), Granted(350)),
            // A small reservation does not overtake an earlier large one. Requests that do not wait are denied.
            (50, Reserve(2), Granted(550)),
            (50, Reserve(1), Granted(650)),
            (599, Allow(1), Denied),
            (799, Allow(1), Denied),
            (800, Allow(1), Granted(0)),
            (1_000, Reserve(2), Granted(0)),
        ],
    )
    .await?;
    // Beyond the longest wait of ten seconds, nothing is taken.
    live(
        "1/s burst 8",
        &[
            (0, Reserve(8), Granted(0)),
            (0, Reserve(8), Granted(8_000)),
            (0, Reserve(3), Denied),
            (0, Reserve(2), Granted(10_000)),
            (0, Reserve(1), Denied),
            (1_000, Reserve(1), Granted(10_000)),
        ],
    )
    .await
}

#[tokio::test]
async fn cancelled_reservation_gives_back_only_the_queue_end() -> anyhow::Result<()> {
    let lives: [Life<'_>; 7] = [
        // The latest reservation is cancelled without a trace.
        &[
            (0, Reserve(2), Granted(0)),
            (0, Reserve(2), Granted(200)),
            (0, Cancel(1), Back(2)),
            (0, Reserve(1), Granted(100)),
        ],
        // The two latest reservations are cancelled in reverse order.
        &[
            (0, Reserve(2), Granted(0)),
            (0, Reserve(1), Granted(100)),
            (0, Reserve(2), Granted(300)),
            (0, Cancel(2), Back(2)),
            (0, Cancel(1), Back(1)),
            (0, Reserve(2), Granted(200)),
        ],
        // An earlier reservation gives back only tokens that the later one does not queue behind.
        &[
            (0, Reserve(2), Granted(0)),
            (0, Reserve(2), Granted(200)),
            (0, Reserve(1), Granted(300)),
            (0, Cancel(1), Back(1)),
            (0, Cancel(2), Back(1)),
            (0, Reserve(1), Granted(200)),
        ],
        &[
            (0, Reserve(2), Granted(0)),
            (0, Reserve(1), Granted(100)),
            (0, Reserve(2), Granted(300)),
            (0, Cancel(1), Back(0)),
            (0, Reserve(1), Granted(400)),
        ],
        // Tokens count as used after the scheduled time, but not yet at that instant.
        &[
            (0, Reserve(2), Granted(0)),
            (1, Cancel(0), Back(0)),
            (1, Reserve(1), Granted(99)),
            (101, Cancel(1), Back(0)),
            (101, Reserve(2), Granted(199)),
            (300, Cancel(2), Back(2)),
            (300, Reserve(2), Granted(0)),
            (300, Cancel(3), Back(2)),
            (300, Allow(2), Granted(0)),
        ],
        // A cancel does not credit the elapsed time again.
        &[
            (0, Reserve(2), Granted(0)),
            (0, Reserve(2), Granted(200)),
            (100, Cancel(1), Back(2)),
            (100, Allow(2), Denied),
            (100, Allow(1), Granted(0)),
            (100, Allow(1), Denied),
        ],
        // A denied reservation has nothing to give back.
        &[
            (0, Reserve(2), Granted(0)),
            (0, Change("1/h burst 2"), Changed),
            (0, Reserve(1), Denied),
            (0, Cancel(1), Back(0)),
            (3_600_000, Allow(2), Denied),
            (3_600_000, Allow(1), Granted(0)),
        ],
    ];
    for life in lives {
        live("10/s burst 2", life).await?;
    }
    Ok(())
}

#[tokio::test]
async fn tokens_are_read_without_being_taken() -> anyhow::Result<()> {
    live(
        "10/s burst 3",
        &[
            // A bucket is full before its first use, and a read does not create it.
            (0, Peek, Tokens(3)),
            (0, Allow(2), Granted(0)),
            (0, Peek, Tokens(1)),
            (0, Peek, Tokens(1)),
            (99, Peek, Tokens(1)),
            (100, Peek, Tokens(2)),
            (100, Reserve(3), Granted(100)),
            (100, Peek, Tokens(-1)),
            (100, Cancel(0), Back(3)),
            (100, Peek, Tokens(2)),
            (86_400_000, Peek, Tokens(3)),
            // A changed limit applies from the first request on.
            (86_400_000, Change("10/s burst 2"), Changed),
            (86_400_000, Allow(1), Granted(0)),
            (86_400_000, Peek, Tokens(1)),
            (86_400_000, Change("unlimited"), Changed),
            (86_400_000, Peek, Tokens(i64::MAX)),
        ],
    )
    .await?;
    live("3 once", &[(0, Allow(3), Granted(0)), (999_999_999, Peek, Tokens(0))]).await
}

#[tokio::test]
async fn changed_limit_keeps_earned_and_reserved_tokens() -> anyhow::Result<()> {
    live(
        "10/s burst 10",
        &[
            (0, Allow(10), Granted(0)),
            (400, Change("1000/h burst 10"), Changed),
            // Four tokens were earned at the old rate. The first request after the change credits them.
            (400, Allow(4), Granted(0)),
            (400, Allow(1), Denied),
            (4_000, Allow(1), Granted(0)),
            (4_000, Change("10/s burst 3"), Changed),
            (4_000, Allow(4), Never),
            (4_000, Allow(1), Denied),
            (4_300, Allow(3), Granted(0)),
            // A larger burst adds no tokens at once. It fills at the rate.
            (4_300, Change("10/s burst 100"), Changed),
            (4_300, Allow(1), Denied),
            (5_300, Allow(11), Denied),
            (5_300, Allow(10), Granted(0)),
            (5_300, Reserve(5), Granted(500)),
            (5_300, Change("100/s burst 100"), Changed),
            (5_300, Reserve(1), Granted(60)),
            (5_300, Change("unlimited"), Changed),
            (5_300, Allow(1_000_000), Granted(0)),
        ],
    )
    .await
}

/// Tokio's time advances only by sleeps. The store's clock stands still.
#[tokio::test(start_paused = true)]
async fn wait_takes_its_tokens_or_is_denied_at_once() -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    live(
        "10/s burst 3",
        &[
            (0, Wait(4, 86_400_000), Never),
            (0, Wait(0, 1), ZeroCost),
            (0, Wait(3, 0), Granted(0)),
            // A wait that would be too long is denied at once and takes nothing.
            (0, Wait(1, 0), Denied),
            (0, Wait(1, 99), Denied),
            (0, Wait(3, 299), Denied),
            (0, Reserve(1), Granted(100)),
            (0, Cancel(0), Back(1)),
        ],
    )
    .await?;
    assert!(begun.elapsed().is_zero(), "no request slept");
    live("10/s burst 3", &[(0, Wait(3, 0), Granted(0)), (0, Wait(2, 200), Granted(200)), (0, Wait(1, 299), Denied)])
        .await?;
    assert_eq!(begun.elapsed().as_millis() / 10, 20, "one request slept until its scheduled time");
    Ok(())
}

const START: i64 = 1_800_057_600_000_000_000;

#[tokio::test(start_paused = true)]
async fn waiter_for_a_full_window_polls_at_intervals() -> anyhow::Result<()> {
    struct Counting(Arc<AtomicU64>);

    impl Clock for Counting {
        fn now(&self) -> i64 {
            self.0.fetch_add(1, Ordering::Relaxed);
            1_700_000_000_000_000_000
        }
    }

    let reads = Arc::new(AtomicU64::new(0));
    let store = Arc::new(MemoryStore::with_clock(Counting(Arc::clone(&reads))));
    let part = Duration::from_millis(10);
    let window = Window::new(1, part, part)?;
    let take = Take::from(tollgate::Key::try_from("k")?).rule(window.into()).max_wait(Duration::from_mins(1));
    while store.take_one(&take).await??.is_granted() {}
    let before = reads.load(Ordering::Relaxed);
    let waiter = Limiter::builder(store).without_sweep().build(window)?.bind("k")?;
    let waiting = tokio::time::timeout(Duration::from_secs(5), waiter.wait_for_token()).await;
    assert!(waiting.is_err(), "the window's clock stands still");
    let reads = reads.load(Ordering::Relaxed) - before;
    assert!((2..100).contains(&reads), "{reads} reads of the clock in 5 s");
    Ok(())
}
