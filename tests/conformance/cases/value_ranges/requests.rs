//! Valid requests for a bucket, and requests that are an error instead of a denial.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Decision, Quota, Rule, Store, Take, TakeError, model::Outcome};

use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, ..Setup::DEFAULT };
        no_tokens_is_no_request,
        request_beyond_the_capacity_is_an_error,
        a_wait_of_any_length_is_a_wait_of_a_year,
        an_unknown_bucket_is_an_error_and_not_a_denial,
        each_error_in_a_batch_stays_alone,
        provisioned_bucket_keeps_its_limits,
        a_cost_is_debited_in_full_however_large,
    )
}

async fn no_tokens_is_no_request(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(five_an_hour()?).await?;
    assert_eq!(request(&db, Take::from(key.clone()).cost(0)).await?, Err(TakeError::ZeroCost));
    assert_eq!(request(&db, Take::from(db.key()).cost(0)).await?, Err(TakeError::ZeroCost));
    Ok(())
}

async fn request_beyond_the_capacity_is_an_error(db: TestDb) -> anyhow::Result<()> {
    for quota in [five_an_hour()?, Quota::continuous(5, Duration::from_hours(1))?] {
        let key = db.bucket(quota).await?;
        let before = db.row(&key).await?;
        let most = u64::MAX;
        for (cost, min_remaining) in [(6, 0), (5, 1), (1, 5), (most, 0), (1, most), (most, most), (most / 2, most / 2)]
        {
            for max_wait in [Duration::ZERO, Duration::MAX] {
                let never =
                    TakeError::ExceedsCapacity { key: key.clone(), cost, min_remaining, capacity: 5, window: false };
                let take = Take::from(key.clone()).cost(cost).min_remaining(min_remaining).max_wait(max_wait);
                assert_eq!(request(&db, take.clone()).await?, Err(never.clone()));
                let outcomes = db.store().take(&[take, Take::from(db.key())]).await?;
                assert_eq!(outcomes[0], Err(never), "in a batch");
            }
        }
        assert_eq!(db.row(&key).await?, before);
    }
    Ok(())
}

async fn a_wait_of_any_length_is_a_wait_of_a_year(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let year = Duration::from_hours(366 * 24);
    let key = db.bucket(Quota::interval(1, year / 2)?).await?;
    let patient = Take::from(key.clone()).max_wait(Duration::MAX);
    let waits = [Duration::ZERO, year / 2, year];
    for wait in waits {
        let decision = db.decide(patient.clone()).await?;
        ensure!(decision.is_granted() && decision.wait() == wait, "{decision:?}, not {wait:?}");
    }
    let decision = db.decide(patient).await?;
    ensure!(!decision.is_granted() && decision.wait().is_zero(), "{decision:?}");
    ensure!(decision.retry_after() == Some(year / 2 * 3), "{decision:?}");
    Ok(())
}

async fn an_unknown_bucket_is_an_error_and_not_a_denial(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    for take in [Take::from(key.clone()), Take::from(key.clone()).cost(u64::MAX).max_wait(Duration::MAX)] {
        assert_eq!(request(&db, take).await?, Err(TakeError::UnknownBucket(key.clone())));
    }
    assert_eq!(db.row(&key).await?, None);
    Ok(())
}

async fn each_error_in_a_batch_stays_alone(db: TestDb) -> anyhow::Result<()> {
    let (known, unknown) = (db.bucket(five_an_hour()?).await?, db.key());
    let of = |key: &tollgate::Key| Take::from(key.clone());
    let other = Rule::Quota(Quota::interval(6, Duration::from_hours(1))?);
    let takes = [
        of(&known).cost(0),
        of(&known).cost(2),
        of(&unknown),
        of(&known).cost(6),
        of(&known).rule(other.clone()),
        of(&known).cost(0),
        of(&known).cost(3),
        of(&known),
        of(&db.key()).rule(other).cost(6),
    ];
    let outcomes = db.store().take(&takes).await?;
    assert_eq!(outcomes.len(), takes.len());
    assert_eq!(outcomes[0], Err(TakeError::ZeroCost));
    assert_eq!(left(&outcomes[1]), Some((true, 3)));
    assert_eq!(outcomes[2], Err(TakeError::UnknownBucket(unknown)));
    assert!(matches!(outcomes[3], Err(TakeError::ExceedsCapacity { cost: 6, capacity: 5, .. })), "{outcomes:?}");
    assert_eq!(outcomes[4], Err(TakeError::Conflict(known)));
    assert_eq!(outcomes[5], Err(TakeError::ZeroCost));
    assert_eq!(left(&outcomes[6]), Some((true, 0)));
    assert_eq!(left(&outcomes[7]), Some((false, 0)));
    assert_eq!(left(&outcomes[8]), Some((true, 0)));
    assert!(db.store().take(&[]).await?.is_empty());
    Ok(())
}

async fn provisioned_bucket_keeps_its_limits(db: TestDb) -> anyhow::Result<()> {
    let quota = five_an_hour()?;
    let key = db.bucket(quota).await?;
    let take = Take::from(key.clone());
    ensure!(db.decide(take.clone().rule(Rule::Quota(quota))).await?.is_granted());
    let before = db.row(&key).await?;
    for other in [
        Quota::interval(6, Duration::from_hours(1))?,
        Quota::interval(5, Duration::from_secs(3601))?,
        Quota::continuous(5, Duration::from_hours(1))?,
    ] {
        assert_eq!(
            request(&db, take.clone().rule(Rule::Quota(other)).max_wait(Duration::MAX)).await?,
            Err(TakeError::Conflict(key.clone()))
        );
    }
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn a_cost_is_debited_in_full_however_large(db: TestDb) -> anyhow::Result<()> {
    db.at(START).await?;
    let most = 3_155_760_000_000_000_000;
    let quota = Quota::interval(most, Duration::from_nanos(most))?;
    for key in [db.bucket(quota).await?, db.key()] {
        let take = |cost| Take::from(key.clone()).cost(cost);
        if db.row(&key).await?.is_none() {
            db.decide(take(1).rule(Rule::Quota(quota))).await.map(|decision| assert!(decision.is_granted()))?;
        } else {
            db.take(&key).await.map(|decision| assert!(decision.is_granted()))?;
        }
        let decision = db.decide(take(most - 2)).await?;
        ensure!(decision.is_granted() && decision.remaining() == Some(1), "{decision:?}");
        ensure!(db.row(&key).await?.expect("made").granted.unsigned_abs() == most - 1);
        let decision = db.decide(take(2)).await?;
        ensure!(!decision.is_granted() && decision.remaining() == Some(1), "{decision:?}");
    }
    Ok(())
}

async fn request(db: &TestDb, take: Take) -> anyhow::Result<Outcome> {
    Ok(db.store().take(&[take]).await?.pop().expect("one answer to one request"))
}

fn left(outcome: &Outcome) -> Option<(bool, u64)> {
    let decision: &Decision = outcome.as_ref().ok()?;
    Some((decision.is_granted(), decision.remaining()?))
}

fn five_an_hour() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::interval(5, Duration::from_hours(1))
}

const START: i64 = 1_800_000_000_123_456_789;
