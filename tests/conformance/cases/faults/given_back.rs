//! Connections that break while the database gives tokens back. The crate does not retry the adjustment, and a repeated
//! adjustment is done once.

use std::time::Duration;

use tollgate::{Adjusted, Adjustment, Error, Key, Receipt, Store};

use super::has_server;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::through_proxy;
use crate::proxy::{Proxy, Then};
use crate::taken::{COST, ScheduledTime, Taken, drain, rules};
use crate::test_db::{TestDb, hex};

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: has_server, ..Setup::LAYERED_EVERYWHERE };
        refund_with_truncated_answer_counts_once,
        refund_with_lost_answer_counts_once,
        refund_that_never_arrived_counts_on_retry,
        reservation_with_truncated_answer_is_given_back_once,
        refund_of_several_keys_with_truncated_answer_counts_once,
    )
}

async fn refund_with_truncated_answer_counts_once(db: TestDb) -> anyhow::Result<()> {
    for bytes in [0, 1, 7] {
        for (error, repeated, given_back) in fail_each(&db, Then::Cut(bytes), LONG, &METHODS).await? {
            assert!(matches!(error, Error::OutcomeUnknown(_)), "after {bytes} bytes: {error:?}");
            assert_eq!((repeated, given_back), (Adjusted::Repeated, GIVEN_BACK), "after {bytes} bytes");
        }
    }
    Ok(())
}

async fn refund_with_lost_answer_counts_once(db: TestDb) -> anyhow::Result<()> {
    for (error, repeated, given_back) in fail_each(&db, Then::Swallow, SHORT, &METHODS[..1]).await? {
        assert!(matches!(error, Error::DeadlineExceeded(_)), "{error:?}");
        assert_eq!((repeated, given_back), (Adjusted::Repeated, GIVEN_BACK));
    }
    Ok(())
}

async fn refund_that_never_arrived_counts_on_retry(db: TestDb) -> anyhow::Result<()> {
    for (error, repeated, given_back) in fail_each(&db, Then::Lose, LONG, &METHODS).await? {
        // The client cannot know the outcome.
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
        assert_eq!((repeated, given_back), (Adjusted::Done(GIVEN_BACK), GIVEN_BACK));
    }
    Ok(())
}

async fn reservation_with_truncated_answer_is_given_back_once(db: TestDb) -> anyhow::Result<()> {
    let (proxied, proxy) = through_proxy(&db, 1).await?;
    for rule in rules()? {
        let Taken { reservation, receipt, another } = Taken::new(&proxied, &rule, ScheduledTime::Future, true).await?;
        arm(&proxy, receipt.key(), Then::Cut(0));
        let error = reservation.cancel().await.expect_err("the connection fails");
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{rule:?}: {error:?}");
        assert_sent_once(&proxy, receipt.key());
        let repeated = proxied.store().adjust(&[receipt.cancel()]).await?.remove(0)?;
        assert_eq!((repeated, drain(&db, &another).await?), (Adjusted::Repeated, GIVEN_BACK), "{rule:?}");
    }
    Ok(())
}

/// One call refunds all of them.
async fn refund_of_several_keys_with_truncated_answer_counts_once(db: TestDb) -> anyhow::Result<()> {
    let (proxied, proxy) = through_proxy(&db, 1).await?;
    let (mut refunds, mut taken) = (Vec::new(), Vec::new());
    for rule in rules()?.iter().cycle().take(6) {
        let each = Taken::new(&db, rule, ScheduledTime::Past, false).await?;
        refunds.push(each.receipt.clone().refund(COST));
        taken.push(each);
    }
    // The routines' JSON has keys in hexadecimal.
    let key = taken[3].receipt.key().as_str();
    let key = if db.engine.kind == Kind::MySql { hex(key.as_bytes()) } else { key.to_owned() };
    drop(proxy.requests());
    proxy.fail(&key, Then::Cut(0));
    let error = proxied.store().adjust(&refunds).await.expect_err("the connection fails");
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(proxy.requests().iter().filter(|request| request.mentions(&key)).count(), 1, "it was sent once");
    for adjusted in proxied.store().adjust(&refunds).await? {
        assert_eq!(adjusted?, Adjusted::Repeated);
    }
    for Taken { another, .. } in &taken {
        assert_eq!(drain(&db, another).await?, GIVEN_BACK);
    }
    Ok(())
}

type MakeAdjustment = fn(Receipt) -> Adjustment;

/// Each way gives back all that was taken.
const METHODS: [MakeAdjustment; 3] = [Receipt::cancel, |receipt| receipt.refund(COST), |receipt| receipt.settle(0)];

/// Gives back each kind of tokens in each way, with a fault on the wire, and repeats the adjustment. Returns the error, the
/// repeated answer, and the number of tokens given back.
async fn fail_each(
    db: &TestDb,
    then: Then,
    deadline: Duration,
    methods: &[MakeAdjustment],
) -> anyhow::Result<Vec<(Error, Adjusted, i64)>> {
    let (proxied, proxy) = through_proxy(db, 1).await?;
    let mut ends = Vec::new();
    for rule in rules()? {
        for method in methods {
            let Taken { receipt, another, .. } = Taken::new(db, &rule, ScheduledTime::Future, true).await?;
            let adjustments = [method(receipt.clone())];
            arm(&proxy, receipt.key(), then);
            let answer = proxied.store().deadline(deadline).adjust(&adjustments).await;
            let error = answer.expect_err("the connection fails");
            assert!(error.is_outcome_unknown(), "{error:?}");
            assert_sent_once(&proxy, receipt.key());
            let repeated = proxied.store().adjust(&adjustments).await?.remove(0)?;
            ends.push((error, repeated, drain(db, &another).await?));
        }
    }
    Ok(ends)
}

/// Makes the next request for a key fail.
fn arm(proxy: &Proxy, key: &Key, then: Then) {
    drop(proxy.requests());
    proxy.fail(key.as_str(), then);
}

fn assert_sent_once(proxy: &Proxy, key: &Key) {
    let sent = proxy.requests().iter().filter(|request| request.mentions(key.as_str())).count();
    assert_eq!(sent, 1, "it was sent once");
}

#[expect(clippy::cast_possible_wrap, reason = "it is five")]
const GIVEN_BACK: i64 = COST as i64;
/// The test waits for an answer twice as long.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(1);
