use std::process::ExitCode;
use std::time::{Duration, Instant};

use sqlx::{Connection, Pool};
use tollgate::{
    Admin, Error, Key, Mode, Receipt, Rule, SqlStore, Take, Window,
    admin::Filter,
    store::{Migrate, Migration, adjust_within, migrations, pending_migrations, take_within},
};
use uuid::Uuid;

use crate::lock_timeout::with_lock_timeout;
use crate::output::{progress, width_to_fit};
use crate::text::counted;
use crate::{blockers, clock, exit, failure, migrate, modes, paging};

mod citus;
mod clocks;
mod documented_grants;
mod encryption;
mod examine;
mod mysql;
mod orphans;
mod postgres;
mod report;
mod settings;
mod sqlite;

pub(crate) use examine::Examine;
pub(crate) use orphans::{OrphanedBuckets, recreate_command};
pub(crate) use report::{DoctorJson, DoctorReport};

/// Check connection, schema, grants, clock, durability and settings, make a service's calls, and say what to do
///
/// Changes nothing: what the calls take is rolled back.
#[derive(clap::Args)]
#[command(after_help = "Exit code 1 if a check failed; warnings alone are 0.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print each finding on one line, even if it does not fit the terminal
    #[arg(long, conflicts_with = "json")]
    wide: bool,
}

impl Args {
    pub(crate) async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        let mut report = DoctorReport::default();
        let pool = store.pool();
        let bar = progress("checking");
        if let Err(error) = with_lock_timeout(connection(pool, &mut report)).await {
            bar.finish_and_clear();
            return self.unreachable(&error);
        }
        let is_migrated = schema(pool, &mut report).await;
        match with_lock_timeout(DB::examine(pool, &mut report)).await {
            Ok(()) => {}
            Err(error) if error.is::<exit::CliError>() => report.failed("checks", &error, ""),
            Err(error) => report.warn(
                "checks",
                format!("some were not made: {}", failure::chain(&error)),
                "repeat it as the owner of the schema",
            ),
        }
        locks(pool, &mut report).await;
        bar.finish_and_clear();
        if is_migrated {
            mode(store, &mut report).await;
            // Only operators may look.
            let _ = with_lock_timeout(DB::content(pool, &mut report)).await;
            rows(store, &mut report).await;
            if !report.has_failed() {
                calls(pool, &mut report).await;
            }
        }
        if is_migrated && !report.has_failed() {
            match OrphanedBuckets::find(pool, None).await {
                Ok(count_orphans) => count_orphans.report_to(&mut report),
                Err(error) if error.is::<exit::CliError>() => report.failed("plans", &error, ""),
                // Only operators may look, here too.
                Err(_) => {}
            }
        }
        report.say(self.json, width_to_fit(self.wide))?;
        Ok(ExitCode::from(if report.has_failed() { exit::CHECK_FAILED } else { 0 }))
    }

    /// There was no connection: a report of one failure.
    pub(crate) fn unreachable(&self, error: &anyhow::Error) -> anyhow::Result<ExitCode> {
        let mut report = DoctorReport::default();
        let hint = error.downcast_ref::<exit::CliError>().map_or("", |refusal| &refusal.hint);
        report.fail("connection", error.to_string(), hint);
        report.say(self.json, width_to_fit(self.wide))?;
        Ok(ExitCode::from(error.downcast_ref::<exit::CliError>().map_or(exit::DATABASE, |refusal| refusal.code)))
    }
}

async fn connection<DB: sqlx::Database>(pool: &Pool<DB>, report: &mut DoctorReport) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        connection.ping().await?;
        shortest = shortest.min(start.elapsed());
    }
    let found = format!("a round trip takes {shortest:.1?}");
    if shortest > MAX_ROUND_TRIP {
        report.warn("connection", found, "each decision takes one: move the service and its database closer together");
    } else {
        report.ok("connection", found);
    }
    Ok(())
}

/// The tables that hold rows which cannot be read, of the first rows of each, where the role may look at them.
async fn rows(store: &impl Admin, report: &mut DoctorReport) {
    let mode = store.mode().await;
    let unreadable = [
        ("token_mode", paging::readable(mode).map(|mode| u64::from(mode.is_none()))),
        ("token_buckets", store.list(&Filter::default(), None, ROWS_CHECKED).await.map(|page| page.unreadable())),
        ("token_windows", store.windows(None, None, ROWS_CHECKED).await.map(|page| page.unreadable())),
        ("token_plans", store.plans(None, ROWS_CHECKED).await.map(|page| page.unreadable())),
        ("token_overrides", store.overrides(None, ROWS_CHECKED).await.map(|page| page.unreadable())),
        ("token_stats", store.most_denied(ROWS_CHECKED).await.map(|page| page.unreadable())),
    ];
    for (table, rows) in unreadable {
        if let Ok(rows @ 1..) = rows {
            let found = format!("{} of {table} cannot be read: a value breaks its bounds", counted(rows, "row"));
            let advice = "replace a mode, plan or override with `tollgate mode`, `plan set` or `plan override`; delete other \
                          rows, or set them to values that the table's constraints allow";
            report.warn("rows", found, advice);
        }
    }
}

/// Whether everything is there.
async fn schema<DB: Migrate + Examine>(pool: &Pool<DB>, report: &mut DoctorReport) -> bool {
    let pending = with_lock_timeout(pending_migrations(pool)).await;
    match pending.map_err(anyhow::Error::downcast) {
        Ok(pending) if pending.is_empty() => match with_lock_timeout(migrate::version(pool)).await {
            Ok(version) => {
                report.ok("schema", version);
                return true;
            }
            Err(error) => report.failed("schema", &error, LOG),
        },
        Ok(pending) if pending.len() == migrations::<DB>().len() => {
            report.fail("schema", "not there", "make it: `tollgate migrate`");
        }
        Ok(pending) => {
            let first = pending.first().map_or("", Migration::name);
            let pending = counted(pending.len(), "migration");
            let advice = "run `tollgate migrate`, or your tool with the files of `tollgate migrate --print`; after a restore \
                          that left out routines, `tollgate migrate`";
            report.fail("schema", format!("pending: {pending}, {first} first"), advice);
        }
        Err(Ok(Error::NewerSchema { found, known })) => report.fail(
            "schema",
            format!("version {found} lacks objects that this CLI, made for version {known}, needs"),
            exit::UPDATE_HINT,
        ),
        Err(Ok(Error::NotPermitted(cause))) if failure::is_sqlite(&*cause) => {
            report.fail("schema", failure::sql_message(&*cause), exit::READ_ONLY_HINT);
        }
        Err(Ok(error)) => refused::<DB>("schema", pool, &error.into(), report).await,
        Err(Err(error)) => report.failed("schema", &error, LOG),
    }
    false
}

/// Makes the calls of a service, which may fail though every grant is there.
async fn calls<DB: Migrate + Examine>(pool: &Pool<DB>, report: &mut DoctorReport) {
    match with_lock_timeout(take(pool)).await {
        Ok(()) => report.ok("calls", "tokens are taken and given back; all of it was rolled back"),
        Err(error) => refused::<DB>("calls", pool, &error, report).await,
    }
}

/// Takes tokens of each kind of limit, gives some back, and rolls all of it back.
pub(crate) async fn take<DB: Migrate>(pool: &Pool<DB>) -> anyhow::Result<()> {
    let id = Uuid::new_v4();
    let key = |name: &str| Key::try_from(format!("tollgate-doctor/{id}/{name}"));
    let rule = || Rule::try_from("2/h");
    let window = Window::new(1, Duration::from_secs(3600), Duration::from_secs(60))?;
    let mut transaction = pool.begin().await?;
    for take in [
        Take::from(key("a")?).rule(rule()?).id(id, Duration::from_secs(60)),
        Take::from(key("a")?).rule(rule()?).and(key("b")?, rule()?),
        Take::from(key("w")?).rule(window.into()),
    ] {
        let _ = take_within(&mut *transaction, &take).await?;
    }
    // Ignores the answers, because the mode `off` leaves no bucket.
    let _ = adjust_within(&mut *transaction, &Receipt::new(id, key("a")?, 1).refund(1)).await?;
    Ok(transaction.rollback().await?)
}

/// A failure in the database's own words, with what mends it.
async fn refused<DB: Examine>(name: &'static str, pool: &Pool<DB>, error: &anyhow::Error, report: &mut DoctorReport) {
    let Some(cause) = failure::sql_error(error).and_then(sqlx::Error::as_database_error) else {
        return report.failed(name, error, LOG);
    };
    let is_not_permitted = matches!(failure::library_error(error), Some(Error::NotPermitted(_)));
    let advice = match with_lock_timeout(DB::remedy(pool, cause)).await.ok().flatten() {
        Some(remedy) => remedy,
        None if is_not_permitted => exit::GRANT_HINT.to_owned(),
        None if failure::is_lock_wait(error) => blockers::hint(pool).await + "then repeat it",
        None => LOG.to_owned(),
    };
    report.fail(name, cause.message(), advice);
}

/// Reports a mode that admits or denies every request.
async fn mode<DB: Migrate + Examine>(store: &SqlStore<DB>, report: &mut DoctorReport) {
    let Ok(now) = clock::now(store.pool()).await else { return };
    match store.mode().await {
        Ok(setting) if setting.mode == Mode::Enforce || modes::has_ended(&setting, now) => report.ok("mode", "enforce"),
        Ok(setting) => {
            report.warn(
                "mode",
                modes::describe(&setting, "enforce", now),
                "back to the tokens: `tollgate mode --clear --all`",
            );
        }
        // Only operators may look.
        Err(_) => {}
    }
}

/// Reports the sessions that block others now.
async fn locks<DB: Examine>(pool: &Pool<DB>, report: &mut DoctorReport) {
    let Some(sessions) = blockers::find(pool).await else { return };
    if sessions.is_none() {
        let privilege = DB::REQUIRED_PRIVILEGE;
        report
            .ok("locks", format!("this account cannot see who holds locks, without `grant {privilege} on *.* to` it"));
    }
    for blocker in sessions.unwrap_or_default() {
        report.warn(
            "locks",
            blocker.describe::<DB>(),
            format!("end the session to release its locks: {}", blocker.end_statement::<DB>()),
        );
    }
}

const LOG: &str = "see the server's log";

/// More than within one region.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(10);

/// Few enough to be read within a second or so.
const ROWS_CHECKED: u32 = 10_000;
