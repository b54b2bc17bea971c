//! Connections, timeouts and error classes of PostgreSQL and YugabyteDB.

use std::borrow::Cow;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError, PgSeverity, Postgres};
use sqlx::{Connection, SqlStr};

use super::connect::{ipv6_address, require_one_host};
use super::dialect::{Dialect, Engine, MAX_TAKE_ALL};
use super::retry::ErrorClass;
use super::settings::{Durability, Isolation};
use super::store::SqlStore;
use crate::model::Quota;
use crate::store::Capabilities;
use crate::telemetry;

/// The text of a routine's call: `$before`, an argument, `$after`. Before the call, the argument bounds the session's timeout of
/// locks by the parameter `$timeout` until the transaction ends, unless the caller has none.
macro_rules! locking {
    ($lock_timeout:expr, $before:literal, $argument:literal, $timeout:literal, $after:literal) => {
        if $lock_timeout.text().is_none() {
            concat!($before, $argument, $after)
        } else {
            concat!(
                $before,
                "case when pg_catalog.set_config('lock_timeout', coalesce(
                case when pg_catalog.current_setting('lock_timeout') operator(pg_catalog.=) '0'
                       or ",
                $timeout,
                "::pg_catalog.text::interval
                          operator(pg_catalog.<) pg_catalog.current_setting('lock_timeout')::interval
                     then ",
                $timeout,
                "::pg_catalog.text end,
                pg_catalog.current_setting('lock_timeout')), true) is not null then ",
                $argument,
                " end",
                $after
            )
        }
    };
}

/// Binds the timeout of locks as the last parameter of a text of `locking`.
macro_rules! bind_timeout {
    ($query:expr, $lock_timeout:expr) => {{
        let query = $query;
        match $lock_timeout.text() {
            Some(timeout) => query.bind(timeout),
            None => query,
        }
    }};
}

mod adjust;
mod admin;
mod key_filter;
mod take;

/// Buckets in PostgreSQL or YugabyteDB, at the server's clock.
pub type PgStore = SqlStore<Postgres>;

/// How long a call waits for locks at most.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Debug, Default)]
pub enum LockTimeout {
    /// As long as the session waits.
    #[default]
    OfSession,
    /// As long as the session waits, or this text says.
    AtMost(String),
    /// As long as the routine waits, on another node of a distributed database. No argument of the call may be volatile.
    OfRoutine,
}

impl LockTimeout {
    fn text(&self) -> Option<&str> {
        if let Self::AtMost(text) = self { Some(text) } else { None }
    }
}

/// A little shorter than the caller's wait, so that the server does not queue for a lock after the caller has left.
fn shorter_than(left: Duration) -> String {
    format!("{}ms", (left.as_millis() * 8 / 10).clamp(1, MAX_TIMEOUT_MS))
}

impl SqlStore<Postgres> {
    /// Declares that Citus distributes the database over several nodes: see [`migrate_citus`](crate::store::migrate_citus).
    ///
    /// Each call is then for one key, and runs on the node that has the key. As many calls are in flight as the pool has
    /// connections, up to 64. Without this, calls are several times slower. If a node then ends while it commits, a call can
    /// return a grant that the node has lost.
    ///
    /// Set no [`isolation`](Self::isolation): each call is then in a transaction of its own, and Citus delegates none.
    /// Decisions are exact at every level.
    #[must_use]
    pub fn distributed(mut self) -> Self {
        self.context = LockTimeout::OfRoutine;
        self
    }
}

impl Dialect for Postgres {}

impl Engine for Postgres {
    const ONE_STATEMENT: bool = true;
    const HAS_SERVER: bool = true;
    const CONCURRENT_CALLS: usize = 2;

    fn begin(isolation: Isolation) -> Option<SqlStr> {
        Some(SqlStr::from_static(match isolation {
            Isolation::ReadCommitted => "begin isolation level read committed",
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
        }))
    }

    fn parse_url(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
        require_one_host(url)?;
        let (url, unknown) = without_unknown_parameters(url);
        if unknown > 0 {
            telemetry::ignored(unknown);
        }
        let Some(address) = ipv6_address(&url) else { return url.parse() };
        // In the URL, not on the parsed options: parsing already reads the password file.
        let (place, parameters) = url.split_once('?').unwrap_or((&url, ""));
        format!("{place}?hostaddr={address}&{parameters}").parse()
    }

    fn connect_options(url: &str, durability: Durability) -> Result<PgConnectOptions, sqlx::Error> {
        let commit = match durability {
            Durability::Asynchronous => "off",
            Durability::Synchronous => "on",
        };
        Ok(Self::parse_url(url)?.options([("synchronous_commit", commit)]))
    }

    fn classify(error: &dyn DatabaseError) -> ErrorClass {
        let code = error.code().unwrap_or_default();
        match &*code {
            "55P03" => ErrorClass::Locked,
            // serialization failure, deadlock, snapshot too old; a key inserted twice by tollgate; timeouts of a
            // statement and of a transaction
            "40001" | "40P01" | "72000" | "23505" | "57014" | "25P04" => ErrorClass::RolledBack,
            "26000" | "42P05" => ErrorClass::Unprepared,
            "0A000" if error.message().contains("cached plan") => ErrorClass::Unprepared,
            "42883" | "42P01" | "3F000" => ErrorClass::NotMigrated,
            "42501" => ErrorClass::NotPermitted,
            "25006" => ErrorClass::ReadOnly,
            "XX000" => classify_yugabyte(error.message()),
            "08006" if is_unconnected_node(error.message()) => ErrorClass::Unavailable,
            // insufficient resources, such as memory and disk
            code if code.starts_with("53") => ErrorClass::Unavailable,
            code if code.starts_with("08") || code.starts_with("57P") => ErrorClass::Unknown,
            _ => ErrorClass::Refused,
        }
    }

    fn is_fatal(error: &dyn DatabaseError) -> bool {
        let error = error.try_downcast_ref::<PgDatabaseError>();
        error.is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
    }

    /// The limit of the server, of the database, or of the role.
    fn is_full(error: &dyn DatabaseError) -> bool {
        error.code().as_deref() == Some("53300")
    }

    async fn clean_up(_: &mut PgConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }

    fn with_time_left(context: &LockTimeout, left: Duration) -> LockTimeout {
        match context {
            LockTimeout::OfRoutine => LockTimeout::OfRoutine,
            _ => LockTimeout::AtMost(shorter_than(left)),
        }
    }

    /// On a distributed database, a call for several keys would wait for several nodes, one after the other.
    fn capabilities(context: &LockTimeout, connections: usize) -> Capabilities {
        match context {
            LockTimeout::OfRoutine => Capabilities::default().max_keys(1).concurrent_calls(connections),
            _ => Capabilities::default().max_take_all(MAX_TAKE_ALL).concurrent_calls(Self::CONCURRENT_CALLS),
        }
    }

    /// Behind a pooler, the sessions are the pooler's.
    async fn is_call_running(connection: &mut PgConnection, age: Duration) -> Result<bool, sqlx::Error> {
        let mut transaction = connection.begin().await?;
        sqlx::query("set local search_path = pg_catalog, pg_temp").execute(&mut *transaction).await?;
        sqlx::query_scalar(
            "select exists (
               select from pg_stat_activity
                where usename = current_user and datname = current_database() and pid <> pg_backend_pid()
                  and state = 'active' and query like '%tollgate.%'
                  and query_start <= clock_timestamp() - make_interval(secs => $1))",
        )
        .bind(age.as_secs_f64())
        .fetch_one(&mut *transaction)
        .await
    }

    async fn set_timeouts(connection: &mut PgConnection, left: Duration) -> Result<(), sqlx::Error> {
        // A statement can wait for several locks, so it has a timeout of its own.
        let statement = (left.as_millis() * 9 / 10).clamp(1, MAX_TIMEOUT_MS).to_string();
        sqlx::query(
            "select pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true)",
        )
        .bind(shorter_than(left))
        .bind(statement)
        .execute(connection)
        .await
        .map(drop)
    }
}

fn refill(quota: &Quota) -> Cow<'static, str> {
    quota.refill().column()
}

/// Whether a node of Citus could not connect to another one, so that the other one had no request.
fn is_unconnected_node(message: &str) -> bool {
    // Not "No route to host" and "timeout expired": an open connection can end with them, too.
    const REFUSED: [&str; 4] =
        ["Connection refused", "could not translate host name", "the database system is", "too many clients"];
    message.contains("could not establish any connections")
        || message.contains("connection to the remote node") && REFUSED.iter().any(|text| message.contains(text))
}

/// The longest timeout that PostgreSQL accepts.
const MAX_TIMEOUT_MS: u128 = i32::MAX as u128;

/// Classifies an error of YugabyteDB's own: many of these share one code, and only their texts differ.
fn classify_yugabyte(message: &str) -> ErrorClass {
    const ROLLED_BACK: [&str; 7] = [
        "restart read",
        "try again",
        "kconflict",
        "expired or aborted",
        "aborted while waiting for locks",
        "schema version mismatch",
        "catalog version mismatch",
    ];
    const UNKNOWN: [&str; 5] = ["timed out", "leader", "service unavailable", "network error", "remote error"];

    let message = message.to_lowercase();
    let says = |text: &&str| message.contains(*text);
    if UNKNOWN.iter().any(says) {
        ErrorClass::Unknown
    } else if ROLLED_BACK.iter().any(says) {
        ErrorClass::RolledBack
    } else {
        ErrorClass::Refused
    }
}

/// The URL without the parameters that the driver does not know, and how many those are: the driver would log them with
/// their values.
fn without_unknown_parameters(url: &str) -> (String, usize) {
    let Some((address, query)) = url.split_once('?') else { return (url.to_owned(), 0) };
    let (known, unknown): (Vec<_>, Vec<_>) = query.split('&').filter(|pair| !pair.is_empty()).partition(|pair| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        // Of a known name, only brackets need encoding.
        KNOWN_PARAMETERS.contains(&name)
            || ["options[", "options%5B", "options%5b"].iter().any(|start| name.starts_with(start))
    });
    (format!("{address}?{}", known.join("&")), unknown.len())
}

/// The parameters that sqlx 0.9 knows. None of these names needs encoding.
const KNOWN_PARAMETERS: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_without_a_connection_had_no_request() {
        let reported = |text: &str| {
            format!("connection to the remote node app@node2:5432 failed with the following error: {text}")
        };
        assert!(is_unconnected_node(&reported("Connection refused")));
        assert!(is_unconnected_node(&reported("FATAL:  the database system is starting up")));
        assert!(is_unconnected_node("could not establish any connections to the node node2:5432 after 30000 ms"));
        assert!(!is_unconnected_node(&reported("server closed the connection unexpectedly")));
        assert!(!is_unconnected_node("Connection refused"));
    }

    #[test]
    fn known_parameters_are_kept_as_they_are() {
        let known: Vec<_> = KNOWN_PARAMETERS.iter().map(|name| format!("{name}=x%26y")).collect();
        for query in [known.join("&"), "options[a]=1&options%5Bb%5D=2".to_owned(), String::new()] {
            let url = format!("postgres://app:a%3Fb@db/app?{query}");
            assert_eq!(without_unknown_parameters(&url), (url.clone(), 0));
        }
        let (url, unknown) =
            without_unknown_parameters("postgres://db/app?a=1&sslmode=require&SSLMODE=x&b&pass%77ord=x");
        assert_eq!((url.as_str(), unknown), ("postgres://db/app?sslmode=require", 4));
        assert_eq!(without_unknown_parameters("postgres://db/app"), ("postgres://db/app".to_owned(), 0));
    }
}
