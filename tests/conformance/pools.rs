//! Pools in addition to the suite's own: with other settings, on other databases, or through a proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Connection, Database, Executor, Pool};
use uuid::Uuid;

use crate::engines::{Kind, mysql, postgres, sqlite};
use crate::proxy::Proxy;
use crate::test_db::{AnyPool, TestDb};

/// Expands an expression for each kind of pool.
macro_rules! with_pool {
    ($any:expr, $pool:ident => $body:expr) => {
        match $any {
            $crate::test_db::AnyPool::MySql($pool) => $body,
            $crate::test_db::AnyPool::Postgres($pool) => $body,
            $crate::test_db::AnyPool::Sqlite($pool) => $body,
        }
    };
}
pub(crate) use with_pool;

/// Opens a pool of one connection to the case's database, which is connected and starts with a statement.
pub async fn with_session(db: &TestDb, statement: &'static str) -> anyhow::Result<(TestDb, Acquisitions)> {
    let acquisitions = Acquisitions::default();
    let pool = match &db.pool {
        AnyPool::MySql(pool) => AnyPool::MySql(reopen(pool, statement, &acquisitions).await?),
        AnyPool::Postgres(pool) => AnyPool::Postgres(reopen(pool, statement, &acquisitions).await?),
        AnyPool::Sqlite(pool) => AnyPool::Sqlite(reopen(pool, statement, &acquisitions).await?),
    };
    Ok((db.on(pool), acquisitions))
}

/// The number of connections taken from a pool: one per attempt.
#[derive(Clone, Default)]
pub struct Acquisitions(Arc<AtomicUsize>);

impl Acquisitions {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

async fn reopen<DB: Database>(
    pool: &Pool<DB>,
    statement: &'static str,
    acquisitions: &Acquisitions,
) -> Result<Pool<DB>, sqlx::Error>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let Acquisitions(count) = acquisitions.clone();
    PoolOptions::<DB>::new()
        .max_connections(1)
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            Box::pin(async move { sqlx::raw_sql(statement).execute(connection).await.map(drop) })
        })
        .before_acquire(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(true) })
        })
        .connect_with(pool.connect_options().as_ref().clone())
        .await
}

/// The case's database, reached through a proxy.
pub async fn through_proxy(db: &TestDb, connections: u32) -> anyhow::Result<(TestDb, Proxy)> {
    match &db.pool {
        AnyPool::MySql(pool) => {
            let options = pool.connect_options().as_ref().clone();
            let proxy = Proxy::before(options.get_host(), options.get_port()).await?;
            let options = options.host("127.0.0.1").port(proxy.port());
            Ok((db.on(AnyPool::MySql(small(connections).connect_with(options).await?)), proxy))
        }
        AnyPool::Postgres(pool) => {
            let options = pool.connect_options().as_ref().clone();
            let proxy = Proxy::before(options.get_host(), options.get_port()).await?;
            let options = options.host("127.0.0.1").port(proxy.port());
            Ok((db.on(AnyPool::Postgres(small(connections).connect_with(options).await?)), proxy))
        }
        AnyPool::Sqlite(_) => anyhow::bail!("a file has no port"),
    }
}

/// Without the task that maintains connections: in sqlx 0.9.0, the task can spin forever (its issue 3645).
pub fn small<DB: Database>(connections: u32) -> PoolOptions<DB> {
    PoolOptions::new().idle_timeout(None).max_lifetime(None).max_connections(connections).test_before_acquire(false)
}

/// Returns once all connections of the pool are idle.
pub async fn all_given_back(pool: &AnyPool) {
    // Not "less": while a connection is returned, the pool can count one fewer than there are.
    while with_pool!(pool, pool => pool.num_idle() != pool.size() as usize) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A database for one case, not migrated, which is removed at the end.
pub struct Scratch {
    pub db: TestDb,
    name: String,
    admin: AnyPool,
}

impl Scratch {
    pub async fn new(db: &TestDb) -> anyhow::Result<Self> {
        Self::named(db, &scratch_name()).await
    }

    pub async fn named(db: &TestDb, name: &str) -> anyhow::Result<Self> {
        let pool = match db.engine.kind {
            Kind::MySql => AnyPool::MySql(mysql::create(db.engine, name, 8).await?),
            Kind::Postgres => AnyPool::Postgres(postgres::create(db.engine, name, 8).await?),
            Kind::Sqlite => {
                let directory = db.directory.as_ref().expect("a database of this engine has one");
                AnyPool::Sqlite(sqlite::create(&directory.path().join(name), 8).await?)
            }
        };
        Ok(Self { db: db.on(pool), name: name.to_owned(), admin: db.pool.clone() })
    }

    /// Creates a database with tollgate's tables and routines.
    pub async fn migrated(db: &TestDb) -> anyhow::Result<Self> {
        let name = scratch_name();
        if db.engine.copies_databases {
            let pool = AnyPool::Postgres(postgres::copy(db.engine, &name, 8).await?);
            return Ok(Self { db: db.on(pool), name, admin: db.pool.clone() });
        }
        let scratch = Self::named(db, &name).await?;
        match &scratch.db.pool {
            AnyPool::MySql(pool) => drop(tollgate::migrate(pool).await?),
            AnyPool::Postgres(pool) => postgres::migrate(db.engine, pool).await?,
            AnyPool::Sqlite(pool) => drop(tollgate::migrate(pool).await?),
        }
        Ok(scratch)
    }
}

fn scratch_name() -> String {
    format!("tollgate_scratch_{}", Uuid::new_v4().simple())
}

/// On a server, creates a migrated database for one case under an injected clock, and one connection to it.
pub async fn injected(db: &TestDb) -> anyhow::Result<(Scratch, TestDb)> {
    let scratch = Scratch::migrated(db).await?;
    let clock = match &scratch.db.pool {
        AnyPool::MySql(pool) => {
            mysql::inject_time(pool).await?;
            "set @tollgate_test_now = 0"
        }
        AnyPool::Postgres(pool) => {
            postgres::inject_time(pool).await?;
            "set tollgate_test.now = 0"
        }
        AnyPool::Sqlite(_) => anyhow::bail!("each case has a file of its own"),
    };
    let (session, _) = with_session(&scratch.db, clock).await?;
    Ok((scratch, session))
}

/// On a server, makes each read of the clock by a routine take a while.
pub async fn slow_clock(pool: &AnyPool, delay: Duration) -> anyhow::Result<()> {
    match pool {
        AnyPool::MySql(pool) => mysql::slow_clock(pool, delay).await,
        AnyPool::Postgres(pool) => postgres::slow_clock(pool, delay).await,
        AnyPool::Sqlite(_) => anyhow::bail!("a file has no routines"),
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let drop_database = match &self.admin {
            AnyPool::Sqlite(_) => return,
            AnyPool::MySql(_) => format!("set lock_wait_timeout = 5; drop database {}", self.name),
            AnyPool::Postgres(_) => format!("drop database {} with (force)", self.name),
        };
        let admin = self.admin.clone();
        // Uses a separate thread: a value is dropped within the case's runtime, which must not block.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                match admin {
                    AnyPool::MySql(pool) => {
                        let mut connection = sqlx::MySqlConnection::connect_with(&pool.connect_options()).await?;
                        sqlx::raw_sql(AssertSqlSafe(drop_database)).execute(&mut connection).await.map(drop)
                    }
                    AnyPool::Postgres(pool) => {
                        let mut connection = sqlx::PgConnection::connect_with(&pool.connect_options()).await?;
                        sqlx::raw_sql(AssertSqlSafe(drop_database)).execute(&mut connection).await.map(drop)
                    }
                    AnyPool::Sqlite(_) => Ok(()),
                }
            })
        });
        if let Ok(Err(error)) = removed.join() {
            eprintln!("database {} is left behind: {error}", self.name);
        }
    }
}
