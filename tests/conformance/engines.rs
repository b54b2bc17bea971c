//! The engines of the suite, and their capabilities.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tollgate::store::Isolation;

use crate::layers::Layers;

pub mod mysql;
pub mod postgres;
pub mod sqlite;

/// A database under test.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability by itself")]
pub struct Engine {
    pub name: &'static str,
    pub kind: Kind,
    /// The variable with the URL of its server; `None`: a file is enough.
    pub url_variable: Option<&'static str>,
    /// Whether every run needs the engine. The others exist as containers only, and run if their variable is set.
    pub required: bool,
    /// `None`: the pool's default level. The others are those that differ from it.
    pub levels: &'static [Option<Isolation>],
    /// Whether routines in the database decide, which any SQL client can call.
    pub has_routines: bool,
    /// Whether the engine has users and privileges.
    pub has_roles: bool,
    /// Whether a connection of the pool is a session of the server, with its own settings.
    pub has_sessions: bool,
    /// Whether the engine can copy a database.
    pub copies_databases: bool,
    /// Whether Citus distributes the tables over several nodes.
    pub is_distributed: bool,
    /// Whether a heap stores several versions of a row, as on PostgreSQL but not on YugabyteDB.
    pub has_heap: bool,
    /// Whether a session's timeout of a statement ends it within a routine.
    pub has_statement_timeout: bool,
    /// Whether a session has a timeout of its transactions.
    pub has_transaction_timeout: bool,
    /// Whether a session can refuse to change a row that changed after its snapshot, without `SERIALIZABLE`.
    pub has_snapshot_conflicts: bool,
    /// Whether a session can disable the checks of tables.
    pub checks_can_be_disabled: bool,
    /// The last year in which tests begin periods. Periods end a year later, which the engine must convert between zones, too.
    pub last_year: i16,
    /// How `set default role` names the user: `to` it or `for` it.
    pub default_role_preposition: &'static str,
    /// Whether a test can replace the clock of the routines.
    pub time_can_be_injected: bool,
    /// The layers through which all cases run once more.
    pub layers: &'static [Layers],
    /// The layers through which a part of the cases runs once more, with the level.
    pub layers_in_brief: &'static [(Layers, Option<Isolation>)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    MySql,
    Postgres,
    Sqlite,
}

const POSTGRES: Engine = Engine {
    name: "postgres",
    kind: Kind::Postgres,
    url_variable: Some("TOLLGATE_POSTGRES_URL"),
    required: true,
    levels: &[None, Some(Isolation::RepeatableRead), Some(Isolation::Serializable)],
    has_routines: true,
    has_roles: true,
    has_sessions: true,
    copies_databases: true,
    is_distributed: false,
    has_heap: true,
    has_statement_timeout: true,
    has_transaction_timeout: true,
    has_snapshot_conflicts: false,
    checks_can_be_disabled: false,
    default_role_preposition: "to",
    last_year: 2100,
    time_can_be_injected: true,
    layers: &[],
    layers_in_brief: &[],
};

const MYSQL: Engine = Engine {
    name: "mysql",
    kind: Kind::MySql,
    url_variable: Some("TOLLGATE_MYSQL_URL"),
    levels: &[None, Some(Isolation::ReadCommitted), Some(Isolation::Serializable)],
    copies_databases: false,
    has_heap: false,
    has_statement_timeout: false,
    has_transaction_timeout: false,
    ..POSTGRES
};

pub const ENGINES: &[Engine] = &[
    Engine {
        name: "sqlite",
        kind: Kind::Sqlite,
        url_variable: None,
        required: true,
        levels: &[None],
        has_routines: false,
        has_roles: false,
        has_sessions: true,
        copies_databases: false,
        is_distributed: false,
        has_heap: false,
        has_statement_timeout: false,
        has_transaction_timeout: false,
        has_snapshot_conflicts: false,
        checks_can_be_disabled: false,
        default_role_preposition: "to",
        last_year: 2100,
        time_can_be_injected: true,
        layers: &[Layers::Batched, Layers::Stacked],
        layers_in_brief: &[],
    },
    Engine {
        name: "postgres15",
        url_variable: Some("TOLLGATE_POSTGRES15_URL"),
        levels: &[None],
        has_transaction_timeout: false,
        layers_in_brief: &[(Layers::Stacked, None)],
        ..POSTGRES
    },
    Engine {
        layers_in_brief: &[
            (Layers::Denying, None),
            (Layers::Stacked, None),
            (Layers::Stacked, Some(Isolation::Serializable)),
        ],
        ..POSTGRES
    },
    Engine {
        name: "pgbouncer",
        url_variable: Some("TOLLGATE_PGBOUNCER_URL"),
        levels: &[None, Some(Isolation::Serializable)],
        has_sessions: false,
        copies_databases: false,
        // The server behind the pooler decides, and a session's settings end with a transaction.
        time_can_be_injected: false,
        layers_in_brief: &[(Layers::Stacked, None)],
        ..POSTGRES
    },
    Engine { layers_in_brief: &[(Layers::Stacked, None)], ..MYSQL },
    // Uses MySQL's SQL.
    Engine {
        name: "mariadb",
        url_variable: Some("TOLLGATE_MARIADB_URL"),
        has_statement_timeout: true,
        has_snapshot_conflicts: true,
        checks_can_be_disabled: true,
        default_role_preposition: "for",
        last_year: 2036,
        layers_in_brief: &[(Layers::Stacked, None)],
        ..MYSQL
    },
    Engine { name: "mysql84", url_variable: Some("TOLLGATE_MYSQL84_URL"), required: false, ..MYSQL },
    Engine {
        name: "yugabyte",
        url_variable: Some("TOLLGATE_YUGABYTE_URL"),
        required: false,
        copies_databases: false,
        has_heap: false,
        has_transaction_timeout: false,
        ..POSTGRES
    },
    // The connection is to the coordinator, and the other nodes keep most keys: a session's settings do not reach them.
    Engine {
        name: "citus",
        url_variable: Some("TOLLGATE_CITUS_URL"),
        required: false,
        levels: &[None],
        has_roles: false,
        has_sessions: false,
        copies_databases: false,
        is_distributed: true,
        has_heap: false,
        has_statement_timeout: false,
        has_transaction_timeout: false,
        time_can_be_injected: false,
        layers_in_brief: &[(Layers::Stacked, None)],
        ..POSTGRES
    },
];

impl Engine {
    /// Whether the engine's cases run: those of one engine if `TOLLGATE_ENGINE` names it. A required engine whose server is
    /// absent fails its cases.
    pub fn takes_part(&self) -> bool {
        let has_server = || self.url_variable.is_some_and(|variable| std::env::var_os(variable).is_some());
        std::env::var("TOLLGATE_ENGINE")
            .map_or_else(|_| self.required || has_server(), |selected| selected == self.name)
    }

    /// Whether PgBouncer is between the pool and the server, so that connections of the pool share sessions.
    pub fn is_pooled(&self) -> bool {
        self.kind == Kind::Postgres && !self.has_sessions && !self.is_distributed
    }

    /// The URL of its server.
    pub fn url(&self) -> anyhow::Result<String> {
        let variable = self.url_variable.unwrap_or_default();
        std::env::var(variable).map_err(|_| {
            anyhow::anyhow!(
                "{} is absent: {variable} is not set; run scripts/test, or `eval \"$(scripts/servers env)\"` after \
                 scripts/servers start",
                self.name
            )
        })
    }
}

/// The name of a database of the suite. It changes with each migration, so that no run uses the schema of another version.
pub fn database_name<DB: tollgate::store::Migrate>(engine: &Engine, suffix: &str) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};

    let mut hasher = DefaultHasher::new();
    for migration in tollgate::store::migrations::<DB>() {
        migration.sql().hash(&mut hasher);
    }
    format!("tollgate_test_{:08x}_{}{suffix}", hasher.finish() & 0xffff_ffff, engine.name)
}

/// Makes a database of the suite unless this process has made it. Other cases wait meanwhile.
pub async fn once(name: &str, make: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    static MADE: Mutex<BTreeMap<String, Arc<OnceCell<()>>>> = Mutex::new(BTreeMap::new());
    let cell = Arc::clone(MADE.lock().entry(name.to_owned()).or_default());
    cell.get_or_try_init(|| make).await.copied()
}
