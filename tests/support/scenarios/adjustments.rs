//! Batches of adjustments.

use std::time::Duration;

use tollgate::{Adjusted, Adjustment, Admin, Key, Receipt, Rule, Store, Take, TakeError};
use uuid::Uuid;

use super::{World, left, ms, under};

const HOUR: Duration = Duration::from_hours(1);

/// Two buckets and a window with granted tokens, a missing bucket, and the adjustments of the grants.
struct History {
    buckets: [Key; 2],
    window: Key,
    adjustments: Vec<Adjustment>,
}

async fn receipt<W: World>(world: &W, take: Take) -> anyhow::Result<Receipt> {
    let reservation = world.limiter_builder().build("10/h")?.reserve_request(&take).await?;
    anyhow::ensure!(reservation.is_granted(), "{take:?}");
    Ok(reservation.receipts()[0].clone())
}

impl History {
    async fn new<W: World>(world: &W) -> anyhow::Result<Self> {
        world.at_ms(0).await?;
        let once = |take: Take, remember_for| take.id(Uuid::new_v4(), remember_for);
        let (buckets, window, gone) = ([world.key(), world.key()], world.key(), world.key());
        let [a, b] = [under(&buckets[0], "10/h")?, under(&buckets[1], "10/h")?];
        let counted = under(&window, "10/h")?.rule(Rule::try_from("10 in 1h at 1min")?);
        let settled = receipt(world, once(a.clone().cost(4), HOUR)).await?;
        let refunded = receipt(world, a.clone().cost(3)).await?;
        let ahead = receipt(world, once(a.cost(5), HOUR).max_wait(HOUR * 2)).await?;
        let forgotten = receipt(world, once(b.clone().cost(5), ms(1000))).await?;
        let exact = receipt(world, once(b.cost(2), HOUR)).await?;
        let settled_in_window = receipt(world, once(counted.clone().cost(4), HOUR)).await?;
        let refunded_in_window = receipt(world, counted.clone().cost(3)).await?;
        let ahead_in_window = receipt(world, once(counted.cost(5), HOUR * 3).max_wait(HOUR * 2)).await?;
        world.at_ms(1500).await?;
        let adjustments = vec![
            settled.clone().settle(2),
            settled_in_window.settle(6),
            Receipt::new(Uuid::new_v4(), gone, 3).refund(1),
            settled.settle(9),
            ahead.clone().cancel(),
            ahead.cancel(),
            refunded.refund(1),
            forgotten.settle(1),
            ahead_in_window.cancel(),
            refunded_in_window.clone().refund(2),
            refunded_in_window.refund(2),
            Receipt::new(Uuid::new_v4(), buckets[0].clone(), 1).settle(0),
            exact.settle(2),
            Receipt::new(Uuid::new_v4(), buckets[1].clone(), 5).refund(1),
        ];
        Ok(Self { buckets, window, adjustments })
    }

    fn expected(&self) -> Vec<Result<Adjusted, TakeError>> {
        let done = |tokens| Ok(Adjusted::Done(tokens));
        let unknown = TakeError::UnknownBucket(self.adjustments[2].receipt().key().clone());
        vec![
            done(2),
            done(-2),
            Err(unknown),
            Ok(Adjusted::Repeated),
            done(5),
            Ok(Adjusted::Repeated),
            done(1),
            Ok(Adjusted::Late),
            done(5),
            done(2),
            Ok(Adjusted::Repeated),
            Ok(Adjusted::Late),
            done(0),
            done(1),
        ]
    }

    /// Returns the current levels without their keys, so that histories compare equal.
    async fn levels<W: World>(&self, world: &W) -> anyhow::Result<String> {
        let mut levels = String::new();
        for bucket in &self.buckets {
            let level = world.store().peek(bucket).await?.expect("its first request made it");
            levels += &format!("{level:?}\n").replace(bucket.as_str(), "bucket");
        }
        let window = world.store().peek_window(&self.window).await?.expect("something was counted in it");
        Ok(levels + &format!("{window:?}").replace(self.window.as_str(), "window"))
    }
}

pub async fn batch_of_adjustments_equals_one_by_one<W: World>(world: &W) -> anyhow::Result<()> {
    let (one_by_one, at_once) = (History::new(world).await?, History::new(world).await?);
    let mut expected = Vec::new();
    for adjustment in &one_by_one.adjustments {
        expected.extend(world.store().adjust(std::slice::from_ref(adjustment)).await?);
    }
    let found = world.store().adjust(&at_once.adjustments).await?;
    assert_eq!(expected, one_by_one.expected());
    assert_eq!(found, at_once.expected());
    assert_eq!(at_once.levels(world).await?, one_by_one.levels(world).await?);
    // Repeated adjustments change nothing.
    let again = world.store().adjust(&at_once.adjustments).await?;
    assert!(again.iter().all(|again| !matches!(again, Ok(Adjusted::Done(_)))), "{again:?}");
    assert_eq!(at_once.levels(world).await?, one_by_one.levels(world).await?);
    Ok(())
}

/// A reservation that another one queues behind gives nothing back, unless the other one was cancelled before.
pub async fn adjustments_of_one_key_are_done_in_order<W: World>(world: &W) -> anyhow::Result<()> {
    for (order, given_back) in [([0, 1], [0, 3]), ([1, 0], [3, 3])] {
        world.at_ms(0).await?;
        let take = under(&world.key(), "10/h")?;
        assert!(world.decide(take.clone().cost(10)).await?.is_granted());
        let queued = take.clone().cost(3).max_wait(HOUR * 2);
        let receipts = [receipt(world, queued.clone()).await?, receipt(world, queued).await?];
        let cancelled = world.store().adjust(&order.map(|place| receipts[place].clone().cancel())).await?;
        assert_eq!(cancelled, given_back.map(|tokens| Ok(Adjusted::Done(tokens))), "{order:?}");
    }
    Ok(())
}

/// Exceeds the batch size of one database call, with keys in any order. Each adjustment is answered in its position.
pub async fn adjustments_are_answered_in_order<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let takes = [under(&world.key(), "9000/d")?, under(&world.key(), "9000/d")?, under(&world.key(), "9000/d")?];
    for take in &takes {
        assert!(world.decide(take.clone().cost(9000)).await?.is_granted());
    }
    let refund = |n: usize| {
        let tokens = n as u64 % 7;
        Receipt::new(Uuid::new_v4(), takes[n * 5 % 3].key().clone(), 6).refund(tokens)
    };
    let adjusted = world.store().adjust(&(0..2100).map(refund).collect::<Vec<_>>()).await?;
    let expected: Vec<_> = (0..2100).map(|n| Ok(Adjusted::Done(n % 7))).collect();
    assert_eq!(adjusted, expected);
    for take in &takes {
        assert_eq!(left(&world.decide(take.clone().cost(2100)).await?), (true, 0));
    }
    Ok(())
}
