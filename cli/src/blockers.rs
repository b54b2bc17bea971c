//! Sessions whose open transactions hold locks that others wait for.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Database, MySql, Pool, Postgres, Sqlite};
use tokio::time::timeout;

use crate::database::begin;
use crate::doctor::DoctorReport;
use crate::output::counted;

/// A session, by what the server calls it.
pub(crate) struct Blocker {
    id: i64,
    user: String,
    application: String,
    /// How long its transaction has been open, in seconds, if this role may know.
    open_for: Option<i64>,
}

/// What a server tells of its sessions.
pub(crate) trait Blockers: Database {
    /// What ends a session, before and after its number.
    const END: [&'static str; 2];
    /// What a role needs to see all of it.
    const NEEDS: &'static str;

    /// Those with a transaction that has been open for more than a second and holds locks, the oldest first; `None`: this role
    /// may not look.
    fn blockers(pool: &Pool<Self>) -> impl Future<Output = Result<Option<Vec<Blocker>>, sqlx::Error>> + Send;
}

type Columns = (i64, String, String, Option<i64>);

impl Blockers for Postgres {
    const END: [&'static str; 2] = ["select pg_terminate_backend(", ")"];
    const NEEDS: &'static str = "pg_read_all_stats";

    async fn blockers(pool: &Pool<Self>) -> Result<Option<Vec<Blocker>>, sqlx::Error> {
        // A role sees the start of its own sessions' transactions alone. Sessions that wait for a lock themselves
        // block no other session for longer than what they wait for.
        let sessions: Vec<Columns> = sqlx::query_as(
            "select a.pid::bigint, coalesce(a.usename::text, '?'), coalesce(a.application_name, ''),
                    extract(epoch from clock_timestamp() - a.xact_start)::bigint
               from pg_stat_activity a
              where a.pid <> pg_backend_pid()
                and a.xact_start is distinct from greatest(a.xact_start, clock_timestamp() - interval '1 second')
                and exists (select from pg_locks l join pg_class c on c.oid = l.relation
                             where l.pid = a.pid and l.granted and l.mode not in ('AccessShareLock', 'SIReadLock')
                               and l.database = (select d.oid from pg_database d where d.datname = current_database())
                               and c.relnamespace = 'tollgate'::regnamespace)
                and not exists (select from pg_locks l where l.pid = a.pid and not l.granted)
              order by a.xact_start nulls last limit 5",
        )
        .fetch_all(&mut *begin(pool).await?)
        .await?;
        Ok(Some(sessions.into_iter().map(Blocker::from).collect()))
    }
}

impl Blockers for MySql {
    const END: [&'static str; 2] = ["kill ", ""];
    const NEEDS: &'static str = "PROCESS";

    async fn blockers(pool: &Pool<Self>) -> Result<Option<Vec<Blocker>>, sqlx::Error> {
        // Transactions begin by the host's clock, whatever time zone the session has.
        let sessions: Result<Vec<Columns>, _> = sqlx::query_as(
            "select cast(t.trx_mysql_thread_id as signed), coalesce(p.user, '?'), coalesce(p.db, ''),
                    cast(timestampdiff(second, t.trx_started, convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')) as signed)
               from information_schema.innodb_trx t
               left join information_schema.processlist p on p.id = t.trx_mysql_thread_id
              where t.trx_mysql_thread_id not in (0, connection_id()) and t.trx_rows_locked > 0
                and t.trx_state <> 'LOCK WAIT'
                and t.trx_started < convert_tz(utc_timestamp(), '+00:00', 'SYSTEM') - interval 1 second
              order by t.trx_started limit 5",
        )
        .fetch_all(pool)
        .await;
        match sessions {
            Err(error) if is_denied(&error) => Ok(None),
            sessions => Ok(Some(sessions?.into_iter().map(Blocker::from).collect())),
        }
    }
}

/// A file's sessions are its host's processes.
impl Blockers for Sqlite {
    const END: [&'static str; 2] = ["", ""];
    const NEEDS: &'static str = "";

    async fn blockers(_: &Pool<Self>) -> Result<Option<Vec<Blocker>>, sqlx::Error> {
        Ok(Some(Vec::new()))
    }
}

impl From<Columns> for Blocker {
    fn from((id, user, application, open_for): Columns) -> Self {
        Self { id, user, application, open_for }
    }
}

impl Blocker {
    /// Who it is, and for how long its transaction has been open.
    fn told<DB: Blockers>(&self) -> String {
        let Self { id, user, application, open_for } = self;
        let application = if application.is_empty() { String::new() } else { format!(", {application}") };
        let open_for = match open_for {
            Some(seconds) => counted(*seconds, "second"),
            None => format!("a time that only a role with {} sees", DB::NEEDS),
        };
        format!("session {id} ({user}{application}) has held locks in an open transaction for {open_for}")
    }

    fn end<DB: Blockers>(&self) -> String {
        let [before, after] = DB::END;
        format!("`{before}{}{after}`", self.id)
    }
}

/// Whose lock it was, and what ends that, for a hint; nothing if that cannot be told.
pub(crate) async fn hint<DB: Blockers>(pool: &Pool<DB>) -> String {
    match timeout(LOCK_TIMEOUT, DB::blockers(pool)).await {
        Ok(Ok(Some(blockers))) => {
            let told = |blocker: &Blocker| format!("{}; {} ends it; ", blocker.told::<DB>(), blocker.end::<DB>());
            blockers.iter().map(told).collect()
        }
        Ok(Ok(None)) => format!("an account with {} sees whose lock it was by `tollgate doctor`; ", DB::NEEDS),
        _ => String::new(),
    }
}

/// Those that hold up others now.
pub(crate) async fn examine<DB: Blockers>(pool: &Pool<DB>, report: &mut DoctorReport) {
    let Ok(Ok(Some(blockers))) = timeout(LOCK_TIMEOUT, DB::blockers(pool)).await else { return };
    for blocker in blockers {
        report.warn("locks", blocker.told::<DB>(), format!("what waits for it ends with it: {}", blocker.end::<DB>()));
    }
}

fn is_denied(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    error.is_some_and(|error| error.number() == ACCESS_DENIED)
}

/// The account lacks a global privilege.
const ACCESS_DENIED: u16 = 1227;

const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
