use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sqlx::pool::PoolOptions;
use sqlx::{MySql, Postgres, Sqlite};
use tollgate::{
    Key, SqlStore, Store, Take,
    layers::LocalReads,
    store::{Dialect, Migrate, SharedWindows},
};

use crate::{Arguments, Mode, window};

/// Sends requests at random times. Prints when each was sent and answered in microseconds, and its outcome.
pub(crate) async fn run(arguments: &Arguments, key: Key, mode: Mode, load: f64) -> anyhow::Result<()> {
    match arguments.url.split(':').next() {
        Some("postgres" | "postgresql") => {
            over(store::<Postgres>(&arguments.url).await?, arguments, key, mode, load).await
        }
        Some("mysql" | "mariadb") => over(store::<MySql>(&arguments.url).await?, arguments, key, mode, load).await,
        _ => over(store::<Sqlite>(&arguments.url).await?, arguments, key, mode, load).await,
    }
}

async fn store<DB: Migrate + Dialect>(url: &str) -> anyhow::Result<SqlStore<DB>> {
    Ok(SqlStore::from(PoolOptions::<DB>::new().max_connections(1).test_before_acquire(false).connect(url).await?))
}

async fn over<S: SharedWindows>(
    store: S,
    arguments: &Arguments,
    key: Key,
    mode: Mode,
    load: f64,
) -> anyhow::Result<()> {
    let take = Take::from(key).rule(window()?.into());
    match mode {
        Mode::Exact => ask(store, &take, arguments, load).await,
        Mode::LocalReads => ask(LocalReads::new(store), &take, arguments, load).await,
    }
}

async fn ask(store: impl Store, take: &Take, arguments: &Arguments, load: f64) -> anyhow::Result<()> {
    let window = window()?;
    #[expect(clippy::cast_precision_loss, reason = "a hundred")]
    let passing = window.max_requests() as f64 / window.interval().as_secs_f64();
    let pause = f64::from(arguments.processes) / (passing * load);
    let mut random = fastrand::Rng::new();
    let (start, mut next) = (Instant::now(), 0.0);
    let mut seen = String::new();
    loop {
        // Requests of many clients arrive independently of each other.
        next -= pause * (1.0 - random.f64()).ln();
        if next > arguments.seconds {
            break;
        }
        tokio::time::sleep_until((start + Duration::from_secs_f64(next)).into()).await;
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map(|now| now.as_micros());
        let requested = now()?;
        let granted = store.take_one(take).await??.is_granted();
        writeln!(seen, "{requested} {} {granted}", now()?)?;
    }
    print!("{seen}");
    Ok(())
}
