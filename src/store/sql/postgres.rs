//! Connections, timeouts and error classes of PostgreSQL and YugabyteDB.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError, PgSeverity, Postgres};
use sqlx::{Connection, SqlStr};

use super::connect::{ipv6_address, require_one_host};
use super::dialect::{Dialect, Engine};
use super::retry::ErrorClass;
use super::settings::{Durability, Isolation};
use super::store::SqlStore;
use crate::model::Quota;
use crate::telemetry;

/// The first argument of a routine. Before the call, bounds the session's timeout of locks until the transaction ends.
macro_rules! locking {
    ($argument:literal, $timeout:literal) => {
        concat!(
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
            " end"
        )
    };
}

mod adjust;
mod admin;
mod key_filter;
mod take;

/// Buckets in PostgreSQL or YugabyteDB, at the server's clock.
pub type PgStore = SqlStore<Postgres>;

/// The longest `lock_timeout` of a call. Default: the session's.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Debug, Default)]
pub struct LockTimeout(Option<String>);

impl LockTimeout {
    /// A little shorter than the caller's wait, so that the server does not queue for a lock after the caller has left.
    fn shorter_than(left: Duration) -> Self {
        Self(Some(format!("{}ms", (left.as_millis() * 8 / 10).clamp(1, MAX_TIMEOUT_MS))))
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

    fn with_time_left(_: &LockTimeout, left: Duration) -> LockTimeout {
        LockTimeout::shorter_than(left)
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
        .bind(LockTimeout::shorter_than(left).0)
        .bind(statement)
        .execute(connection)
        .await
        .map(drop)
    }
}

fn refill(quota: &Quota) -> &'static str {
    quota.refill().as_str()
}

/// The longest timeout that PostgreSQL accepts.
const MAX_TIMEOUT_MS: u128 = i32::MAX as u128;

/// Classifies an error of YugabyteDB's own: many of these share one code, and only their texts differ.
fn classify_yugabyte(message: &str) -> ErrorClass {
    const ROLLED_BACK: [&str; 7] = [
        "Restart read",
        "Try again",
        "kConflict",
        "expired or aborted",
        "aborted while waiting for locks",
        "schema version mismatch",
        "Catalog Version Mismatch",
    ];
    const UNKNOWN: [&str; 6] =
        ["Timed out", "Not the leader", "Leader", "Service unavailable", "Network error", "Remote error"];

    let says = |text: &&str| message.contains(*text);
    if ROLLED_BACK.iter().any(says) {
        ErrorClass::RolledBack
    } else if UNKNOWN.iter().any(says) {
        ErrorClass::Unknown
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
