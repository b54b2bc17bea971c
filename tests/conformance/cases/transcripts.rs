//! The documents' SQL sessions give the answers shown, on every engine that the page covers.

use anyhow::{Context, ensure};

use crate::client::Row;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::TestDb;
use crate::transcript::{Exchange, exchanges};

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use SQL only, as the documents show it.
    let mut cases = list!(Setup::WITHOUT_LAYERS; documented_sessions_answer_as_shown);
    cases.extend(list!(
        Setup { needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        documented_statements_run,
    ));
    cases
}

async fn documented_sessions_answer_as_shown(db: TestDb) -> anyhow::Result<()> {
    let (prompt, provisioned) = match db.engine.kind {
        Kind::Postgres => ("app=>", "select tollgate.create_bucket(bucket, 2, 1) from unnest(array[{}]) bucket"),
        Kind::MySql => ("mysql>", "call token_create_bucket({}, 2, 1, 'interval')"),
        Kind::Sqlite => ("sqlite>", ""),
    };
    let mut shown = 0;
    for (name, page) in PAGES {
        let scratch = Scratch::migrated(&db).await?;
        for bucket in IN_USE.iter().filter(|_| name == "sql" && db.engine.has_routines) {
            scratch.db.pool.run(provisioned.replace("{}", &db.quoted(bucket))).await?;
        }
        // A pause is skipped if only the shape of the answers is checked.
        let pauses = |exchange: &Exchange| name == "sql" && exchange.statement.trim().starts_with("select pg_sleep");
        for exchange in exchanges(page, prompt).into_iter().filter(|exchange| !pauses(exchange)) {
            let what = || format!("{name}: {}", exchange.statement);
            let rows = scratch.db.sql(exchange.statement.clone()).await.with_context(what)?;
            exchange.is_answered(&rows, name != "sql").with_context(what)?;
            shown += 1;
        }
    }
    ensure!(shown > 1, "no document shows {prompt}");
    Ok(())
}

/// Covers the sessions of one engine. The runbook has a separate test.
async fn documented_statements_run(db: TestDb) -> anyhow::Result<()> {
    let fence = if db.engine.kind == Kind::MySql { "```sql mysql\n" } else { "```sql\n" };
    let mut shown = 0;
    for (name, page) in PAGES {
        let scratch = Scratch::migrated(&db).await?;
        for block in page.split(fence).skip(1).filter_map(|rest| rest.split("```").next()) {
            scratch.db.pool.run(block).await.with_context(|| format!("{name}: {block}"))?;
            shown += 1;
        }
    }
    ensure!(shown > 1, "no document shows a statement");
    Ok(())
}

impl Exchange {
    /// Whether an answer has the columns and rows shown. Time spans always differ. If the session depends on what happened
    /// before the page, the values differ, too.
    fn is_answered(&self, rows: &[Row], as_shown: bool) -> anyhow::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        ensure!(rows.len() == self.rows.len(), "{} rows", rows.len());
        for (row, shown) in rows.iter().zip(&self.rows) {
            let columns: Vec<&str> = row.columns().map(|(name, _)| name).collect();
            ensure!(self.columns.is_empty() || columns == self.columns, "columns {columns:?}");
            for ((name, cell), shown) in row.columns().zip(shown) {
                let cell = cell.unwrap_or(if shown.is_empty() { "" } else { "NULL" });
                ensure!(!as_shown || name.ends_with("_ms") || cell == shown, "{name} is {cell}");
            }
        }
        Ok(())
    }
}

/// The pages, by name.
const PAGES: [(&str, &str); 6] = [
    ("README", include_str!("../../../README.md")),
    ("postgres", include_str!("../../../docs/start/postgres.md")),
    ("mysql", include_str!("../../../docs/start/mysql.md")),
    ("sqlite", include_str!("../../../docs/start/sqlite.md")),
    ("sliding-windows", include_str!("../../../docs/sliding-windows.md")),
    ("sql", include_str!("../../../docs/sql.md")),
];
/// Buckets that the reference expects to exist.
const IN_USE: [&str; 2] = ["third-party-api", "crawler"];
