//! Connections that break during a request: the database can have applied it, so the crate does not retry.

use std::time::Duration;

use tollgate::{Error, store::Isolation};

use super::{a_hundred_a_day, has_server, take};
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::{Scratch, through_proxy};
use crate::proxy::Then;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, needs: has_server, ..Setup::LAYERED_EVERYWHERE };
        request_with_truncated_answer_is_paid_once,
        request_with_lost_answer_is_paid_once,
        request_that_never_arrived_is_not_repeated,
    )
}

async fn request_with_truncated_answer_is_paid_once(db: TestDb) -> anyhow::Result<()> {
    for bytes in [0, 1, 7] {
        let (error, granted) = fail(&db, Then::Cut(bytes), LONG).await?;
        assert!(matches!(error, Error::OutcomeUnknown(_)), "after {bytes} bytes: {error:?}");
        assert_eq!(granted, 1, "after {bytes} bytes");
    }
    Ok(())
}

async fn request_with_lost_answer_is_paid_once(db: TestDb) -> anyhow::Result<()> {
    let (error, granted) = fail(&db, Then::Swallow, Duration::from_secs(1)).await?;
    assert!(matches!(error, Error::DeadlineExceeded(_)), "{error:?}");
    assert_eq!(granted, 1);
    Ok(())
}

async fn request_that_never_arrived_is_not_repeated(db: TestDb) -> anyhow::Result<()> {
    let (error, granted) = fail(&db, Then::Lose, LONG).await?;
    // The client cannot know the outcome.
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    assert_eq!(granted, 0);
    Ok(())
}

/// Sends one request with a fault on the wire. Returns the error, and the number of debited tokens.
async fn fail(db: &TestDb, then: Then, deadline: Duration) -> anyhow::Result<(Error, i64)> {
    // Uses a separate database: at SERIALIZABLE, others on the same pages can cause failures, at COMMIT, too.
    let scratch = match (db.engine.kind, db.level) {
        (Kind::Postgres, Some(Isolation::Serializable)) => Some(Scratch::migrated(db).await?),
        _ => None,
    };
    let db = scratch.as_ref().map_or(db, |scratch| &scratch.db);
    let key = db.bucket(a_hundred_a_day()).await?;
    let (proxied, proxy) = through_proxy(db, 1).await?;
    match db.level {
        None => proxy.fail(key.as_str(), then),
        Some(_) => proxy.fail("COMMIT", then),
    }
    let error = take(&proxied.store().deadline(deadline), &key).await.expect_err("the connection fails");
    assert!(error.is_outcome_unknown());
    let sent = proxy.requests().iter().filter(|request| request.mentions(key.as_str())).count();
    assert_eq!(sent, 1, "it was sent once");

    let granted = db.row(&key).await?.map_or(0, |row| row.granted);
    assert!(proxied.take(&key).await?.is_granted(), "the next request has a connection that works");
    Ok((error, granted))
}

const LONG: Duration = Duration::from_secs(60);
