use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

use super::{HostClock, stats};
use crate::admin::Swept;

/// One bounded step of a sweep: it looks at so many rows of all tables together, each by its primary key.
pub(super) async fn step(
    connection: &mut SqliteConnection,
    limit: u32,
    clock: &HostClock,
) -> Result<Swept, sqlx::Error> {
    let mut transaction = connection.begin_with("begin immediate").await?;
    let swept_to: Option<String> =
        sqlx::query_scalar("select swept_to from token_sweep_position where swept_to is not null")
            .fetch_optional(&mut *transaction)
            .await?;
    let (begin, mut after) = swept_to.as_deref().and_then(|place| place.split_once('/')).unwrap_or((BUCKETS, ""));
    let (mut deleted, mut left) = (0, limit);
    let mut tables = TABLES.iter().skip_while(|table| table.name != begin);
    let next = loop {
        let Some(table) = tables.next() else {
            let denials = stats::forget(&mut transaction, clock, left).await?;
            deleted += denials;
            // The oldest come first, so it begins where the table does.
            break (denials >= u64::from(left)).then(|| format!("{DENIALS}/"));
        };
        let (looked_at, last) = table.look(&mut transaction, after, left).await?;
        if let Some(last) = &last {
            deleted += table.sweep(&mut transaction, after, last, clock).await?;
        }
        if looked_at >= left {
            break last.map(|last| format!("{}/{last}", table.name));
        }
        (left, after) = (left - looked_at, "");
    };
    let finished = next.is_none();
    sqlx::query(
        "insert into token_sweep_position (one, swept_to) values (1, ?1)
             on conflict do update set swept_to = excluded.swept_to",
    )
    .bind(next)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Swept { deleted, finished })
}

/// A table that is walked by its primary key.
struct Table {
    name: &'static str,
    /// How many rows there are behind `?1`, `?2` at most, and which is the last of them.
    look: &'static str,
    /// Deletes those behind `?1` and up to `?2` that say nothing any more at `?3`, and will not be asked to.
    sweep: &'static str,
}

impl Table {
    async fn look(
        &self,
        connection: &mut SqliteConnection,
        after: &str,
        limit: u32,
    ) -> Result<(u32, Option<String>), sqlx::Error> {
        sqlx::query_as(self.look).bind(after).bind(limit).fetch_one(connection).await
    }

    async fn sweep(
        &self,
        connection: &mut SqliteConnection,
        after: &str,
        last: &str,
        clock: &HostClock,
    ) -> Result<u64, sqlx::Error> {
        let delete = sqlx::query(self.sweep).bind(after).bind(last).bind(clock.now());
        Ok(delete.execute(connection).await?.rows_affected())
    }
}

const TABLES: [Table; 4] = [
    Table {
        name: BUCKETS,
        look: "select count(*), max(id) from (select id from token_buckets where id > ?1 order by id limit ?2)",
        sweep: "delete from token_buckets
                 where id > ?1 and id <= ?2 and not provisioned and full_at <= (?3 - anchor) / step_ns * step_ticks
                   and not exists (select receipt.id from token_receipts receipt
                                    where receipt.bucket = token_buckets.id and receipt.state = 'open'
                                      and receipt.expires_at > ?3)",
    },
    Table {
        name: "windows",
        look: "select count(*), max(id) from (select id from token_windows where id > ?1 order by id limit ?2)",
        sweep: "delete from token_windows
                 where id > ?1 and id <= ?2 and empty_at <= ?3
                   and not exists (select receipt.id from token_receipts receipt
                                    where receipt.bucket = char(1) || token_windows.id and receipt.state = 'open'
                                      and receipt.expires_at > ?3)",
    },
    // Its key is a UUID's 36 characters and a bucket.
    Table {
        name: "receipts",
        look: "select count(*), max(id || bucket)
                 from (select id, bucket from token_receipts where (id, bucket) > (substr(?1, 1, 36), substr(?1, 37))
                        order by id, bucket limit ?2)",
        sweep: "delete from token_receipts
                 where (id, bucket) > (substr(?1, 1, 36), substr(?1, 37))
                   and (id, bucket) <= (substr(?2, 1, 36), substr(?2, 37)) and expires_at <= ?3",
    },
    Table {
        name: "overrides",
        look: "select count(*), max(id) from (select id from token_overrides where id > ?1 order by id limit ?2)",
        sweep: "delete from token_overrides
                 where id > ?1 and id <= ?2
                   and cast(round(unixepoch(expires_at, 'subsec') * 1000) as integer) * 1000000 <= ?3",
    },
];

const BUCKETS: &str = "buckets";
const DENIALS: &str = "denials";
