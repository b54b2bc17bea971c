//! Connections that break while the database gives tokens back. The crate does not retry the adjustment, and a repeated
//! adjustment is done once.

use std::time::Duration;

use tollgate::{Adjusted, Adjustment, Error, Key, Receipt, Store};

use super::has_server;
use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::through_proxy;
use crate::proxy::{Proxy, Then};
use crate::rig::{Rig, hex};
use crate::taken::{COST, Taken, Turn, drain, rules};

pub fn cases() -> Vec<Case> {
    list!(Levels::Pools, Time::Real, has_server;
        refund_with_truncated_answer_counts_once,
        refund_with_lost_answer_counts_once,
        refund_that_never_arrived_counts_on_retry,
        reservation_with_truncated_answer_is_given_back_once,
        refund_of_several_keys_with_truncated_answer_counts_once)
    .into()
}

async fn refund_with_truncated_answer_counts_once(rig: Rig) -> anyhow::Result<()> {
    for bytes in [0, 1, 7] {
        for (error, again, given_back) in fail_each(&rig, Then::Cut(bytes), LONG, &WAYS).await? {
            assert!(matches!(error, Error::OutcomeUnknown(_)), "after {bytes} bytes: {error:?}");
            assert_eq!((again, given_back), (Adjusted::Repeated, GIVEN_BACK), "after {bytes} bytes");
        }
    }
    Ok(())
}

async fn refund_with_lost_answer_counts_once(rig: Rig) -> anyhow::Result<()> {
    for (error, again, given_back) in fail_each(&rig, Then::Swallow, SHORT, &WAYS[..1]).await? {
        assert!(matches!(error, Error::DeadlineExceeded(_)), "{error:?}");
        assert_eq!((again, given_back), (Adjusted::Repeated, GIVEN_BACK));
    }
    Ok(())
}

async fn refund_that_never_arrived_counts_on_retry(rig: Rig) -> anyhow::Result<()> {
    for (error, again, given_back) in fail_each(&rig, Then::Lose, LONG, &WAYS).await? {
        // The client cannot know the outcome.
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
        assert_eq!((again, given_back), (Adjusted::Done(GIVEN_BACK), GIVEN_BACK));
    }
    Ok(())
}

async fn reservation_with_truncated_answer_is_given_back_once(rig: Rig) -> anyhow::Result<()> {
    let (proxied, proxy) = through_proxy(&rig, 1).await?;
    for rule in rules()? {
        let Taken { reservation, receipt, another } = Taken::new(&proxied, &rule, Turn::IsAhead, true).await?;
        arm(&proxy, receipt.key(), Then::Cut(0));
        let error = reservation.cancel().await.expect_err("the connection fails");
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{rule:?}: {error:?}");
        was_asked_once(&proxy, receipt.key());
        let again = proxied.store().adjust(&[receipt.cancel()]).await?.remove(0)?;
        assert_eq!((again, drain(&rig, &another).await?), (Adjusted::Repeated, GIVEN_BACK), "{rule:?}");
    }
    Ok(())
}

/// One call refunds all of them.
async fn refund_of_several_keys_with_truncated_answer_counts_once(rig: Rig) -> anyhow::Result<()> {
    let (proxied, proxy) = through_proxy(&rig, 1).await?;
    let (mut refunds, mut taken) = (Vec::new(), Vec::new());
    for rule in rules()?.iter().cycle().take(6) {
        let each = Taken::new(&rig, rule, Turn::HasCome, false).await?;
        refunds.push(each.receipt.clone().refund(COST));
        taken.push(each);
    }
    // The routines' JSON has keys in hexadecimal.
    let key = taken[3].receipt.key().as_str();
    let key = if rig.engine.kind == Kind::MySql { hex(key.as_bytes()) } else { key.to_owned() };
    drop(proxy.requests());
    proxy.fail(&key, Then::Cut(0));
    let error = proxied.store().adjust(&refunds).await.expect_err("the connection fails");
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(proxy.requests().iter().filter(|request| request.mentions(&key)).count(), 1, "it was asked for once");
    for adjusted in proxied.store().adjust(&refunds).await? {
        assert_eq!(adjusted?, Adjusted::Repeated);
    }
    for Taken { another, .. } in &taken {
        assert_eq!(drain(&rig, another).await?, GIVEN_BACK);
    }
    Ok(())
}

type Way = fn(Receipt) -> Adjustment;

/// Each way gives back all that was taken.
const WAYS: [Way; 3] = [Receipt::cancel, |receipt| receipt.refund(COST), |receipt| receipt.settle(0)];

/// Gives back each kind of tokens in each way, with a fault on the wire, and repeats the adjustment. Returns the error, the
/// repeated answer, and the number of tokens given back.
async fn fail_each(
    rig: &Rig,
    then: Then,
    deadline: Duration,
    ways: &[Way],
) -> anyhow::Result<Vec<(Error, Adjusted, i64)>> {
    let (proxied, proxy) = through_proxy(rig, 1).await?;
    let mut ends = Vec::new();
    for rule in rules()? {
        for way in ways {
            let Taken { receipt, another, .. } = Taken::new(rig, &rule, Turn::IsAhead, true).await?;
            let adjustments = [way(receipt.clone())];
            arm(&proxy, receipt.key(), then);
            let answer = proxied.store().deadline(deadline).adjust(&adjustments).await;
            let error = answer.expect_err("the connection fails");
            assert!(error.is_outcome_unknown(), "{error:?}");
            was_asked_once(&proxy, receipt.key());
            let again = proxied.store().adjust(&adjustments).await?.remove(0)?;
            ends.push((error, again, drain(rig, &another).await?));
        }
    }
    Ok(ends)
}

/// Makes the next request for a key fail.
fn arm(proxy: &Proxy, key: &Key, then: Then) {
    drop(proxy.requests());
    proxy.fail(key.as_str(), then);
}

fn was_asked_once(proxy: &Proxy, key: &Key) {
    let asked = proxy.requests().iter().filter(|request| request.mentions(key.as_str())).count();
    assert_eq!(asked, 1, "it was asked for once");
}

#[expect(clippy::cast_possible_wrap, reason = "it is five")]
const GIVEN_BACK: i64 = COST as i64;
/// The test waits for an answer twice as long.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(1);
