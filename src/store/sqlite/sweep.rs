use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

use super::{HostClock, row, stats};
use crate::{Filter, Key, Swept};

/// One bounded step of clearing away.
pub(super) async fn step(
    connection: &mut SqliteConnection,
    after: Option<&Key>,
    limit: u32,
    clock: &HostClock,
) -> Result<Swept, sqlx::Error> {
    let mut transaction = connection.begin_with("begin immediate").await?;
    let now = clock.now();
    let rows = row::page(&mut transaction, &Filter::default(), after, limit).await?;
    let mut deleted = 0;
    for (key, _) in rows.iter().filter(|(_, row)| row.is_idle(now)) {
        let delete = sqlx::query("delete from token_buckets where id = ?1").bind(key.as_str());
        deleted += delete.execute(&mut *transaction).await?.rows_affected();
    }
    let full_page = usize::try_from(limit).is_ok_and(|limit| rows.len() >= limit);
    let next = rows.into_iter().last().map(|(key, _)| key).filter(|_| full_page);
    if next.is_none() {
        let receipts = sqlx::query(
            "delete from token_receipts
              where (id, bucket) in (select id, bucket from token_receipts where expires_at <= ?1 limit ?2)",
        );
        deleted += receipts.bind(now).bind(limit).execute(&mut *transaction).await?.rows_affected();
        let windows = sqlx::query(
            "delete from token_windows where id in (select id from token_windows where empty_at <= ?1 limit ?2)",
        );
        deleted += windows.bind(now).bind(limit).execute(&mut *transaction).await?.rows_affected();
        let overrides = sqlx::query(
            "delete from token_overrides
              where id in (select id from token_overrides
                            where cast(round(unixepoch(expires_at, 'subsec') * 1000) as integer) * 1000000 <= ?1
                            limit ?2)",
        );
        deleted += overrides.bind(now).bind(limit).execute(&mut *transaction).await?.rows_affected();
        deleted += stats::forget(&mut transaction, clock, limit).await?;
    }
    transaction.commit().await?;
    Ok(Swept { deleted, next })
}
