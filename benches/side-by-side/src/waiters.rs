//! Many who wait for one key: whether they go on in their order, and how evenly.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use sqlx::{MySql, Postgres, Sqlite};
use tokio::task::JoinSet;
use tollgate::{Key, Limiter, Quota, SqlStore};

use crate::books::Books;
use crate::engine::{CONNECTIONS, Engine};
use crate::server::Server;
use crate::venues::Venues;

/// How long those who wait had to, beyond their turn.
#[derive(Debug, Serialize)]
pub(crate) struct Waited {
    pub(crate) contestant: String,
    pub(crate) waiters: usize,
    pub(crate) a_second: u64,
    /// How much later than every token's time they went on, in milliseconds.
    pub(crate) late_p50: f64,
    pub(crate) late_p99: f64,
    /// How many went on more than a millisecond before the one who had come just before them.
    pub(crate) inversions: usize,
    /// Calls of the store for each of them.
    pub(crate) calls: Option<f64>,
}

pub(crate) async fn measure(server: Server, run: &str, venues: &Venues, waiters: usize) -> anyhow::Result<Waited> {
    let key = format!("{run}:waiters");
    let debited = venues.debited(server, &key).await?;
    let before = venues.calls(server).await;
    let url = server.database(run)?;
    let turns = match server {
        Server::Postgres | Server::Postgres15 => wait::<Postgres>(&url, &key, waiters).await?,
        Server::Mysql | Server::Mariadb => wait::<MySql>(&url, &key, waiters).await?,
        _ => wait::<Sqlite>(&url, &key, waiters).await?,
    };
    tokio::time::sleep(Duration::from_millis(30)).await;
    let calls = venues.calls(server).await.zip(before).map(|(after, before)| after - before);
    let books = Books { granted: u64::try_from(waiters)?, ..Books::default() };
    books.check(venues.debited(server, &key).await? - debited)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
    let calls = calls.map(|calls| calls as f64 / waiters as f64);
    let late = lateness(&turns);
    Ok(Waited {
        contestant: format!("tollgate@{}", server.name()),
        waiters,
        a_second: A_SECOND,
        late_p50: percentile(&late, 50),
        late_p99: percentile(&late, 99),
        inversions: inversions(&turns),
        calls,
    })
}

/// When each went on, in the order in which they came.
async fn wait<E: Engine>(url: &str, key: &str, waiters: usize) -> anyhow::Result<Vec<Duration>> {
    let pool = E::open(url, CONNECTIONS, false).await?;
    let quota = Quota::continuous(1, Duration::from_secs(1) / u32::try_from(A_SECOND)?)?;
    let longest = Duration::from_mins(2);
    let limiter = Limiter::builder(SqlStore::from(pool.clone())).longest_wait(longest).build(quota)?;
    let key = Key::try_from(key)?;
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for place in 0..waiters {
        let (limiter, key) = (limiter.clone(), key.clone());
        let mut waits = Box::pin(async move {
            let granted = limiter.wait(&key).await?.is_granted();
            anyhow::Ok((place, granted, start.elapsed()))
        });
        // Begun one after the other, so that it is certain who came first; then each in a task of its own.
        let begun = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await;
        tasks.spawn(async move {
            match begun {
                Poll::Ready(done) => done,
                Poll::Pending => waits.await,
            }
        });
    }
    let mut turns = vec![Duration::ZERO; waiters];
    while let Some(task) = tasks.join_next().await {
        let (place, granted, at) = task??;
        ensure!(granted, "somebody was denied who would have waited long enough");
        turns[place] = at;
    }
    pool.close().await;
    Ok(turns)
}

/// Beyond the line on which the tokens come, drawn as early as nobody is before it.
fn lateness(turns: &[Duration]) -> Vec<f64> {
    let mut sorted = turns.to_vec();
    sorted.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "some thousand waiters")]
    let beyond = |(nth, at): (usize, &Duration)| (at.as_secs_f64() - nth as f64 / A_SECOND as f64) * 1e3;
    let beyond: Vec<f64> = sorted.iter().enumerate().map(beyond).collect();
    let earliest = beyond.iter().copied().fold(f64::INFINITY, f64::min);
    let mut late: Vec<f64> = beyond.iter().map(|late| late - earliest).collect();
    late.sort_unstable_by(f64::total_cmp);
    late
}

fn inversions(turns: &[Duration]) -> usize {
    turns.windows(2).filter(|pair| pair[1] + Duration::from_millis(1) < pair[0]).count()
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

const A_SECOND: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_later_and_goes_on_earlier_is_an_inversion() {
        let turns = [1, 2, 9, 4, 5].map(Duration::from_millis);
        assert_eq!(inversions(&turns), 1);
        assert_eq!(inversions(&[1, 2, 3].map(Duration::from_millis)), 0);
    }

    #[test]
    fn who_keeps_the_pace_is_not_late() {
        let late = lateness(&[5, 6, 7, 11].map(Duration::from_millis));
        assert!(percentile(&late, 50) < 0.001 && (late[3] - 3.0).abs() < 0.001, "{late:?}");
    }
}
