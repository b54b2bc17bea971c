//! The database of a case: a store on an engine, its rows, and its clock.

use std::time::Duration;

use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};
use tollgate::model::bucket::Bucket;
use tollgate::{
    Admin, Decision, Error, Key, MySqlStore, PgStore, Quota, SqliteStore, Store, Take,
    clock::{Clock, ManualClock, SystemClock},
    store::Isolation,
};
use uuid::Uuid;

use crate::engines::{Engine, Kind, mysql, postgres, sqlite};
use crate::layers::{Changes, Layers};
use crate::matrix::Time;
use crate::store::{AnyStore, Database};

/// An engine, ready for one case.
pub struct TestDb {
    pub engine: &'static Engine,
    pub level: Option<Isolation>,
    pub layers: Layers,
    pub pool: AnyPool,
    clock: ManualClock,
    changes: Changes,
    time: Time,
    /// The directory of an engine without a server, removed with this value.
    pub directory: Option<TempDir>,
}

/// The host's pool, of any kind.
#[derive(Clone, Debug)]
pub enum AnyPool {
    MySql(MySqlPool),
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

impl TestDb {
    pub async fn new(
        engine: &'static Engine,
        level: Option<Isolation>,
        layers: Layers,
        time: Time,
    ) -> anyhow::Result<Self> {
        // Injected time belongs to a session, so the pool has one connection.
        let connections = if time == Time::Injected { 1 } else { 8 };
        let mut directory = None;
        let pool = match engine.kind {
            Kind::MySql => AnyPool::MySql(mysql::open(engine, time, connections).await?),
            Kind::Postgres => AnyPool::Postgres(postgres::open(engine, time, connections).await?),
            Kind::Sqlite => {
                let made = directory.insert(TempDir::new()?);
                AnyPool::Sqlite(sqlite::open(&made.path().join("buckets.db"), connections).await?)
            }
        };
        Ok(Self {
            engine,
            level,
            layers,
            changes: Changes::default(),
            pool,
            clock: ManualClock::default(),
            time,
            directory,
        })
    }

    /// The same database on another pool.
    pub fn on(&self, pool: AnyPool) -> Self {
        Self {
            engine: self.engine,
            level: self.level,
            layers: self.layers,
            changes: self.changes.clone(),
            pool,
            clock: self.clock.clone(),
            time: self.time,
            directory: None,
        }
    }

    /// A store at the case's isolation level.
    pub fn store(&self) -> AnyStore {
        let database = match &self.pool {
            AnyPool::MySql(pool) => Database::MySql(leveled(MySqlStore::from(pool.clone()), self.level)),
            AnyPool::Postgres(pool) => {
                let store = PgStore::from(pool.clone());
                // Without layers, calls are for several keys, as those of a service that does not know of the distribution.
                let knows = self.engine.is_distributed && self.layers != Layers::None;
                Database::Postgres(leveled(if knows { store.distributed() } else { store }, self.level))
            }
            AnyPool::Sqlite(pool) if self.time == Time::Injected => {
                Database::Sqlite(SqliteStore::with_clock(pool.clone(), self.clock.clone()))
            }
            AnyPool::Sqlite(pool) => Database::Sqlite(SqliteStore::from(pool.clone())),
        };
        AnyStore::new(database, self.layers, self.changes.clone())
    }

    /// Returns a key that no other case uses.
    #[expect(clippy::unused_self, reason = "a case calls db.key() as it calls db.bucket()")]
    pub fn key(&self) -> Key {
        Key::from(Uuid::new_v4())
    }

    /// Provisions a bucket under a key that no other case uses.
    pub async fn bucket(&self, quota: Quota) -> anyhow::Result<Key> {
        let key = self.key();
        self.create(&key, quota).await?;
        Ok(key)
    }

    /// Provisions a bucket, or changes its limits.
    pub async fn create(&self, key: &Key, quota: Quota) -> Result<(), Error> {
        Ok(self.store().create_bucket(key, quota).await?)
    }

    /// Sets the injected clock, in nanoseconds since 1970.
    pub async fn at(&self, now: i64) -> anyhow::Result<()> {
        assert!(self.time == Time::Injected, "only an injected clock can be set");
        self.changes.add();
        match &self.pool {
            AnyPool::MySql(pool) => mysql::set_time(pool, now).await,
            AnyPool::Postgres(pool) => postgres::set_time(pool, now).await,
            AnyPool::Sqlite(_) => {
                self.clock.set(now);
                Ok(())
            }
        }
    }

    /// The time of the deciding clock, in nanoseconds since 1970.
    pub async fn now(&self) -> anyhow::Result<i64> {
        Ok(match &self.pool {
            AnyPool::MySql(pool) => {
                let mut connection = pool.acquire().await?;
                sqlx::query("call token_clock(@tollgate_test_clock)").execute(&mut *connection).await?;
                sqlx::query_scalar("select @tollgate_test_clock").fetch_one(&mut *connection).await?
            }
            AnyPool::Postgres(pool) => sqlx::query_scalar("select tollgate.clock()").fetch_one(pool).await?,
            AnyPool::Sqlite(_) => SystemClock.now(),
        })
    }

    /// Returns once the deciding clock has reached `now`.
    pub async fn until(&self, now: i64) -> anyhow::Result<()> {
        while self.now().await? < now {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// The state of a bucket, if it exists.
    pub async fn row(&self, key: &Key) -> anyhow::Result<Option<Bucket>> {
        let (table, id) = (self.table(), self.literal(key));
        // As text: with so many prepared statements, a session would have to close one before each other one. MySQL sends that
        // by itself, and the next statement has to wait.
        let sql = format!("select anchor, full_at, granted, max_granted_wait from {table} where id = {id}");
        let rows = self.sql(sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let [anchor, full_at, granted, max_granted_wait] =
            row.numbers(["anchor", "full_at", "granted", "max_granted_wait"])?;
        Ok(Some(Bucket { anchor, full_at, granted, max_granted_wait }))
    }

    /// The name of the buckets' table.
    pub fn table(&self) -> &'static str {
        if self.engine.kind == Kind::Postgres { "tollgate.token_buckets" } else { "token_buckets" }
    }

    /// A key in this engine's SQL.
    pub fn literal(&self, key: &Key) -> String {
        let hex = hex(key.as_str().as_bytes());
        match self.engine.kind {
            Kind::Postgres => format!("convert_from(decode('{hex}', 'hex'), 'UTF8')"),
            Kind::MySql => format!("x'{hex}'"),
            Kind::Sqlite => format!("cast(x'{hex}' as text)"),
        }
    }

    /// Takes one token.
    pub async fn take(&self, key: &Key) -> anyhow::Result<Decision> {
        self.decide(Take::from(key.clone())).await
    }

    /// Decides a request that must not be an error.
    pub async fn decide(&self, take: Take) -> anyhow::Result<Decision> {
        let outcome = self.store().take(&[take]).await?.pop();
        Ok(outcome.expect("one answer to one request")?)
    }
}

impl AnyPool {
    /// Runs statements of this engine's own dialect.
    pub async fn run(&self, sql: impl Into<String>) -> Result<(), sqlx::Error> {
        let sql = AssertSqlSafe(sql.into());
        match self {
            Self::MySql(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
            Self::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
            Self::Sqlite(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
        }
    }
}

/// A directory that is removed on drop.
pub struct TempDir(std::path::PathBuf);

impl TempDir {
    pub fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("tollgate-{}", Uuid::new_v4()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A leftover is in the system's directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn leveled<DB: tollgate::store::Dialect>(
    store: tollgate::SqlStore<DB>,
    level: Option<Isolation>,
) -> tollgate::SqlStore<DB> {
    match level {
        None => store,
        Some(level) => store.isolation(level),
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}
