//! Observability for operators: metrics, as a Prometheus server scrapes them, and events.

mod durability;
mod operations;
mod outage;
mod sources;
mod urls;

use std::path::PathBuf;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tollgate::middleware::{MiddlewareEvent, MiddlewareHooks};
use tollgate::{
    Adjusted, Adjustment, Error, Fallback, Limit, Limiter, MemoryStore, Mode, Rule, SqliteStore, Take, TakeError,
    Throttle,
    admin::SweepResult,
    layers::Lease,
    model::Outcome,
    store::{Maintenance, MaintenanceFuture, TestStore},
};

use tollgate_tests::logged;
use tollgate_tests::recorded::{recorder, value};

#[tokio::test]
async fn decisions_are_counted_by_outcome_source_and_mode() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let limiter = Limiter::builder(MemoryStore::new()).name("api").build("2/h")?;
    for _ in 0..3 {
        let _ = limiter.allow("a").await?;
    }
    let invalid = limiter.allow_n("a", 0).await;
    assert!(matches!(invalid, Err(Error::Take(TakeError::ZeroCost))));
    limiter.set_mode(Mode::Shadow);
    assert!(limiter.allow("a").await?.is_granted());
    limiter.set_mode(Mode::Block);
    assert!(!limiter.wait("b").await?.is_granted());

    let count = |outcome, source, mode| {
        let labels = [("limiter", "api"), ("outcome", outcome), ("source", source), ("mode", mode)];
        value(&handle, "tollgate_decisions_total", &labels)
    };
    assert_eq!(count("granted", "memory", "enforce"), Some(2.0));
    assert_eq!(count("denied", "memory", "enforce"), Some(1.0));
    assert_eq!(count("granted", "memory", "shadow"), Some(1.0));
    assert_eq!(count("denied", "limiter", "block"), Some(1.0));
    limiter.set_mode(Mode::Enforce);
    limiter.set_rule(Rule::Plan("none such".try_into()?))?;
    assert!(limiter.allow("c").await.is_err());
    assert_eq!(count("error", "memory", "enforce"), Some(2.0));
    for error in ["invalid_request", "not_set_up"] {
        let errors = [("limiter", "api"), ("error", error)];
        assert_eq!(value(&handle, "tollgate_errors_total", &errors), Some(1.0), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn store_calls_are_timed_and_requests_and_retries_counted() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let database = Database::new().await?;
    let limiter = Limiter::new(database.store(), "100/h")?;
    let decisions = tokio::join!(limiter.allow("a"), limiter.allow("a"), limiter.allow("a"), limiter.allow("a"));
    assert!(decisions.0?.is_granted() && decisions.1?.is_granted() && decisions.2?.is_granted());

    // Another connection writes in the meantime.
    let writes = database.lock_for_writing().await?;
    let retried = || value(&handle, "tollgate_store_retries_total", &[("code", "5")]);
    let request = async { limiter.allow("a").await };
    let (waited, granted) = tokio::join!(release(writes, || retried().is_some()), request);
    waited?;
    assert!(granted?.is_granted() && retried() >= Some(1.0));

    let take = [("engine", "sqlite"), ("call", "take")];
    let calls = value(&handle, "tollgate_store_call_duration_seconds_count", &take).expect("calls are timed");
    let requests = value(&handle, "tollgate_store_call_requests_sum", &take);
    assert!(calls < 5.0 && requests == Some(5.0), "{requests:?} requests in {calls} calls");
    let timed = value(&handle, "tollgate_decision_duration_seconds_count", &[("source", "store")]);
    assert_eq!(timed, Some(5.0));
    Ok(())
}

#[tokio::test]
async fn requests_behind_a_blocked_call_are_the_queue_length() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let database = Database::new().await?;
    let limiter = Limiter::new(database.store(), "100/h")?;
    let queued = || value(&handle, "tollgate_queue_length", &[]).unwrap_or(0.0);

    let writes = database.lock_for_writing().await?;
    let retried = || value(&handle, "tollgate_store_retries_total", &[]).is_some();
    let late = async {
        while !retried() {
            tokio::task::yield_now().await;
        }
        assert!(queued() < 1.0, "a request whose call is in flight does not wait for one");
        tokio::join!(limiter.allow("a"), limiter.allow("a"), limiter.allow("a"))
    };
    // The first request's call is in flight, so the others cannot join it.
    let (released, first, late) = tokio::join!(release(writes, || queued() >= 3.0), limiter.allow("a"), late);
    released?;
    assert!(first?.is_granted() && late.0?.is_granted() && late.1?.is_granted() && late.2?.is_granted());
    assert_eq!(value(&handle, "tollgate_queue_length", &[]), Some(0.0));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn gauges_show_leased_tokens_and_waiters_while_they_last() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let limiter = Limiter::new(Lease::new(MemoryStore::new()), "1000000 once")?;
    let leased = || value(&handle, "tollgate_leased_tokens", &[]).unwrap_or(0.0);
    for number in 0..100_000 {
        assert!(limiter.allow("busy").await?.is_granted());
        // The gauge is updated at intervals.
        let pause = u64::from(number % 1000 == 999);
        tokio::time::advance(Duration::from_secs(pause)).await;
        if leased() > 0.0 {
            break;
        }
    }
    assert!(leased() > 0.0);
    limiter.store().close().await?;
    assert!(leased() <= 0.0, "nothing is left");

    let slow = Limiter::new(MemoryStore::new(), "1/s")?;
    let waiters = || value(&handle, "tollgate_waiters", &[]).unwrap_or(0.0);
    assert!(slow.wait("a").await?.is_granted());
    let (waited, most) = tokio::join!(slow.wait("a"), async {
        tokio::task::yield_now().await;
        waiters()
    });
    assert!(waited?.is_granted());
    assert_eq!((most, waiters()), (1.0, 0.0));
    Ok(())
}

#[tokio::test]
async fn fallback_is_counted_by_error_and_logged_once() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let broken =
        Limiter::builder(Broken).name("api").deadline(Duration::from_secs(1)).fallback(Fallback::Open).build("1/h")?;
    for _ in 0..3 {
        assert!(broken.allow("a").await?.is_granted());
    }
    let labels = [("limiter", "api"), ("error", "other")];
    assert_eq!(value(&handle, "tollgate_fallbacks_total", &labels), Some(3.0));
    assert_eq!(value(&handle, "tollgate_decisions_total", &[("source", "fallback")]), Some(3.0));
    let (text, warning) =
        (logged::text(), "WARN tollgate: the store does not answer: the fallback does limiter=\"api\"");
    assert_eq!(text.matches(warning).count(), 1, "{text}");
    Ok(())
}

#[tokio::test]
async fn throttles_are_counted_and_logged_without_keys() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let limiter = Limiter::builder(MemoryStore::new()).name("calls").build("100 once")?;
    assert!(limiter.throttle("secret.example", Throttle::remaining(3)).await?);
    assert!(!limiter.throttle("secret.example", Throttle::remaining(3)).await?);
    assert!(
        limiter
            .throttle_limit(&Limit::new("secret.example".try_into()?, "unlimited".try_into()?), Throttle::remaining(3))
            .await
            .is_err()
    );
    let minute = Throttle::retry_after(Duration::from_mins(1));
    assert!(limiter.throttle_limit(&Limit::new("other.example".try_into()?, "100/h".try_into()?), minute).await?);
    let never_refills = limiter.throttle("secret.example", minute.and(Throttle::remaining(3))).await;
    assert!(!never_refills?, "it is throttled to what is left, which is no news");
    let emptied = limiter.throttle("secret.example", minute.and(Throttle::remaining(2))).await;
    assert!(emptied?, "that is");
    for (outcome, count) in [("lowered", 3.0), ("unchanged", 2.0), ("error", 1.0)] {
        let labels = [("limiter", "calls"), ("outcome", outcome)];
        assert_eq!(value(&handle, "tollgate_throttles_total", &labels), Some(count), "{outcome}");
    }
    let text = logged::text();
    for line in [
        "DEBUG tollgate: throttled limiter=\"calls\" left=3 seconds=0.0",
        "DEBUG tollgate: throttled limiter=\"calls\" left=2 seconds=0.0",
        "INFO tollgate: throttled limiter=\"calls\" seconds=60.0",
        "WARN tollgate: could not throttle limiter=\"calls\" left=3 seconds=0.0 error=\"invalid_request\"",
    ] {
        assert_eq!(text.matches(line).count(), 1, "{line} in {text}");
    }
    assert!(!text.contains(".example"), "{text}");
    Ok(())
}

#[tokio::test]
async fn sweep_and_migrations_are_logged() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let database = Database::new().await?;
    let text = logged::text();
    assert!(text.contains("migrated engine=\"sqlite\" version=1 name=\"0001_tables\""), "{text}");
    sqlx::query("insert into token_migrations (version, name) values (999, 'later')").execute(&database.pool).await?;
    tollgate::migrate(&database.pool).await?;
    let (text, newer) =
        (logged::text(), "a newer version has migrated: nothing is pending engine=\"sqlite\" version=999");
    assert!(text.contains(newer), "{text}");

    let limiter = Limiter::new(MemoryStore::new(), "1000000/s")?;
    while value(&handle, "tollgate_sweeps_total", &[("outcome", "ok")]).is_none() {
        for _ in 0..1024 {
            let _ = limiter.allow("a").await?;
        }
        tokio::task::yield_now().await;
    }
    assert!(value(&handle, "tollgate_swept_total", &[]).is_some());
    Ok(())
}

#[tokio::test]
async fn keys_are_logged_only_on_request() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let database = Database::new().await?;
    let key = "203.0.113.7";
    let log_with_denials = async |traced: bool| {
        let builder = Limiter::builder(database.store()).deadline(Duration::from_secs(5)).fallback(Fallback::Open);
        let limiter = if traced { builder.trace_keys() } else { builder }.build("1 once")?;
        for cost in [1, 1, 1, 0, 5] {
            drop(limiter.allow_n(key, cost).await);
        }
        anyhow::Ok(logged::text())
    };
    let silent = log_with_denials(false).await?;
    assert!(silent.contains("tollgate.store_call") && silent.contains("outcome=\"denied\""), "{silent}");
    assert!(!silent.contains(key), "{silent}");
    assert!(log_with_denials(true).await?.contains(&format!("key=\"{key}\"")));
    assert!(!handle.render().contains(key));
    Ok(())
}

/// A store's own error message can contain a key.
#[tokio::test]
async fn fallback_reason_is_logged_without_keys() -> anyhow::Result<()> {
    logged::listen();
    let log_of = async |traced: bool| {
        let builder = Limiter::builder(Broken).deadline(Duration::from_secs(1)).fallback(Fallback::Open);
        let limiter = if traced { builder.trace_keys() } else { builder }.build("1/h")?;
        assert!(limiter.allow("a").await?.is_granted());
        anyhow::Ok(logged::text())
    };
    let silent = log_of(false).await?;
    assert!(silent.contains("the store does not answer") && !silent.contains("broken"), "{silent}");
    let traced = log_of(true).await?;
    assert!(traced.contains("cause=\"broken\""), "{traced}");
    Ok(())
}

/// The database's message can contain a key, too. The error code cannot, and the database's manual explains it.
#[tokio::test]
async fn database_error_is_logged_with_its_code() -> anyhow::Result<()> {
    logged::listen();
    let database = Database::new().await?;
    let refuse = "create trigger refuse before insert on token_buckets begin select raise(abort, 'no a'); end";
    sqlx::raw_sql(refuse).execute(&database.pool).await?;
    let limiter = Limiter::new(database.store(), "1/h")?;
    assert!(matches!(limiter.allow("a").await, Err(Error::Database(_))));
    let text = logged::text();
    assert!(text.contains("error=\"refused\" code=\"1811\"") && !text.contains("no a"), "{text}");
    Ok(())
}

/// `mode_from_the_environment_is_logged` runs this test in a process with its own environment.
#[test]
fn a_limiter_is_built() -> anyhow::Result<()> {
    logged::listen();
    let _chosen = Limiter::builder(MemoryStore::new()).name("chosen").mode(Mode::Off).build("1/h")?;
    let _limiter = Limiter::builder(MemoryStore::new()).name("api").build("1/h")?;
    println!("{}", logged::text());
    Ok(())
}

#[test]
fn mode_from_the_environment_is_logged() -> anyhow::Result<()> {
    let log_in = |mode: &str| {
        let mut program = std::process::Command::new(std::env::current_exe()?);
        let program = program.args(["--exact", "a_limiter_is_built", "--nocapture"]).env("TOLLGATE_MODE", mode);
        anyhow::Ok(String::from_utf8(program.output()?.stdout)?)
    };
    let off = log_in("off")?;
    assert!(off.contains("switched by TOLLGATE_MODE limiter=\"api\" mode=\"off\""), "{off}");
    assert!(!off.contains("chosen") && !log_in("enforce")?.contains("switched"), "{off}");
    Ok(())
}

/// Makes the crate emit each of its metrics.
async fn exercise(handle: &PrometheusHandle) -> anyhow::Result<()> {
    let database = Database::new().await?;
    let limiter = Limiter::new(database.store(), "1 once")?;
    let writes = database.lock_for_writing().await?;
    let retried = || value(handle, "tollgate_store_retries_total", &[]).is_some();
    // The second request for a bucket cannot join the first one's call, which is in flight.
    let (waited, waits, first, second) =
        tokio::join!(release(writes, retried), limiter.wait("a"), limiter.allow("b"), limiter.allow("b"));
    waited?;
    assert!(waits?.is_granted() && first?.is_granted() && !second?.is_granted());
    let _ = (limiter.allow("a").await?, limiter.allow_n("a", 0).await.is_err());
    let broken = Limiter::builder(Broken).deadline(Duration::from_secs(1)).fallback(Fallback::Open).build("1/h")?;
    let failing = Limiter::new(Broken, "1/h")?;
    while value(handle, "tollgate_sweeps_total", &[("outcome", "error")]).is_none() {
        for _ in 0..256 {
            // Fallback decisions write no rows.
            let _ = (broken.allow("a").await?, failing.allow("a").await.is_err());
        }
        tokio::task::yield_now().await;
    }
    assert!(
        limiter.throttle("c", Throttle::remaining(0)).await? && !limiter.throttle("c", Throttle::remaining(0)).await?
    );
    assert!(failing.throttle("c", Throttle::remaining(0)).await.is_err());
    let lease = Limiter::new(Lease::new(MemoryStore::new()), "1000000 once")?;
    let shown = |name| value(handle, name, &[]).is_some();
    while !shown("tollgate_leased_tokens") || !shown("tollgate_swept_total") {
        for _ in 0..256 {
            let _ = lease.allow("a").await?;
        }
        tokio::task::yield_now().await;
    }
    lease.store().close().await?;
    limiter.record(MiddlewareEvent::RefusedWithoutKey { status: 400, reason: None });
    limiter.record(MiddlewareEvent::RefundFailed(&Error::DeadlineExceeded(Duration::from_secs(1))));
    Ok(())
}

/// Ends the other writer's transaction once `noticed` returns true.
async fn release(writes: sqlx::Transaction<'_, sqlx::Sqlite>, noticed: impl Fn() -> bool) -> anyhow::Result<()> {
    for _ in 0..5000 {
        if noticed() {
            return Ok(writes.rollback().await?);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    anyhow::bail!("nobody noticed the other writer")
}

/// A database that is removed at the end of the test.
struct Database {
    directory: PathBuf,
    pool: SqlitePool,
}

impl Database {
    async fn new() -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("tollgate-seeing-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&directory)?;
        // SQLite itself never waits for a lock.
        let options = SqliteConnectOptions::new().filename(directory.join("buckets.db")).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(Duration::ZERO);
        let pool = SqlitePoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .max_connections(3)
            .connect_with(options)
            .await?;
        // Opens all connections before the first write.
        drop((pool.acquire().await?, pool.acquire().await?, pool.acquire().await?));
        let database = Self { directory, pool };
        tollgate::migrate(&database.pool).await?;
        Ok(database)
    }

    fn store(&self) -> SqliteStore {
        SqliteStore::from(self.pool.clone()).max_attempts(u32::MAX)
    }

    /// Blocks other writers until the transaction ends.
    async fn lock_for_writing(&self) -> anyhow::Result<sqlx::Transaction<'static, sqlx::Sqlite>> {
        Ok(self.pool.begin_with("begin immediate").await?)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// A store that fails at once.
struct Broken;

impl TestStore for Broken {
    async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        Err(Error::other(std::io::Error::other("broken")))
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Err(Error::other(std::io::Error::other("broken")))
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }
}

impl Maintenance for Broken {
    fn sweep(&self, _: u32) -> MaintenanceFuture<'_, SweepResult> {
        Box::pin(async { Err(Error::other(std::io::Error::other("broken"))) })
    }
}
