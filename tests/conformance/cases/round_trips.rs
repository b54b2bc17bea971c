//! What goes over the wire for a decision.

use std::time::Duration;

use tollgate::{Quota, Store, Take};

use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, all_given_back, through_proxy};
use crate::rig::Rig;

pub fn cases() -> Vec<Case> {
    list!(Levels::Every, Time::Real, |engine| engine.kind != Kind::Sqlite;
        a_grant_is_one_round_trip, a_denial_is_one_round_trip, an_unknown_bucket_is_one_round_trip,
        a_first_request_is_one_round_trip, ten_requests_are_one_round_trip)
    .into()
}

async fn a_grant_is_one_round_trip(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(quota(100)).await?;
    assert_eq!(round_trips(&rig, &[Take::from(key)]).await?, expected(&rig));
    Ok(())
}

async fn a_denial_is_one_round_trip(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(quota(1)).await?;
    assert!(rig.take(&key).await?.is_granted());
    assert_eq!(round_trips(&rig, &[Take::from(key)]).await?, expected(&rig));
    Ok(())
}

async fn an_unknown_bucket_is_one_round_trip(rig: Rig) -> anyhow::Result<()> {
    assert_eq!(round_trips(&rig, &[Take::from(rig.key())]).await?, expected(&rig));
    Ok(())
}

async fn a_first_request_is_one_round_trip(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    let take = Take::from(rig.key()).rule(tollgate::Rule::Quota(quota(100)));
    assert_eq!(round_trips(rig, &[take]).await?, expected(rig));
    Ok(())
}

async fn ten_requests_are_one_round_trip(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    let mut takes = Vec::new();
    for capacity in 1..=10 {
        takes.push(Take::from(rig.bucket(quota(capacity)).await?));
    }
    assert_eq!(round_trips(rig, &takes).await?, expected(rig));
    Ok(())
}

/// One, and those of `begin` and `commit` where a level was asked for.
fn expected(rig: &Rig) -> usize {
    if rig.level.is_some() { 3 } else { 1 }
}

/// Counts those of a call on a connection on which such a call was prepared before.
async fn round_trips(rig: &Rig, takes: &[Take]) -> anyhow::Result<usize> {
    let (proxied, proxy) = through_proxy(rig, 1).await?;
    let store = proxied.store();
    let others: Vec<Take> = takes.iter().map(|_| Take::from(rig.key())).collect();
    for _ in 0..2 {
        store.take(&others).await?;
    }
    all_given_back(&proxied.pool).await;
    proxy.requests();

    store.take(takes).await?;
    all_given_back(&proxied.pool).await;
    let mut requests = proxy.requests();
    // The pool tests a connection that it gets back, after the answer.
    requests.retain(|request| !request.is_ping());
    let key = takes[0].key().as_str();
    let hex = key.bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let asked = requests.iter().filter(|request| request.mentions(key) || request.mentions(&hex)).count();
    anyhow::ensure!(asked == 1, "the bucket was asked for {asked} times: {requests:?}");
    Ok(requests.len())
}

fn quota(capacity: u64) -> Quota {
    Quota::interval(capacity, Duration::from_secs(86_400)).expect("a quota")
}
