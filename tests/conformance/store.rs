//! A store on any engine, asked directly or for many at once.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    Adjusted, Adjustment, Coalesce, Counted, Error, HoldBack, Key, MySqlStore, Outcome, PgStore, Rule, SharedWindows,
    SqliteStore, Store, SweepCursor, Swept, Take, TakeError, Window,
};

/// A store on any engine.
#[derive(Clone)]
pub struct AnyStore {
    pub database: Database,
    coalesce: Option<Arc<Coalesce<Database>>>,
}

/// The store itself.
#[derive(Clone)]
pub enum Database {
    MySql(MySqlStore),
    Postgres(PgStore),
    Sqlite(SqliteStore),
}

impl From<Database> for AnyStore {
    fn from(database: Database) -> Self {
        Self { database, coalesce: None }
    }
}

impl AnyStore {
    /// One whose requests go together in calls, with those of its clones.
    pub fn coalesced(database: Database) -> Self {
        Self { coalesce: Some(Arc::new(Coalesce::new(database.clone()))), database }
    }

    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(match self.database.clone() {
            Database::MySql(store) => Database::MySql(store.deadline(deadline)),
            Database::Postgres(store) => Database::Postgres(store.deadline(deadline)),
            Database::Sqlite(store) => Database::Sqlite(store.deadline(deadline)),
        })
    }

    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(match self.database.clone() {
            Database::MySql(store) => Database::MySql(store.max_attempts(attempts)),
            Database::Postgres(store) => Database::Postgres(store.max_attempts(attempts)),
            Database::Sqlite(store) => Database::Sqlite(store.max_attempts(attempts)),
        })
    }

    fn with(&self, database: Database) -> Self {
        if self.coalesce.is_some() { Self::coalesced(database) } else { Self::from(database) }
    }
}

impl Store for AnyStore {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match &self.coalesce {
            None => self.database.take(takes).await,
            Some(coalesce) => coalesce.take(takes).await,
        }
    }

    async fn try_take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match &self.coalesce {
            None => self.database.try_take(takes).await,
            Some(coalesce) => coalesce.try_take(takes).await,
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match &self.coalesce {
            None => self.database.adjust(adjustments).await,
            Some(coalesce) => coalesce.adjust(adjustments).await,
        }
    }

    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        match &self.coalesce {
            None => self.database.hold_back(key, rule, hold).await,
            Some(coalesce) => coalesce.hold_back(key, rule, hold).await,
        }
    }

    async fn sweep(&self, after: Option<&SweepCursor>, limit: u32) -> Result<Swept, Error> {
        match &self.coalesce {
            None => self.database.sweep(after, limit).await,
            Some(coalesce) => coalesce.sweep(after, limit).await,
        }
    }

    async fn count_denials(&self, denials: &[(Key, u64)]) -> Result<(), Error> {
        self.database.count_denials(denials).await
    }
}

impl Store for Database {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match self {
            Self::MySql(store) => store.take(takes).await,
            Self::Postgres(store) => store.take(takes).await,
            Self::Sqlite(store) => store.take(takes).await,
        }
    }

    async fn try_take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match self {
            Self::MySql(store) => store.try_take(takes).await,
            Self::Postgres(store) => store.try_take(takes).await,
            Self::Sqlite(store) => store.try_take(takes).await,
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match self {
            Self::MySql(store) => store.adjust(adjustments).await,
            Self::Postgres(store) => store.adjust(adjustments).await,
            Self::Sqlite(store) => store.adjust(adjustments).await,
        }
    }

    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        match self {
            Self::MySql(store) => store.hold_back(key, rule, hold).await,
            Self::Postgres(store) => store.hold_back(key, rule, hold).await,
            Self::Sqlite(store) => store.hold_back(key, rule, hold).await,
        }
    }

    async fn sweep(&self, after: Option<&SweepCursor>, limit: u32) -> Result<Swept, Error> {
        match self {
            Self::MySql(store) => store.sweep(after, limit).await,
            Self::Postgres(store) => store.sweep(after, limit).await,
            Self::Sqlite(store) => store.sweep(after, limit).await,
        }
    }

    async fn count_denials(&self, denials: &[(Key, u64)]) -> Result<(), Error> {
        match self {
            Self::MySql(store) => store.count_denials(denials).await,
            Self::Postgres(store) => store.count_denials(denials).await,
            Self::Sqlite(store) => store.count_denials(denials).await,
        }
    }
}

impl SharedWindows for AnyStore {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<Counted, Error> {
        match &self.database {
            Database::MySql(store) => store.count(key, window, cost).await,
            Database::Postgres(store) => store.count(key, window, cost).await,
            Database::Sqlite(store) => store.count(key, window, cost).await,
        }
    }
}
