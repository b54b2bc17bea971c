//! Deletes expired rows in bounded steps, table by table in the order of their primary keys.

use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

use super::{HostClock, denials};
use crate::admin::SweepResult;
use crate::model::quota::SECOND_NS;

/// Makes one bounded step of a sweep: reads up to `limit` rows of all tables together, each by its primary key.
pub(super) async fn step(
    connection: &mut SqliteConnection,
    limit: u32,
    clock: &HostClock,
) -> Result<SweepResult, sqlx::Error> {
    let mut transaction = connection.begin_with("begin immediate").await?;
    // As bytes: an id that is not UTF-8 must not end every sweep.
    let swept_to: Option<Vec<u8>> =
        sqlx::query_scalar("select cast(swept_to as blob) from token_sweep_position where swept_to is not null")
            .fetch_optional(&mut *transaction)
            .await?;
    let swept_to =
        swept_to.as_deref().and_then(|place| Some(place.split_at(place.iter().position(|byte| *byte == b'/')?)));
    let (begin, mut after) = swept_to.map_or((BUCKETS.as_bytes(), &[][..]), |(table, id)| (table, &id[1..]));
    let (mut deleted, mut left) = (0, limit);
    let mut tables = TABLES.iter().skip_while(|table| table.name.as_bytes() != begin);
    let next = loop {
        let Some(table) = tables.next() else {
            let forgotten = denials::forget_old(&mut transaction, clock, left).await?;
            deleted += forgotten;
            // The oldest counts come first, so the next step begins at the start of the table.
            break (forgotten >= u64::from(left)).then(|| place(DENIALS, &[]));
        };
        let (read, last) = table.read(&mut transaction, after, left).await?;
        if let Some(last) = &last {
            deleted += table.sweep(&mut transaction, after, last, clock).await?;
        }
        if read >= left {
            break last.map(|last| place(table.name, &last));
        }
        (left, after) = (left - read, &[]);
    };
    let finished = next.is_none();
    sqlx::query(
        "insert into token_sweep_position (one, swept_to) values (1, cast(?1 as text))
             on conflict do update set swept_to = excluded.swept_to",
    )
    .bind(next)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(SweepResult { deleted, finished })
}

/// A table, and the last id that the sweep read in it.
fn place(table: &str, id: &[u8]) -> Vec<u8> {
    [table.as_bytes(), b"/", id].concat()
}

/// A table that the sweep walks by its primary key.
struct SweptTable {
    name: &'static str,
    /// Counts the rows behind `?1`, at most `?2`, and returns the id of the last.
    read: &'static str,
    /// Deletes rows behind `?1` and up to `?2` that have expired at `?3`, and that no open receipt needs. Buckets and windows
    /// expire when they were full or empty at `?4`.
    sweep: &'static str,
}

impl SweptTable {
    async fn read(
        &self,
        connection: &mut SqliteConnection,
        after: &[u8],
        limit: u32,
    ) -> Result<(u32, Option<Vec<u8>>), sqlx::Error> {
        sqlx::query_as(self.read).bind(after).bind(limit).fetch_one(connection).await
    }

    async fn sweep(
        &self,
        connection: &mut SqliteConnection,
        after: &[u8],
        last: &[u8],
        clock: &HostClock,
    ) -> Result<u64, sqlx::Error> {
        let now = clock.now();
        let delete = sqlx::query(self.sweep).bind(after).bind(last).bind(now).bind(now - UNUSED_NS);
        Ok(delete.execute(connection).await?.rows_affected())
    }
}

const TABLES: [SweptTable; 4] = [
    SweptTable {
        name: BUCKETS,
        read: "select count(*), cast(max(id) as blob)
                 from (select id from token_buckets where id > cast(?1 as text) order by id limit ?2)",
        sweep: "delete from token_buckets
                 where id > cast(?1 as text) and id <= cast(?2 as text) and not provisioned
                   -- After a calendar period, debt in the next one counts for a period more: its length is not known here.
                   and full_at + iif(period_end is not null and full_at > step_ticks, step_ticks, 0)
                       <= (?4 - anchor) / step_ns * step_ticks
                   and not exists (select receipt.id from token_receipts receipt
                                    where receipt.bucket = token_buckets.id and receipt.state = 'open'
                                      and receipt.expires_at > ?3)",
    },
    SweptTable {
        name: "windows",
        read: "select count(*), cast(max(id) as blob)
                 from (select id from token_windows where id > cast(?1 as text) order by id limit ?2)",
        sweep: "delete from token_windows
                 where id > cast(?1 as text) and id <= cast(?2 as text) and empty_at <= ?4
                   and not exists (select receipt.id from token_receipts receipt
                                    where receipt.bucket = char(1) || token_windows.id and receipt.state = 'open'
                                      and receipt.expires_at > ?3)",
    },
    // Its key is a UUID's 36 characters and a bucket.
    SweptTable {
        name: "receipts",
        read: "select count(*), cast(max(id || bucket) as blob)
                 from (select id, bucket from token_receipts
                        where (id, bucket) > (substr(cast(?1 as text), 1, 36), substr(cast(?1 as text), 37))
                        order by id, bucket limit ?2)",
        sweep: "delete from token_receipts
                 where (id, bucket) > (substr(cast(?1 as text), 1, 36), substr(cast(?1 as text), 37))
                   and (id, bucket) <= (substr(cast(?2 as text), 1, 36), substr(cast(?2 as text), 37)) and expires_at <= ?3",
    },
    SweptTable {
        name: "overrides",
        read: "select count(*), cast(max(id) as blob)
                 from (select id from token_overrides where id > cast(?1 as text) order by id limit ?2)",
        sweep: "delete from token_overrides
                 where id > cast(?1 as text) and id <= cast(?2 as text)
                   and cast(round(unixepoch(expires_at, 'subsec') * 1000) as integer) * 1000000 <= ?3",
    },
];

/// How long a bucket stays when it is full, and a window when it is empty. Most clients return sooner, and creating a row costs
/// more than updating it.
const UNUSED_NS: i64 = 60 * SECOND_NS;

const BUCKETS: &str = "buckets";
const DENIALS: &str = "denials";
