//! Sliding windows.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{
    Adjusted, Admin, MemoryStore, Receipt, Rule, Store, Take, TakeError, Window, admin::AdminError, clock::ManualClock,
    store::SharedWindows,
};
use uuid::Uuid;

use super::{START, World, left, ms};

/// At most ten in any second, counted in tenths.
pub(super) fn ten_a_second() -> anyhow::Result<Window> {
    Ok(Window::new(10, ms(1000), ms(100))?)
}

fn under(world: &impl World, window: Window) -> Take {
    Take::from(world.key()).rule(window.into())
}

pub async fn window_grants_its_maximum_again_after_expiry(world: &impl World) -> anyhow::Result<()> {
    let take = under(world, ten_a_second()?);
    world.at_ms(0).await?;
    assert_eq!(left(&world.decide(take.clone().cost(6)).await?), (true, 4));
    assert_eq!(available(world, &take).await?, 4);
    world.at_ms(450).await?;
    assert_eq!(left(&world.decide(take.clone().cost(4)).await?), (true, 0));
    let denied = world.decide(take.clone()).await?;
    assert_eq!(
        (left(&denied), denied.retry_after(), denied.reset_after()),
        ((false, 0), Some(ms(650)), Some(ms(1050)))
    );
    // Requests of the first tenth count until a second after its end.
    world.at_ms(1099).await?;
    assert!(!world.decide(take.clone()).await?.is_granted());
    world.at_ms(1100).await?;
    assert_eq!(left(&world.decide(take.clone().cost(6)).await?), (true, 0));
    world.at_ms(1499).await?;
    assert!(!world.decide(take.clone()).await?.is_granted());
    world.at_ms(1500).await?;
    assert_eq!(available(world, &take).await?, 4);
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 3));
    // Reserved requests count: five act when those of the second and third half-second have expired.
    assert!(world.decide(take.clone().cost(5).max_wait(ms(1000))).await?.is_granted());
    assert_eq!(available(world, &take).await?, -2);
    Ok(())
}

/// Reads the remaining requests of the window without counting one.
async fn available(world: &impl World, take: &Take) -> anyhow::Result<i64> {
    let window = ten_a_second()?;
    Ok(world.store().count(take.key(), &window, 0).await?.available(&window))
}

pub async fn window_peek_counts_nothing(world: &impl World) -> anyhow::Result<()> {
    let window = ten_a_second()?;
    let take = under(world, window);
    let (store, key) = (world.store(), take.key());
    let limiter = world.limiter_builder().build(window)?;
    let level = async || store.peek_window(key).await;
    let shown = async || -> anyhow::Result<_> {
        let level = level().await?.expect("something was counted in it");
        assert_eq!((level.key(), level.window()), (key, window));
        assert_eq!(limiter.peek_window(key).await?, level);
        Ok((level.counted(), level.available(), level.granted(), level.retry_after()))
    };
    world.at_ms(0).await?;
    assert_eq!(level().await?, None);
    let unused = limiter.bind(key)?.peek_window().await?;
    assert_eq!((unused.window(), unused.available(), unused.granted()), (window, 10, 0));
    let bucket = world.limiter_builder().build("10/s")?.peek_window(key).await.expect_err("it is no window");
    assert!(matches!(&bucket, AdminError::NoWindow(of) if of == key), "{bucket:?}");
    assert!(world.decide(take.clone().cost(6)).await?.is_granted());
    assert_eq!(shown().await?, (6, 4, 6, ms(0)));
    assert_eq!(store.peek(key).await?, None, "it is no bucket");
    world.at_ms(450).await?;
    assert!(world.decide(take.clone().cost(4)).await?.is_granted());
    assert_eq!(shown().await?, (10, 0, 10, ms(650)));
    assert_eq!(world.decide(take.clone()).await?.retry_after(), Some(ms(650)));
    assert_eq!(shown().await?, (10, 0, 10, ms(650)));
    world.at_ms(1100).await?;
    assert_eq!(shown().await?, (4, 6, 10, ms(0)));
    // Reserved requests already count.
    assert!(world.decide(take.clone().cost(6)).await?.is_granted());
    assert!(world.decide(take.clone().cost(5).max_wait(ms(1100))).await?.is_granted());
    assert_eq!(shown().await?, (15, -5, 21, ms(1100)));
    world.at_ms(3300).await?;
    assert_eq!(shown().await?, (0, 10, 21, ms(0)));

    // After the clock is set back, the window denies requests for one interval at most.
    world.at_ms(20_000).await?;
    assert!(world.decide(take.clone().cost(10)).await?.is_granted());
    assert_eq!(shown().await?, (10, 0, 31, ms(1100)));
    world.at_ms(5000).await?;
    assert_eq!(shown().await?, (10, 0, 31, ms(1100)));
    assert!(store.delete(key).await?);
    assert_eq!(level().await?, None);

    // The window shows the limits of the last counted request. A denied request does not change them.
    assert!(world.decide(take.clone()).await?.is_granted());
    let wider = Window::new(20, ms(2000), ms(100))?;
    assert!(world.decide(take.clone().rule(wider.into())).await?.is_granted());
    assert!(!world.decide(take.clone().rule(Window::new(1, ms(1000), ms(100))?.into())).await?.is_granted());
    let level = level().await?.expect("two were counted");
    assert_eq!((level.window(), level.counted(), level.granted()), (wider, 2, 2));
    Ok(())
}

pub async fn window_grants_at_most_the_maximum_in_any_interval(world: &impl World) -> anyhow::Result<()> {
    let take = under(world, ten_a_second()?);
    let mut granted = Vec::new();
    for at in (0..4000).step_by(37) {
        world.at_ms(at).await?;
        if world.decide(take.clone().cost(1 + at.unsigned_abs() % 3)).await?.is_granted() {
            granted.push((at, 1 + at % 3));
        }
    }
    for &(end, _) in &granted {
        let window = granted.iter().filter(|(at, _)| (end - 1000..=end).contains(at));
        let seen: i64 = window.map(|(_, cost)| cost).sum();
        ensure!(seen <= 10, "{seen} in the second to {end} ms");
    }
    ensure!(granted.iter().map(|(_, cost)| cost).sum::<i64>() >= 33, "{granted:?}");
    Ok(())
}

pub async fn window_reservation_is_scheduled_and_can_be_cancelled(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    let limiter = world.limiter_builder().build(ten_a_second()?)?;
    assert!(limiter.allow_n(&key, 10).await?.is_granted());
    let first = limiter.reserve_n(&key, 4).await?;
    let second = limiter.reserve_n(&key, 6).await?;
    let third = limiter.reserve_n(&key, 1).await?;
    let waits = [&first, &second, &third].map(|reservation| reservation.decision().wait());
    assert_eq!(waits, [ms(1100), ms(1100), ms(2200)]);
    assert!(!limiter.allow(&key).await?.is_granted(), "a later request queues behind it");
    assert_eq!(second.cancel().await?, 6);
    world.at_ms(1100).await?;
    assert_eq!(limiter.reserve_n(&key, 6).await?.decision().wait(), ms(1100), "not before the third");
    Ok(())
}

pub async fn window_min_remaining_keeps_requests_for_others(world: &impl World) -> anyhow::Result<()> {
    let take = under(world, ten_a_second()?);
    world.at_ms(0).await?;
    assert!(world.decide(take.clone().cost(8).min_remaining(2)).await?.is_granted());
    assert!(!world.decide(take.clone().min_remaining(2)).await?.is_granted());
    assert_eq!(left(&world.decide(take.clone().cost(2)).await?), (true, 0));
    let error = world.store().take_one(&take.cost(9).min_remaining(2)).await?.expect_err("never");
    ensure!(matches!(error, TakeError::ExceedsCapacity { cost: 9, min_remaining: 2, capacity: 10, .. }), "{error:?}");
    Ok(())
}

pub async fn repeated_window_request_with_id_counts_once(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let id = Uuid::new_v4();
    let take = under(world, ten_a_second()?);
    let once = take.clone().cost(4).id(id, ms(10_000));
    for _ in 0..3 {
        assert_eq!(left(&world.decide(once.clone()).await?), (true, 6));
    }
    let error = world.store().take_one(&take.clone().id(id, ms(10_000))).await?.expect_err("another's");
    assert_eq!(error, TakeError::IdReused(id));
    let receipt = Receipt::new(id, take.key().clone(), 4).in_window(Duration::from_nanos(START.unsigned_abs()));
    let settle = |used| [receipt.clone().settle(used)];
    assert_eq!(world.store().adjust(&settle(1)).await?, [Ok(Adjusted::Done(3))]);
    assert_eq!(world.store().adjust(&settle(1)).await?, [Ok(Adjusted::Repeated)]);
    assert_eq!(left(&world.decide(take).await?), (true, 8));
    Ok(())
}

pub async fn window_with_changed_limits_keeps_its_counts(world: &impl World) -> anyhow::Result<()> {
    let take = under(world, ten_a_second()?);
    world.at_ms(50).await?;
    assert!(world.decide(take.clone().cost(8)).await?.is_granted());
    let smaller = take.clone().rule(Window::new(9, ms(2000), ms(20))?.into());
    assert_eq!(left(&world.decide(smaller.clone()).await?), (true, 0));
    world.at_ms(2099).await?;
    assert!(!world.decide(smaller.clone()).await?.is_granted());
    world.at_ms(2100).await?;
    assert_eq!(left(&world.decide(smaller).await?), (true, 8));
    Ok(())
}

pub async fn clock_set_back_locks_a_window_for_at_most_its_interval(world: &impl World) -> anyhow::Result<()> {
    let take = under(world, ten_a_second()?);
    world.at_ms(3_600_000).await?;
    assert!(world.decide(take.clone().cost(10)).await?.is_granted());
    for (at, granted) in [(0, false), (500, false), (1099, false), (1100, true)] {
        world.at_ms(at).await?;
        assert_eq!(world.decide(take.clone()).await?.is_granted(), granted, "at {at} ms");
    }
    Ok(())
}

pub async fn shorter_interval_keeps_counts_of_a_longer_one(world: &impl World) -> anyhow::Result<()> {
    let long = under(world, Window::new(5, ms(60_000), ms(1000))?);
    let short = long.clone().rule(Window::new(100, ms(1000), ms(100))?.into());
    world.at_ms(0).await?;
    assert!(world.decide(long.clone().cost(5)).await?.is_granted());
    for at in [500, 2100, 30_000] {
        world.at_ms(at).await?;
        assert!(world.decide(short.clone()).await?.is_granted(), "at {at} ms");
        assert!(!world.decide(long.clone()).await?.is_granted(), "at {at} ms");
    }
    Ok(())
}

pub async fn finer_resolution_is_not_a_clock_set_back(world: &impl World) -> anyhow::Result<()> {
    let coarse = under(world, Window::new(11, ms(10_000), ms(5000))?);
    let fine = coarse.clone().rule(Window::new(11, ms(10_000), ms(10))?.into());
    world.at_ms(200).await?;
    assert!(world.decide(coarse.cost(10)).await?.is_granted());
    assert!(world.decide(fine.clone()).await?.is_granted());
    for at in [210, 5700, 10_500, 14_999] {
        world.at_ms(at).await?;
        assert!(!world.decide(fine.clone()).await?.is_granted(), "at {at} ms");
    }
    world.at_ms(15_000).await?;
    assert!(world.decide(fine.cost(11)).await?.is_granted());
    Ok(())
}

pub async fn cancelled_window_reservation_blocks_no_request(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    let limiter = world.limiter_builder().build(ten_a_second()?)?;
    assert!(limiter.allow_n(&key, 9).await?.is_granted());
    let reservation = limiter.reserve_n(&key, 2).await?;
    assert_eq!(reservation.decision().wait(), ms(1100));
    assert_eq!(reservation.cancel().await?, 2);
    assert_eq!(left(&limiter.allow(&key).await?), (true, 0));
    Ok(())
}

pub async fn window_reservation_cancelled_at_its_time_is_given_back(world: &impl World) -> anyhow::Result<()> {
    let limiter = world.limiter_builder().build(ten_a_second()?)?;
    for (at, given_back) in [(1100, 2), (1101, 0)] {
        world.at_ms(0).await?;
        let key = world.key();
        assert!(limiter.allow_n(&key, 9).await?.is_granted());
        let reservation = limiter.reserve_n(&key, 2).await?;
        assert_eq!(reservation.decision().wait(), ms(1100));
        world.at_ms(at).await?;
        assert_eq!(reservation.cancel().await?, given_back, "at {at} ms");
    }
    Ok(())
}

pub async fn expired_window_count_gives_nothing_back(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let id = Uuid::new_v4();
    let take = under(world, ten_a_second()?).cost(10);
    assert!(world.decide(take.clone().id(id, ms(60_000))).await?.is_granted());
    world.at_ms(1300).await?;
    assert!(world.decide(take.clone()).await?.is_granted());
    let receipt = Receipt::new(id, take.key().clone(), 10).in_window(Duration::from_nanos(START.unsigned_abs()));
    world.store().adjust(&[receipt.settle(0)]).await?[0].clone()?;
    assert_eq!(left(&world.decide(take.cost(1)).await?), (false, 0));
    Ok(())
}

pub async fn id_is_charged_in_bucket_and_window_of_one_key(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let id = Uuid::new_v4();
    let window = under(world, ten_a_second()?).id(id, ms(60_000));
    let bucket = window.clone().rule(Rule::try_from("10/s")?);
    for _ in 0..2 {
        assert_eq!(left(&world.decide(bucket.clone()).await?), (true, 9));
        assert_eq!(left(&world.decide(window.clone()).await?), (true, 9));
    }
    Ok(())
}

pub async fn window_among_other_limits_is_an_error(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(world, ten_a_second()?);
    for other in [world.key(), take.key().clone()] {
        let both = take.clone().and(other, Rule::try_from("10/s")?);
        let error = world.store().take_one(&both).await?.expect_err("not with others");
        assert_eq!(error, TakeError::WindowNotAlone(take.key().clone()));
    }
    let outcomes = world.store().take(&[take.clone(), take.clone()]).await?;
    let remaining: Vec<_> = outcomes.into_iter().map(|outcome| outcome.map(|decision| decision.remaining())).collect();
    assert_eq!(remaining, [Ok(Some(9)), Ok(Some(8))]);
    Ok(())
}

pub async fn impossible_window_request_is_the_same_error_in_a_batch(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(world, ten_a_second()?);
    for (cost, min_remaining) in
        [(0, 0), (11, 0), (1, 10), (10, 1), (u64::MAX, 0), (1, u64::MAX), (u64::MAX / 2, u64::MAX / 2)]
    {
        for max_wait in [ms(0), Duration::MAX] {
            let request = take.clone().cost(cost).min_remaining(min_remaining).max_wait(max_wait);
            let identified = request.clone().id(Uuid::new_v4(), Duration::MAX);
            let key = take.key().clone();
            let never = TakeError::ExceedsCapacity { key, cost, min_remaining, capacity: 10, window: true };
            let error = if cost == 0 { TakeError::ZeroCost } else { never };
            assert_eq!(world.store().take_one(&request).await?, Err(error.clone()));
            let outcomes = world.store().take(&[request.clone(), identified, request]).await?;
            assert!(outcomes.iter().all(|outcome| *outcome == Err(error.clone())), "{outcomes:?}");
        }
    }
    assert_eq!(left(&world.decide(take.cost(10)).await?), (true, 0), "nothing was counted");
    Ok(())
}

pub async fn late_or_foreign_receipt_changes_no_count(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (take, other) = (under(world, ten_a_second()?).cost(8), under(world, ten_a_second()?).cost(8));
    let id = Uuid::new_v4();
    assert!(world.decide(take.clone().id(id, ms(500))).await?.is_granted());
    assert!(world.decide(other.clone()).await?.is_granted());
    let receipt = |take: &Take, cost| {
        Receipt::new(id, take.key().clone(), cost).in_window(Duration::from_nanos(START.unsigned_abs()))
    };
    let adjust = async |adjustment| anyhow::Ok(world.store().adjust(&[adjustment]).await?.remove(0));
    // A receipt of another window or with another cost settles nothing.
    for settle in [receipt(&other, 8).settle(0), receipt(&other, u64::MAX).settle(u64::MAX)] {
        assert_eq!(adjust(settle).await?, Ok(Adjusted::Late));
    }
    assert_eq!(adjust(receipt(&take, 7).settle(0)).await?, Ok(Adjusted::Repeated));
    world.at_ms(1).await?;
    assert_eq!(adjust(receipt(&take, 8).cancel()).await?, Ok(Adjusted::Late), "it acted at once");
    world.at_ms(500).await?;
    assert_eq!(adjust(receipt(&take, 8).settle(0)).await?, Ok(Adjusted::Late), "its id was held for so long");
    for take in [take, other] {
        assert_eq!(available(world, &take).await?, 2);
    }
    let unknown = under(world, ten_a_second()?);
    let gone = adjust(receipt(&unknown, 1).refund(1)).await?;
    assert_eq!(gone, Err(TakeError::UnknownBucket(unknown.key().clone())));
    Ok(())
}

pub async fn forced_counts_fill_a_window_beyond_its_maximum(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (key, window) = (world.key(), ten_a_second()?);
    world.store().count(&key, &window, 12).await?;
    let denied = world.decide(Take::from(key.clone()).rule(window.into())).await?;
    assert_eq!((left(&denied), denied.retry_after()), ((false, 0), Some(ms(1100))));
    Ok(())
}

/// Compares random requests, one by one, with the oracle.
pub async fn window_decisions_equal_the_oracle(world: &impl World) -> anyhow::Result<()> {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = ManualClock::default();
        let oracle = MemoryStore::with_clock(clock.clone());
        let key = world.key();
        let mut now = 0;
        for step in 0..60 {
            now += random.i64(-30..200);
            now = if random.u8(..) < 3 { now - 5_000 } else { now.max(-4_000) };
            clock.set(START + now * 1_000_000);
            world.at_ms(now).await?;
            let interval = [400, 1000, 1000][random.usize(..3)];
            let window = Window::new(random.u64(3..12), ms(interval), ms([50, 100, 130][random.usize(..3)]))?;
            let take = Take::from(key.clone())
                .rule(window.into())
                .cost(random.u64(1..5))
                .min_remaining(random.u64(..3))
                .max_wait(ms(random.u64(..4) * random.u64(..500)));
            let (expected, found) = (oracle.take_one(&take).await?, world.store().take_one(&take).await?);
            ensure!(
                same(&expected) == same(&found),
                "seed {seed}, step {step}, at {now} ms, {take:?}\n{expected:?}\n{found:?}"
            );
        }
    }
    Ok(())
}

fn same(outcome: &tollgate::model::Outcome) -> Result<impl PartialEq + use<>, TakeError> {
    outcome.clone().map(|d| (left(&d), d.wait(), d.retry_after(), d.reset_after()))
}
