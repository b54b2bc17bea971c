//! Triggers of the host's that hold a request up in the middle of its transaction.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use sqlx::pool::PoolConnection;
use sqlx::{MySql, Postgres};
use tokio::task::JoinHandle;

use crate::books::Request;
use crate::database::Database;

/// Where a request is held.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Moment {
    /// Its id is entered: before the debit or after it, as the engine has it.
    Id,
    /// The bucket is debited.
    Debit,
    /// All is written, and not committed.
    Commit,
}

/// What is held, and where.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub moment: Moment,
    keys: &'static [&'static str],
}

impl Cut {
    pub fn request(self) -> Request {
        Request::new(self.keys)
    }
}

/// One at a time, in turn.
pub const CUTS: [Cut; 5] = [
    Cut { moment: Moment::Id, keys: ALONE },
    Cut { moment: Moment::Debit, keys: ALONE },
    Cut { moment: Moment::Commit, keys: ALONE },
    Cut { moment: Moment::Id, keys: WITH_ANOTHER },
    Cut { moment: Moment::Debit, keys: WITH_ANOTHER },
];

const ALONE: &[&str] = &["gated"];
/// The other bucket comes first, in the order of their ids.
const WITH_ANOTHER: &[&str] = &["gated", "debited before it"];

/// Makes the triggers. On `SQLite` each tells the connection, by a row that means nothing else.
pub async fn build(database: &Database) -> Result<(), sqlx::Error> {
    let statements: &[&str] = match database {
        Database::Postgres(_) => &[
            "create function gate() returns trigger language plpgsql as
             $$ begin perform pg_advisory_xact_lock_shared(hashtext(tg_argv[0])); return null; end $$",
            "create trigger gate after insert on tollgate.token_receipts for each row when (new.bucket = 'gated')
             execute function gate('Id')",
            "create trigger gate after update on tollgate.token_buckets for each row when (new.id = 'gated')
             execute function gate('Debit')",
            "create trigger gate_again after update on tollgate.token_receipts for each row
             when (new.bucket = 'gated') execute function gate('Commit')",
        ],
        Database::MySql(_) => &[
            "create trigger gate_id after insert on token_receipts for each row
             if new.bucket = 'gated' then do get_lock('Id', 60), release_lock('Id'); end if",
            "create trigger gate_debit after update on token_buckets for each row
             if new.id = 'gated' then do get_lock('Debit', 60), release_lock('Debit'); end if",
            "create trigger gate_commit after update on token_receipts for each row
             if new.bucket = 'gated' then do get_lock('Commit', 60), release_lock('Commit'); end if",
        ],
        Database::Sqlite(_) => &[
            "create table gate_id (passed integer)",
            "create table gate_debit (passed integer)",
            "create trigger gate_id after insert on token_receipts when new.bucket = 'gated'
             begin insert into gate_id values (1); end",
            "create trigger gate_debit after update on token_buckets when new.id = 'gated'
             begin insert into gate_debit values (1); end",
        ],
    };
    for statement in statements {
        database.run(statement).await?;
    }
    Ok(())
}

/// Of a server, held shut by a session of its own.
pub enum Gate {
    Postgres(PoolConnection<Postgres>),
    MySql(PoolConnection<MySql>),
}

impl Gate {
    pub async fn close(database: &Database, moment: Moment) -> anyhow::Result<Self> {
        let name = format!("{moment:?}");
        match database {
            Database::Postgres(pool) => {
                let mut session = pool.acquire().await?;
                let lock = "select pg_advisory_lock(hashtext($1))";
                sqlx::query(lock).bind(name).execute(&mut *session).await?;
                Ok(Self::Postgres(session))
            }
            Database::MySql(pool) => {
                let mut session = pool.acquire().await?;
                sqlx::query("do get_lock(?, 0)").bind(name).execute(&mut *session).await?;
                Ok(Self::MySql(session))
            }
            Database::Sqlite(_) => anyhow::bail!("a file has no sessions"),
        }
    }

    /// Returns once the request waits here.
    pub async fn is_reached<T>(&mut self, request: &JoinHandle<T>) -> anyhow::Result<()> {
        loop {
            let waiting: i64 = match self {
                Self::Postgres(session) => {
                    let sql = "select count(*) from pg_locks where locktype = 'advisory' and not granted";
                    sqlx::query_scalar(sql).fetch_one(&mut **session).await?
                }
                Self::MySql(session) => {
                    let sql = "select count(*) from information_schema.processlist where state = 'User lock'";
                    sqlx::query_scalar(sql).fetch_one(&mut **session).await?
                }
            };
            if waiting > 0 {
                return Ok(());
            }
            ensure!(!request.is_finished(), "the request passed the gate");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
