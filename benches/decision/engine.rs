use clap::ValueEnum;
use sqlx::Pool;
use sqlx::migrate::MigrateDatabase;
use tollgate::store::Migrate;

/// What a crash may cost.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Durability {
    /// The last moments. PostgreSQL: `synchronous_commit` off; MySQL, MariaDB: as the server is set; SQLite: NORMAL.
    Relaxed,
    /// Nothing. PostgreSQL: `synchronous_commit` on; MySQL, MariaDB: 1 and 1, as they come; SQLite: FULL.
    Durable,
}

/// What the benchmark needs of a database beside what the library does.
pub(crate) trait Engine: Migrate + MigrateDatabase {
    /// With how many connections throughput is measured.
    const CONNECTIONS: u32;

    /// A pool that does not ask whether a connection is alive before each call: that would be a round trip more.
    async fn open(url: &str, connections: u32, durability: Durability) -> anyhow::Result<Pool<Self>>;

    /// The floor.
    fn bare(pool: &Pool<Self>, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Makes the table of the floor, with a row for each id.
    async fn make_bare(pool: &Pool<Self>, ids: &[String]) -> sqlx::Result<()>;

    /// How many bare updates and how many tokens granted the database has seen.
    async fn books(pool: &Pool<Self>) -> sqlx::Result<(i64, i64)>;

    async fn version(pool: &Pool<Self>) -> sqlx::Result<String>;

    /// What a commit waits for, as `name = value`.
    async fn settings(pool: &Pool<Self>) -> sqlx::Result<Vec<String>>;

    /// Changes what only the server's administrator can.
    async fn prepare(_: &Pool<Self>, _: Durability) -> sqlx::Result<()> {
        Ok(())
    }

    /// Undoes [`prepare`](Self::prepare), given what [`settings`](Self::settings) said before.
    async fn restore(_: &Pool<Self>, _settings: &[String]) -> sqlx::Result<()> {
        Ok(())
    }
}
