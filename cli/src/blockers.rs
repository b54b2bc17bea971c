//! Sessions with open transactions that block other sessions.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Database, MySql, Pool, Postgres, Sqlite};
use tokio::time::timeout;

use crate::database::begin;
use crate::text::counted;

/// A session with an open transaction.
pub(crate) struct Blocker {
    id: i64,
    user: String,
    application: String,
    /// The age of the transaction in seconds, if this role can see it.
    open_for: Option<i64>,
}

/// Finds blocking sessions on an engine.
pub(crate) trait Blockers: Database {
    /// The statement that ends a session: the text before and after the session's id.
    const END_SESSION: [&'static str; 2];
    /// The privilege that shows all sessions.
    const REQUIRED_PRIVILEGE: &'static str;

    /// The sessions with a transaction that is older than a second and holds locks, oldest first. `None` if this role cannot see
    /// sessions.
    fn blockers(pool: &Pool<Self>) -> impl Future<Output = Result<Option<Vec<Blocker>>, sqlx::Error>> + Send;
}

type Columns = (i64, String, String, Option<i64>);

impl Blockers for Postgres {
    const END_SESSION: [&'static str; 2] = ["select pg_terminate_backend(", ")"];
    const REQUIRED_PRIVILEGE: &'static str = "pg_read_all_stats";

    async fn blockers(pool: &Pool<Self>) -> Result<Option<Vec<Blocker>>, sqlx::Error> {
        // A role sees the transaction start of its own sessions only. Skips sessions that wait for a lock themselves, because
        // the holder of that lock is the cause.
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
    const END_SESSION: [&'static str; 2] = ["kill ", ""];
    const REQUIRED_PRIVILEGE: &'static str = "PROCESS";

    async fn blockers(pool: &Pool<Self>) -> Result<Option<Vec<Blocker>>, sqlx::Error> {
        // `trx_started` is in the host's time zone, whatever the time zone of the session.
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

/// SQLite has no sessions, only processes.
impl Blockers for Sqlite {
    const END_SESSION: [&'static str; 2] = ["", ""];
    const REQUIRED_PRIVILEGE: &'static str = "";

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
    /// Describes the session and the age of its transaction.
    pub(crate) fn describe<DB: Blockers>(&self) -> String {
        let Self { id, user, application, open_for } = self;
        let application = if application.is_empty() { String::new() } else { format!(", {application}") };
        let open_for = match open_for {
            Some(seconds) => counted(*seconds, "second"),
            None => format!("a time visible only to a role with {}", DB::REQUIRED_PRIVILEGE),
        };
        format!("session {id} ({user}{application}) has held locks in an open transaction for {open_for}")
    }

    pub(crate) fn end_statement<DB: Blockers>(&self) -> String {
        let [before, after] = DB::END_SESSION;
        format!("`{before}{}{after}`", self.id)
    }
}

/// The blocking sessions, or `None` if the database does not answer. The inner `None`: this role cannot see sessions.
pub(crate) async fn find<DB: Blockers>(pool: &Pool<DB>) -> Option<Option<Vec<Blocker>>> {
    timeout(LOCK_TIMEOUT, DB::blockers(pool)).await.ok()?.ok()
}

/// A hint that names the blocking sessions and the statement that ends each. Empty if they are unknown.
pub(crate) async fn hint<DB: Blockers>(pool: &Pool<DB>) -> String {
    match find(pool).await {
        Some(Some(blockers)) => {
            let sentence = |blocker: &Blocker| {
                format!("{}; {} ends it; ", blocker.describe::<DB>(), blocker.end_statement::<DB>())
            };
            blockers.iter().map(sentence).collect()
        }
        Some(None) => format!(
            "an administrator, whose account has {0}, sees whose lock it was by `tollgate doctor`, or lets this account see \
             it: `grant {0} on *.* to ACCOUNT`; ",
            DB::REQUIRED_PRIVILEGE
        ),
        None => String::new(),
    }
}

fn is_denied(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    error.is_some_and(|error| error.number() == ACCESS_DENIED)
}

/// MySQL's error for a missing global privilege.
const ACCESS_DENIED: u16 = 1227;

const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
