use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::error::DatabaseError;
use sqlx::sqlite::{Sqlite, SqliteConnection};
use sqlx::{Connection, SqlStr, SqlitePool};

use self::row::Row;
use super::dialect::{Answer, Ask, Dialect};
use super::isolation::Isolation;
use super::levels;
use super::sql::SqlStore;
use crate::bucket::{Bucket, Terms};
use crate::retry::Class;
use crate::{Clock, Key, Quota, SystemClock};

mod row;

/// Buckets in a SQLite file, shared by the processes of one host, at the host's clock.
pub type SqliteStore = SqlStore<Sqlite>;

impl SqliteStore {
    /// A store on a clock of the caller's: for tests.
    pub fn with_clock(pool: SqlitePool, clock: impl Clock) -> Self {
        Self::with(pool, HostClock(Arc::new(clock)))
    }
}

impl Dialect for Sqlite {
    type Clock = HostClock;

    const ONE_STATEMENT: bool = false;

    fn begin(_: Isolation) -> Option<SqlStr> {
        None
    }

    async fn take(
        connection: &mut SqliteConnection,
        asks: &[Ask],
        clock: &HostClock,
    ) -> Result<Vec<Answer>, sqlx::Error> {
        if let [ask] = asks
            && let Some(answer) = take_now(connection, ask, clock).await?
        {
            return Ok(vec![answer]);
        }
        let mut transaction = connection.begin_with("begin immediate").await?;
        let mut answers = Vec::with_capacity(asks.len());
        for (entry, ask) in (1..).zip(asks) {
            answers.push(take_locked(&mut transaction, entry, ask, clock).await?);
        }
        transaction.commit().await?;
        Ok(answers)
    }

    async fn create_bucket(
        connection: &mut SqliteConnection,
        key: &Key,
        quota: &Quota,
        clock: &HostClock,
    ) -> Result<(), sqlx::Error> {
        let mut transaction = connection.begin_with("begin immediate").await?;
        match Row::find(&mut transaction, key).await? {
            None => Row::create(&mut transaction, key, quota, clock.now(), true).await?,
            Some(row) => row.settle(&mut transaction, key, quota, clock.now(), true).await?,
        }
        transaction.commit().await
    }

    async fn levels(
        connection: &mut SqliteConnection,
        after: &str,
        limit: u32,
    ) -> Result<Vec<levels::Columns>, sqlx::Error> {
        sqlx::query_as(
            "select id, capacity, cast(round(refill_seconds * 1e9) as integer), refill, provisioned, available, granted,
                    full_at, next_refill_at
               from token_bucket_levels where id > ?1 order by id limit ?2",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(connection)
        .await
    }

    fn classify(error: &dyn DatabaseError) -> Class {
        // Extended result codes carry the primary one in their lowest byte.
        match error.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff) {
            Some(SQLITE_BUSY | SQLITE_LOCKED) => Class::RolledBack,
            Some(SQLITE_ERROR) if error.message().contains("no such table") => Class::NotMigrated,
            Some(SQLITE_READONLY) => Class::NotPermitted,
            Some(SQLITE_IOERR) => Class::Unknown,
            _ => Class::Refused,
        }
    }

    async fn clean_up(_: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }
}

/// The clock that decides in a SQLite file.
#[derive(Clone)]
pub struct HostClock(Arc<dyn Clock>);

impl HostClock {
    fn now(&self) -> i64 {
        self.0.now()
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self(Arc::new(SystemClock))
    }
}

impl std::fmt::Debug for HostClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostClock")
    }
}

/// Decides without a transaction, if it is a plain grant or denial: a denial waits for no lock.
async fn take_now(
    connection: &mut SqliteConnection,
    ask: &Ask,
    clock: &HostClock,
) -> Result<Option<Answer>, sqlx::Error> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = clock.now();
    let rows: Vec<(bool, Row)> = row::take(connection, ask, now, i64::try_from(since.as_millis()).unwrap_or(0)).await?;
    match rows.into_iter().next() {
        None if ask.quota.is_none() => Ok(Some(Answer::without_bucket(1, "unknown", now))),
        None => Ok(None),
        Some((true, row)) => Ok(Some(Answer::new(1, "granted", now, row.terms(), row.bucket))),
        Some((false, row)) => {
            let now = clock.now();
            let (terms, mut bucket) = (row.terms(), row.bucket);
            if !row.follows(ask.quota.as_ref()) || bucket.stepped_back(&terms, now) {
                return Ok(None);
            }
            let outcome = decide(&mut bucket, &terms, now, ask);
            Ok((outcome != "granted").then(|| Answer::new(1, outcome, now, terms, bucket)))
        }
    }
}

/// Decides while the transaction holds the database.
async fn take_locked(
    connection: &mut SqliteConnection,
    entry: i64,
    ask: &Ask,
    clock: &HostClock,
) -> Result<Answer, sqlx::Error> {
    let now = clock.now();
    let mut found = Row::find(connection, &ask.key).await?;
    if let Some(quota) = &ask.quota {
        match &found {
            None => Row::create(connection, &ask.key, quota, 0, false).await?,
            Some(row) if row.follows(Some(quota)) => {}
            Some(row) if row.provisioned => {
                return Ok(Answer::new(entry, "conflict", now, row.terms(), row.bucket));
            }
            Some(row) => row.settle(connection, &ask.key, quota, now, false).await?,
        }
        found = Row::find(connection, &ask.key).await?;
    }
    let Some(row) = found else {
        return Ok(Answer::without_bucket(entry, "unknown", now));
    };
    let (terms, mut bucket) = (row.terms(), row.bucket);
    let outcome = decide(&mut bucket, &terms, now, ask);
    if bucket != row.bucket {
        Row::write(connection, &ask.key, &bucket).await?;
    }
    Ok(Answer::new(entry, outcome, now, terms, bucket))
}

fn decide(bucket: &mut Bucket, terms: &Terms, now: i64, ask: &Ask) -> &'static str {
    if ask.request.cost > terms.capacity - ask.request.keep {
        return "never";
    }
    if bucket.take(terms, now, ask.request).granted { "granted" } else { "denied" }
}

const SQLITE_ERROR: i32 = 1;
const SQLITE_BUSY: i32 = 5;
const SQLITE_LOCKED: i32 = 6;
const SQLITE_READONLY: i32 = 8;
const SQLITE_IOERR: i32 = 10;
