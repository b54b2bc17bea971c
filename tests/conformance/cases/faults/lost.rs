//! Connections that break during a request: the database can have applied it, so the crate does not retry.

use std::time::Duration;

use tollgate::{Error, store::Isolation};

use super::{a_hundred_a_day, has_server, take};
use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, through_proxy};
use crate::proxy::Then;
use crate::rig::Rig;

pub fn cases() -> Vec<Case> {
    list!(Levels::Every, Time::Real, has_server;
        request_with_truncated_answer_is_paid_once,
        request_with_lost_answer_is_paid_once,
        request_that_never_arrived_is_not_repeated)
    .into()
}

async fn request_with_truncated_answer_is_paid_once(rig: Rig) -> anyhow::Result<()> {
    for bytes in [0, 1, 7] {
        let (error, granted) = fail(&rig, Then::Cut(bytes), LONG).await?;
        assert!(matches!(error, Error::OutcomeUnknown(_)), "after {bytes} bytes: {error:?}");
        assert_eq!(granted, 1, "after {bytes} bytes");
    }
    Ok(())
}

async fn request_with_lost_answer_is_paid_once(rig: Rig) -> anyhow::Result<()> {
    let (error, granted) = fail(&rig, Then::Swallow, Duration::from_secs(1)).await?;
    assert!(matches!(error, Error::DeadlineExceeded(_)), "{error:?}");
    assert_eq!(granted, 1);
    Ok(())
}

async fn request_that_never_arrived_is_not_repeated(rig: Rig) -> anyhow::Result<()> {
    let (error, granted) = fail(&rig, Then::Lose, LONG).await?;
    // The client cannot know the outcome.
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(granted, 0);
    Ok(())
}

/// Sends one request with a fault on the wire. Returns the error, and the number of debited tokens.
async fn fail(rig: &Rig, then: Then, deadline: Duration) -> anyhow::Result<(Error, i64)> {
    // Uses a separate database: at SERIALIZABLE, others on the same pages can cause failures, at COMMIT, too.
    let scratch = match (rig.engine.kind, rig.level) {
        (Kind::Postgres, Some(Isolation::Serializable)) => Some(Scratch::migrated(rig).await?),
        _ => None,
    };
    let rig = scratch.as_ref().map_or(rig, |scratch| &scratch.rig);
    let key = rig.bucket(a_hundred_a_day()).await?;
    let (proxied, proxy) = through_proxy(rig, 1).await?;
    match rig.level {
        None => proxy.fail(key.as_str(), then),
        Some(_) => proxy.fail("COMMIT", then),
    }
    let error = take(&proxied.store().deadline(deadline), &key).await.expect_err("the connection fails");
    assert!(error.is_outcome_unknown());
    let asked = proxy.requests().iter().filter(|request| request.mentions(key.as_str())).count();
    assert_eq!(asked, 1, "it was asked for once");

    let granted = rig.row(&key).await?.map_or(0, |row| row.granted);
    assert!(proxied.take(&key).await?.is_granted(), "the next request has a connection that works");
    Ok((error, granted))
}

const LONG: Duration = Duration::from_secs(60);
