//! Requests that are repeated, settled or refunded.

use std::time::Duration;

use tollgate::{Adjusted, Adjustment, Admin, Error, Quota, Receipt, Reservation, Rule, Store, Take, TakeError, Window};
use uuid::Uuid;

use super::{World, left, ms, under};

const HOUR: Duration = Duration::from_hours(1);

/// A request with an id, for a bucket of ten per hour.
fn once<W: World>(world: &W) -> anyhow::Result<Take> {
    Ok(under(&world.key(), "10/h")?.id(Uuid::new_v4(), HOUR))
}

async fn reserved<W: World>(world: &W, take: &Take) -> anyhow::Result<Reservation<W::Store>> {
    Ok(world.limiter_builder().build("10/h")?.reserve_request(take).await?)
}

async fn adjusted<W: World>(world: &W, adjustment: Adjustment) -> anyhow::Result<Adjusted> {
    Ok(world.store().adjust(&[adjustment]).await?.remove(0)?)
}

async fn remaining<W: World>(world: &W, take: &Take) -> anyhow::Result<u64> {
    let key = take.key().clone();
    let (_, left) = left(&world.decide(under(&key, "10/h")?.cost(1)).await?);
    Ok(left + 1)
}

pub async fn repeated_request_with_id_is_charged_once<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = once(world)?.cost(4);
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 6));
    for _ in 0..3 {
        assert_eq!(left(&world.decide(take.clone()).await?), (true, 6));
    }
    let both = once(world)?.cost(4).and(world.key(), Rule::try_from("5/h")?);
    for _ in 0..3 {
        assert_eq!(left(&world.decide(both.clone()).await?), (true, 1));
    }
    assert_eq!(remaining(world, &take).await?, 6);
    Ok(())
}

pub async fn id_of_another_request_is_refused<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = once(world)?;
    assert!(world.decide(take.clone()).await?.is_granted());
    let outcome = world.store().take_one(&take.clone().cost(2)).await?;
    assert!(matches!(outcome, Err(TakeError::IdReused(_))), "{outcome:?}");
    assert_eq!(remaining(world, &take).await?, 9);
    Ok(())
}

/// Two requests in flight each cost more than the bucket holds. They are settled in one call or one by one.
pub async fn settlement_debt_is_limited_by_max_debt<W: World>(world: &W) -> anyhow::Result<()> {
    let minute = Duration::from_secs(60);
    for (quota, max_debt, retry_after) in [
        (Quota::continuous(10, ms(1000))?, minute, Some(minute)),
        (Quota::continuous(10, ms(1000))?, Duration::ZERO, Some(ms(100))),
        (Quota::interval(10, ms(40_000))?, minute, Some(ms(80_000))),
        (Quota::interval(10, HOUR)?, minute, Some(HOUR)),
        ("10 once".parse()?, minute, None),
    ] {
        for at_once in [false, true] {
            world.at_ms(0).await?;
            let (key, [one, other]) = (world.key(), [(); 2].map(|()| Uuid::new_v4()));
            let take = || Take::from(key.clone()).rule(quota.into());
            let settle = |id, used| Receipt::new(id, key.clone(), 1).settle(used).max_debt(max_debt);
            for id in [one, other] {
                assert!(world.decide(take().id(id, HOUR)).await?.is_granted());
            }
            let settled = [one, other].map(|id| settle(id, u64::MAX));
            let calls = if at_once { vec![&settled[..]] } else { settled.chunks(1).collect() };
            for call in calls {
                let adjusted = world.store().adjust(call).await?;
                assert!(adjusted.iter().all(|one| matches!(one, Ok(Adjusted::Done(..0)))), "{quota}: {adjusted:?}");
            }
            let denied = world.decide(take()).await?;
            assert_eq!((denied.is_granted(), denied.retry_after()), (false, retry_after), "{quota} for {max_debt:?}");
        }
    }
    // A debt below the maximum is charged in full.
    let (key, id) = (world.key(), Uuid::new_v4());
    assert!(world.decide(under(&key, "10/s")?.id(id, HOUR)).await?.is_granted());
    let settle = Receipt::new(id, key.clone(), 1).settle(30).max_debt(minute);
    assert_eq!(adjusted(world, settle).await?, Adjusted::Done(-29));
    assert_eq!(world.decide(under(&key, "10/s")?).await?.retry_after(), Some(ms(2100)));
    Ok(())
}

pub async fn denial_with_id_is_not_remembered<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = once(world)?.cost(6);
    assert!(world.decide(under(take.key(), "10/h")?.cost(5)).await?.is_granted());
    assert_eq!(left(&world.decide(take.clone()).await?), (false, 5));
    world.at_ms(360_000).await?;
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 0));
    assert_eq!(left(&world.decide(take).await?), (true, 0));
    Ok(())
}

pub async fn id_is_forgotten_after_its_hold_time<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/d")?.id(Uuid::new_v4(), ms(1000));
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 9));
    world.at_ms(999).await?;
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 9));
    world.at_ms(1000).await?;
    assert_eq!(left(&world.decide(take.clone()).await?), (true, 8));
    assert_eq!(left(&world.decide(take).await?), (true, 8));
    Ok(())
}

pub async fn settled_request_is_charged_its_actual_cost<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for (used, given_back, then) in [(2, 3, 8), (5, 0, 5), (9, -4, 1), (0, 5, 10)] {
        let take = once(world)?.cost(5);
        let receipt = reserved(world, &take).await?.receipts()[0].clone();
        assert_eq!(adjusted(world, receipt.settle(used)).await?, Adjusted::Done(given_back), "{used} were used");
        assert_eq!(remaining(world, &take).await?, then, "{used} were used");
    }
    // The debt exceeds the capacity: later requests wait for the refill.
    let take = once(world)?.cost(5);
    let receipt = reserved(world, &take).await?.receipts()[0].clone();
    assert_eq!(adjusted(world, receipt.settle(30)).await?, Adjusted::Done(-25));
    let denied = world.decide(under(take.key(), "10/h")?).await?;
    assert_eq!((denied.is_granted(), denied.retry_after()), (false, Some(HOUR * 21 / 10)));
    Ok(())
}

/// After a backward step of the clock, the debt counts from the new time. No request waits until the old time.
pub async fn debt_after_a_clock_set_back_counts_from_then_on<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(86_400_000).await?;
    let window = Rule::Window(Window::new(10, HOUR, HOUR / 60)?);
    let in_bucket = once(world)?.cost(10);
    let in_window = Take::from(world.key()).rule(window.clone()).id(Uuid::new_v4(), HOUR).cost(10);
    let mut overruns = Vec::new();
    for take in [&in_bucket, &in_window] {
        overruns.push(reserved(world, take).await?.receipts()[0].clone().settle(11));
    }
    world.at_ms(0).await?;
    assert_eq!(world.store().adjust(&overruns).await?, [Ok(Adjusted::Done(-1)), Ok(Adjusted::Done(-1))]);
    // The charged token comes back first, then another one.
    for (at, granted) in [(719_999, false), (720_000, true)] {
        world.at_ms(at).await?;
        let take = Take::from(in_bucket.key().clone()).rule(Rule::try_from("10/h")?);
        assert_eq!(world.decide(take).await?.is_granted(), granted, "at {at} ms");
    }
    for (at, granted) in [(3_659_999, false), (3_660_000, true)] {
        world.at_ms(at).await?;
        let take = Take::from(in_window.key().clone()).rule(window.clone());
        assert_eq!(world.decide(take).await?.is_granted(), granted, "at {at} ms");
    }
    Ok(())
}

pub async fn request_is_settled_once<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = once(world)?.cost(5);
    let receipt = reserved(world, &take).await?.receipts()[0].clone();
    assert_eq!(adjusted(world, receipt.clone().settle(1)).await?, Adjusted::Done(4));
    for again in [receipt.clone().settle(1), receipt.clone().refund(5), receipt.clone().settle(9), receipt.cancel()] {
        assert_eq!(adjusted(world, again).await?, Adjusted::Repeated);
    }
    assert_eq!(remaining(world, &take).await?, 9);
    Ok(())
}

/// Applies to buckets and sliding windows.
pub async fn reservation_is_cancelled_once<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    for rule in ["5/h", "5 in 1h at 1min"] {
        let key = world.key();
        let take = under(&key, "5/h")?.rule(Rule::try_from(rule)?).cost(5);
        assert!(world.decide(take.clone()).await?.is_granted());
        let later = take.clone().cost(3).id(Uuid::new_v4(), HOUR * 9).max_wait(HOUR * 2);
        let receipt = reserved(world, &later).await?.receipts()[0].clone();
        assert_eq!(adjusted(world, receipt.clone().cancel()).await?, Adjusted::Done(3), "{rule}");
        for again in [receipt.clone().cancel(), receipt.clone().refund(3), receipt.clone().settle(0)] {
            assert_eq!(adjusted(world, again).await?, Adjusted::Repeated, "{rule}");
        }
        // No other request can use the id of a cancelled reservation.
        let outcome = world.store().take_one(&later).await?;
        assert!(matches!(outcome, Err(TakeError::IdReused(_))), "{rule}: {outcome:?}");
        world.at_ms(7_260_000).await?;
        assert_eq!(
            adjusted(world, receipt.clone().cancel()).await?,
            Adjusted::Late,
            "{rule}: its turn would have come"
        );
        assert_eq!(left(&world.decide(take.cost(5)).await?), (true, 0), "{rule}");
        world.at_ms(0).await?;
    }
    Ok(())
}

pub async fn settlement_after_the_hold_time_is_late<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/h")?.cost(5);
    let without_id = reserved(world, &take).await?;
    assert_eq!(adjusted(world, without_id.receipts()[0].clone().settle(1)).await?, Adjusted::Late);
    let refused = without_id.settle(1).await;
    assert!(matches!(refused, Err(Error::Take(TakeError::MissingId))), "{refused:?}");
    let with_id = take.id(Uuid::new_v4(), ms(1000));
    let reservation = reserved(world, &with_id).await?;
    world.at_ms(1000).await?;
    assert_eq!(reservation.settle(1).await?, Adjusted::Late);
    assert!(!world.decide(under(with_id.key(), "10/h")?).await?.is_granted());
    Ok(())
}

pub async fn unused_tokens_are_refunded_once<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/h")?.cost(6);
    let reservation = reserved(world, &take).await?;
    let receipt: Receipt = reservation.receipts()[0].clone();
    assert_eq!((receipt.cost(), receipt.key()), (6, take.key()));
    assert_eq!(reservation.refund(4).await?, 4);
    assert_eq!(adjusted(world, receipt.clone().refund(4)).await?, Adjusted::Repeated);
    assert_eq!(remaining(world, &take).await?, 8);
    // A refund is limited to the tokens taken, and to the capacity.
    let reservation = reserved(world, &take).await?;
    world.at_ms(3_600_000).await?;
    assert_eq!(reservation.refund(u64::MAX).await?, 6);
    assert_eq!(remaining(world, &take).await?, 10);
    Ok(())
}

/// Applies to buckets and sliding windows. The receipt is enough to cancel, even if the id was forgotten.
pub async fn reservation_with_forgotten_id_can_be_cancelled<W: World>(world: &W) -> anyhow::Result<()> {
    for rule in ["5/h", "5 in 1h at 1min"] {
        world.at_ms(0).await?;
        let take = under(&world.key(), "5/h")?.rule(Rule::try_from(rule)?).cost(5);
        assert!(world.decide(take.clone()).await?.is_granted());
        let later = take.clone().cost(3).id(Uuid::new_v4(), ms(1000)).max_wait(HOUR * 2);
        let receipt = reserved(world, &later).await?.receipts()[0].clone();
        world.at_ms(1500).await?;
        assert_eq!(adjusted(world, receipt.clone().settle(1)).await?, Adjusted::Late, "{rule}");
        assert_eq!(adjusted(world, receipt.clone().cancel()).await?, Adjusted::Done(3), "{rule}");
        assert_eq!(adjusted(world, receipt.cancel()).await?, Adjusted::Repeated, "{rule}");
        world.at_ms(7_260_000).await?;
        assert_eq!(left(&world.decide(take).await?), (true, 0), "{rule}");
    }
    Ok(())
}

/// A reset counts as a grant of the capacity, so a later cancel gives nothing back. A refund still returns unused tokens.
pub async fn cancel_after_a_reset_gives_nothing_back<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = under(&world.key(), "10/h")?;
    let used = reserved(world, &take.clone().cost(10)).await?;
    let queued = reserved(world, &take.clone().cost(4).max_wait(HOUR)).await?;
    assert!(world.store().reset(take.key()).await?);
    assert_eq!(queued.cancel().await?, 0);
    assert_eq!(remaining(world, &take).await?, 10);
    assert!(world.decide(take.clone().cost(2)).await?.is_granted());
    assert_eq!(used.refund(6).await?, 6);
    assert_eq!(remaining(world, &take).await?, 10);
    Ok(())
}

pub async fn receipt_of_another_bucket_changes_nothing<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (take, other) = (once(world)?.cost(8), once(world)?.cost(8));
    let known = reserved(world, &take).await?.receipts()[0].clone();
    assert!(world.decide(other.clone()).await?.is_granted());
    // A reservation in the first bucket that is scheduled later.
    let later =
        reserved(world, &take.clone().id(Uuid::new_v4(), HOUR).cost(5).max_wait(HOUR)).await?.receipts()[0].clone();
    for receipt in [&known, &later] {
        let elsewhere = Receipt::new(receipt.id(), other.key().clone(), receipt.cost());
        for adjustment in [elsewhere.clone().settle(0), elsewhere.clone().settle(100), elsewhere.cancel()] {
            assert_eq!(adjusted(world, adjustment.clone()).await?, Adjusted::Late, "{adjustment:?}");
        }
    }
    assert_eq!(left(&world.decide(under(other.key(), "10/h")?.cost(10)).await?), (false, 2), "of the other bucket");
    // The receipts are unchanged.
    assert_eq!(adjusted(world, known.settle(0)).await?, Adjusted::Done(8));
    assert_eq!(adjusted(world, later.cancel()).await?, Adjusted::Done(5));
    assert_eq!(remaining(world, &take).await?, 10);
    Ok(())
}

pub async fn receipt_for_a_deleted_bucket_is_an_error<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let take = once(world)?;
    let known = reserved(world, &take).await?.receipts()[0].clone();
    let elsewhere = Receipt::new(known.id(), world.key(), known.cost());
    let outcome = world.store().adjust(&[elsewhere.clone().refund(1)]).await?.remove(0);
    assert_eq!(outcome, Err(TakeError::UnknownBucket(elsewhere.key().clone())));
    assert_eq!(adjusted(world, known.settle(1)).await?, Adjusted::Done(0));
    Ok(())
}

/// The debt can be older than a lower capacity.
pub async fn cancel_gives_back_more_than_a_reduced_capacity<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let key = world.key();
    world.create(&key, "1/s burst 100".parse()?).await?;
    let take = Take::from(key.clone());
    assert!(world.decide(take.clone().cost(100)).await?.is_granted());
    let limiter = world.limiter_builder().build(Rule::Provisioned)?;
    let reservation = limiter.reserve_request(&take.clone().cost(80).max_wait(ms(80_000))).await?;
    assert!(reservation.is_granted());
    world.create(&key, "1/s burst 10".parse()?).await?;
    assert_eq!(reservation.cancel().await?, 80);
    world.at_ms(999).await?;
    assert!(!world.decide(take.clone()).await?.is_granted());
    world.at_ms(1000).await?;
    assert_eq!(left(&world.decide(take).await?), (true, 0));
    Ok(())
}
