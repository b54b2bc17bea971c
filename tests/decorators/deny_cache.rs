//! Denials from memory, for keys that were denied a moment before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{advance, sleep};
use tollgate::{
    Adjusted, Adjustment, Admin, Decision, Error, Fallback, Key, Limiter, Mode, Rule, Store, Take, TakeError, Throttle,
    Window,
    layers::DenyCache,
    model::{Outcome, Source},
    store::TestStore,
};
use uuid::Uuid;

use super::underlying::{Broken, Falling, Noting, receipt, take};

#[tokio::test(start_paused = true)]
async fn attack_costs_one_call_per_key_and_second() -> anyhow::Result<()> {
    let (store, cache) = both();
    let attacks = [take("a", "1/h")?, take("b", "1/h")?];
    for attack in &attacks {
        assert!(cache.take_one(attack).await??.is_granted());
    }
    for second in 0..10 {
        assert_eq!(store.calls(), 2 + 2 * second);
        for _ in 0..1000 {
            for attack in &attacks {
                assert!(!cache.take_one(attack).await??.is_granted());
            }
            advance(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn expired_denial_is_probed_once_while_others_wait() -> anyhow::Result<()> {
    let (store, cache) = both();
    let (cache, one) = (Arc::new(cache), take("a", "1/h")?);
    assert!(cache.take_one(&one).await??.is_granted() && !cache.take_one(&one).await??.is_granted());
    store.answers_after(Duration::from_millis(20));
    for second in 1..=5 {
        sleep(Duration::from_secs(1)).await;
        let decisions = spawn_takes(&cache, &one, 100).join_all().await;
        assert!(decisions.iter().all(|decision| !decision.is_granted()));
        assert_eq!(store.calls(), 2 + second, "one call answers all requests");
    }
    // Once there are tokens, requests do not wait for each other.
    store.memory.reset(one.key()).await?;
    sleep(Duration::from_secs(1)).await;
    let start = tokio::time::Instant::now();
    let decisions = spawn_takes(&cache, &one, 100).join_all().await;
    assert_eq!(decisions.iter().filter(|decision| decision.is_granted()).count(), 1);
    assert_eq!(start.elapsed(), Duration::from_millis(40));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cancelled_probe_does_not_block_the_others() -> anyhow::Result<()> {
    let (store, cache) = both();
    let (cache, one) = (Arc::new(cache), take("a", "1/h")?);
    assert!(cache.take_one(&one).await??.is_granted() && !cache.take_one(&one).await??.is_granted());
    store.answers_after(Duration::from_millis(20));
    sleep(Duration::from_secs(1)).await;
    let start = tokio::time::Instant::now();
    let mut first = Box::pin(cache.take_one(&one));
    assert!(tokio::time::timeout(Duration::from_millis(5), &mut first).await.is_err());
    let others = spawn_takes(&cache, &one, 10);
    sleep(Duration::from_millis(1)).await;
    drop(first);
    assert!(others.join_all().await.iter().all(|decision| !decision.is_granted()));
    assert_eq!(start.elapsed(), Duration::from_millis(26));

    sleep(Duration::from_secs(1)).await;
    let start = tokio::time::Instant::now();
    let mut first = Box::pin(cache.take_one(&one));
    assert!(tokio::time::timeout(Duration::from_millis(5), &mut first).await.is_err());
    assert!(spawn_takes(&cache, &one, 10).join_all().await.iter().all(|decision| !decision.is_granted()));
    assert_eq!(start.elapsed(), Duration::from_millis(5 + 100 + 20));
    assert!(!first.await??.is_granted());
    Ok(())
}

/// Starts `callers` requests at once.
fn spawn_takes(cache: &Arc<DenyCache<Noting>>, take: &Take, callers: usize) -> JoinSet<Decision> {
    (0..callers)
        .map(|_| {
            let (cache, take) = (Arc::clone(cache), take.clone());
            async move { cache.take_one(&take).await.expect("an answer").expect("it is possible") }
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn denial_is_cached_until_tokens_are_available() -> anyhow::Result<()> {
    let (store, cache) = both();
    let one = take("a", "4/s burst 1")?;
    assert!(cache.take_one(&one).await??.is_granted());
    for left in (1..=250).rev() {
        let decision = cache.take_one(&one).await??;
        assert_eq!((decision.is_granted(), decision.retry_after()), (false, Some(Duration::from_millis(left))));
        assert_eq!((decision.reset_after(), decision.mode()), (Some(Duration::from_millis(left)), Mode::Enforce));
        let (source, attempts) = if left == 250 { (Source::Store, 1) } else { (Source::DenyCache, 0) };
        assert_eq!((decision.source(), decision.attempts()), (source, attempts));
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(store.calls(), 2);
    assert!(cache.take_one(&one).await??.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cached_denial_of_a_throttled_bucket_states_its_end() -> anyhow::Result<()> {
    let (_, cache) = both();
    let one = take("a", "4/s burst 1")?;
    assert!(cache.take_one(&one).await??.is_granted());
    assert_eq!(cache.take_one(&one).await??.retry_after(), Some(Duration::from_millis(250)));
    let throttle = Throttle::retry_after(Duration::from_secs(60));
    assert!(cache.throttle(one.key(), &Rule::try_from("4/s burst 1")?, throttle).await?);
    assert_eq!(cache.take_one(&one).await??.retry_after(), Some(Duration::from_secs(60)));
    assert_eq!(cache.take_one(&one).await??.source(), Source::DenyCache);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn slow_denial_is_cached_no_longer() -> anyhow::Result<()> {
    let (store, cache) = both();
    let one = take("a", "4/s burst 1")?;
    assert!(cache.take_one(&one).await??.is_granted());
    store.answers_after(Duration::from_millis(249));
    assert!(!cache.take_one(&one).await??.is_granted());
    assert_eq!(cache.take_one(&one).await??.source(), Source::DenyCache);
    advance(Duration::from_millis(1)).await;
    assert!(cache.take_one(&one).await??.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn store_changes_reach_denied_keys_within_a_second() -> anyhow::Result<()> {
    let (store, cache) = both();
    let (one, key) = (take("a", "1/h")?, Key::try_from("a")?);
    let is_denied = async |mode: Mode| {
        let decision = cache.take_one(&one).await??;
        anyhow::Ok(!decision.is_granted() && decision.mode() == mode)
    };
    let second = Duration::from_millis(999);
    assert!(cache.take_one(&one).await??.is_granted() && is_denied(Mode::Enforce).await?);

    store.memory.reset(&key).await?;
    advance(second).await;
    assert!(is_denied(Mode::Enforce).await?);
    advance(Duration::from_millis(1)).await;
    assert!(cache.take_one(&one).await??.is_granted());

    store.memory.set_mode(Mode::Block, None, None).await?;
    assert!(is_denied(Mode::Block).await? && is_denied(Mode::Block).await?);
    store.memory.set_mode(Mode::Off, None, None).await?;
    advance(second).await;
    assert!(is_denied(Mode::Block).await?);
    advance(Duration::from_millis(1)).await;
    assert_eq!(cache.take_one(&one).await??.mode(), Mode::Off);

    store.memory.set_mode(Mode::Enforce, None, None).await?;
    let plan = Key::try_from("free")?;
    store.memory.create_plan(&plan, "1/h".parse()?).await?;
    let by_plan = take("b", "1/h")?.rule(Rule::Plan(plan.clone()));
    assert!(cache.take_one(&by_plan).await??.is_granted() && !cache.take_one(&by_plan).await??.is_granted());
    store.memory.create_plan(&plan, "1000/s".parse()?).await?;
    advance(second).await;
    assert!(!cache.take_one(&by_plan).await??.is_granted());
    advance(Duration::from_millis(1)).await;
    // Tokens earned at the old rate are less than a whole token.
    assert!(cache.take_one(&by_plan).await??.retry_after().is_some_and(|time| time <= Duration::from_millis(1)));
    advance(Duration::from_millis(1)).await;
    assert!(cache.take_one(&by_plan).await??.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn local_refund_ends_a_cached_denial_at_once() -> anyhow::Result<()> {
    let (_, cache) = both();
    let one = take("a", "1/h")?;
    assert!(cache.take_one(&one).await??.is_granted() && !cache.take_one(&one).await??.is_granted());
    cache.adjust(&[receipt("a", 1)?.refund(1)]).await?;
    assert!(cache.take_one(&one).await??.is_granted() && !cache.take_one(&one).await??.is_granted());
    assert_eq!(cache.len(), 1);
    cache.forget(&Key::try_from("a")?);
    assert!(cache.is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn denial_overtaken_by_a_refund_is_not_cached() -> anyhow::Result<()> {
    let (store, cache) = both();
    let cache = Arc::new(cache);
    let one = take("a", "1/h")?;
    assert!(cache.take_one(&one).await??.is_granted());
    store.answers_after(Duration::from_millis(10));
    let (caller, request) = (Arc::clone(&cache), one.clone());
    let denied = tokio::spawn(async move { caller.take_one(&request).await });
    sleep(Duration::from_millis(5)).await;
    cache.adjust(&[receipt("a", 1)?.refund(1)]).await?;
    assert!(!denied.await???.is_granted());
    assert!(cache.take_one(&one).await??.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cached_denial_covers_equal_and_larger_costs_only() -> anyhow::Result<()> {
    let (store, cache) = both();
    let of = |cost, min_remaining| anyhow::Ok(take("a", "10/h")?.cost(cost).min_remaining(min_remaining));
    assert!(cache.take_one(&of(5, 0)?).await??.is_granted());
    assert!(!cache.take_one(&of(7, 2)?).await??.is_granted());
    store.costs();
    // The denial covers cost plus minimum remaining, in any division.
    for (cost, min_remaining) in [(6, 3), (6, 4), (9, 0), (7, 3)] {
        assert!(!cache.take_one(&of(cost, min_remaining)?).await??.is_granted());
    }
    assert!(store.costs().is_empty());
    assert_eq!(cache.take_one(&of(0, 10)?).await?, Err(TakeError::ZeroCost));
    store.costs();
    assert!(cache.take_one(&of(5, 0)?).await??.is_granted());
    assert!(!cache.take_one(&of(1, 0)?).await??.is_granted());
    store.costs();
    for (cost, min_remaining) in [(10, 0), (1, 9), (2, 2), (1, 0)] {
        assert!(!cache.take_one(&of(cost, min_remaining)?).await??.is_granted());
    }
    assert!(store.costs().is_empty(), "a request for the whole capacity is possible");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn impossible_request_is_an_error_despite_a_cached_denial() -> anyhow::Result<()> {
    let (_, cache) = both();
    let one = take("a", "10/h")?;
    assert!(cache.take_one(&one.clone().cost(10)).await??.is_granted());
    assert!(!cache.take_one(&one).await??.is_granted());
    for (cost, min_remaining) in [(11, 0), (10, 1), (u64::MAX, u64::MAX), (11, 0)] {
        let outcome = cache.take_one(&one.clone().cost(cost).min_remaining(min_remaining)).await?;
        assert!(matches!(outcome, Err(TakeError::ExceedsCapacity { .. })), "{outcome:?}");
        assert!(!cache.take_one(&one.clone().cost(10)).await??.is_granted());
    }
    assert_eq!(cache.take_one(&one.clone().cost(0)).await?, Err(TakeError::ZeroCost));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cached_denial_does_not_apply_to_another_rule() -> anyhow::Result<()> {
    let (store, cache) = both();
    assert!(cache.take_one(&take("a", "1/h")?).await??.is_granted());
    assert!(!cache.take_one(&take("a", "1/h")?).await??.is_granted());
    assert!(!cache.take_one(&take("a", "2/h")?).await??.is_granted());
    assert_eq!(store.calls(), 3);
    assert_eq!(cache.take_one(&take("a", "2/h")?).await??.source(), Source::DenyCache);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waits_ids_several_limits_and_windows_bypass_the_cache() -> anyhow::Result<()> {
    let (store, cache) = both();
    let one = take("a", "1/h")?;
    let wait = one.clone().max_wait(Duration::from_secs(1));
    let window = one.clone().rule(Rule::Window(Window::new(1, Duration::from_secs(60), Duration::from_secs(6))?));
    assert!(cache.take_one(&one).await??.is_granted() && cache.take_one(&window).await??.is_granted());
    let id = || one.clone().id(Uuid::new_v4(), Duration::from_secs(60));
    let several = one.clone().and(Key::try_from("b")?, Rule::try_from("1/h")?);
    for denied in [wait, id(), several, window] {
        for _ in 0..3 {
            let calls = store.calls();
            assert!(!cache.take_one(&denied).await??.is_granted() && cache.is_empty());
            assert_eq!(store.calls(), calls + 1);
        }
    }
    // A cached denial of a plain request does not answer them either.
    assert!(!cache.take_one(&one).await??.is_granted());
    assert_eq!(cache.take_one(&one.clone().max_wait(Duration::from_secs(1))).await??.source(), Source::Store);
    assert_eq!(cache.take_one(&id()).await??.source(), Source::Store);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn batch_answers_cached_keys_and_calls_once_for_the_rest() -> anyhow::Result<()> {
    let (store, cache) = both();
    let (a, b) = (take("a", "1/h")?, take("b", "5/h")?);
    assert!(cache.take_one(&a).await??.is_granted() && !cache.take_one(&a).await??.is_granted());
    let (calls, _) = (store.calls(), store.costs());
    let outcomes = cache.take(&[b.clone().cost(2), a.clone(), b.clone().cost(3), a.clone(), b.clone().cost(1)]).await?;
    let granted: Vec<bool> = outcomes.iter().flatten().map(Decision::is_granted).collect();
    assert_eq!(granted, [true, false, true, false, false]);
    assert_eq!((store.calls(), store.costs()), (calls + 1, vec![2, 3, 1]));
    assert!(cache.take(&[a.clone(), b, a]).await?.iter().flatten().all(|one| one.source() == Source::DenyCache));
    assert_eq!(store.calls(), calls + 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn errors_and_fallback_answers_are_not_cached() -> anyhow::Result<()> {
    let broken = Broken::default();
    let cache = DenyCache::new(broken.clone());
    for _ in 0..3 {
        assert!(cache.take_one(&take("a", "1/h")?).await.is_err() && cache.is_empty());
    }
    assert_eq!(broken.0.load(Ordering::SeqCst), 3);
    let cache = DenyCache::new(Falling::new(Broken::default(), Fallback::Closed(Duration::from_secs(9)))?);
    for _ in 0..3 {
        assert_eq!(cache.take_one(&take("a", "1/h")?).await??.source(), Source::Fallback);
        assert!(cache.is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn million_denied_keys_use_no_more_than_max_keys() -> anyhow::Result<()> {
    struct Denying;

    impl TestStore for Denying {
        async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
            Ok(takes.iter().map(|_| Ok(Decision::denial(Duration::from_secs(1)))).collect())
        }

        async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
            Ok(vec![])
        }
    }

    let cache = DenyCache::new(Denying).max_keys(10_000);
    let rule = Rule::try_from("1/h")?;
    for key in 0..1_000_000_u64 {
        assert!(!cache.take_one(&Take::from(Key::from_hash(key)).rule(rule.clone())).await??.is_granted());
    }
    assert!((5_000..=10_500).contains(&cache.len()), "{} keys", cache.len());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn limiter_caches_denials_of_at_most_max_keys() -> anyhow::Result<()> {
    for (max_keys, are_both_cached) in [(2, true), (1, false)] {
        let store = Noting::new();
        let limiter = Limiter::builder(store.clone()).deny_cache_max_keys(max_keys).build("1/h")?;
        for key in ["a", "b"] {
            assert!(limiter.allow(key).await?.is_granted() && !limiter.allow(key).await?.is_granted());
        }
        let calls = store.calls();
        for key in ["a", "b"] {
            assert!(!limiter.allow(key).await?.is_granted());
        }
        assert_eq!(store.calls() == calls, are_both_cached, "{max_keys} keys");
    }
    Ok(())
}

fn both() -> (Noting, DenyCache<Noting>) {
    let store = Noting::new();
    (store.clone(), DenyCache::new(store))
}
