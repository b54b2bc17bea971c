//! Rows that requests leave behind, created by the thousand.

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::engines::Kind;
use crate::pools::with_pool;
use crate::test_db::{TestDb, hex};

/// The swept tables except the buckets' own.
#[derive(Clone, Copy)]
pub(super) enum Table {
    Windows,
    Receipts,
    Overrides,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowState {
    Expired,
    Live,
}

impl Table {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Windows => "token_windows",
            Self::Receipts => "token_receipts",
            Self::Overrides => "token_overrides",
        }
    }

    /// Inserts rows as recent or old requests leave them.
    pub(super) async fn fill(self, db: &TestDb, begin: &str, count: i64, state: RowState) -> anyhow::Result<()> {
        let (kind, table) = (db.engine.kind, in_schema(db, self.name()));
        let end = if state == RowState::Expired { 1_000_000_000 } else { i64::MAX / 4 };
        let (columns, rest) = match (self, kind) {
            (Self::Windows, Kind::Postgres) => (
                "id, max_requests, interval_ns, resolution_ns, ends, counts",
                format!("1, 1000, 1000, array[{end}], array[1]"),
            ),
            (Self::Windows, Kind::MySql) => (
                "id, max_requests, interval_ns, resolution_ns, counts, newest",
                format!("1, 1000, 1000, '[[{end},1]]', {end}"),
            ),
            (Self::Windows, Kind::Sqlite) => (
                "id, max_requests, interval_ns, resolution_ns, counts, empty_at",
                format!("1, 1000, 1000, '{end} 1', {end} + 1000"),
            ),
            (Self::Receipts, _) => {
                ("bucket, cost, granted, scheduled_at, state, expires_at, id", format!("1, 1, 1, 'open', {end}"))
            }
            (Self::Overrides, _) => ("id, mode, reason", "'off', 'a test'".to_owned()),
        };
        let row = |n: i64| {
            let id = format!("{begin}:{n:06}");
            match self {
                Self::Receipts => format!("('{id}', {rest}, {})", uuid(kind)),
                Self::Windows | Self::Overrides => format!("('{id}', {rest})"),
            }
        };
        let rows: Vec<String> = (0..count).map(row).collect();
        db.pool.run(format!("insert into {table} ({columns}) values {}", rows.join(", "))).await?;
        if let (Self::Overrides, RowState::Expired) = (self, state) {
            db.pool.run(format!("update {table} set expires_at = '2001-01-01' where id like '{begin}:%'")).await?;
        }
        Ok(())
    }
}

/// Makes all continuous buckets full for a minute longer.
pub(in super::super) async fn age_buckets(db: &TestDb) -> anyhow::Result<()> {
    let longer = format!("update {} set full_at = full_at - 60000000000 where refill = 'continuous'", db.table());
    Ok(db.pool.run(longer).await?)
}

fn uuid(kind: Kind) -> String {
    let id = Uuid::new_v4();
    if kind == Kind::MySql { format!("x'{}'", hex(id.as_bytes())) } else { format!("'{id}'") }
}

fn in_schema(db: &TestDb, table: &str) -> String {
    db.table().replace("token_buckets", table)
}

/// The number of rows in a table.
pub(super) async fn rows(db: &TestDb, table: &str) -> anyhow::Result<i64> {
    let count = AssertSqlSafe(format!("select count(*) from {}", in_schema(db, table)));
    Ok(with_pool!(&db.pool, pool => sqlx::query_scalar(count).fetch_one(pool).await?))
}

pub(super) const TABLES: [Table; 3] = [Table::Windows, Table::Receipts, Table::Overrides];
