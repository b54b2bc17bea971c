//! Random sequences of requests: the answers and rows of the real routines match the definition.

use std::time::Duration;

use anyhow::ensure;
use tollgate::model::bucket::{BucketRequest, Verdict};
use tollgate::{Key, Rule, Store, Take, TakeError, model::Outcome};
use tollgate_tests::model::{CENTURY_NS, Model, RelativeRequest, Step, Story, story};

use crate::matrix::{Case, Setup, Time, list};
use crate::random;
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, is_random: true, ..Setup::DEFAULT };
        any_sequence_is_decided_as_defined,
        the_largest_quotas_are_decided_as_defined,
    )
}

async fn any_sequence_is_decided_as_defined(db: TestDb) -> anyhow::Result<()> {
    random::check(70, &story(1_700_000_000_000_000_000..YEAR_2100, 1 << 31, 30), |story| live(&db, story))
}

async fn the_largest_quotas_are_decided_as_defined(db: TestDb) -> anyhow::Result<()> {
    random::check(40, &story(1_700_000_000_000_000_000..YEAR_2040, CENTURY_NS, 20), |story| live(&db, story))
}

/// Runs a sequence with two new buckets, and compares each answer and both rows with the definition.
async fn live(db: &TestDb, story: Story) -> anyhow::Result<()> {
    let mut now = story.start;
    db.at(now).await?;
    let mut buckets = [
        Bucket { key: db.bucket(story.quotas[0]).await?, model: Some(Model::provisioned(story.quotas[0], now)) },
        Bucket { key: db.key(), model: None },
    ];
    for step in &story.steps {
        let provisioned = buckets[0].model.as_mut().expect("the first bucket is provisioned");
        let (limits, anchor) = (provisioned.limits(), provisioned.bucket.anchor);
        match step {
            Step::Forward(span) => now = now.saturating_add(span.of(&limits, anchor, now)).min(YEAR_2100),
            Step::Back(span) => now = (now - span.of(&limits, anchor, now)).max(0),
            Step::Change(quota) => {
                provisioned.change(story.quotas[*quota], now);
                db.create(&buckets[0].key, story.quotas[*quota]).await?;
            }
            Step::Take(requests) => {
                let expected: Vec<_> =
                    requests.iter().map(|relative| buckets[place(relative)].decide(relative, &story, now)).collect();
                let (takes, verdicts): (Vec<_>, Vec<_>) = expected.into_iter().unzip();
                let outcomes = db.store().take(&takes).await?;
                ensure!(outcomes.len() == takes.len(), "{} answers to {} requests", outcomes.len(), takes.len());
                for (place, (outcome, verdict)) in outcomes.iter().zip(&verdicts).enumerate() {
                    let matches = agree(outcome, verdict.as_ref());
                    ensure!(matches, "request {place} of {takes:?} at {now}:\n{outcome:?}, not {verdict:?}");
                }
            }
        }
        db.at(now).await?;
        for bucket in &buckets {
            let (row, defined) = (db.row(&bucket.key).await?, bucket.model.as_ref().map(|model| model.bucket));
            ensure!(row == defined, "after {step:?} at {now}:\nthe row is {row:?}, not {defined:?}");
        }
    }
    Ok(())
}

struct Bucket {
    key: Key,
    model: Option<Model>,
}

impl Bucket {
    /// The request for the store, and the definition's answer: `None` if the request can never be granted.
    fn decide(&mut self, relative: &RelativeRequest, story: &Story, now: i64) -> (Take, Option<Verdict>) {
        let mut take = Take::from(self.key.clone());
        if !relative.provisioned {
            let quota = story.quotas[relative.quota];
            take = take.rule(Rule::Quota(quota));
            self.model.get_or_insert_with(|| Model::first_used(quota)).change(quota, now);
        }
        let model = self.model.as_mut().expect("the bucket is there");
        let request = relative.request(&model.limits(), model.bucket.anchor, now);
        (with(take, request), model.take(now, request))
    }
}

fn place(relative: &RelativeRequest) -> usize {
    usize::from(!relative.provisioned)
}

fn with(take: Take, BucketRequest { cost, max_wait, min_remaining }: BucketRequest) -> Take {
    take.cost(cost.unsigned_abs())
        .min_remaining(min_remaining.unsigned_abs())
        .max_wait(Duration::from_nanos(max_wait.unsigned_abs()))
}

fn agree(outcome: &Outcome, verdict: Option<&Verdict>) -> bool {
    match (outcome, verdict) {
        (Ok(decision), Some(verdict)) => {
            let ns = |ns: i64| Duration::from_nanos(ns.unsigned_abs());
            decision.is_granted() == verdict.granted
                && decision.remaining() == Some(verdict.remaining.unsigned_abs())
                && decision.wait() == ns(verdict.wait)
                && decision.retry_after() == Some(ns(verdict.retry_after))
                && decision.reset_after() == Some(ns(verdict.reset_after))
        }
        (Err(TakeError::ExceedsCapacity { .. }), None) => true,
        _ => false,
    }
}

const YEAR_2040: i64 = 2_208_988_800_000_000_000;
const YEAR_2100: i64 = 4_102_444_800_000_000_000;
