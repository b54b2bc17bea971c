use clap::ValueEnum;
use sqlx::Pool;
use sqlx::migrate::MigrateDatabase;
use tollgate::store::Migrate;

/// The data that a crash can lose.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Durability {
    /// The last commits. PostgreSQL: `synchronous_commit` off; MySQL, MariaDB: the server's settings; SQLite: NORMAL.
    Relaxed,
    /// No commit. PostgreSQL: `synchronous_commit` on; MySQL, MariaDB: 1 and 1, the defaults; SQLite: FULL.
    Durable,
}

/// Operations of a database that the benchmark needs and the library lacks.
pub(crate) trait Engine: Migrate + MigrateDatabase {
    /// The number of connections for throughput.
    const CONNECTIONS: u32;

    /// Opens a pool that does not test connections before each call, which would cost another round trip.
    async fn open(url: &str, connections: u32, durability: Durability) -> anyhow::Result<Pool<Self>>;

    /// Runs the bare update, which is the floor of the comparison.
    fn bare(pool: &Pool<Self>, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Creates the table of the bare updates, with a row for each id.
    async fn make_bare(pool: &Pool<Self>, ids: &[String]) -> sqlx::Result<()>;

    /// Returns how many bare updates and how many granted tokens the database has recorded.
    async fn books(pool: &Pool<Self>) -> sqlx::Result<(i64, i64)>;

    async fn version(pool: &Pool<Self>) -> sqlx::Result<String>;

    /// Returns the settings that commits depend on, as `name = value`.
    async fn settings(pool: &Pool<Self>) -> sqlx::Result<Vec<String>>;

    /// Changes settings that need the server's administrator.
    async fn prepare(_: &Pool<Self>, _: Durability) -> sqlx::Result<()> {
        Ok(())
    }

    /// Restores the [`settings`](Self::settings) from before [`prepare`](Self::prepare).
    async fn restore(_: &Pool<Self>, _settings: &[String]) -> sqlx::Result<()> {
        Ok(())
    }
}
