//! Triggers that hold a request in the middle of its transaction.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use sqlx::pool::PoolConnection;
use sqlx::{MySql, Postgres};
use tokio::task::JoinHandle;

use crate::accounting::Request;
use crate::database::Database;

/// The point at which a request is held.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Moment {
    /// After the id is written, which is before or after the debit, depending on the engine.
    Id,
    /// After the debit of the bucket.
    Debit,
    /// After everything is written, before the commit. PostgreSQL writes nothing after the id and the debit.
    Commit,
}

/// The buckets of a request that is held, and the point at which it is held.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub moment: Moment,
    keys: &'static [&'static str],
}

impl Cut {
    pub fn request(self) -> Request {
        Request::new(self.keys)
    }

    /// Returns the name of the gate. No other request reaches it.
    fn name(self) -> String {
        format!("{:?} {}", self.moment, self.keys[0])
    }
}

/// Returns a request to hold between its id and its debit. Rounds alternate between one bucket and two.
pub fn between(database: &Database, round: usize) -> Cut {
    // PostgreSQL writes the ids after the debits.
    let first = if matches!(database, Database::Postgres(_)) { Moment::Debit } else { Moment::Id };
    let cuts = [Cut { moment: first, keys: ALONE }, Cut { moment: first, keys: WITH_ANOTHER }];
    cuts[round % cuts.len()]
}

/// Returns a second request, to hold after its id and its debit, before the commit.
pub fn written(database: &Database, round: usize) -> Cut {
    let (last, of_commit) = if matches!(database, Database::Postgres(_)) {
        (Moment::Id, Moment::Id)
    } else {
        (Moment::Debit, Moment::Commit)
    };
    let cuts = [
        Cut { moment: last, keys: LATER_ALONE },
        Cut { moment: of_commit, keys: LATER_ALONE },
        Cut { moment: last, keys: LATER_WITH_ANOTHER },
    ];
    cuts[round % cuts.len()]
}

/// The buckets of each request that can be held.
pub const BUCKETS: [&[&str]; 4] = [ALONE, WITH_ANOTHER, LATER_ALONE, LATER_WITH_ANOTHER];

const ALONE: &[&str] = &["gated"];
/// The second bucket has the smaller id, so it is debited first.
const WITH_ANOTHER: &[&str] = &["gated", "debited before it"];
const LATER_ALONE: &[&str] = &["gated later"];
const LATER_WITH_ANOTHER: &[&str] = &["gated later", "debited before that"];

/// Creates the triggers. On `SQLite`, each inserts a row that the update hook of the connection sees.
pub async fn build(database: &Database) -> Result<(), sqlx::Error> {
    let statements: &[&str] = match database {
        Database::Postgres(_) => &[
            "create function gate() returns trigger language plpgsql as
             $$ declare bucket text := coalesce(to_jsonb(new) ->> 'bucket', to_jsonb(new) ->> 'id');
             begin
               if bucket like 'gated%' then
                 perform pg_advisory_xact_lock_shared(hashtext(concat_ws(' ', tg_argv[0], bucket)));
               end if;
               return null;
             end $$",
            "create trigger gate after insert on tollgate.token_receipts for each row execute function gate('Id')",
            "create trigger gate after update on tollgate.token_buckets for each row execute function gate('Debit')",
        ],
        Database::MySql(_) => &[
            "create trigger gate_id after insert on token_receipts for each row if new.bucket like 'gated%' then
             do get_lock(concat('Id ', convert(new.bucket using utf8mb4)), 60), release_all_locks(); end if",
            "create trigger gate_debit after update on token_buckets for each row if new.id like 'gated%' then
             do get_lock(concat('Debit ', convert(new.id using utf8mb4)), 60), release_all_locks(); end if",
            "create trigger gate_commit after update on token_receipts for each row if new.bucket like 'gated%' then
             do get_lock(concat('Commit ', convert(new.bucket using utf8mb4)), 60), release_all_locks(); end if",
        ],
        Database::Sqlite(_) => &[
            "create table gate_id (passed integer)",
            "create table gate_debit (passed integer)",
            "create trigger gate_id after insert on token_receipts when new.bucket like 'gated%'
             begin insert into gate_id values (1); end",
            "create trigger gate_debit after update on token_buckets when new.id like 'gated%'
             begin insert into gate_debit values (1); end",
        ],
    };
    for statement in statements {
        database.run(statement).await?;
    }
    Ok(())
}

/// A closed gate of a server: a session that holds the lock of the gate.
pub enum Gate {
    Postgres(PoolConnection<Postgres>),
    MySql(PoolConnection<MySql>),
}

impl Gate {
    pub async fn close(database: &Database, cut: Cut) -> anyhow::Result<Self> {
        let name = cut.name();
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

    /// Returns once `expected` requests in all wait at gates.
    pub async fn until_reached<T>(&mut self, request: &JoinHandle<T>, expected: i64) -> anyhow::Result<()> {
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
            if waiting >= expected {
                return Ok(());
            }
            ensure!(!request.is_finished(), "the request passed the gate");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
