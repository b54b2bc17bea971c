//! A store on any engine, called directly or through the layers of a limiter.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    Adjusted, Adjustment, Error, Key, MySqlStore, PgStore, Rule, SqliteStore, Store, Take, TakeError, Throttle, Window,
    admin::{AdminError, BucketLevel, RecordedUsage, SweepResult},
    layers::Batcher,
    model::{Checked, Outcome, WindowLevel, WindowUsage},
    store::{CallOptions, Capabilities, Maintenance, MaintenanceFuture, SharedWindows, TestStore},
};

use crate::layers::{Changes, Denying, Layers};

/// A store on any engine.
#[derive(Clone)]
pub struct AnyStore {
    pub database: Database,
    pub changes: Changes,
    layers: Layers,
    layered: Layered,
}

/// The store itself.
pub type Database = AnyOf<MySqlStore, PgStore, SqliteStore>;

/// One of the engines' stores, or a layer over each: the type of a layer contains that of its store.
#[derive(Clone)]
pub enum AnyOf<M, P, L> {
    MySql(M),
    Postgres(P),
    Sqlite(L),
}

type AnyBatcher = AnyOf<Arc<Batcher<MySqlStore>>, Arc<Batcher<PgStore>>, Arc<Batcher<SqliteStore>>>;

#[derive(Clone)]
enum Layered {
    Bare,
    Denying(Arc<Denying<tollgate::AnyStore>>),
    Batched(AnyBatcher),
    Stacked(Arc<Denying<Batcher<tollgate::AnyStore>>>),
}

/// Expands an expression for each kind of store.
macro_rules! on {
    ($any:expr, $store:ident => $body:expr) => {
        match $any {
            AnyOf::MySql($store) => $body,
            AnyOf::Postgres($store) => $body,
            AnyOf::Sqlite($store) => $body,
        }
    };
}
pub(crate) use on;

/// Maps a store to one of the same kind.
macro_rules! map {
    ($any:expr, $store:ident => $body:expr) => {
        match $any {
            AnyOf::MySql($store) => AnyOf::MySql($body),
            AnyOf::Postgres($store) => AnyOf::Postgres($body),
            AnyOf::Sqlite($store) => AnyOf::Sqlite($body),
        }
    };
}

impl AnyStore {
    /// Returns a store whose clones share its layers.
    pub fn new(database: Database, layers: Layers, changes: Changes) -> Self {
        let any = || on!(&database, store => tollgate::AnyStore::new(store.clone()));
        let layered = match layers {
            Layers::None => Layered::Bare,
            Layers::Denying => Layered::Denying(Arc::new(Denying::new(any(), changes.clone()))),
            Layers::Batched => Layered::Batched(map!(&database, store => Arc::new(Batcher::new(store.clone())))),
            Layers::Stacked => Layered::Stacked(Arc::new(Denying::new(Batcher::new(any()), changes.clone()))),
        };
        Self { database, changes, layers, layered }
    }

    pub fn deadline(self, deadline: Duration) -> Self {
        Self::new(map!(self.database, store => store.deadline(deadline)), self.layers, self.changes)
    }

    pub fn max_attempts(self, attempts: u32) -> Self {
        Self::new(map!(self.database, store => store.max_attempts(attempts)), self.layers, self.changes)
    }
}

macro_rules! call_store {
    ($any:ident.$method:ident($($argument:expr),*)) => {
        match &$any.layered {
            Layered::Bare => Store::$method(&$any.database, $($argument),*).await,
            Layered::Denying(store) => Store::$method(&**store, $($argument),*).await,
            Layered::Batched(store) => Store::$method(store, $($argument),*).await,
            Layered::Stacked(store) => Store::$method(&**store, $($argument),*).await,
        }
    };
}

impl TestStore for AnyStore {
    fn capabilities(&self) -> Capabilities {
        on!(&self.database, store => store.capabilities())
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        call_store!(self.take(takes))
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        call_store!(self.adjust(adjustments))
    }

    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        call_store!(self.take_checked(takes, options))
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        call_store!(self.adjust_with(adjustments, options))
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        call_store!(self.throttle(key, rule, throttle))
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Store::maintenance(&self.database)
    }
}

impl<M: Store, P: Store, L: Store> TestStore for AnyOf<M, P, L> {
    fn capabilities(&self) -> Capabilities {
        on!(self, store => store.capabilities())
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        on!(self, store => store.take(takes).await)
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        on!(self, store => store.adjust(adjustments).await)
    }

    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        on!(self, store => Store::take_checked(store, takes, options).await)
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        on!(self, store => Store::adjust_with(store, adjustments, options).await)
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        on!(self, store => store.throttle(key, rule, throttle).await)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        on!(self, store => store.maintenance())
    }
}

impl SharedWindows for AnyStore {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<WindowUsage, Error> {
        on!(&self.database, store => store.count(key, window, cost).await)
    }
}

impl AnyStore {
    fn inner(&self) -> &dyn Maintenance {
        Store::maintenance(&self.database).expect("a database keeps buckets")
    }
}

impl Maintenance for AnyStore {
    fn level<'a>(&'a self, key: &'a Key, rule: &'a Rule) -> MaintenanceFuture<'a, BucketLevel, AdminError> {
        self.inner().level(key, rule)
    }

    fn window_level<'a>(&'a self, key: &'a Key, window: &'a Window) -> MaintenanceFuture<'a, WindowLevel, AdminError> {
        self.inner().window_level(key, window)
    }

    fn sweep(&self, limit: u32) -> MaintenanceFuture<'_, SweepResult> {
        self.inner().sweep(limit)
    }

    fn record_usage(&self, limit: u32) -> MaintenanceFuture<'_, RecordedUsage> {
        self.inner().record_usage(limit)
    }

    fn count_denials<'a>(&'a self, denials: &'a [(Key, u64)]) -> MaintenanceFuture<'a, ()> {
        self.inner().count_denials(denials)
    }
}
