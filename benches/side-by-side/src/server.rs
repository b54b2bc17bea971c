use std::env;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// A store that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Server {
    Postgres,
    Postgres15,
    Mysql,
    Mariadb,
    Sqlite,
    #[value(skip)]
    Redis,
    /// Redis that writes every command to disk before it answers.
    #[value(skip)]
    RedisAlways,
    /// Redis with the module redis-cell.
    #[value(skip)]
    RedisCell,
}

impl Server {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Postgres15 => "postgres15",
            Self::Mysql => "mysql",
            Self::Mariadb => "mariadb",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::RedisAlways => "redis_always",
            Self::RedisCell => "redis_cell",
        }
    }

    /// Returns the server's URL, which `scripts/bench` and `scripts/servers env` set.
    pub(crate) fn url(self) -> anyhow::Result<String> {
        let variable = self.variable("URL");
        env::var(&variable).with_context(|| format!("{variable} names no server: run scripts/bench, which starts them"))
    }

    pub(crate) fn is_there(self) -> bool {
        self == Self::Sqlite || self.url().is_ok()
    }

    /// Returns the id of the main process, if it runs on this machine.
    pub(crate) fn pid(self) -> Option<u32> {
        env::var(self.variable("PID")).ok()?.parse().ok()
    }

    /// Returns the URL of the database that a run creates.
    pub(crate) fn database(self, run: &str) -> anyhow::Result<String> {
        if self == Self::Sqlite {
            let directory = env::current_dir()?.join("target/bench");
            return Ok(format!("sqlite://{}/{run}.sqlite", directory.display()));
        }
        let url = self.url()?;
        let (server, _) = url.rsplit_once('/').context("the server's URL names no database")?;
        Ok(format!("{server}/{run}"))
    }

    pub(crate) fn variable(self, what: &str) -> String {
        format!("TOLLGATE_{}_{what}", self.name().to_uppercase())
    }
}
