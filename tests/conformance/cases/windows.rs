//! Sliding windows with more parts than a row holds, decided as by the in-memory store.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Adjusted, Admin, Decision, MemoryStore, Receipt, Rule, Store, Take, Window, clock::ManualClock};
use tollgate_tests::scenarios::{START, left, ms};
use uuid::Uuid;

use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    // Without layers: the cases make hundreds of calls that every layer passes on unchanged.
    list!(
        Setup { time: Time::Injected, ..Setup::WITHOUT_LAYERS };
        window_bounds_reservations_to_a_thousand_parts,
        finer_parts_of_other_limits_drop_no_count,
    )
}

async fn window_bounds_reservations_to_a_thousand_parts(db: TestDb) -> anyhow::Result<()> {
    let both = Both::new(&db, Window::new(1, ms(10), ms(10))?);
    both.at_ms(0).await?;
    let plain = both.take.clone();
    let waiting = plain.clone().max_wait(ms(60_000));
    let reserve = async |now: u64| {
        let id = Uuid::new_v4();
        let decision = both.decide(waiting.clone().id(id, ms(3_600_000))).await?;
        ensure!(decision.is_granted());
        let scheduled_at = Duration::from_nanos(START.unsigned_abs()) + ms(now) + decision.wait();
        Ok((decision.wait(), Receipt::new(id, plain.key().clone(), 1).in_window(scheduled_at).cancel()))
    };
    let mut reservations = Vec::new();
    for _ in 0..1000 {
        reservations.push(reserve(0).await?.1);
    }
    let denied = both.decide(waiting.clone()).await?;
    assert_eq!((left(&denied), denied.retry_after()), ((false, 0), Some(ms(20_000))));
    both.at_ms(10).await?;
    let (wait, last) = reserve(10).await?;
    assert_eq!(wait, ms(19_990), "one part has passed");
    reservations.push(last);
    assert!(!both.decide(waiting.clone()).await?.is_granted());

    // The first and the newest reservations are given back, and those between stay.
    let cancelled = [&reservations[1..2], &reservations[500..]].concat();
    let given_back = db.store().deadline(Duration::from_mins(1)).adjust(&cancelled).await?;
    assert!(given_back.iter().all(|adjusted| *adjusted == Ok(Adjusted::Done(1))), "{given_back:?}");
    assert_eq!(both.memory.adjust(&cancelled).await?, given_back);
    for at in [10, 20, 30, 5000, 9980] {
        both.at_ms(at).await?;
        assert!(!both.decide(plain.clone()).await?.is_granted(), "at {at} ms others have turns");
        both.levels().await?;
    }
    both.at_ms(10_000).await?;
    assert!(both.decide(plain.clone()).await?.is_granted());
    Ok(())
}

async fn finer_parts_of_other_limits_drop_no_count(db: TestDb) -> anyhow::Result<()> {
    let both = Both::new(&db, Window::new(10_000, ms(3_600_000), ms(60_000))?);
    both.at_ms(0).await?;
    let long = both.take.clone();
    assert!(both.decide(long.clone().cost(8000)).await?.is_granted());
    let fine = long.clone().rule(Rule::Window(Window::new(1, ms(1), ms(1))?)).max_wait(ms(60_000));
    for begin in [100_000, 103_000, 106_000] {
        both.at_ms(begin).await?;
        for _ in 0..if begin == 106_000 { 20 } else { 1000 } {
            ensure!(both.decide(fine.clone()).await?.is_granted());
        }
        both.levels().await?;
    }
    both.at_ms(109_000).await?;
    assert_eq!(left(&both.decide(long.clone()).await?), (false, 0), "10,020 of 10,000 an hour");
    // Merged parts expire as in memory.
    for at in [3_660_001, 3_690_000, 3_700_500, 3_702_300, 3_704_000, 3_706_500] {
        both.at_ms(at).await?;
        assert!(both.decide(long.clone()).await?.is_granted(), "at {at} ms");
        both.levels().await?;
    }
    Ok(())
}

/// An engine, and the in-memory store for comparison.
struct Both<'a> {
    db: &'a TestDb,
    clock: ManualClock,
    memory: MemoryStore<ManualClock>,
    take: Take,
}

impl<'a> Both<'a> {
    fn new(db: &'a TestDb, window: Window) -> Self {
        let clock = ManualClock::default();
        let take = Take::from(db.key()).rule(Rule::Window(window));
        Self { db, memory: MemoryStore::with_clock(clock.clone()), clock, take }
    }

    async fn at_ms(&self, at: i64) -> anyhow::Result<()> {
        let now = START + at * 1_000_000;
        self.clock.set(now);
        self.db.at(now).await
    }

    async fn decide(&self, take: Take) -> anyhow::Result<Decision> {
        let visible =
            |decision: &Decision| (left(decision), decision.wait(), decision.retry_after(), decision.reset_after());
        let expected = self.memory.take_one(&take).await??;
        let found = self.db.decide(take).await?;
        ensure!(visible(&expected) == visible(&found), "{expected:?}, not {found:?}");
        Ok(found)
    }

    async fn levels(&self) -> anyhow::Result<()> {
        let of = |level: Option<tollgate::model::WindowLevel>| {
            level.map(|level| (level.counted(), level.granted(), level.window()))
        };
        let expected = of(self.memory.peek_window(self.take.key()).await?);
        let found = of(self.db.store().peek_window(self.take.key()).await?);
        ensure!(expected == found, "{expected:?}, not {found:?}");
        Ok(())
    }
}
