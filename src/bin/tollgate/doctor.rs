use std::process::ExitCode;
use std::time::{Duration, Instant};

use sqlx::{Connection, Pool};
use tollgate::{Admin, Error, Migrate, Mode, SqlStore, migrations, pending_migrations};

use crate::answer::within_patience;
use crate::output::{counted, progress};
use crate::{clock, exit, migrate, times};

mod clocks;
mod mysql;
mod planless;
mod postgres;
mod report;
mod settings;
mod sqlite;

pub(crate) use planless::{Planless, mending};
pub(crate) use report::Report;

/// Check connection, schema, grants, clock, durability and settings, and say what to do
///
/// Changes nothing.
#[derive(clap::Args)]
#[command(after_help = "Exit code 1 if a check failed; warnings alone are 0.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What there is to check on one engine.
pub(crate) trait Examine: sqlx::Database {
    fn examine(pool: &Pool<Self>, report: &mut Report) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Compares what follows from other rows, or must be there, with what is: a restore or a cleaner may have left it out.
    fn content(pool: &Pool<Self>, report: &mut Report) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The time by which what is set ends, in microseconds since 1970.
    fn now(pool: &Pool<Self>) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Of so many buckets at most, how many follow which plan that is not there; `None`: none, or one that is.
    fn planless(
        pool: &Pool<Self>,
        most: i64,
    ) -> impl Future<Output = Result<Vec<(Option<String>, i64)>, sqlx::Error>> + Send;
}

impl Args {
    pub(crate) async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        let mut report = Report::default();
        let pool = store.pool();
        let bar = progress("checking");
        if let Err(error) = within_patience(connection(pool, &mut report)).await {
            bar.finish_and_clear();
            return self.unreachable::<DB>(&error);
        }
        let is_migrated = schema(pool, &mut report).await;
        match within_patience(DB::examine(pool, &mut report)).await {
            Ok(()) => {}
            Err(error) if error.is::<exit::Refusal>() => report.failed("checks", &error, ""),
            Err(error) => report.warn(
                "checks",
                format!("not all could be made: {}", exit::chain(&error)),
                "repeat it as the owner of the schema",
            ),
        }
        bar.finish_and_clear();
        if is_migrated {
            mode(store, &mut report).await;
            // Only operators may look.
            let _ = within_patience(DB::content(pool, &mut report)).await;
            match Planless::find(pool).await {
                Ok(planless) => planless.tell(&mut report),
                Err(error) if error.is::<exit::Refusal>() => report.failed("plans", &error, ""),
                // Only operators may look, here too.
                Err(_) => {}
            }
        }
        report.say(self.json)?;
        Ok(ExitCode::from(if report.has_failed() { exit::CHECK_FAILED } else { 0 }))
    }

    /// There was no connection: a report of one failure.
    pub(crate) fn unreachable<DB: sqlx::Database>(&self, error: &anyhow::Error) -> anyhow::Result<ExitCode> {
        let mut report = Report::default();
        let hint = error.downcast_ref::<exit::Refusal>().map_or("", |refusal| &refusal.hint);
        report.fail("connection", format!("{}: {error}", DB::NAME), hint);
        report.say(self.json)?;
        Ok(ExitCode::from(error.downcast_ref::<exit::Refusal>().map_or(exit::DATABASE, |refusal| refusal.code)))
    }
}

async fn connection<DB: sqlx::Database>(pool: &Pool<DB>, report: &mut Report) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        connection.ping().await?;
        shortest = shortest.min(start.elapsed());
    }
    let found = format!("{}, a round trip takes {shortest:.1?}", DB::NAME);
    if shortest > FAR {
        report.warn("connection", found, "each decision takes one: move the service and its database closer together");
    } else {
        report.ok("connection", found);
    }
    Ok(())
}

/// Whether everything is there.
async fn schema<DB: Migrate>(pool: &Pool<DB>, report: &mut Report) -> bool {
    let pending = within_patience(pending_migrations(pool)).await;
    match pending.map_err(anyhow::Error::downcast) {
        Ok(pending) if pending.is_empty() => match within_patience(migrate::version(pool)).await {
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
            let pending = counted(pending.len(), "migration");
            let advice = "run `tollgate migrate`, or your tool with the files of `tollgate migrate --print`";
            report.fail("schema", format!("pending: {pending}"), advice);
        }
        Err(Ok(Error::NewerSchema { found, known })) => report.fail(
            "schema",
            format!("version {found}, which no longer has what this program, that knows {known}, needs"),
            exit::UPDATE,
        ),
        Err(Ok(Error::NotPermitted(cause))) if exit::is_file(&*cause) => {
            report.fail("schema", exit::words(&*cause), exit::READ_ONLY);
        }
        Err(Ok(Error::NotPermitted(_))) => {
            report.fail("schema", "this role may not look", exit::GRANT);
        }
        Err(Ok(error)) => report.failed("schema", &error.into(), LOG),
        Err(Err(error)) => report.failed("schema", &error, LOG),
    }
    false
}

/// What makes people wonder why nothing is limited, or why everything is denied.
async fn mode<DB: Migrate + Examine>(store: &SqlStore<DB>, report: &mut Report) {
    let Ok(now) = clock::now(store.pool()).await else { return };
    match store.mode().await {
        Ok(switch) if switch.mode == Mode::Enforce || times::is_over(&switch, now) => report.ok("mode", "enforce"),
        Ok(switch) => {
            report.warn("mode", times::switch(&switch, "enforce", now), "back to the tokens: `tollgate mode --clear`");
        }
        // Only operators may look.
        Err(_) => {}
    }
}

const LOG: &str = "see the server's log";

/// More than within one region.
const FAR: Duration = Duration::from_millis(10);
