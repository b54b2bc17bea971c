//! Each driver takes the only token of a bucket, and is denied the next one.

use std::time::Duration;

use anyhow::{Context, ensure};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tollgate_recipes::blocking::BlockingLimiter;
use uuid::Uuid;

#[tokio::test]
async fn sea_orm_denies_the_second_request() -> anyhow::Result<()> {
    let database = Database::create().await?;
    let connection = sea_orm::Database::connect(&database.url).await?;
    let limiter = tollgate_recipes::sea_orm::limiter(&connection, "1/h")?;
    assert!(limiter.allow("user:42").await?.is_granted());
    let denied = limiter.allow("user:42").await?;
    assert!(!denied.is_granted());
    is_within_the_hour(denied.retry_after())?;
    limiter.close().await?;
    connection.close().await?;
    database.drop().await
}

#[tokio::test]
async fn tokio_postgres_denies_the_second_request() -> anyhow::Result<()> {
    use tokio_postgres::NoTls;
    use tokio_postgres::error::SqlState;
    use tollgate_recipes::tokio_postgres::take;

    let database = Database::create().await?;
    let (client, connection) = tokio_postgres::connect(
        &format!("{}{TIMEOUTS}", database.url),
        NoTls,
    )
    .await?;
    let connection = tokio::spawn(connection);
    let (is_granted, _) = take(&client, "user:42", "free").await?;
    assert!(is_granted);
    let (is_granted, retry_after) =
        take(&client, "user:42", "free").await?;
    assert!(!is_granted);
    is_within_the_hour(retry_after.map(milliseconds))?;
    let failed = take(&client, "user:7", "nosuch").await.unwrap_err();
    assert_eq!(failed.code(), Some(&SqlState::NO_DATA_FOUND));
    drop(client);
    connection.await??;
    database.drop().await
}

#[tokio::test]
async fn diesel_denies_the_second_request() -> anyhow::Result<()> {
    use diesel_async::{AsyncConnection, AsyncPgConnection};
    use tollgate_recipes::diesel::take;

    let database = Database::create().await?;
    let mut connection = AsyncPgConnection::establish(&format!(
        "{}{TIMEOUTS}",
        database.url
    ))
    .await?;
    let (is_granted, remaining, ..) =
        take(&mut connection, "user:42", "free").await?;
    assert_eq!((is_granted, remaining), (true, 0));
    let (is_granted, remaining, _, retry_after, _) =
        take(&mut connection, "user:42", "free").await?;
    assert_eq!((is_granted, remaining), (false, 0));
    is_within_the_hour(retry_after.map(milliseconds))?;
    let failed =
        take(&mut connection, "user:7", "nosuch").await.unwrap_err();
    ensure!(failed.to_string().contains("there is no plan"), "{failed}");
    drop(connection);
    database.drop().await
}

#[test]
fn threads_share_a_blocking_limiter() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let database = runtime.block_on(Database::create())?;
    let limiter = BlockingLimiter::connect(&database.url, "4/h")
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let granted = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| limiter.wait("mails"))).collect();
        let waited = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        anyhow::Ok(
            waited
                .collect::<Result<Vec<bool>, _>>()?
                .into_iter()
                .filter(|is_granted| *is_granted)
                .count(),
        )
    })?;
    assert_eq!(
        granted, 4,
        "a quarter of an hour is longer than the longest wait"
    );
    drop(limiter);
    runtime.block_on(database.drop())
}

fn milliseconds(retry_after_ms: i64) -> Duration {
    Duration::from_millis(retry_after_ms.unsigned_abs())
}

/// Checks a time to retry: PostgreSQL's clock moves on.
fn is_within_the_hour(retry_after: Option<Duration>) -> anyhow::Result<()> {
    let hour = Duration::from_hours(1);
    ensure!(
        retry_after.is_some_and(
            |retry_after| hour / 2 < retry_after && retry_after <= hour
        ),
        "{retry_after:?}"
    );
    Ok(())
}

/// Those of `docs/frameworks.md`.
const TIMEOUTS: &str =
    "?connect_timeout=2&options=-c%20statement_timeout%3D2s";

/// A migrated database for one test.
struct Database {
    url: String,
    name: String,
    server: String,
}

impl Database {
    /// Creates it with a plan, `free`, of one token an hour.
    async fn create() -> anyhow::Result<Self> {
        let server = std::env::var("TOLLGATE_POSTGRES_URL").context(
            "TOLLGATE_POSTGRES_URL is not set: run scripts/test, or `eval \"$(scripts/servers env)\"` after scripts/servers start",
        )?;
        let name = format!("tollgate_recipes_{}", Uuid::new_v4().simple());
        let (host, _) = server
            .rsplit_once('/')
            .context("a URL ends with a database")?;
        let database = Self { url: format!("{host}/{name}"), name, server };
        database
            .execute(&format!("create database {}", database.name))
            .await?;
        let pool = PgPool::connect(&database.url).await?;
        tollgate::migrate(&pool).await?;
        sqlx::query("select tollgate.create_plan('free', 1, 3600)")
            .execute(&pool)
            .await?;
        pool.close().await;
        Ok(database)
    }

    async fn drop(self) -> anyhow::Result<()> {
        self.execute(&format!("drop database {} with (force)", self.name))
            .await
    }

    async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        sql.execute(&mut PgConnection::connect(&self.server).await?)
            .await?;
        Ok(())
    }
}
