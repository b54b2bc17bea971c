//! One process of the fleet. Its tasks request tokens as fast as they are granted.

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
    pub id: String,
    pub tasks: u32,
}

#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Report {
    pub calls: Vec<Call>,
    /// The errors after which nothing was taken. The task repeats such a request.
    pub retries: u64,
    /// The errors of calls without an answer, which may have taken a token.
    pub lost: Vec<String>,
}

/// Runs the orders of the parent process, for the time that it states.
pub async fn work() -> anyhow::Result<()> {
    let orders: Orders = processes::receive()?;
    let database = Database::connect(&orders.url, orders.tasks).await?;
    let time: Duration = processes::ready()?;
    let until = Instant::now() + time;

    let mut tasks = JoinSet::new();
    for _ in 0..orders.tasks {
        tasks.spawn(hammer(database.clone(), orders.id.clone(), until));
    }
    let mut report = Report::default();
    while let Some(task) = tasks.join_next().await {
        let Report { calls, retries, lost } = task?;
        report.calls.extend(calls);
        report.retries += retries;
        report.lost.extend(lost);
    }
    database.close().await;
    processes::report(&report)
}

async fn hammer(database: Database, id: String, until: Instant) -> Report {
    let mut report = Report::default();
    while Instant::now() < until {
        let sent = SystemClock.now();
        match database.take(&id).await {
            Ok((granted, at)) => {
                report.calls.push(Call { sent, done: SystemClock.now(), at: Some(at), cost: 1, granted });
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

/// Whether the server reported the error. A failed statement takes nothing.
fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(sqlx::Error::Database(_)))
}
