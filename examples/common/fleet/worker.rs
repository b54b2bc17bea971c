//! One process of the fleet. Its tasks request tokens as fast as they are granted.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::clock::{Clock, SystemClock};

use super::checker::Call;
use super::database::Database;
use crate::processes;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Orders {
    pub url: String,
    /// The buckets. Each request is for a random one.
    pub ids: Vec<String>,
    pub tasks: u32,
}

#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Report {
    /// The calls for each bucket, by its position.
    pub calls: BTreeMap<usize, Vec<Call>>,
    /// The errors after which nothing was taken. The task repeats such a request.
    pub retries: u64,
    /// The errors of calls without an answer, which may have taken a token.
    pub lost: Vec<String>,
}

impl Report {
    pub fn merge(&mut self, Self { calls, retries, lost }: Self) {
        for (position, calls) in calls {
            self.calls.entry(position).or_default().extend(calls);
        }
        self.retries += retries;
        self.lost.extend(lost);
    }
}

/// Runs the orders of the parent process, for the time that it states.
pub async fn work() -> anyhow::Result<()> {
    let orders: Orders = processes::receive()?;
    let database = Database::connect(&orders.url, orders.tasks).await?;
    let time: Duration = processes::ready()?;
    let until = Instant::now() + time;

    let mut tasks = JoinSet::new();
    for _ in 0..orders.tasks {
        tasks.spawn(hammer(database.clone(), orders.ids.clone(), until));
    }
    let mut report = Report::default();
    while let Some(task) = tasks.join_next().await {
        report.merge(task?);
    }
    database.close().await;
    processes::report(&report)
}

async fn hammer(database: Database, ids: Vec<String>, until: Instant) -> Report {
    let mut report = Report::default();
    while Instant::now() < until {
        let position = fastrand::usize(..ids.len());
        let sent = SystemClock.now();
        match database.take(&ids[position]).await {
            Ok((granted, at)) => {
                let call = Call { sent, done: SystemClock.now(), at: Some(at), cost: 1, granted };
                report.calls.entry(position).or_default().push(call);
                if granted {
                    continue;
                }
            }
            Err(error) if is_refusal(&error) => report.retries += 1,
            Err(error) => report.lost.push(format!("{error:#}")),
        }
        sleep(Duration::from_millis(fastrand::u64(1..100))).await;
    }
    report
}

/// Whether the server reported the error. A failed statement takes nothing, unless the server lost the connection to a node of its
/// cluster meanwhile.
fn is_refusal(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(sqlx::Error::Database(error)) => error.code().is_none_or(|code| !code.starts_with("08")),
        _ => false,
    }
}
