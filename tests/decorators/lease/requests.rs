//! Requests that a lease serves, and answers that prefetch nothing.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::{
    Admin, Decision, Fallback, Key, Limiter, Mode, Quota, Rule, Store, Take, TakeError, Window,
    clock::RuntimeClock,
    layers::{Lease, LeaseOptions},
    model::Source,
};
use uuid::Uuid;

use super::{MS, both, over, take_times};
use crate::underlying::{Broken, Falling, Noting, take};

#[tokio::test(start_paused = true)]
async fn fallback_and_mode_answers_prefetch_nothing() -> anyhow::Result<()> {
    let falling = Falling::new(Broken::default(), Fallback::Open)?;
    let lease = Lease::with_clock(falling, LeaseOptions::default(), RuntimeClock::default());
    for _ in 0..100 {
        assert_eq!(lease.take_one(&take("a", "1000000/s")?).await??.source(), Source::Fallback);
        assert!(lease.is_empty());
    }
    for mode in [Mode::Off, Mode::Block, Mode::Shadow] {
        let (store, lease) = both(LeaseOptions::default());
        store.memory.set_mode(mode, None, None).await?;
        for _ in 0..100 {
            let decision = lease.take_one(&take("a", "2 once")?).await??;
            assert!(decision.source() == Source::Store && lease.leased_tokens() == 0);
            sleep(MS).await;
        }
    }
    let unlimited = Take::from(Key::try_from("a")?).rule(Quota::unlimited().into());
    let (_, lease) = both(LeaseOptions::default());
    assert_eq!((take_times(&lease, &unlimited, 100).await?, lease.len()), (100, 0));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn mode_change_reaches_leases_within_a_second() -> anyhow::Result<()> {
    for mode in [Mode::Block, Mode::Off] {
        // At a rate at which leased tokens are used, and at one at which they expire.
        for pause in [1, 40] {
            let (store, lease) = both(LeaseOptions::default());
            let one = take("a", "1000000/s")?;
            take_times(&lease, &one, 500).await?;
            let given_back = store.given_back();
            store.memory.set_mode(mode, None, None).await?;
            let since = Instant::now();
            while lease.take_one(&one).await??.mode() != mode {
                sleep(MS * pause).await;
            }
            assert!(since.elapsed() <= Duration::from_secs(1), "{:?}", since.elapsed());
            if mode == Mode::Block && pause == 1 {
                // Leased tokens are given back as soon as the mode is seen.
                assert!(lease.leased_tokens() == 0 && store.given_back() > given_back);
            }
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waiting_request_uses_leased_tokens_if_none_queue() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000/s burst 2000")?;
    take_times(&lease, &one, 300).await?;
    let waits = one.clone().max_wait(Duration::from_secs(10));
    let decision = lease.take_one(&waits).await??;
    assert_eq!((decision.source(), decision.wait()), (Source::Lease, Duration::ZERO));
    assert!(lease.leased_tokens() >= 10);
    // The first request has to wait. The lease has tokens for the second.
    let (many, calls) = (waits.clone().cost(2000), store.calls());
    let outcomes = lease.take(&[many, waits.clone()]).await?;
    let waiting: Vec<Duration> = outcomes.iter().flatten().map(Decision::wait).collect();
    assert!(Duration::ZERO < waiting[0] && waiting[0] < waiting[1], "{waiting:?}");
    assert_eq!(store.calls(), calls + 1);
    assert!(lease.leased_tokens() > 0 && lease.take_one(&waits).await??.source() == Source::Store);
    // A request that does not wait uses leased tokens.
    assert_eq!(lease.take_one(&one).await??.source(), Source::Lease);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waiting_request_does_not_overtake_a_cancellable_reservation() -> anyhow::Result<()> {
    let (_, lease) = both(LeaseOptions::default());
    let one = take("a", "1000/s burst 2000")?;
    take_times(&lease, &one, 300).await?;
    let waits = one.clone().max_wait(Duration::from_secs(10));
    let reserved = lease.take_one(&waits.clone().cost(2000).refundable()).await??;
    assert!(reserved.is_granted() && !reserved.wait().is_zero() && lease.leased_tokens() > 0);
    assert_eq!(lease.take_one(&waits).await??.source(), Source::Store);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn ids_several_limits_and_windows_bypass_the_lease() -> anyhow::Result<()> {
    let (_, lease) = both(LeaseOptions::default());
    let one = take("a", "1000000/s")?;
    take_times(&lease, &one, 300).await?;
    let leased = lease.leased_tokens();
    let window = Window::new(1000, Duration::from_secs(60), Duration::from_secs(6))?;
    for other in [
        one.clone().id(Uuid::new_v4(), Duration::from_secs(60)),
        one.clone().and(Key::try_from("b")?, Rule::try_from("1000/s")?),
        one.clone().rule(Rule::Window(window)),
    ] {
        assert_eq!(lease.take_one(&other).await??.source(), Source::Store);
    }
    assert_eq!(lease.take_one(&one.clone().cost(0)).await?, Err(TakeError::ZeroCost));
    assert!(leased > 0 && lease.leased_tokens() == leased);
    for cost in [2_000_000, u64::MAX, u64::MAX] {
        assert!(matches!(lease.take_one(&one.clone().cost(cost)).await?, Err(TakeError::ExceedsCapacity { .. })));
        sleep(MS).await;
    }
    take_times(&lease, &one, 300).await?;
    assert!(lease.leased_tokens() > 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn batch_calls_the_store_only_for_unserved_requests() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let (a, b) = (take("a", "1000000/s")?, take("b", "5/s")?);
    take_times(&lease, &a, 300).await?;
    let (calls, _) = (store.calls(), store.costs());
    let outcomes = lease.take(&[b.clone().cost(2), a.clone(), b.clone().cost(3), a, b.cost(1)]).await?;
    let seen: Vec<_> = outcomes.iter().flatten().map(|one| (one.is_granted(), one.source() == Source::Lease)).collect();
    assert_eq!(seen, [(true, false), (true, true), (true, false), (true, true), (false, false)]);
    assert_eq!((store.calls(), store.costs()), (calls + 1, vec![2, 3, 1]));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leased_reservation_has_nothing_to_give_back() -> anyhow::Result<()> {
    let store = Noting::new();
    let limiter = Limiter::new(over(&store, LeaseOptions::default()), "1000000/s")?.bind("a")?;
    for _ in 0..300 {
        assert!(limiter.allow().await?.is_granted());
        sleep(MS).await;
    }
    let (reservation, given_back) = (limiter.reserve().await?, store.given_back());
    assert_eq!((reservation.decision().source(), reservation.delay()), (Source::Lease, Some(Duration::ZERO)));
    assert!(reservation.receipts().is_empty());
    assert_eq!((reservation.refund(1).await?, store.given_back()), (0, given_back));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn failing_store_is_called_by_each_request() -> anyhow::Result<()> {
    let lease = Lease::with_clock(Broken::default(), LeaseOptions::default(), RuntimeClock::default());
    for _ in 0..100 {
        assert!(lease.take_one(&take("a", "1000000/s")?).await.is_err());
    }
    assert_eq!((lease.leased_tokens(), lease.len(), lease.close().await?), (0, 0, 0));
    Ok(())
}
