//! Leases grant at most the tokens that they took, and none that expired. They prefetch nothing when tokens are scarce.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::{
    Admin, Key, Limiter, Mode, Rule, Store, Take, Throttle,
    clock::{Clock, ManualClock, RuntimeClock},
    layers::{Lease, LeaseOptions},
    model::Source,
};

mod requests;

use super::underlying::{Noting, take};

type Leasing = Lease<Noting, RuntimeClock>;

#[tokio::test(start_paused = true)]
async fn busy_key_is_served_from_memory_without_waiting() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000000/s")?;
    store.answers_after(Duration::from_millis(5));
    take_times(&lease, &one, 1000).await?;
    let calls = store.calls();
    for _ in 0..2000 {
        let now = Instant::now();
        let decision = lease.take_one(&one).await??;
        assert_eq!((decision.is_granted(), decision.source(), decision.attempts()), (true, Source::Lease, 0));
        assert_eq!(now.elapsed(), Duration::ZERO);
        sleep(MS).await;
    }
    assert!((20..=60).contains(&(store.calls() - calls)), "{} calls in two seconds", store.calls() - calls);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn answer_includes_stored_and_leased_tokens() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000000 once")?;
    take_times(&lease, &one, 100).await?;
    for _ in 0..100 {
        let decision = lease.take_one(&one).await??;
        assert_eq!(decision.source(), Source::Lease);
        let level = store.memory.peek(one.key()).await?.expect("there is a bucket");
        assert_eq!(decision.remaining(), Some(level.available().unsigned_abs() + lease.leased_tokens()));
        assert_eq!((decision.reset_after(), decision.retry_after()), (None, Some(Duration::ZERO)));
        sleep(MS).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn taken_tokens_are_used_given_back_or_leased() -> anyhow::Result<()> {
    // On a manual clock nothing expires. On the other clock, some tokens can have expired too long ago to be given back.
    let (taken, used) = hammered(ManualClock::default()).await?;
    assert_eq!(used, taken);
    let (taken, used) = hammered(RuntimeClock::default()).await?;
    assert!(used <= taken, "{used} used of {taken}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leased_tokens_are_unusable_once_the_bucket_is_throttled() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let lease = Arc::new(lease);
    let (one, other) = (take("a", "1000000/s")?, take("b", "1000000/s")?);
    for _ in 0..250 {
        take_times(&lease, &one, 1).await?;
        take_times(&lease, &other, 1).await?;
    }
    let leased = lease.leased_tokens();
    // Meanwhile other requests continue, and the lease prefetches tokens.
    store.answers_after(Duration::from_millis(7));
    let asking = tokio::spawn({
        let (lease, one) = (Arc::clone(&lease), one.clone());
        async move { take_times(&lease, &one, 30).await }
    });
    sleep(MS).await;
    let rule = Rule::try_from("1000000/s")?;
    assert!(lease.throttle(one.key(), &rule, Throttle::retry_after(Duration::from_secs(60))).await?);
    assert!(lease.leased_tokens() < leased && store.given_back() > 0);
    assert_eq!(lease.take_one(&other).await??.source(), Source::Lease, "another key is not throttled");
    for _ in 0..100 {
        let denied = lease.take_one(&one).await??;
        assert!(
            !denied.is_granted() && denied.retry_after().is_some_and(|time| time > Duration::from_secs(58)),
            "{denied:?}"
        );
    }
    assert!(asking.await?? > 0);
    Ok(())
}

/// Returns how many tokens the store granted and did not get back, and how many eight tasks were granted.
async fn hammered(clock: impl Clock) -> anyhow::Result<(u64, u64)> {
    let store = Noting::new();
    let options = LeaseOptions::default().target(Duration::from_millis(5));
    let lease = Arc::new(Lease::with_clock(store.clone(), options, clock));
    let used = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let (lease, used) = (Arc::clone(&lease), Arc::clone(&used));
        let one = take(["a", "b"][number % 2], "50000/s burst 50000")?;
        tasks.spawn(async move {
            for _ in 0..20_000 {
                let cost = fastrand::u64(1..4);
                let decision = lease.take_one(&one.clone().cost(cost)).await??;
                if decision.is_granted() {
                    used[usize::from(decision.source() == Source::Lease)].fetch_add(cost, Ordering::SeqCst);
                }
                if fastrand::u8(..) == 0 {
                    sleep(MS * fastrand::u32(0..4)).await;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    lease.close().await?;
    assert_eq!(lease.leased_tokens(), 0);
    let [by_store, by_lease] = [0, 1].map(|place| used[place].load(Ordering::SeqCst));
    assert!(by_lease > 0 && by_store > 0, "{by_lease} from leases, {by_store} by the store");
    Ok((store.granted() - store.given_back(), by_store + by_lease))
}

#[tokio::test(start_paused = true)]
async fn closed_lease_gives_tokens_back_and_takes_no_more() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000000 once")?;
    let used = take_times(&lease, &one, 500).await?;
    // Tokens in flight are given back, too.
    store.answers_after(Duration::from_millis(20));
    let used = used + take_times(&lease, &one, 20).await?;
    let leased = lease.leased_tokens();
    assert!(leased > 0);
    assert!(lease.close().await? >= leased);
    assert_eq!((lease.leased_tokens(), lease.close().await?), (0, 0));
    assert_eq!(store.granted() - store.given_back(), used);
    let used = used + take_times(&lease, &one, 100).await?;
    assert_eq!((lease.leased_tokens(), store.granted() - store.given_back()), (0, used));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn dropped_lease_gives_its_tokens_back() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let used = take_times(&lease, &take("a", "1000000 once")?, 500).await?;
    assert!(lease.leased_tokens() > 0);
    drop(lease);
    sleep(MS).await;
    assert_eq!(store.granted() - store.given_back(), used);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unused_lease_gives_tokens_back_and_is_removed() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let used = take_times(&lease, &take("a", "1000000 once")?, 500).await?;
    assert!(lease.leased_tokens() > 0 && lease.len() == 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!((lease.leased_tokens(), lease.len()), (0, 0));
    assert_eq!(store.granted() - store.given_back(), used);
    // A busy key gets a new lease.
    take_times(&lease, &take("a", "1000000 once")?, 500).await?;
    assert!(lease.leased_tokens() > 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_never_filled_is_removed() -> anyhow::Result<()> {
    let (_, lease) = both(LeaseOptions::default());
    // A quarter of the remaining tokens is less than one.
    take_times(&lease, &take("a", "100000/s burst 4")?, 200).await?;
    assert_eq!((lease.leased_tokens(), lease.len()), (0, 1));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(lease.len(), 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn denied_key_is_served_from_memory_again_later() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let ten = take("a", "1000000/s")?.cost(10);
    take_times(&lease, &ten, 500).await?;
    store.memory.set_mode(Mode::Block, None, None).await?;
    take_times(&lease, &ten, 3000).await?;
    store.memory.set_mode(Mode::Enforce, None, None).await?;
    take_times(&lease, &ten, 500).await?;
    assert_eq!(lease.take_one(&ten).await??.source(), Source::Lease);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn oversized_requests_do_not_change_the_prefetch() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000000/s")?;
    take_times(&lease, &one, 1000).await?;
    let (calls, mut max_leased) = (store.calls(), 0);
    for n in 0..2000 {
        if n % 10 == 0 {
            // An impossible request takes nothing.
            assert!(lease.take_one(&one.clone().cost(2_000_000)).await?.is_err());
        }
        assert_eq!(lease.take_one(&one).await??.source(), Source::Lease);
        max_leased = max_leased.max(lease.leased_tokens());
        sleep(MS).await;
    }
    assert!(max_leased <= 400, "{max_leased} tokens are leased, more than two batches");
    assert!(store.calls() - calls <= 200 + 60, "{} calls", store.calls() - calls);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn request_behind_a_queue_gets_no_prefetched_tokens() -> anyhow::Result<()> {
    let limiter = Limiter::builder(Noting::new()).lease(LeaseOptions::default()).build("1000/s burst 2000")?;
    while limiter.allow("a").await?.source() != Source::Lease {
        sleep(MS).await;
    }
    let one = limiter.request("a")?.max_wait(Duration::from_secs(10));
    let large = one.clone().cost(2000).refundable();
    let mut first = std::pin::pin!(limiter.wait_request(&large));
    assert!(timeout(MS, &mut first).await.is_err(), "it waits");
    assert_eq!(limiter.wait_request(&one).await?.decision().source(), Source::Store);
    assert!(first.await?.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn scarce_tokens_are_not_prefetched() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000/h burst 1000")?;
    assert_eq!(take_times(&lease, &one, 1000).await?, 1000, "none is lost");
    assert!(!lease.take_one(&one).await??.is_granted());
    let costs = store.costs();
    assert!(costs.iter().any(|&cost| cost > 20), "{costs:?}");
    assert_eq!(costs[costs.len() - 5..], [1; 5], "{costs:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leases_of_several_processes_add_up_to_the_quota() -> anyhow::Result<()> {
    let store = Noting::new();
    let leases: Vec<Leasing> = (0..5).map(|_| over(&store, LeaseOptions::default())).collect();
    let (one, mut used) = (take("a", "1000 once")?, 0);
    while lease_all(&leases, &one, &mut used).await? > 0 {
        let unused: u64 = leases.iter().map(Lease::leased_tokens).sum();
        assert!(used + unused <= 1000, "{used} used and {unused} leased");
        sleep(MS).await;
    }
    assert_eq!(used, 1000, "each lease used its tokens");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn minimum_remaining_is_not_prefetched() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000 once")?.min_remaining(200);
    assert_eq!(take_times(&lease, &one, 2000).await?, 800);
    assert_eq!(lease.leased_tokens(), 0);
    let level = store.memory.peek(one.key()).await?.expect("there is a bucket");
    assert_eq!(level.available(), 200);
    // Requests without a minimum remaining have another lease.
    assert_eq!(take_times(&lease, &one.clone().min_remaining(0), 300).await?, 200);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn leased_token_expires_even_if_the_process_was_suspended() -> anyhow::Result<()> {
    for (slept, given_back) in [(Duration::from_millis(500), true), (Duration::from_secs(3600), false)] {
        let (store, clock) = (Noting::new(), ManualClock::default());
        let lease = Lease::with_clock(store.clone(), LeaseOptions::default(), clock.clone());
        let one = take("a", "1000000 once")?;
        for _ in 0..500 {
            assert!(lease.take_one(&one).await??.is_granted());
            clock.advance(MS);
            sleep(MS).await;
        }
        let leased = lease.leased_tokens();
        assert!(leased > 0 && lease.take_one(&one).await??.source() == Source::Lease);
        // The process is suspended, which the runtime does not notice.
        let before = store.given_back();
        clock.advance(slept);
        assert_eq!(lease.take_one(&one).await??.source(), Source::Store);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(store.given_back() - before, if given_back { leased - 1 } else { 0 });
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tokens_that_arrive_too_late_are_given_back() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let one = take("a", "1000000 once")?;
    for _ in 0..4 {
        assert!(lease.take_one(&one).await??.is_granted());
        store.answers_after(Duration::from_millis(600));
    }
    sleep(Duration::from_secs(3)).await;
    assert_eq!((lease.leased_tokens(), store.granted() - store.given_back()), (0, 4));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_pending_refunds() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default());
    let used = take_times(&lease, &take("a", "1000000 once")?, 500).await?;
    assert!(lease.leased_tokens() > 0);
    // The background task of the lease starts to give back expired tokens.
    store.gives_back_after(Duration::from_millis(200));
    while lease.leased_tokens() > 0 {
        sleep(MS).await;
    }
    assert!(store.granted() - store.given_back() > used, "the refund is in flight");
    lease.close().await?;
    assert_eq!(store.granted() - store.given_back(), used);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn only_busy_keys_are_leased_up_to_the_maximum() -> anyhow::Result<()> {
    let (_, lease) = both(LeaseOptions::default().max_keys(3));
    let rule = Rule::try_from("1000000/s")?;
    for key in 0..20_000_u64 {
        assert!(lease.take_one(&Take::from(Key::from_hash(key)).rule(rule.clone())).await??.is_granted());
    }
    assert_eq!(lease.len(), 0);
    for _ in 0..100 {
        for key in ["a", "b", "c", "d", "e"] {
            assert!(lease.take_one(&take(key, "1000000/s")?).await??.is_granted());
        }
        sleep(MS).await;
        assert!(lease.len() <= 3);
    }
    assert_eq!(lease.len(), 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lease_holds_at_most_max_tokens() -> anyhow::Result<()> {
    let (store, lease) = both(LeaseOptions::default().max_tokens(50));
    let one = take("a", "1000000/s")?;
    for _ in 0..2000 {
        for _ in 0..5 {
            assert!(lease.take_one(&one).await??.is_granted());
        }
        assert!(lease.leased_tokens() <= 50, "{} are leased", lease.leased_tokens());
        sleep(MS).await;
    }
    assert!(store.costs().into_iter().max() <= Some(50));
    Ok(())
}

/// Requests `times` times, a millisecond apart, and returns how many requests were granted.
async fn take_times(lease: &Leasing, take: &Take, times: u64) -> anyhow::Result<u64> {
    let mut granted = 0;
    for _ in 0..times {
        granted += u64::from(lease.take_one(take).await??.is_granted());
        sleep(MS).await;
    }
    Ok(granted)
}

/// Requests from each lease, and returns how many requests were granted.
async fn lease_all(leases: &[Leasing], take: &Take, used: &mut u64) -> anyhow::Result<u64> {
    let mut granted = 0;
    for lease in leases {
        granted += u64::from(lease.take_one(take).await??.is_granted());
    }
    *used += granted;
    Ok(granted)
}

fn both(options: LeaseOptions) -> (Noting, Leasing) {
    let store = Noting::new();
    (store.clone(), over(&store, options))
}

fn over(store: &Noting, options: LeaseOptions) -> Leasing {
    Lease::with_clock(store.clone(), options, RuntimeClock::default())
}

const MS: Duration = Duration::from_millis(1);
