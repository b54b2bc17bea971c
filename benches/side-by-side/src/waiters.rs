//! Many callers wait for one key. Measures whether they continue in their order, and how evenly.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use sqlx::{MySql, Postgres, Sqlite};
use tokio::task::JoinSet;
use tollgate::{
    Admin, Key, Limiter, MemoryStore, Quota, SqlStore,
    clock::{Clock, SystemClock},
};

use crate::books::Books;
use crate::engine::{CONNECTIONS, Engine};
use crate::server::Server;
use crate::venues::Venues;

/// How long callers waited beyond their scheduled times.
#[derive(Debug, Serialize)]
pub(crate) struct Waited {
    pub(crate) system: String,
    pub(crate) waiters: usize,
    pub(crate) a_second: i64,
    /// Milliseconds between the scheduled times and the ends of the waits.
    pub(crate) late_p50: f64,
    pub(crate) late_p99: f64,
    /// Callers that continued more than a millisecond before the previous caller.
    pub(crate) inversions: usize,
    /// Calls of the store per caller.
    pub(crate) calls: Option<f64>,
}

pub(crate) async fn measure(server: Server, run: &str, venues: &Venues, waiters: usize) -> anyhow::Result<Waited> {
    let key = format!("{run}:waiters");
    let debited = venues.debited(server, &key).await?;
    let before = venues.calls(server).await;
    let url = server.database(run)?;
    let waited = match server {
        Server::Postgres | Server::Postgres15 => on_sql::<Postgres>(&url, &key, waiters).await?,
        Server::Mysql | Server::Mariadb => on_sql::<MySql>(&url, &key, waiters).await?,
        _ => on_sql::<Sqlite>(&url, &key, waiters).await?,
    };
    tokio::time::sleep(Duration::from_millis(30)).await;
    let calls = venues.calls(server).await.zip(before).map(|(after, before)| after - before);
    let books = Books { granted: u64::try_from(waiters)?, ..Books::default() };
    books.check(venues.debited(server, &key).await? - debited)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
    let calls = calls.map(|calls| calls as f64 / waiters as f64);
    Ok(Waited { system: format!("tollgate@{}", server.name()), calls, ..waited })
}

/// Measures the same without a database: the effect of timers and the machine.
pub(crate) async fn in_process(waiters: usize) -> anyhow::Result<Waited> {
    wait(Arc::new(MemoryStore::new()), "waiters", waiters).await
}

async fn on_sql<E: Engine>(url: &str, key: &str, waiters: usize) -> anyhow::Result<Waited> {
    let pool = E::open(url, CONNECTIONS, false).await?;
    let waited = wait(SqlStore::from(pool.clone()), key, waiters).await?;
    pool.close().await;
    Ok(waited)
}

async fn wait<S: Admin + Clone>(store: S, key: &str, waiters: usize) -> anyhow::Result<Waited> {
    let quota = Quota::continuous(1, Duration::from_secs(1) / u32::try_from(A_SECOND)?)?;
    let limiter = Limiter::builder(store.clone()).max_wait(Duration::from_mins(2)).build(quota)?;
    let key = Key::try_from(key)?;
    let mut tasks = JoinSet::new();
    for place in 0..waiters {
        let (limiter, key) = (limiter.clone(), key.clone());
        let mut waits = Box::pin(async move {
            let granted = limiter.wait(&key).await?.is_granted();
            anyhow::Ok((place, granted, SystemClock.now()))
        });
        // Starts the waits one after the other, so that their order is certain, then polls each in its own task.
        let begun = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await;
        tasks.spawn(async move {
            match begun {
                Poll::Ready(done) => done,
                Poll::Pending => waits.await,
            }
        });
    }
    // The time when the last token is used up, according to the store, and when each caller continued, in the order of
    // arrival. Both use the clock of this machine, which also runs the servers.
    let (mut end, mut went_on) = (None, vec![0; waiters]);
    while let Some(task) = tasks.join_next().await {
        let (place, granted, at) = task??;
        ensure!(granted, "somebody was denied who would have waited long enough");
        went_on[place] = at;
        // By then all callers have their scheduled times, and the bucket is not full yet.
        if tasks.len() == waiters / 2 {
            end = store.peek(&key).await?.and_then(|level| level.full_at()?.timestamp_nanos_opt());
        }
    }
    let late = lateness(end.context("the bucket is full before all had their turns")?, &went_on);
    Ok(Waited {
        system: "tollgate-memory".to_owned(),
        waiters,
        a_second: A_SECOND,
        late_p50: percentile(&late, 50),
        late_p99: percentile(&late, 99),
        inversions: inversions(&went_on),
        calls: None,
    })
}

/// Returns the delays beyond the scheduled times, which follow each other without a gap. The first few can have gaps:
/// until callers queue, a token that is not requested in time is lost.
fn lateness(end: i64, went_on: &[i64]) -> Vec<f64> {
    let interval = 1_000_000_000 / A_SECOND;
    let turns = (1..=went_on.len()).rev().map(|behind| end - interval * i64::try_from(behind).unwrap_or(i64::MAX));
    #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
    let mut late: Vec<f64> = turns.zip(went_on).map(|(turn, at)| (at - turn).max(0) as f64 / 1e6).collect();
    late.sort_unstable_by(f64::total_cmp);
    late
}

fn inversions(went_on: &[i64]) -> usize {
    went_on.windows(2).filter(|pair| pair[1] + 1_000_000 < pair[0]).count()
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

const A_SECOND: i64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn later_request_served_earlier_is_an_inversion() {
        assert_eq!(inversions(&[1, 2, 9, 4, 5].map(|ms| ms * MS)), 1);
        assert_eq!(inversions(&[1, 2, 3].map(|ms| ms * MS)), 0);
    }

    #[test]
    fn waiter_that_keeps_pace_is_not_late() {
        let late = lateness(9 * MS, &[5, 6, 7, 11].map(|ms| ms * MS));
        assert!(percentile(&late, 50) < 0.001 && (late[3] - 3.0).abs() < 0.001, "{late:?}");
    }
}
