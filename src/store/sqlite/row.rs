use sqlx::sqlite::SqliteConnection;

use super::super::dialect::Ask;
use crate::bucket::{Bucket, Terms};
use crate::quota::Refill;
use crate::{Key, Quota};

/// A row of `token_buckets`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    quota: Quota,
    pub(super) bucket: Bucket,
    pub(super) provisioned: bool,
}

type Columns = (bool, i64, i64, i64, i64, i64, i64, String, bool);

/// Runs take.sql: the bucket after a grant first, if there was one, then the bucket as it is.
pub(super) async fn take(
    connection: &mut SqliteConnection,
    ask: &Ask,
    now: i64,
    read_at_ms: i64,
) -> Result<Vec<(bool, Row)>, sqlx::Error> {
    let rows: Vec<Columns> = sqlx::query_as(include_str!("take.sql"))
        .bind(ask.key.as_str())
        .bind(ask.request.cost)
        .bind(ask.request.keep)
        .bind(now)
        .bind(now + ask.request.max_wait)
        .bind(read_at_ms)
        .bind(ask.quota.map(|quota| quota.capacity_i64()))
        .bind(ask.quota.map(|quota| quota.refill_ns()))
        .bind(ask.quota.map(|quota| quota.refill().as_str()))
        .fetch_all(connection)
        .await?;
    rows.into_iter().map(Row::read).collect()
}

impl Row {
    pub(super) async fn find(connection: &mut SqliteConnection, key: &Key) -> Result<Option<Self>, sqlx::Error> {
        let columns: Option<Columns> = sqlx::query_as(
            "select false, anchor, full_at, granted, longest_wait, capacity, refill_ns, refill, provisioned
               from token_buckets where id = ?1",
        )
        .bind(key.as_str())
        .fetch_optional(connection)
        .await?;
        columns.map(|columns| Self::read(columns).map(|(_, row)| row)).transpose()
    }

    pub(super) async fn create(
        connection: &mut SqliteConnection,
        key: &Key,
        quota: &Quota,
        anchor: i64,
        provisioned: bool,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "insert into token_buckets (id, capacity, refill_seconds, refill, anchor, provisioned)
             values (?1, ?2, ?3 / 1e9, ?4, ?5, ?6)",
        )
        .bind(key.as_str())
        .bind(quota.capacity_i64())
        .bind(quota.refill_ns())
        .bind(quota.refill().as_str())
        .bind(anchor)
        .bind(provisioned)
        .execute(connection)
        .await
        .map(drop)
    }

    /// Brings the bucket to a quota, unless it follows it already.
    pub(super) async fn settle(
        mut self,
        connection: &mut SqliteConnection,
        key: &Key,
        quota: &Quota,
        now: i64,
        provisioned: bool,
    ) -> Result<(), sqlx::Error> {
        if !self.follows(Some(quota)) {
            self.bucket.settle(&self.terms(), &Terms::from(quota), now);
        }
        sqlx::query(
            "update token_buckets
                set capacity = ?2, refill_seconds = ?3 / 1e9, refill = ?4, full_at = ?5, longest_wait = ?6,
                    provisioned = ?7
              where id = ?1",
        )
        .bind(key.as_str())
        .bind(quota.capacity_i64())
        .bind(quota.refill_ns())
        .bind(quota.refill().as_str())
        .bind(self.bucket.full_at)
        .bind(self.bucket.longest_wait)
        .bind(provisioned)
        .execute(connection)
        .await
        .map(drop)
    }

    pub(super) async fn write(
        connection: &mut SqliteConnection,
        key: &Key,
        bucket: &Bucket,
    ) -> Result<(), sqlx::Error> {
        sqlx::query("update token_buckets set full_at = ?2, granted = ?3, longest_wait = ?4 where id = ?1")
            .bind(key.as_str())
            .bind(bucket.full_at)
            .bind(bucket.granted)
            .bind(bucket.longest_wait)
            .execute(connection)
            .await
            .map(drop)
    }

    pub(super) fn terms(&self) -> Terms {
        Terms::from(&self.quota)
    }

    /// Whether these are the bucket's terms; it always follows its own.
    pub(super) fn follows(&self, quota: Option<&Quota>) -> bool {
        quota.is_none_or(|quota| *quota == self.quota)
    }

    fn read(columns: Columns) -> Result<(bool, Self), sqlx::Error> {
        let (first, anchor, full_at, granted, longest_wait, capacity, refill_ns, refill, provisioned) = columns;
        let refill = Refill::parse(&refill).ok_or_else(|| sqlx::Error::Protocol(format!("the refill {refill:?}")))?;
        let bucket = Bucket { anchor, full_at, granted, longest_wait };
        Ok((first, Self { quota: Quota::stored(capacity, refill_ns, refill), bucket, provisioned }))
    }
}
