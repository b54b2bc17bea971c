//! A client without this crate: statements in the engine's own SQL, and answers as text.

use anyhow::Context;
use sqlx::{AssertSqlSafe, Column, Row as _};

use crate::engines::Kind;
use crate::test_db::{AnyPool, TestDb};

/// A row, with its columns by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row(Vec<(String, Option<String>)>);

impl Row {
    /// A number; a boolean is 1 or 0.
    pub(crate) fn number(&self, column: &str) -> anyhow::Result<i64> {
        match self.text(column)?.context("null")? {
            "t" => Ok(1),
            "f" => Ok(0),
            text => text.parse().with_context(|| format!("{column} is {text}")),
        }
    }

    /// Several numbers.
    pub(crate) fn numbers<const N: usize>(&self, columns: [&str; N]) -> anyhow::Result<[i64; N]> {
        let numbers: Vec<i64> = columns.iter().map(|column| self.number(column)).collect::<anyhow::Result<_>>()?;
        Ok(numbers.try_into().expect("as many"))
    }

    /// The names and values of the columns, in order.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(name, text)| (&**name, text.as_deref()))
    }

    /// A text, or null.
    pub(crate) fn text(&self, column: &str) -> anyhow::Result<Option<&str>> {
        let found = self.0.iter().find(|(name, _)| name == column);
        Ok(found.with_context(|| format!("no column {column} in {self:?}"))?.1.as_deref())
    }
}

/// The reason why a statement was refused.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) sqlstate: String,
    pub(crate) message: String,
}

impl TestDb {
    /// Runs a statement, and reads its rows.
    pub(crate) async fn sql(&self, sql: impl Into<String>) -> Result<Vec<Row>, sqlx::Error> {
        let sql = AssertSqlSafe(sql.into());
        macro_rules! rows {
            ($pool:expr) => {{
                let mut rows = Vec::new();
                for row in sqlx::raw_sql(sql).fetch_all($pool).await? {
                    let mut columns = Vec::new();
                    for (at, column) in row.columns().iter().enumerate() {
                        columns.push((column.name().to_owned(), row.try_get_unchecked(at)?));
                    }
                    rows.push(Row(columns));
                }
                Ok(rows)
            }};
        }
        match &self.pool {
            AnyPool::MySql(pool) => rows!(pool),
            AnyPool::Postgres(pool) => rows!(pool),
            AnyPool::Sqlite(pool) => rows!(pool),
        }
    }

    /// Calls a routine, whose answer is one row.
    pub(crate) async fn call(&self, routine: &str, arguments: &str) -> anyhow::Result<Row> {
        let rows = self.sql(self.calling(routine, arguments)).await?;
        anyhow::ensure!(rows.len() == 1, "{} rows of {routine}({arguments})", rows.len());
        Ok(rows.into_iter().next().expect("one row"))
    }

    /// The statement that calls a routine.
    pub(crate) fn calling(&self, routine: &str, arguments: &str) -> String {
        match self.engine.kind {
            Kind::MySql => format!("call {routine}({arguments})"),
            Kind::Postgres => format!("select * from tollgate.{routine}({arguments})"),
            Kind::Sqlite => unreachable!("SQLite has no routines"),
        }
    }

    /// The routine that decides one request. Its first ten arguments are equal on each engine.
    pub(crate) fn taking(&self, arguments: &str) -> String {
        match self.engine.kind {
            Kind::MySql => format!(
                "set @times = 1;
                 call token_take_v1({arguments}, true, false, @times, @outcome, @mode, @now, @scheduled_at, @full_at, @granted,
                                    @burst, @anchor, @step_ns, @step_ticks, @token_ticks);
                 select @outcome as outcome"
            ),
            _ => self.calling("take_v1", arguments),
        }
    }

    /// Runs a statement that the database must refuse.
    pub(crate) async fn refusal(&self, sql: impl Into<String>) -> anyhow::Result<Refusal> {
        let sql = sql.into();
        match self.sql(sql.clone()).await {
            Ok(rows) => anyhow::bail!("{sql} was accepted: {rows:?}"),
            Err(sqlx::Error::Database(error)) => Ok(Refusal {
                sqlstate: error.code().unwrap_or_default().into_owned(),
                message: error.message().to_owned(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// A text in this engine's SQL, in single quotes.
    pub(crate) fn quoted(&self, text: &str) -> String {
        let text = text.replace('\'', "''");
        let text = if self.engine.kind == Kind::MySql { text.replace('\\', "\\\\") } else { text };
        format!("'{text}'")
    }
}
