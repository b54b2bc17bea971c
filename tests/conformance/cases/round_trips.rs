//! Round trips of a decision.

use std::time::Duration;

use tollgate::{Adjusted, Adjustment, Limiter, Quota, Receipt, Rule, Store, Take, Throttle, Window};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::{Scratch, all_given_back, through_proxy};
use crate::proxy::Proxy;
use crate::store::AnyStore;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases count the round trips of a call.
    let mut cases = list!(
        Setup { levels: IsolationLevels::Every, needs: |engine| engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
        a_grant_is_one_round_trip,
        a_denial_is_one_round_trip,
        an_unknown_bucket_is_one_round_trip,
        a_first_request_is_one_round_trip,
        ten_requests_are_one_round_trip,
    );
    cases.extend(list!(
        Setup { needs: |engine| engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
        each_method_is_one_round_trip,
        cancel_is_one_more_round_trip,
        several_limits_are_one_round_trip,
        a_window_is_one_round_trip,
        throttle_is_one_round_trip,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
        many_requests_for_several_limits_each_are_one_round_trip,
        many_adjustments_are_one_round_trip,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS };
        request_after_a_grant_is_granted_without_a_read,
    ));
    cases
}

async fn a_grant_is_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(quota(100)).await?;
    assert_eq!(round_trips(&db, &[Take::from(key)]).await?, expected(&db));
    Ok(())
}

async fn request_after_a_grant_is_granted_without_a_read(db: TestDb) -> anyhow::Result<()> {
    let (proxied, proxy) = through_proxy(&db, 1).await?;
    let (store, take) = (proxied.store(), Take::from(db.bucket(quota(100)).await?));
    for routine in ["tollgate.take_v1", "tollgate.grant_v1"] {
        assert!(store.take_one(&take).await??.is_granted());
        all_given_back(&proxied.pool).await;
        anyhow::ensure!(proxy.requests().iter().any(|request| request.mentions(routine)), "{routine} was not called");
    }
    Ok(())
}

async fn a_denial_is_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(quota(1)).await?;
    assert!(db.take(&key).await?.is_granted());
    assert_eq!(round_trips(&db, &[Take::from(key)]).await?, expected(&db));
    Ok(())
}

async fn an_unknown_bucket_is_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    assert_eq!(round_trips(&db, &[Take::from(db.key())]).await?, expected(&db));
    Ok(())
}

async fn a_first_request_is_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let take = Take::from(db.key()).rule(Rule::Quota(quota(100)));
    assert_eq!(round_trips(db, &[take]).await?, expected(db));
    Ok(())
}

async fn ten_requests_are_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let mut takes = Vec::new();
    for capacity in 1..=10 {
        takes.push(Take::from(db.bucket(quota(capacity)).await?));
    }
    assert_eq!(round_trips(db, &takes).await?, expected(db));
    Ok(())
}

async fn many_requests_for_several_limits_each_are_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let global = db.bucket(quota(100)).await?;
    let take = |_| Take::from(global.clone()).and(db.key(), Rule::Quota(quota(5)));
    assert_eq!(round_trips(&db, &(0..10).map(take).collect::<Vec<_>>()).await?, expected(&db));
    Ok(())
}

async fn many_adjustments_are_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let (proxied, proxy) = through_proxy(&db, 1).await?;
    let mut keys = Vec::new();
    for _ in 0..10 {
        keys.push(db.bucket(quota(100)).await?);
    }
    let counter = Counter { proxied, proxy };
    for warm in [false, true] {
        let refund = |key: &tollgate::Key| Receipt::new(Uuid::new_v4(), key.clone(), 3).refund(1);
        let refunds: Vec<Adjustment> = keys.iter().chain(&keys).map(refund).collect();
        let adjusted = counter.proxied.store().adjust(&refunds).await?;
        assert!(adjusted.iter().all(|it| *it == Ok(Adjusted::Done(1))), "{adjusted:?}");
        counter.is(expected(&db), warm).await;
    }
    Ok(())
}

async fn each_method_is_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let (limiter, counter) = limiter(&db, quota(100)).await?;
    let key = db.key();
    // After a grant, PostgreSQL has another statement to prepare.
    for warm in [false, false, true] {
        assert!(limiter.allow(&key).await?.is_granted());
        counter.is(expected(&db), warm).await;
        let reservation = limiter.reserve(&key).await?;
        counter.is(expected(&db), warm).await;
        assert!(limiter.wait(&key).await?.is_granted());
        counter.is(expected(&db), warm).await;
        drop(reservation);
    }
    Ok(())
}

async fn cancel_is_one_more_round_trip(db: TestDb) -> anyhow::Result<()> {
    let (limiter, counter) = limiter(&db, Quota::continuous(1, Duration::from_mins(1))?).await?;
    for warm in [false, true] {
        let key = db.key();
        assert!(limiter.allow(&key).await?.is_granted());
        let promised = limiter.reserve(&key).await?;
        counter.is(0, false).await;
        assert_eq!(promised.cancel().await?, 1);
        counter.is(expected(&db), warm).await;
    }
    Ok(())
}

async fn several_limits_are_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let (limiter, counter) = limiter(&db, quota(100)).await?;
    for warm in [false, true] {
        let take = (0..4).fold(Take::from(db.key()).rule(limiter.rule()), |take, _| take.and(db.key(), limiter.rule()));
        assert!(limiter.decide(&take).await?.is_granted());
        counter.is(expected(&db), warm).await;
    }
    Ok(())
}

async fn a_window_is_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let (limiter, counter) = limiter(&db, Window::new(100, Duration::from_mins(1), Duration::from_secs(5))?).await?;
    for warm in [false, true] {
        assert!(limiter.allow(db.key()).await?.is_granted());
        counter.is(expected(&db), warm).await;
    }
    Ok(())
}

async fn throttle_is_one_round_trip(db: TestDb) -> anyhow::Result<()> {
    let (limiter, counter) = limiter(&db, Quota::continuous(100, Duration::from_mins(1))?).await?;
    for warm in [false, true] {
        assert!(limiter.throttle(db.key(), Throttle::retry_after(Duration::from_mins(1))).await?);
        counter.is(expected(&db), warm).await;
    }
    Ok(())
}

/// A limiter over one connection, and a counter of its round trips.
async fn limiter(db: &TestDb, rule: impl Into<Rule>) -> anyhow::Result<(Limiter<AnyStore>, Counter)> {
    let (proxied, proxy) = through_proxy(db, 1).await?;
    let limiter = Limiter::builder(proxied.store()).max_wait(Duration::from_hours(1)).build(rule.into())?;
    Ok((limiter, Counter { proxied, proxy }))
}

struct Counter {
    proxied: TestDb,
    proxy: Proxy,
}

impl Counter {
    /// Checks the number of round trips since the last check, for statements that were prepared before.
    async fn is(&self, expected: usize, warm: bool) {
        all_given_back(&self.proxied.pool).await;
        let mut requests = self.proxy.requests();
        requests.retain(|request| !request.is_ping());
        assert!(!warm || requests.len() == expected, "{requests:?}");
    }
}

/// One, plus those of `begin` and `commit` with an isolation level.
fn expected(db: &TestDb) -> usize {
    if db.level.is_some() { 3 } else { 1 }
}

/// Counts the round trips of a call on a connection that has prepared such a call before.
async fn round_trips(db: &TestDb, takes: &[Take]) -> anyhow::Result<usize> {
    let (proxied, proxy) = through_proxy(db, 1).await?;
    let store = proxied.store();
    let other =
        |take: &Take| take.keys().skip(1).fold(Take::from(db.key()), |other, _| other.and(db.key(), Rule::Provisioned));
    let others: Vec<Take> = takes.iter().map(other).collect();
    for _ in 0..2 {
        store.take(&others).await?;
    }
    all_given_back(&proxied.pool).await;
    proxy.requests();

    store.take(takes).await?;
    all_given_back(&proxied.pool).await;
    let mut requests = proxy.requests();
    // The pool tests a returned connection after the answer.
    requests.retain(|request| !request.is_ping());
    let key = takes[0].key().as_str();
    let hex = key.bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let sent = requests.iter().filter(|request| request.mentions(key) || request.mentions(&hex)).count();
    anyhow::ensure!(sent == 1, "the bucket was requested {sent} times: {requests:?}");
    Ok(requests.len())
}

fn quota(capacity: u64) -> Quota {
    Quota::interval(capacity, Duration::from_secs(86_400)).expect("a quota")
}
