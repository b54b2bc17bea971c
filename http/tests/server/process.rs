//! Runs the examples as processes, with their own databases.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// A server from the examples. Stops when dropped.
pub struct Process {
    pub address: SocketAddr,
    _child: Child,
}

impl Process {
    /// Starts the server, and returns when it listens.
    pub async fn start(example: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        // This test is target/<profile>/deps/serving-<hash>.
        let test = std::env::current_exe()?;
        let directory = test.parent().and_then(Path::parent).context("a test lies in a directory")?.join("examples");
        let binary = directory.join(format!("{example}{}", std::env::consts::EXE_SUFFIX));
        ensure!(binary.exists(), "{} is missing: cargo build --all-features --examples", binary.display());
        let mut child = Command::new(binary).args(arguments).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = child.stdout.take().context("its output was asked for")?;
        let line = BufReader::new(output).lines().next_line().await?.context("it ended before it listened")?;
        let address = line.strip_prefix("listening on http://").context("it says where it listens")?.parse()?;
        Ok(Self { address, _child: child })
    }
}

/// A database for one test, on the server that a variable names.
pub struct OwnDatabase {
    pub url: String,
    name: String,
    server: String,
}

impl OwnDatabase {
    /// Creates a migrated database on PostgreSQL.
    pub async fn create() -> anyhow::Result<Self> {
        let database = Self::create_on("TOLLGATE_POSTGRES_URL").await?;
        tollgate::migrate(&database.pool().await?).await?;
        Ok(database)
    }

    pub async fn create_on(variable: &str) -> anyhow::Result<Self> {
        let server = std::env::var(variable).with_context(|| {
            format!(
                "{variable} is not set: run scripts/test, or `eval \"$(scripts/servers env)\"` after scripts/servers start"
            )
        })?;
        let name = format!("tollgate_serving_{}", Uuid::new_v4().simple());
        let (host, _) = server.rsplit_once('/').context("a URL ends with a database")?;
        let database = Self { url: format!("{host}/{name}"), name, server };
        database.execute(format!("create database {}", database.name)).await?;
        Ok(database)
    }

    /// Opens a pool on PostgreSQL.
    pub async fn pool(&self) -> anyhow::Result<PgPool> {
        let pool = PgPoolOptions::new().max_connections(4).idle_timeout(None).max_lifetime(None);
        Ok(pool.connect(&self.url).await?)
    }

    /// Drops the database. On PostgreSQL, ends its connections first.
    pub async fn drop(self) -> anyhow::Result<()> {
        let force = if self.server.starts_with("postgres") { " with (force)" } else { "" };
        self.execute(format!("drop database {}{force}", self.name)).await
    }

    async fn execute(&self, sql: String) -> anyhow::Result<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        if self.server.starts_with("postgres") {
            sql.execute(&mut PgConnection::connect(&self.server).await?).await?;
        } else {
            sql.execute(&mut MySqlConnection::connect(&self.server).await?).await?;
        }
        Ok(())
    }
}

/// Variables of all engines that are servers.
pub const SERVERS: [&str; 3] = ["TOLLGATE_POSTGRES_URL", "TOLLGATE_MYSQL_URL", "TOLLGATE_MARIADB_URL"];
