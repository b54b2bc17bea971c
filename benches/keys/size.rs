//! The size of the table of buckets, as each engine reports it.

use std::time::Duration;

use sqlx::{MySqlPool, PgPool, SqlitePool};

pub(crate) enum Database {
    MySql(MySqlPool),
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// Sizes in bytes.
pub(crate) struct Size {
    rows: i64,
    table: i64,
    /// The size of indexes that are not part of the table.
    indexes: i64,
    /// Space in both that the engine reports as free for new rows.
    free: Option<i64>,
}

impl Size {
    pub(crate) const HEADER: &str =
        "| | rows | table, MB | indexes, MB | free in them, MB | took, s |\n|---|---|---|---|---|---|";

    pub(crate) fn line(&self, when: &str, took: Duration) -> String {
        let megabytes = |bytes: i64| format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10);
        let free = self.free.map_or_else(|| "unknown".to_owned(), megabytes);
        let (rows, table, indexes) = (self.rows, megabytes(self.table), megabytes(self.indexes));
        format!("| {when} | {rows} | {table} | {indexes} | {free} | {:.1} |", took.as_secs_f64())
    }
}

impl Database {
    pub(crate) async fn size(&self) -> Result<Size, sqlx::Error> {
        let statistics: (i64, i64, i64, Option<i64>) = match self {
            Self::Postgres(pool) => {
                let sizes = "select (select count(*) from tollgate.token_buckets),
                                    pg_table_size('tollgate.token_buckets'), pg_indexes_size('tollgate.token_buckets'),
                                    null::bigint";
                sqlx::query_as(sizes).fetch_one(pool).await?
            }
            Self::MySql(pool) => {
                // The sizes are estimates, which `analyze` updates.
                sqlx::raw_sql("analyze table token_buckets").execute(pool).await?;
                let sizes = "select (select count(*) from token_buckets), cast(data_length as signed),
                                    cast(index_length as signed), cast(data_free as signed)
                               from information_schema.tables
                              where table_schema = database() and table_name = 'token_buckets'";
                sqlx::query_as(sizes).fetch_one(pool).await?
            }
            Self::Sqlite(pool) => {
                let sizes = "select (select count(*) from token_buckets), page_count * page_size, 0,
                                    freelist_count * page_size
                               from pragma_page_count(), pragma_page_size(), pragma_freelist_count()";
                sqlx::query_as(sizes).fetch_one(pool).await?
            }
        };
        let (rows, table, indexes, free) = statistics;
        Ok(Size { rows, table, indexes, free })
    }

    /// Returns the statements with which an operator can shrink the table, in order.
    pub(crate) fn tidying(&self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Postgres(_) => vec![
                ("`vacuum`", "vacuum tollgate.token_buckets"),
                ("`reindex`", "reindex table concurrently tollgate.token_buckets"),
            ],
            Self::MySql(_) => vec![("`optimize`", "optimize table token_buckets")],
            Self::Sqlite(_) => vec![("`vacuum`", "vacuum")],
        }
    }

    pub(crate) async fn run(&self, statement: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::MySql(pool) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
            Self::Postgres(pool) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
            Self::Sqlite(pool) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
        }
    }
}
