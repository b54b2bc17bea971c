//! Request ids that a store in memory remembers, and its room for them.

use std::time::Duration;

use tollgate::{
    Adjusted, Key, Limiter, Quota, Receipt, Rule, Store, Take, TakeError, Window,
    clock::{Clock, ManualClock},
};
use uuid::Uuid;

use super::store_of;

#[tokio::test]
async fn full_id_table_forgets_no_id_early() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let key = Key::try_from("one")?;
    let (bucket, window) = ("1000000/d".parse::<Quota>()?, "1000000 in 1d at 1h".parse::<Window>()?);
    for rule in [Rule::Quota(bucket), Rule::Window(window)] {
        let take = |id, remember_for| Take::from(key.clone()).rule(rule.clone()).id(id, remember_for);
        // One key uses all of its room for ids. Only the last id expires.
        let (kept, expiring) = (Uuid::new_v4(), Uuid::new_v4());
        let store = store_of(&clock, 2);
        for id in [kept].into_iter().chain((0..63).map(|_| Uuid::new_v4())) {
            assert!(store.decide(&take(id, Duration::MAX))?.is_granted());
        }
        let decision = store.decide(&take(expiring, Duration::from_secs(10)))?;
        assert!(decision.is_granted());
        let left = decision.remaining();
        for _ in 0..1000 {
            let id = Uuid::new_v4();
            assert_eq!(store.decide(&take(id, Duration::from_secs(1))), Err(TakeError::TooManyIds(id)));
        }
        // Requests with known ids are not charged again, and refused requests took nothing.
        for id in [kept, expiring] {
            let again = store.decide(&take(id, Duration::MAX))?;
            assert_eq!((again.is_granted(), again.remaining()), (true, left));
        }
        // A refund with an id of its own needs room, too.
        assert!(store.decide(&Take::from(key.clone()).rule(rule.clone()))?.is_granted());
        let receipt = Receipt::new(Uuid::new_v4(), key.clone(), 1);
        let granted_at = Duration::from_nanos(clock.now().unsigned_abs());
        let refund = if rule == Rule::Window(window) { receipt.in_window(granted_at) } else { receipt }.refund(1);
        assert!(matches!(store.adjust(std::slice::from_ref(&refund)).await?[..], [Err(TakeError::TooManyIds(_))]));
        clock.advance(Duration::from_secs(10));
        assert_eq!(store.adjust(std::slice::from_ref(&refund)).await?, [Ok(Adjusted::Done(1))]);
        assert_eq!(store.adjust(&[refund]).await?, [Ok(Adjusted::Repeated)]);
        let id = Uuid::new_v4();
        assert_eq!(
            store.decide(&take(id, Duration::MAX)),
            Err(TakeError::TooManyIds(id)),
            "the other ids never expire"
        );
    }
    Ok(())
}

#[test]
fn ids_of_one_key_use_at_most_half_of_the_room() -> anyhow::Result<()> {
    let store = store_of(&ManualClock::default(), 4);
    let remembered = |keys: &mut dyn Iterator<Item = String>| -> anyhow::Result<usize> {
        let takes = keys.map(|key| {
            let take = Take::from(Key::try_from(key)?).rule("1000/d".try_into()?);
            anyhow::Ok(take.id(Uuid::new_v4(), Duration::from_secs(60)))
        });
        let takes = takes.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(takes.iter().filter(|take| store.decide(take).is_ok()).count())
    };
    assert_eq!(remembered(&mut std::iter::repeat_n("one".to_owned(), 1000))?, 2 + 2 * 64);
    // Two in each of the other shards.
    let others = remembered(&mut (0..5000).map(|key| format!("key:{key}")))?;
    assert_eq!(others, 2 * 63);
    Ok(())
}

#[tokio::test]
async fn refund_without_id_needs_no_room() -> anyhow::Result<()> {
    for rule in ["1000000/d", "1000000 in 1d at 1h"] {
        let limiter = Limiter::new(store_of(&ManualClock::default(), 4), rule)?;
        let (store, take) = (limiter.store(), limiter.request("one")?);
        let remembered = || {
            let takes = (0..1000).map(|_| take.clone().id(Uuid::new_v4(), Duration::from_secs(60)));
            takes.filter(|take| store.decide(take).is_ok()).count()
        };
        // First without ids, then without room for more ids.
        for with_id in [2 + 2 * 64, 0] {
            for _ in 0..1000 {
                let reservation = limiter.reserve_request(&take.clone().refundable()).await?;
                let again = reservation.receipts()[0].clone().refund(1);
                assert_eq!(reservation.refund(1).await?, 1, "{rule}");
                assert_eq!(store.adjust(&[again]).await?, [Ok(Adjusted::Repeated)], "{rule}");
            }
            assert_eq!(remembered(), with_id, "{rule}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn reused_id_after_expiry_is_remembered_again() -> anyhow::Result<()> {
    let clock = ManualClock::default();
    let limiter = Limiter::new(store_of(&clock, 8), "1000000/d")?;
    let take = limiter.request("one")?;
    let given_back = async || {
        let reservation = limiter.reserve_request(&take.clone().refundable()).await?;
        let id = reservation.receipts()[0].id();
        reservation.refund(1).await?;
        anyhow::Ok(id)
    };
    let id = given_back().await?;
    clock.advance(Duration::from_hours(72));
    let once = take.clone().id(id, Duration::MAX);
    let left = limiter.store().decide(&once)?.remaining();
    for _ in 0..1000 {
        given_back().await?;
    }
    assert_eq!(limiter.store().decide(&once)?.remaining(), left, "the id is charged once");
    Ok(())
}

#[tokio::test]
async fn cancellations_are_unbounded_and_recent_repeats_count_once() -> anyhow::Result<()> {
    // Each shard remembers the latest four.
    let limiter = Limiter::new(store_of(&ManualClock::default(), 8), Quota::per_hour(1))?;
    let takes =
        (0..100).map(|key| anyhow::Ok(limiter.request(format!("key:{key}"))?.max_wait(Duration::from_hours(2))));
    let takes = takes.collect::<anyhow::Result<Vec<_>>>()?;
    for take in &takes {
        assert!(limiter.decide(take).await?.is_granted());
    }
    let mut cancels = Vec::new();
    for take in takes.iter().cycle().take(5000) {
        let reserved = limiter.reserve_request(take).await?;
        cancels.push(reserved.receipts()[0].clone().cancel());
        assert_eq!(reserved.cancel().await?, 1);
        let repeated = limiter.store().adjust(&cancels[cancels.len().saturating_sub(4)..]).await?;
        assert!(repeated.iter().all(|again| *again == Ok(Adjusted::Repeated)), "{repeated:?}");
    }
    Ok(())
}
