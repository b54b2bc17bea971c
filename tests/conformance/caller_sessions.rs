//! Many sessions, with the number of those that wait for a lock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::bail;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;

use crate::test_db::{AnyPool, TestDb};

pub struct CallerSessions {
    /// The database of the case, on a pool of these sessions.
    pub db: TestDb,
    sessions: Arc<Mutex<Vec<i64>>>,
}

impl CallerSessions {
    /// Opens sessions on the case's database, all at once.
    pub async fn new(db: &TestDb, size: u32) -> anyhow::Result<Self> {
        let sessions = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&sessions);
        let add_session = move |session: i64| known.lock().expect("no panic while it is locked").push(session);
        let pool = match &db.pool {
            AnyPool::MySql(pool) => {
                let options = MySqlPoolOptions::new().idle_timeout(None).max_lifetime(None).after_connect(
                    move |connection, _| {
                        let add_session = add_session.clone();
                        Box::pin(async move {
                            let id = sqlx::query_scalar("select cast(connection_id() as signed)");
                            add_session(id.fetch_one(connection).await?);
                            Ok(())
                        })
                    },
                );
                let options = options.min_connections(size).max_connections(size).test_before_acquire(false);
                AnyPool::MySql(options.connect_with(pool.connect_options().as_ref().clone()).await?)
            }
            AnyPool::Postgres(pool) => {
                let options =
                    PgPoolOptions::new().idle_timeout(None).max_lifetime(None).after_connect(move |connection, _| {
                        let add_session = add_session.clone();
                        Box::pin(async move {
                            add_session(
                                sqlx::query_scalar("select pg_backend_pid()::bigint").fetch_one(connection).await?,
                            );
                            Ok(())
                        })
                    });
                let options = options.min_connections(size).max_connections(size).test_before_acquire(false);
                AnyPool::Postgres(options.connect_with(pool.connect_options().as_ref().clone()).await?)
            }
            AnyPool::Sqlite(pool) => {
                let options = SqlitePoolOptions::new()
                    .idle_timeout(None)
                    .max_lifetime(None)
                    .min_connections(size)
                    .max_connections(size);
                AnyPool::Sqlite(options.connect_with(pool.connect_options().as_ref().clone()).await?)
            }
        };
        Ok(Self { db: db.on(pool), sessions })
    }

    /// Returns once `count` sessions wait for a lock, as seen through another session.
    pub async fn until_waiting(&self, observer: &TestDb, count: usize) -> anyhow::Result<()> {
        loop {
            // A pool can still be opening sessions.
            let sessions = self.sessions.lock().expect("no panic while it is locked").clone();
            let waiting: i64 = match &observer.pool {
                AnyPool::MySql(pool) => {
                    // MySQL has no list parameters. InnoDB's own views of lock waits do not change while a session polls them,
                    // so the query counts sessions that execute a statement that needs the lock.
                    let list: Vec<String> = sessions.iter().map(i64::to_string).collect();
                    let waits = sqlx::query_scalar(
                        "select count(*) from information_schema.processlist
                          where find_in_set(id, ?) and lower(info) regexp 'for update|^ *update |^ *insert '",
                    );
                    waits.bind(list.join(",")).fetch_one(pool).await?
                }
                AnyPool::Postgres(pool) => {
                    let waits = sqlx::query_scalar(
                        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and pid = any ($1)",
                    );
                    waits.bind(&sessions).fetch_one(pool).await?
                }
                AnyPool::Sqlite(_) => bail!("a file does not say who waits for it"),
            };
            if usize::try_from(waiting)? >= count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
