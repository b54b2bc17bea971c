//! The fleet of the example, which only uses SQL. The database returns the time of each decision, and every window is checked.

use std::time::Duration;

use common::fleet::checker::{Call, Limit};
use common::fleet::database::Database;
use common::fleet::worker::{Orders, Report};
use common::processes::Processes;
use sqlx::ConnectOptions;
use tollgate::Quota;
use tollgate::model::bucket::BucketQuota;

use crate::matrix::{Case, Setup, list};
use crate::test_db::{AnyPool, TestDb};
use crate::workers::{FLEET, command};

pub fn cases() -> Vec<Case> {
    list!(
        Setup { is_random: true, ..Setup::LAYERED_EVERYWHERE };
        continuous_quota_is_met_in_every_window,
        interval_quota_is_met_in_every_period,
    )
}

async fn continuous_quota_is_met_in_every_window(db: TestDb) -> anyhow::Result<()> {
    holds(&db, Quota::continuous(10, Duration::from_millis(700))?).await
}

async fn interval_quota_is_met_in_every_period(db: TestDb) -> anyhow::Result<()> {
    holds(&db, Quota::interval(7, Duration::from_millis(300))?).await
}

async fn holds(db: &TestDb, quota: Quota) -> anyhow::Result<()> {
    let url = match &db.pool {
        AnyPool::MySql(pool) => pool.connect_options().to_url_lossy(),
        AnyPool::Postgres(pool) => pool.connect_options().to_url_lossy(),
        AnyPool::Sqlite(pool) => pool.connect_options().to_url_lossy(),
    };
    let orders = Orders { url: url.to_string(), ids: vec![db.key().to_string()], tasks: 4 };
    let database = Database::connect(&orders.url, 1).await?;
    database.migrate().await?;
    let limit = Limit { quota: BucketQuota::at(&quota, 0), anchor: database.provision(&orders.ids[0], quota).await? };
    database.close().await;

    let fleet = Processes::start(&vec![orders; 8], || command(FLEET)).await?;
    let reports: Vec<Report> = fleet.run(&Duration::from_millis(1500)).await?;
    for report in &reports {
        assert!(report.lost.is_empty(), "{:?}", report.lost);
    }
    let calls: Vec<Call> = reports.iter().flat_map(|report| report.calls.values().flatten().copied()).collect();
    let (granted, denied): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(|call| call.granted);
    assert!(granted.len() > 10 && !denied.is_empty(), "{} grants and {} denials", granted.len(), denied.len());
    let faults = limit.faults(&calls);
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    Ok(())
}
