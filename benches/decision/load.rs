use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sqlx::Pool;
use tokio::task::JoinSet;
use tollgate::{
    Key, Quota, Rule, SqlStore, SqlTokenRequester, Store, Take, TokenRequester, Window, create_bucket, migrate,
};

use crate::engine::Engine;

/// Number of keys, unless all calls use one key.
pub(crate) const KEYS: usize = 1000;

/// The cost of one call in microseconds: its latency with one connection, otherwise the time between two answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) bare: f64,
    pub(crate) granted: f64,
    pub(crate) denied: f64,
    pub(crate) five: f64,
    pub(crate) window: f64,
}

/// Creates the rows of the bare updates, buckets that never run dry, and buckets that stay empty for a day.
pub(crate) async fn provision<E: Engine>(pool: &Pool<E>) -> anyhow::Result<()> {
    migrate(pool).await?;
    E::make_bare(pool, &ids("bare", KEYS)).await?;
    let (plenty, one_a_day) =
        (Quota::continuous(1_000_000_000, Duration::from_secs(1))?, Quota::continuous(1, Duration::from_hours(24))?);
    for (plentiful, empty) in ids("granted", KEYS).into_iter().zip(ids("denied", KEYS)) {
        create_bucket(pool, &plentiful, plenty).await?;
        create_bucket(pool, &empty, one_a_day).await?;
        let last = SqlTokenRequester::new(pool.clone(), &empty)?.request_token().await?;
        ensure!(last.is_granted(), "a new bucket is full");
    }
    Ok(())
}

/// The kinds of call, with the same number of keys and connections.
pub(crate) struct Load<E: Engine> {
    pool: Pool<E>,
    connections: u32,
    bare: Arc<[Bare<E>]>,
    granted: Arc<[SqlTokenRequester<E>]>,
    denied: Arc<[SqlTokenRequester<E>]>,
    five: Arc<[Decision<E>]>,
    window: Arc<[Decision<E>]>,
}

impl<E: Engine> Load<E> {
    pub(crate) fn new(pool: &Pool<E>, connections: u32, keys: usize) -> anyhow::Result<Self> {
        let requesters = |kind| {
            let requester = |id: String| SqlTokenRequester::new(pool.clone(), id);
            ids(kind, keys).into_iter().map(requester).collect::<Result<Arc<[_]>, _>>()
        };
        // Five of the buckets that never run dry.
        let five = |key: usize| {
            let others = (0..5).map(|n| Key::try_from(format!("granted:{}", (key + n * KEYS / 5) % KEYS)));
            let others = others.collect::<Result<Vec<_>, _>>()?;
            let take = Take::from(others[0].clone());
            anyhow::Ok(others[1..].iter().fold(take, |take, key| take.and(key.clone(), Rule::Provisioned)))
        };
        let window = Window::new(1_000_000_000_000, Duration::from_mins(1), Duration::from_secs(5))?;
        let within = |id: String| anyhow::Ok(Take::from(Key::try_from(id)?).rule(window.into()));
        let decision = |take| Decision { store: SqlStore::from(pool.clone()), take };
        Ok(Self {
            five: (0..keys).map(five).map(|take| take.map(decision)).collect::<Result<_, _>>()?,
            window: ids("window", keys)
                .into_iter()
                .map(within)
                .map(|take| take.map(decision))
                .collect::<Result<_, _>>()?,
            pool: pool.clone(),
            connections,
            bare: ids("bare", keys).into_iter().map(|id| Bare { pool: pool.clone(), id }).collect(),
            granted: requesters("granted")?,
            denied: requesters("denied")?,
        })
    }

    /// Measures a slice of each kind per round, after a warm-up round.
    pub(crate) async fn rounds(&self, rounds: u32, slice: Duration) -> anyhow::Result<Vec<Round>> {
        let mut measured = Vec::new();
        for _ in 0..=rounds {
            measured.push(Round {
                bare: self.turn(&self.bare, slice, (1, 0)).await?,
                granted: self.turn(&self.granted, slice, (0, 1)).await?,
                denied: self.turn(&self.denied, slice, (0, 0)).await?,
                five: self.turn(&self.five, slice, (0, 5)).await?,
                window: self.turn(&self.window, slice, (0, 0)).await?,
            });
        }
        Ok(measured.split_off(1))
    }

    /// Calls for the length of a slice. Then checks that the database recorded exactly the bare updates and tokens of
    /// these calls.
    async fn turn<C: Call>(&self, calls: &Arc<[C]>, slice: Duration, each: (i64, i64)) -> anyhow::Result<f64> {
        let before = E::books(&self.pool).await?;
        let start = Instant::now();
        let mut callers = JoinSet::new();
        for caller in 0..self.connections as usize {
            callers.spawn(call(Arc::clone(calls), caller, start + slice));
        }
        let mut latencies = Vec::new();
        while let Some(caller) = callers.join_next().await {
            latencies.append(&mut caller??);
        }
        let elapsed = start.elapsed();
        let after = E::books(&self.pool).await?;

        let count = i64::try_from(latencies.len())?;
        let booked = (after.0 - before.0, after.1 - before.1);
        ensure!(booked == (each.0 * count, each.1 * count), "{count} calls, but the books show {booked:?}");
        latencies.sort_unstable();
        let median = latencies.get(latencies.len() / 2).context("no call ended in its time: give more --seconds")?;
        let between = elapsed / u32::try_from(latencies.len())?;
        Ok(1e6 * if self.connections == 1 { *median } else { between }.as_secs_f64())
    }
}

/// Runs one caller, which makes the next call when it has the answer to the last one.
async fn call<C: Call>(calls: Arc<[C]>, caller: usize, end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    // The stride and the number of keys have no common divisor, so the caller uses every key.
    for key in (caller * calls.len() / 8..).step_by(389) {
        let start = Instant::now();
        if start >= end {
            break;
        }
        calls[key % calls.len()].call().await?;
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

/// A call to measure.
trait Call: Send + Sync + 'static {
    fn call(&self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

struct Bare<E: Engine> {
    pool: Pool<E>,
    id: String,
}

impl<E: Engine> Call for Bare<E> {
    async fn call(&self) -> anyhow::Result<()> {
        Ok(E::bare(&self.pool, &self.id).await?)
    }
}

impl<E: Engine> Call for SqlTokenRequester<E> {
    async fn call(&self) -> anyhow::Result<()> {
        let _decision = self.request_token().await?;
        Ok(())
    }
}

/// A decision on a request.
struct Decision<E: Engine> {
    store: SqlStore<E>,
    take: Take,
}

impl<E: Engine> Call for Decision<E> {
    async fn call(&self) -> anyhow::Result<()> {
        ensure!(self.store.take_one(&self.take).await??.is_granted(), "there is room for it");
        Ok(())
    }
}

fn ids(kind: &str, keys: usize) -> Vec<String> {
    (0..keys).map(|key| format!("{kind}:{key}")).collect()
}
