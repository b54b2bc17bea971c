//! The examples as processes of their own, and databases for them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::str::FromStr;

use anyhow::{Context, ensure};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// A server of the examples. It stops when its owner does.
pub struct Process {
    pub address: SocketAddr,
    _child: Child,
}

impl Process {
    /// Returns when it listens.
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

/// A database of PostgreSQL that no other test uses.
pub struct OwnDatabase {
    pub url: String,
    name: String,
    server: PgConnectOptions,
}

impl OwnDatabase {
    pub async fn create() -> anyhow::Result<Self> {
        let url = std::env::var("TOLLGATE_POSTGRES_URL").context(
            "PostgreSQL is absent: TOLLGATE_POSTGRES_URL is not set; run scripts/test, or \
             `eval \"$(scripts/servers env)\"` after scripts/servers start",
        )?;
        let server = PgConnectOptions::from_str(&url)?;
        let name = format!("tollgate_serving_{}", Uuid::new_v4().simple());
        let mut admin = PgConnection::connect_with(&server).await?;
        sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await?;
        let url = server.clone().database(&name).to_url_lossy().to_string();
        let database = Self { url, name, server };
        tollgate::migrate(&database.pool().await?).await?;
        Ok(database)
    }

    pub async fn pool(&self) -> anyhow::Result<PgPool> {
        let options = self.server.clone().database(&self.name);
        let pool = PgPoolOptions::new().max_connections(4).idle_timeout(None).max_lifetime(None);
        Ok(pool.connect_with(options).await?)
    }

    /// Whoever is connected is thrown out.
    pub async fn drop(self) -> anyhow::Result<()> {
        let mut admin = PgConnection::connect_with(&self.server).await?;
        let name = &self.name;
        sqlx::query(AssertSqlSafe(format!("drop database {name} with (force)"))).execute(&mut admin).await?;
        Ok(())
    }
}
