//! Answers of a limiter while its store fails or does not answer.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{
    Adjusted, Adjustment, Admin as _, Error, Fallback, Key, Limit, Limiter, LimiterBuilder, MemoryStore, Quota, Rule,
    Store, Take, TakeError, Throttle, TokenRequester as _,
    model::{Outcome, Source},
    store::TestStore,
};
use uuid::Uuid;

/// A store that never answers.
struct Silent;

impl TestStore for Silent {
    async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        std::future::pending().await
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        std::future::pending().await
    }
}

/// A store that takes at once, and never answers adjustments.
struct Keeping(MemoryStore);

impl TestStore for Keeping {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.0.take(takes).await
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        std::future::pending().await
    }
}

/// A store that fails at once.
struct Broken;

impl TestStore for Broken {
    async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        Err(Error::other(std::io::Error::other("broken")))
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Err(Error::other(std::io::Error::other("broken")))
    }

    async fn throttle(&self, _: &Key, _: &Rule, _: Throttle) -> Result<bool, Error> {
        Err(Error::other(std::io::Error::other("broken")))
    }
}

fn limiter<S: Store>(store: S, fallback: Fallback) -> Result<Limiter<S>, Error> {
    Limiter::builder(store).deadline(DEADLINE).fallback(fallback).build("10/h")
}

#[tokio::test(start_paused = true)]
async fn every_method_ends_by_the_deadline() -> anyhow::Result<()> {
    let limiter = limiter(Silent, Fallback::Open)?;
    let start = Instant::now();
    let open = limiter.allow("a").await?;
    assert_eq!((open.source(), open.remaining()), (Source::Fallback, None));
    assert_eq!(limiter.reserve("a").await?.decision().source(), Source::Fallback);
    assert_eq!(limiter.wait("a").await?.decision().source(), Source::Fallback);
    assert_eq!((start.elapsed(), limiter.fallback_count()), (3 * DEADLINE, 3));

    let limiter = self::limiter(Keeping(MemoryStore::new()), Fallback::Open)?;
    let start = Instant::now();
    assert!(matches!(limiter.reserve("a").await?.cancel().await, Err(Error::DeadlineExceeded(DEADLINE))));
    assert!(matches!(limiter.reserve("b").await?.refund(1).await, Err(Error::DeadlineExceeded(DEADLINE))));
    let settled = limiter.reserve_request(&limiter.request("c")?.id(Uuid::new_v4(), DEADLINE)).await?.settle(1).await;
    assert!(matches!(settled, Err(Error::DeadlineExceeded(DEADLINE))));
    assert_eq!((start.elapsed(), limiter.fallback_count()), (3 * DEADLINE, 0));
    Ok(())
}

/// One task: each of its requests would be the probe.
#[tokio::test(start_paused = true)]
async fn open_circuit_answers_at_once_and_probes_beside() -> anyhow::Result<()> {
    let store = Arc::new(Recovering::default());
    let fallback = || builder(&store).deadline(DEADLINE).fallback(Fallback::Open);
    let (with, without) = (fallback().build("3 once")?, builder(&store).deadline(DEADLINE).build("3 once")?);
    for limiter in [with, without] {
        store.answers.store(false, Ordering::SeqCst);
        let falls_back = async || match limiter.allow("a").await {
            Ok(decision) => Ok(decision.source() == Source::Fallback),
            Err(Error::DeadlineExceeded(_) | Error::CircuitOpen { .. }) => Ok(true),
            Err(other) => Err(other),
        };
        let (start, calls) = (Instant::now(), store.calls.load(Ordering::SeqCst));
        let calls = || store.calls.load(Ordering::SeqCst) - calls;
        for _ in 0..16 {
            assert!(falls_back().await?);
        }
        assert_eq!((start.elapsed(), calls()), (16 * DEADLINE, 16));
        for _ in 0..100 {
            assert!(falls_back().await?);
            tokio::task::yield_now().await;
        }
        assert_eq!((start.elapsed(), calls()), (16 * DEADLINE, 17), "one probe at a time, and no request waits for it");
        tokio::time::sleep(DEADLINE).await;
        assert!(falls_back().await?);

        store.answers.store(true, Ordering::SeqCst);
        // The probe that the store has not answered.
        tokio::time::sleep(DEADLINE).await;
        assert!(falls_back().await?);
        limiter.close().await?;
        assert!(!falls_back().await?, "a probe was answered");
        assert_eq!(limiter.allow("a").await?.remaining(), Some(1), "the probe gave its token back");
        assert!(store.memory.reset(&Key::try_from("a")?).await?);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn closed_limiter_leaves_no_probe() -> anyhow::Result<()> {
    let store = Arc::new(Recovering::default());
    let limiter = builder(&store).deadline(DEADLINE).fallback(Fallback::Open).build("1000/h")?;
    for _ in 0..17 {
        assert_eq!(limiter.allow("a").await?.source(), Source::Fallback);
    }
    let start = Instant::now();
    limiter.close().await?;
    assert_eq!((start.elapsed(), store.calls.load(Ordering::SeqCst)), (DEADLINE, 17));
    assert_eq!(Arc::strong_count(&store), 2, "the test's and the limiter's");
    Ok(())
}

#[test]
fn open_circuit_without_a_runtime_calls_the_store() -> anyhow::Result<()> {
    let store = Arc::new(Unreachable { is_back: AtomicBool::new(false), memory: MemoryStore::new() });
    let limiter = Limiter::builder(Arc::clone(&store)).without_batching().without_sweep().build("1000/h")?;
    let allow = || match pin!(limiter.allow("a")).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the store answers at once"),
    };
    for _ in 0..40 {
        assert!(matches!(allow(), Err(Error::DeadlineExceeded(DEADLINE))), "each request is the probe");
    }
    store.is_back.store(true, Ordering::SeqCst);
    assert!(allow()?.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unbounded_wait_gets_a_token_once_the_store_is_back() -> anyhow::Result<()> {
    let store = Arc::new(Unreachable { is_back: AtomicBool::new(false), memory: MemoryStore::new() });
    let one = limiter(Arc::clone(&store), Fallback::Closed(Duration::MAX))?.bind("a")?;
    let waiting = tokio::spawn(async move { one.wait_for_token().await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!waiting.is_finished());
    store.is_back.store(true, Ordering::SeqCst);
    let decision = waiting.await??;
    assert_eq!((decision.is_granted(), decision.source()), (true, Source::Store));
    Ok(())
}

/// A store that fails at once until `is_back` is set.
struct Unreachable {
    is_back: AtomicBool,
    memory: MemoryStore,
}

impl TestStore for Unreachable {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if self.is_back.load(Ordering::SeqCst) {
            self.memory.take(takes).await
        } else {
            Err(Error::DeadlineExceeded(DEADLINE))
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.memory.adjust(adjustments).await
    }
}

fn builder(store: &Arc<Recovering>) -> LimiterBuilder<Arc<Recovering>> {
    Limiter::builder(Arc::clone(store)).without_batching()
}

/// A store that does not answer until `answers` is set.
#[derive(Default)]
struct Recovering {
    calls: AtomicU32,
    answers: AtomicBool,
    memory: MemoryStore,
}

impl TestStore for Recovering {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if !self.answers.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        self.memory.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.memory.adjust(adjustments).await
    }
}

#[tokio::test]
async fn open_grants_and_closed_denies_everything() -> anyhow::Result<()> {
    let open = limiter(Broken, Fallback::Open)?;
    let closed = limiter(Broken, Fallback::Closed(Duration::from_secs(5)))?;
    for _ in 0..100 {
        assert!(open.allow_n("a", 10).await?.is_granted());
        assert_eq!(closed.allow("a").await?.retry_after(), Some(Duration::from_secs(5)));
    }
    assert!(!closed.wait("a").await?.is_granted());
    assert_eq!((open.fallback_count(), closed.fallback_count()), (100, 101));
    Ok(())
}

#[tokio::test]
async fn minimum_remaining_does_not_apply_to_the_local_limit() -> anyhow::Result<()> {
    let limiter = Limiter::builder(Broken)
        .min_remaining(20)
        .deadline(DEADLINE)
        .fallback(Fallback::Local(Quota::once(2)?))
        .build("100/s")?;
    let other = Limit::new(Key::try_from("tenant")?, "9 once".try_into()?).min_remaining(8);
    let request = limiter.request("user")?.and_limit(other);
    assert!(limiter.decide(&request).await?.is_granted());
    let denied = limiter.decide(&request).await?;
    assert_eq!((denied.is_granted(), denied.limit_index()), (false, 1), "the limit that the request states denies");
    assert!(limiter.allow("user").await?.is_granted());
    assert!(!limiter.allow("user").await?.is_granted());
    Ok(())
}

#[tokio::test]
async fn limit_with_a_fallback_quota_uses_it_locally() -> anyhow::Result<()> {
    let limiter = limiter(Broken, Fallback::Local(Quota::once(9)?))?;
    let limit = |name, rule: Rule| anyhow::Ok(Limit::new(Key::try_from(name)?, rule));
    let plan = Rule::Plan(Key::try_from("free by day")?);
    for (name, rule) in [("bytes of a plan", plan), ("bytes of a quota", "1000000 once".try_into()?)] {
        let bytes = limit(name, rule)?.cost(300).fallback_quota(Quota::once(1000)?);
        let request = limiter.request(format!("user with {name}"))?.and_limit(bytes);
        for _ in 0..3 {
            assert!(limiter.decide(&request).await?.is_granted(), "{name}");
        }
        let denied = limiter.decide(&request).await?;
        assert_eq!((denied.is_granted(), denied.limit_index(), denied.remaining()), (false, 1, Some(100)), "{name}");
    }
    let own = Take::from(limit("own", "1/h".try_into()?)?.fallback_quota(Quota::once(1)?));
    assert!(limiter.decide(&own).await?.is_granted());
    assert!(!limiter.decide(&own).await?.is_granted());
    Ok(())
}

#[tokio::test]
async fn throttle_applies_locally_during_an_outage() -> anyhow::Result<()> {
    let limiter = limiter(Broken, Fallback::Local(Quota::per_hour(9).build()?))?;
    assert_eq!(limiter.allow("asked before").await?.remaining(), Some(8));
    for key in ["asked before", "new"] {
        let throttle = Throttle::retry_after(Duration::from_mins(30)).and(Throttle::remaining(0));
        assert!(limiter.throttle(key, throttle).await.is_err(), "no other process is throttled");
        let denied = limiter.allow(key).await?;
        assert!(
            !denied.is_granted() && denied.retry_after().is_some_and(|time| time > Duration::from_mins(29)),
            "{key}: {denied:?}"
        );
    }
    assert!(limiter.allow("another").await?.is_granted());

    // Throttles an additional limit, under its own rule.
    let (tokens, throttle) =
        (Key::try_from("tokens")?, Throttle::retry_after(Duration::from_secs(60)).and(Throttle::remaining(0)));
    let rule = Rule::try_from("40000/min")?;
    assert!(limiter.throttle_limit(&Limit::new(tokens.clone(), rule.clone()), throttle).await.is_err());
    let denied = limiter.decide(&limiter.request("calls")?.and_limit(Limit::new(tokens, rule).cost(1200))).await?;
    assert!(!denied.is_granted(), "{denied:?}");
    let soon = Duration::from_secs(59)..Duration::from_secs(63);
    assert!(denied.retry_after().is_some_and(|time| soon.contains(&time)), "{denied:?}");

    // Throttles a limit with a fallback quota, under that quota.
    let (bytes, rule) = (Key::try_from("bytes")?, Rule::try_from("40000/min")?);
    let limit = Limit::new(bytes.clone(), rule.clone()).cost(1).fallback_quota(Quota::per_minute(60).build()?);
    let request = limiter.request("uploads")?.and_limit(limit);
    assert!(limiter.decide(&request).await?.is_granted());
    assert!(limiter.throttle_limit(&Limit::new(bytes.clone(), rule.clone()), throttle).await.is_err());
    let denied = limiter.decide(&request).await?;
    assert!(!denied.is_granted() && denied.retry_after().is_some_and(|time| soon.contains(&time)), "{denied:?}");

    let once = self::limiter(Broken, Fallback::Local(Quota::once(9)?))?;
    assert!(once.allow("a").await?.is_granted());
    assert!(once.throttle("a", throttle).await.is_err());
    assert!(!once.allow("a").await?.is_granted(), "the throttle empties the bucket");
    Ok(())
}

#[tokio::test]
async fn local_fallback_grants_exactly_its_quota() -> anyhow::Result<()> {
    let limiter = limiter(Broken, Fallback::Local(Quota::per_hour(2).build()?))?;
    for key in ["a", "b"] {
        let mut granted = 0;
        for _ in 0..10 {
            granted += u64::from(limiter.allow(key).await?.is_granted());
        }
        assert_eq!(granted, 2, "for {key}");
    }
    Ok(())
}

#[tokio::test]
async fn local_fallback_holds_at_most_100_000_keys() -> anyhow::Result<()> {
    let limiter = limiter(Broken, Fallback::Local(Quota::once(1)?))?;
    let mut granted = 0_u32;
    for n in 0..150_000 {
        let decision = limiter.allow(format!("user:{n}")).await?;
        assert_eq!(decision.source(), Source::Fallback, "beyond the maximum, too");
        granted += u32::from(decision.is_granted());
    }
    // No bucket is full, so none was forgotten. The maximum of each shard is rounded up.
    assert!((100_000..101_000).contains(&granted), "{granted} keys");
    assert!(!limiter.allow("user:0").await?.is_granted());
    Ok(())
}

#[tokio::test]
async fn local_quota_replaces_the_first_and_stored_limits() -> anyhow::Result<()> {
    let limiter = limiter(Broken, Fallback::Local(Quota::per_hour(2).build()?))?;
    let granted = async |key: &str, other: (&str, Rule)| {
        let take = Take::from(Key::try_from(key)?).rule("1000/h".try_into()?).and(Key::try_from(other.0)?, other.1);
        let mut granted = 0;
        for _ in 0..10 {
            granted += u64::from(limiter.decide(&take).await?.is_granted());
        }
        anyhow::Ok(granted)
    };
    let everybody = || anyhow::Ok(("everybody", Rule::try_from("5/h")?));
    assert_eq!(granted("a", everybody()?).await?, 2, "the first client's own");
    assert_eq!(granted("b", everybody()?).await?, 2, "the second one's");
    assert_eq!(granted("c", everybody()?).await?, 1, "the rest of the shared limit");
    assert_eq!(granted("d", ("tenant", Rule::Plan(Key::try_from("gold")?))).await?, 2);
    assert_eq!(granted("e", ("tenant", Rule::Provisioned)).await?, 0, "the local bucket of the tenant is empty");
    Ok(())
}

#[tokio::test]
async fn local_quota_by_limit_applies_to_each_plan() -> anyhow::Result<()> {
    let quota = |limit: &Limit| match limit.rule() {
        Rule::Plan(plan) if plan.as_str() == "paid" => QUOTAS[0],
        Rule::Plan(plan) if plan.as_str() == "internal" => Quota::unlimited(),
        _ => QUOTAS[1],
    };
    let limiter = limiter(Broken, Fallback::local_by(quota))?;
    let under = |key: &str, plan: &str| anyhow::Ok(Limit::new(Key::try_from(key)?, Rule::Plan(Key::try_from(plan)?)));
    let granted = async |take: &Take| {
        let mut granted = 0;
        for _ in 0..20 {
            granted += u64::from(limiter.decide(take).await?.is_granted());
        }
        anyhow::Ok(granted)
    };
    assert_eq!(granted(&limiter.request_for(under("a", "paid")?)).await?, 9);
    assert_eq!(granted(&limiter.request_for(under("b", "free")?)).await?, 2);
    assert_eq!(granted(&limiter.request_for(under("c", "internal")?)).await?, 20);
    assert_eq!(granted(&limiter.request("d")?).await?, 2, "under the limiter's own rule");
    let both = limiter.request_for(under("e", "internal")?).and_limit(under("f", "paid")?);
    assert_eq!(granted(&both.and(Key::try_from("g")?, "4 once".try_into()?)).await?, 4, "as the request states");

    // A throttle lowers the bucket under the quota of its plan.
    let tokens = under("h", "paid")?;
    assert!(limiter.throttle_limit(&tokens, Throttle::remaining(5)).await.is_err());
    assert_eq!(granted(&limiter.request_for(tokens)).await?, 5);
    Ok(())
}

#[tokio::test]
async fn fallback_grant_is_never_given_back_to_the_store() -> anyhow::Result<()> {
    let limiter = limiter(Broken, Fallback::Open)?;
    let reservation = limiter.reserve("a").await?;
    assert!(reservation.is_granted() && reservation.receipts().is_empty());
    Ok(())
}

#[tokio::test]
async fn impossible_request_is_an_error_during_an_outage() -> anyhow::Result<()> {
    let limiter = limiter(MemoryStore::new(), Fallback::Open)?;
    assert!(matches!(limiter.allow_n("a", 11).await, Err(Error::Take(TakeError::ExceedsCapacity { .. }))));
    assert!(matches!(limiter.allow("").await, Err(Error::Key(_))));
    assert_eq!(limiter.fallback_count(), 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn locally_known_answers_are_given_during_an_outage() -> anyhow::Result<()> {
    let limiter = limiter(Silent, Fallback::Closed(Duration::from_secs(9)))?;
    for _ in 0..16 {
        assert_eq!(limiter.allow("a").await?.source(), Source::Fallback);
    }
    assert_eq!(limiter.allow("a").await?.source(), Source::Fallback);
    assert!(matches!(limiter.allow_n("a", 0).await, Err(Error::Take(TakeError::ZeroCost))));
    let waited = limiter.wait_n("a", 0, Duration::from_secs(1)).await.map(drop);
    assert!(matches!(waited, Err(Error::Take(TakeError::ZeroCost))), "{waited:?}");
    let unlimited = limiter.request("a")?.rule(Quota::unlimited().into());
    assert!(limiter.decide(&unlimited).await?.is_granted());
    assert!(limiter.wait_request(&unlimited).await?.is_granted());
    assert_eq!(limiter.fallback_count(), 17);
    Ok(())
}

/// The local quotas of a paid plan and of all others.
static QUOTAS: LazyLock<[Quota; 2]> = LazyLock::new(|| [9, 2].map(|tokens| Quota::once(tokens).expect("a quota")));

const DEADLINE: Duration = Duration::from_millis(50);

#[tokio::test(start_paused = true)]
async fn requests_beyond_a_full_queue_are_answered_at_once() -> anyhow::Result<()> {
    // Maximum number of waiting requests for one key.
    const MAX_WAITING: usize = 16_384;
    let limiter = limiter(Silent, Fallback::Closed(Duration::from_secs(9)))?;
    let start = Instant::now();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..MAX_WAITING + 101 {
        let limiter = limiter.clone();
        requests.spawn(async move { limiter.allow("a").await });
    }
    // One more request is in flight.
    for _ in 0..100 {
        let decision = requests.join_next().await.expect("one of them")??;
        assert_eq!((decision.is_granted(), decision.source()), (false, Source::Fallback));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
    while let Some(answered) = requests.join_next().await {
        assert_eq!((answered??.source(), start.elapsed()), (Source::Fallback, DEADLINE));
    }
    Ok(())
}
