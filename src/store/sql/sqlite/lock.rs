//! A transaction whose begin and end travel with its first and last statements.

use std::pin::pin;
use std::task::{Context, Waker};

use sqlx::Connection;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

/// A transaction that begins in the message of its first statements and ends in the message of its last. Each message to
/// the database's thread costs more than most statements.
///
/// Locks the database at once, also in the caller's transaction. If dropped before its end, the transaction is rolled back.
pub(super) struct Lock<'c> {
    connection: &'c mut SqliteConnection,
    is_nested: bool,
    is_open: bool,
}

/// Statements that begin or end a transaction of their own (`alone`), or a savepoint in the caller's (`nested`).
pub(super) struct Script {
    alone: &'static str,
    nested: &'static str,
}

/// Locks the database by a write of no row. The busy handler waits only if the caller's transaction has not read yet: a read
/// that becomes a write fails at once.
macro_rules! lock_database {
    () => {
        "update token_mode set mode = mode where false"
    };
}

/// Begins a savepoint, and locks the database.
macro_rules! lock_nested {
    () => {
        concat!("savepoint tollgate;\n", $crate::store::sql::sqlite::lock::lock_database!(), ";\n")
    };
}

/// A [`Script`] that begins a transaction, and runs the SQL of a file.
macro_rules! opening {
    ($file:literal) => {
        $crate::store::sql::sqlite::lock::Script::new(
            concat!("begin immediate;\n", include_str!($file)),
            concat!($crate::store::sql::sqlite::lock::lock_nested!(), include_str!($file)),
        )
    };
}

/// A [`Script`] that runs SQL, if there is any, and ends the transaction.
macro_rules! closing {
    () => {
        $crate::store::sql::sqlite::lock::Script::new("commit", "release tollgate")
    };
    ($($sql:tt)+) => {
        $crate::store::sql::sqlite::lock::Script::new(
            concat!($($sql)+, "\ncommit"),
            concat!($($sql)+, "\nrelease tollgate"),
        )
    };
}

pub(super) use {closing, lock_database, lock_nested, opening};

impl<'c> Lock<'c> {
    /// Begins the transaction, and returns the rows of its first statements.
    pub(super) async fn open<const N: usize>(
        connection: &'c mut SqliteConnection,
        script: &Script,
        arguments: [String; N],
    ) -> Result<(Self, Vec<SqliteRow>), sqlx::Error> {
        let is_nested = connection.is_in_transaction();
        let mut lock = Self { connection, is_nested, is_open: true };
        let rows = run(lock.connection, script.statements(is_nested), arguments).await;
        // After this error the caller's transaction is open, which sqlx does not know of.
        lock.is_open =
            !matches!(&rows, Err(sqlx::Error::Database(error)) if error.message().contains(NESTED_TRANSACTION));
        Ok((lock, rows?))
    }

    /// Runs the last statements, and ends the transaction.
    pub(super) async fn close<const N: usize>(
        mut self,
        script: &Script,
        arguments: [String; N],
    ) -> Result<(), sqlx::Error> {
        run(self.connection, script.statements(self.is_nested), arguments).await?;
        self.is_open = false;
        Ok(())
    }

    /// The connection, for statements in between.
    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        self.connection
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let undo: &[&'static str] =
                if self.is_nested { &["rollback to tollgate", "release tollgate"] } else { &["rollback"] };
            for undo in undo {
                // The first poll sends the statement. No need to wait: the connection runs later statements after it.
                let sent = pin!(sqlx::query(*undo).execute(&mut *self.connection));
                let _ = sent.poll(&mut Context::from_waker(Waker::noop()));
            }
        }
    }
}

impl Script {
    pub(super) const fn new(alone: &'static str, nested: &'static str) -> Self {
        Self { alone, nested }
    }

    fn statements(&self, is_nested: bool) -> &'static str {
        if is_nested { self.nested } else { self.alone }
    }
}

async fn run<const N: usize>(
    connection: &mut SqliteConnection,
    statements: &'static str,
    arguments: [String; N],
) -> Result<Vec<SqliteRow>, sqlx::Error> {
    arguments.into_iter().fold(sqlx::query(statements), sqlx::query::Query::bind).fetch_all(connection).await
}

/// A part of SQLite's error for a second `begin`.
const NESTED_TRANSACTION: &str = "within a transaction";

/// Ends a transaction that has nothing to write.
pub(super) const END_TRANSACTION: Script = closing!();
