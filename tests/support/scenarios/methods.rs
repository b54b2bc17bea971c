//! Allow, reserve and wait.

use tollgate::{Error, Mode, Quota, Take, TakeError, model::Source};

use super::{START, World, left, ms, under};

/// Builds a limiter with `quota`, such as ten per second and at most ten at once, for a new key.
async fn limiter<W: World>(world: &W, quota: &str) -> anyhow::Result<tollgate::Bound<W::Store>> {
    world.at_ms(0).await?;
    Ok(world.limiter_builder().build(quota)?.bind(world.key())?)
}

pub async fn denied_call_takes_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "10/s").await?;
    assert_eq!(left(&limiter.allow_n(6).await?), (true, 4));
    let denied = limiter.allow_n(5).await?;
    assert_eq!(left(&denied), (false, 4));
    assert_eq!((denied.retry_after(), denied.reset_after()), (Some(ms(100)), Some(ms(600))));
    assert_eq!((denied.source(), denied.mode(), denied.limit_index()), (Source::Store, Mode::Enforce, 0));
    assert_eq!(left(&limiter.allow_n(4).await?), (true, 0));
    world.at_ms(100).await?;
    assert_eq!(left(&limiter.allow().await?), (true, 0));
    Ok(())
}

pub async fn burst_of_ten_is_granted_then_a_token_per_millisecond<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "1000/s burst 10").await?;
    // The bucket is full at first, and after any time without requests.
    for begun in [0, 86_400_000] {
        world.at_ms(begun).await?;
        for remaining in (0..10).rev() {
            assert_eq!(left(&limiter.allow().await?), (true, remaining));
        }
        let denied = limiter.allow().await?;
        assert_eq!((left(&denied), denied.retry_after()), ((false, 0), Some(ms(1))));
        for now in begun + 1..=begun + 5 {
            world.at(START + now * 1_000_000 - 1).await?;
            assert_eq!(left(&limiter.allow().await?), (false, 0), "a nanosecond before {now} ms");
            world.at_ms(now).await?;
            assert_eq!(left(&limiter.allow().await?), (true, 0), "at {now} ms");
            assert_eq!(left(&limiter.allow().await?), (false, 0), "twice at {now} ms");
        }
    }
    Ok(())
}

pub async fn min_remaining_keeps_tokens_for_others<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    let jobs = world.limiter_builder().min_remaining(20).build("30/s")?;
    let people = world.limiter_builder().build("30/s")?;
    assert_eq!(left(&jobs.allow_n(&key, 10).await?), (true, 20));
    assert_eq!(left(&jobs.allow(&key).await?), (false, 20));
    assert_eq!(left(&people.allow_n(&key, 20).await?), (true, 0));
    Ok(())
}

pub async fn reservation_returns_its_wait_and_later_ones_queue<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "10/s").await?;
    for (cost, wait) in [(10, 0), (1, 100), (4, 500), (5, 1000), (10, 2000)] {
        let reservation = limiter.reserve_n(cost).await?;
        assert!(reservation.is_granted());
        assert_eq!(reservation.decision().wait(), ms(wait), "for {cost}");
        assert!(reservation.delay().is_some_and(|delay| delay <= ms(wait)));
    }
    assert!(!limiter.allow().await?.is_granted());
    world.at_ms(2050).await?;
    assert_eq!(left(&limiter.allow().await?), (false, 0));
    world.at_ms(2100).await?;
    assert_eq!(left(&limiter.allow().await?), (true, 0));
    Ok(())
}

pub async fn a_reservation_beyond_the_longest_wait_takes_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let limiter = world.limiter_builder().max_wait(ms(300)).build("10/s")?.bind(world.key())?;
    assert!(limiter.reserve_n(10).await?.is_granted());
    assert!(limiter.reserve_n(3).await?.is_granted());
    let beyond = limiter.reserve().await?;
    assert!(!beyond.is_granted() && beyond.receipts().is_empty());
    assert_eq!(beyond.delay(), None);
    assert_eq!(beyond.cancel().await?, 0);
    world.at_ms(100).await?;
    assert_eq!(limiter.reserve().await?.decision().wait(), ms(300));
    Ok(())
}

pub async fn last_reservation_cancelled_gives_all_back<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "10/s").await?;
    assert!(limiter.reserve_n(10).await?.is_granted());
    let second = limiter.reserve_n(3).await?;
    let third = limiter.reserve_n(4).await?;
    assert_eq!(third.cancel().await?, 4);
    assert_eq!(second.cancel().await?, 3);
    assert_eq!(limiter.reserve().await?.decision().wait(), ms(100));
    Ok(())
}

pub async fn earlier_reservation_cancelled_gives_the_unqueued_part_back<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "10/s").await?;
    assert!(limiter.reserve_n(10).await?.is_granted());
    let second = limiter.reserve_n(5).await?;
    let third = limiter.reserve_n(3).await?;
    assert_eq!(second.cancel().await?, 2);
    assert_eq!(third.cancel().await?, 3);
    // 10 + 5 + 3 taken, 2 + 3 given back.
    assert_eq!(limiter.reserve().await?.decision().wait(), ms(400));
    Ok(())
}

pub async fn reservation_cancelled_after_its_time_gives_nothing_back<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "10/s").await?;
    let now = limiter.reserve_n(10).await?;
    let later = limiter.reserve_n(2).await?;
    world.at_ms(1).await?;
    assert_eq!(now.cancel().await?, 0);
    world.at_ms(201).await?;
    assert_eq!(later.cancel().await?, 0);
    assert_eq!(left(&limiter.allow().await?), (false, 0));
    Ok(())
}

/// Go's `x/time/rate` behaves the same way.
pub async fn reservation_cancelled_at_its_time_is_given_back<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "10/s").await?;
    assert_eq!(limiter.reserve_n(4).await?.cancel().await?, 4);
    assert!(limiter.reserve_n(10).await?.is_granted());
    let later = limiter.reserve_n(2).await?;
    assert_eq!(later.decision().wait(), ms(200));
    world.at_ms(200).await?;
    assert_eq!(later.cancel().await?, 2);
    assert_eq!(left(&limiter.allow_n(2).await?), (true, 0));
    Ok(())
}

pub async fn wait_beyond_the_maximum_is_denied_and_takes_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "1/h").await?;
    assert!(limiter.wait().await?.is_granted());
    let denied = limiter.wait_n(1, ms(500)).await?.decision().clone();
    assert_eq!((left(&denied), denied.retry_after()), ((false, 0), Some(std::time::Duration::from_hours(1))));
    world.at_ms(3_600_000).await?;
    assert_eq!(left(&limiter.allow().await?), (true, 0));
    Ok(())
}

pub async fn wait_for_an_available_token_takes_it_at_once<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "2/h").await?;
    assert_eq!(left(limiter.wait_n(1, ms(0)).await?.decision()), (true, 1));
    assert_eq!(left(limiter.wait().await?.decision()), (true, 0));
    Ok(())
}

pub async fn waiters_are_served_in_arrival_order<W: World>(world: &W) -> anyhow::Result<()> {
    // One token per millisecond: each wait is a millisecond longer than the one before.
    let limiter = limiter(world, "1000/s burst 1").await?;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let limiter = limiter.clone();
        waits.push(Box::pin(async move { limiter.wait().await }));
    }
    let mut turns = Vec::new();
    for reservation in together(waits).await {
        turns.push(reservation?.decision().wait());
    }
    assert_eq!(turns, (0..20).map(ms).collect::<Vec<_>>());
    Ok(())
}

pub async fn cancelled_wait_gives_its_token_back<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "1/h burst 2").await?;
    assert!(limiter.allow_n(2).await?.is_granted());
    let longest = std::time::Duration::from_hours(2);
    let mut waiting = Box::pin(limiter.wait_n(1, longest));
    // The waiter is scheduled in an hour. A second token would be available in two hours.
    let two_hours = |decision: &tollgate::Decision| {
        decision.retry_after().is_some_and(|time| time > std::time::Duration::from_hours(1))
    };
    while {
        assert!(poll(&mut waiting).await.is_none(), "nobody waits an hour here");
        !two_hours(&limiter.allow().await?)
    } {}
    drop(waiting);
    while two_hours(&limiter.allow().await?) {
        tokio::task::yield_now().await;
    }
    Ok(())
}

pub async fn cancelled_wait_with_id_is_kept_for_a_retry<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "1/h").await?;
    assert!(limiter.allow().await?.is_granted());
    let hour = std::time::Duration::from_hours(1);
    let take = under(limiter.key(), "1/h")?.max_wait(2 * hour);
    let job = take.clone().id(uuid::Uuid::new_v4(), 24 * hour);
    // The job is delivered twice.
    let again = limiter.limiter().clone();
    let more_than_an_hour = async || anyhow::Ok(limiter.allow().await?.retry_after().is_some_and(|time| time > hour));
    let mut waiting = [limiter.limiter(), &again].map(|limiter| Box::pin(limiter.wait_request(&job)));
    while {
        for waiting in &mut waiting {
            assert!(poll(waiting).await.is_none(), "nobody waits an hour here");
        }
        !more_than_an_hour().await?
    } {}
    let [one, other] = waiting;
    drop(one);
    // close() returns when the cancelled waits have given their tokens back.
    limiter.limiter().close().await?;
    assert!(more_than_an_hour().await?, "the turn is the other one's");
    drop(other);
    again.close().await?;
    let later = limiter.limiter().reserve_request(&take).await?;
    assert_eq!((later.is_granted(), later.decision().wait()), (true, 2 * hour));
    let repeated = limiter.limiter().reserve_request(&job).await?;
    assert_eq!((repeated.is_granted(), repeated.decision().wait()), (true, hour));
    // A caller that cancels explicitly gives the tokens back.
    assert_eq!(later.cancel().await?, 1);
    assert_eq!(repeated.cancel().await?, 1);
    assert!(!more_than_an_hour().await?);
    Ok(())
}

pub async fn more_than_the_burst_is_never_possible<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "10/s").await?;
    let never = |result: Result<(), Error>| {
        assert!(
            matches!(result, Err(Error::Take(TakeError::ExceedsCapacity { cost: 11, capacity: 10, .. }))),
            "{result:?}"
        );
    };
    never(limiter.allow_n(11).await.map(drop));
    never(limiter.reserve_n(11).await.map(drop));
    never(limiter.wait_n(11, ms(1)).await.map(drop));
    for cost in [0, u64::MAX] {
        assert!(matches!(limiter.allow_n(cost).await, Err(Error::Take(_))));
    }
    assert_eq!(left(&limiter.allow_n(10).await?), (true, 0));
    Ok(())
}

pub async fn without_a_limit_everything_is_granted<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let limiter = world.limiter_builder().build(Quota::rate(f64::INFINITY))?;
    let key = world.key();
    for cost in [1, 1_000_000, u64::MAX] {
        assert!(limiter.allow_n(&key, cost).await?.is_granted());
        assert_eq!(limiter.reserve_n(&key, cost).await?.delay(), Some(ms(0)));
    }
    limiter.set_rule("1/h")?;
    assert_eq!(left(&limiter.allow(&key).await?), (true, 0));
    limiter.set_rule("unlimited")?;
    assert!(limiter.allow(&key).await?.is_granted());
    Ok(())
}

pub async fn without_a_rate_the_burst_is_granted_and_then_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    let limiter = limiter(world, "3 once").await?;
    assert_eq!(left(&limiter.allow_n(2).await?), (true, 1));
    world.at_ms(86_400_000_000).await?;
    let denied = limiter.allow_n(2).await?;
    assert_eq!(left(&denied), (false, 1));
    assert_eq!((denied.retry_after(), denied.reset_after()), (None, None));
    assert!(!limiter.reserve_n(2).await?.is_granted());
    assert_eq!(left(limiter.wait().await?.decision()), (true, 0));
    assert_eq!(left(limiter.wait().await?.decision()), (false, 0));
    Ok(())
}

pub async fn changed_limit_keeps_tokens_refilled_at_the_old_rate<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    let limiter = world.limiter_builder().build("10/s")?;
    assert_eq!(left(&limiter.allow_n(&key, 10).await?), (true, 0));
    world.at_ms(400).await?;
    limiter.set_rule("100/s burst 50")?;
    assert_eq!(left(&limiter.allow(&key).await?), (true, 3));
    world.at_ms(500).await?;
    assert_eq!(left(&limiter.allow(&key).await?), (true, 12));
    limiter.set_rule("10/s burst 5")?;
    assert_eq!(left(&limiter.allow(&key).await?), (true, 4));
    Ok(())
}

pub async fn calendar_day_starts_at_midnight<W: World>(world: &W) -> anyhow::Result<()> {
    let day = std::time::Duration::from_hours(24);
    world.at_ms(-3_600_000).await?;
    let key = world.key();
    world.create(&key, Quota::calendar(2, day)?).await?;
    let take = || Take::from(key.clone());
    assert_eq!(left(&world.decide(take().cost(2)).await?), (true, 0));
    world.at_ms(-1).await?;
    assert_eq!(world.decide(take()).await?.retry_after(), Some(ms(1)));
    world.at_ms(0).await?;
    assert_eq!(left(&world.decide(take()).await?), (true, 1));
    // A bucket that its first request creates behaves the same way.
    let first = world.decide(under(&world.key(), "5 per calendar 1d")?).await?;
    assert_eq!((left(&first), first.reset_after()), ((true, 4), Some(day)));
    Ok(())
}

/// Polls the futures in order until each has ended.
pub async fn together<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = std::pin::Pin::new(future).poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Polls a future once.
async fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut polled = None;
    std::future::poll_fn(|context| {
        if let std::task::Poll::Ready(output) = std::pin::Pin::new(&mut *future).poll(context) {
            polled = Some(output);
        }
        std::task::Poll::Ready(())
    })
    .await;
    tokio::task::yield_now().await;
    polled
}
