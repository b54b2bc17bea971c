//! Batches of many callers at once with buckets in common, in requests for one or several buckets.

use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;
use tollgate::{Key, Quota, Rule, Store, Take};

use crate::caller_sessions::CallerSessions;
use crate::engines::Kind;
use crate::layers::Layers;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, is_random: true, ..Setup::LAYERED_EVERYWHERE };
        batches_that_overlap_grant_the_available_tokens,
    )
}

/// The callers are granted exactly the tokens taken, and all tokens are taken. Every other bucket exists already, and the first
/// request creates each of the others.
async fn batches_that_overlap_grant_the_available_tokens(db: TestDb) -> anyhow::Result<()> {
    let sessions = CallerSessions::new(&db, CALLERS).await?;
    let quota = Quota::once(CAPACITY)?;
    let mut limits = Vec::new();
    for place in 0..BUCKETS {
        limits.push(match place % 2 {
            0 => (db.bucket(quota).await?, Rule::Provisioned),
            _ => (db.key(), Rule::Quota(quota)),
        });
    }
    let store = sessions.db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let mut callers = JoinSet::new();
    for seed in 0..CALLERS {
        callers.spawn(drain(store.clone(), limits.clone(), Rng::with_seed(seed.into())));
    }
    let (mut granted, mut attempts) = ([0; BUCKETS], 0);
    while let Some(caller) = callers.join_next().await {
        let (of_caller, most) = caller??;
        for (sum, tokens) in granted.iter_mut().zip(of_caller) {
            *sum += tokens;
        }
        attempts = attempts.max(most);
    }
    // If the routine is the whole transaction, it only waits. PostgreSQL's routine waits for a tenth of a second at a time.
    if db.level.is_none() && db.layers == Layers::None && db.engine.kind == Kind::MySql {
        assert_eq!(attempts, 1, "a call met a deadlock");
    }
    assert_eq!(granted, [CAPACITY; BUCKETS], "as reported to the callers");
    for (key, rule) in limits {
        let debited = db.row(&key).await?.map(|row| u64::try_from(row.granted)).transpose()?;
        assert_eq!(debited, Some(CAPACITY), "of {rule:?}");
    }
    Ok(())
}

/// Takes tokens until no bucket has any. Returns the tokens granted for each bucket, and the largest number of attempts of a
/// request.
async fn drain(store: impl Store, limits: Vec<(Key, Rule)>, mut random: Rng) -> anyhow::Result<(Vec<u64>, u32)> {
    let (mut granted, mut attempts) = (vec![0; limits.len()], 0);
    loop {
        let is_last = random.u32(..4) == 0;
        let requests = if is_last { of_each() } else { some(&mut random) };
        let take = |request: &BatchEntry| {
            let mut limits = request.places.iter().map(|&place| limits[place].clone());
            let (key, rule) = limits.next().expect("one or more");
            let first = Take::from(key).rule(rule).cost(request.cost);
            limits.fold(first, |take, (key, rule)| take.and(key, rule))
        };
        let takes: Vec<Take> = requests.iter().map(take).collect();
        let mut any = false;
        for (request, outcome) in requests.iter().zip(store.take(&takes).await?) {
            let decision = outcome?;
            attempts = attempts.max(decision.attempts());
            if decision.is_granted() {
                any = true;
                request.places.iter().for_each(|&place| granted[place] += request.cost);
            }
        }
        if is_last && !any {
            return Ok((granted, attempts));
        }
    }
}

#[derive(Clone)]
struct BatchEntry {
    places: Vec<usize>,
    cost: u64,
}

/// One token of each bucket, in separate requests.
fn of_each() -> Vec<BatchEntry> {
    (0..BUCKETS).map(|place| BatchEntry { places: vec![place], cost: 1 }).collect()
}

/// Requests for one to three buckets in any order, possibly repeated.
fn some(random: &mut Rng) -> Vec<BatchEntry> {
    let mut requests = Vec::new();
    for _ in 0..random.usize(2..8) {
        let mut places: Vec<usize> = (0..BUCKETS).collect();
        random.shuffle(&mut places);
        places.truncate([1, 1, 2, 3][random.usize(..4)]);
        let (cost, times) = (random.u64(1..4), random.usize(1..4));
        requests.extend(std::iter::repeat_n(BatchEntry { places, cost }, times));
    }
    requests
}

const CALLERS: u32 = 6;
const BUCKETS: usize = 6;
const CAPACITY: u64 = 200;
