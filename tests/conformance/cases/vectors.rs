//! The golden vectors, checked against the real routines under an injected clock.

use std::time::Duration;

use anyhow::{Context, ensure};
use tollgate::model::bucket::BucketQuota;
use tollgate::{Decision, Rule, Store, Take, TakeError};
use tollgate_tests::vectors::{Expected, Scenario, Step, scenarios};

use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    // Without layers: the case calls routines thousands of times, at one instant each.
    list!(Setup { time: Time::Injected, ..Setup::WITHOUT_LAYERS }; every_golden_vector_holds)
}

async fn every_golden_vector_holds(db: TestDb) -> anyhow::Result<()> {
    for scenario in scenarios()? {
        holds(&db, &scenario).await?;
    }
    Ok(())
}

async fn holds(db: &TestDb, scenario: &Scenario) -> anyhow::Result<()> {
    let start = if scenario.first_used { 0 } else { MADE_AT };
    db.at(start).await?;
    let key = if scenario.first_used { db.key() } else { db.bucket(scenario.quota).await? };
    for step in &scenario.steps {
        db.at(start + step.at).await?;
        let mut take = request(step, key.clone().into())?;
        if scenario.first_used {
            take = take.rule(Rule::Quota(scenario.quota));
        }
        let outcome = db.store().take(&[take]).await?.pop();
        match (outcome.expect("one answer to one request"), step.answer) {
            (Ok(decision), Some(expected)) => {
                let answer = answer(&decision)?;
                ensure!(answer == expected, "{answer:?}\nfor {}\n{}", step.line, scenario.name);
            }
            (Err(TakeError::ExceedsCapacity { .. }), None) => {}
            (outcome, _) => anyhow::bail!("{outcome:?}\nfor {}\n{}", step.line, scenario.name),
        }
        let row = db.row(&key).await?.expect("the bucket is there");
        let made = BucketQuota::at(&scenario.quota, 0).clock(row.anchor, start);
        let (state, expected) = ((row.full_at, row.granted, row.max_granted_wait), step.row(made));
        ensure!(state == expected, "the row holds {state:?}\nfor {}\n{}", step.line, scenario.name);
    }
    Ok(())
}

fn request(step: &Step, take: Take) -> anyhow::Result<Take> {
    let max_wait = Duration::from_nanos(step.max_wait.try_into()?);
    Ok(take.cost(step.cost.try_into()?).min_remaining(step.min_remaining.try_into()?).max_wait(max_wait))
}

fn answer(decision: &Decision) -> anyhow::Result<Expected> {
    let ns = |span: Option<Duration>| anyhow::Ok(span.context("every bucket refills")?.as_nanos().try_into()?);
    Ok(Expected {
        granted: decision.is_granted(),
        remaining: decision.remaining().context("every request has a limit")?.try_into()?,
        wait: ns(Some(decision.wait()))?,
        retry_after: ns(decision.retry_after())?,
        reset_after: ns(decision.reset_after())?,
    })
}

const MADE_AT: i64 = 1_800_000_000_123_456_789;
