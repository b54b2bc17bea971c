//! Usage: records the periods that have ended, and reads them.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, FromRow as _};

use super::HostClock;
use super::rules::timestamp;
use crate::admin::{RecordedUsage, UsageFilter};
use crate::model::Key;
use crate::store::sql::dialect::UsageColumns;

/// Records the usage of the period that has ended, in one step that reads `limit` buckets, or deletes periods that are too old.
///
/// The first round only begins to count. The usage of a bucket belongs to the period in which the last round ended.
pub(super) async fn record(
    connection: &mut SqliteConnection,
    limit: u32,
    clock: &HostClock,
) -> Result<RecordedUsage, sqlx::Error> {
    let select = "select every_seconds, keep_days, ending, period_start, recorded_to from token_usage_recording";
    // Without a transaction first: most calls find that no period has ended.
    let mut recording: Option<RecordingRow> = sqlx::query_as(select).fetch_optional(&mut *connection).await?;
    if recording.is_none() {
        return Ok(RecordedUsage::default());
    }
    let mut transaction = connection.begin_with("begin immediate").await?;
    recording = sqlx::query_as(select).fetch_optional(&mut *transaction).await?;
    let Some((every_seconds, keep_days, is_ending, period_start, recorded_to)) = recording else {
        return Ok(RecordedUsage::default());
    };
    let now = DateTime::from_timestamp_nanos(clock.now());
    let period = timestamp(now.duration_trunc(TimeDelta::seconds(every_seconds)).unwrap_or(now));
    let recorded = if recorded_to.is_none() && period_start.as_ref() == Some(&period) && !is_ending {
        let deleted = delete_old(&mut transaction, now - TimeDelta::days(keep_days), limit).await?;
        RecordedUsage { buckets: 0, finished: deleted < u64::from(limit) }
    } else {
        let after = recorded_to.unwrap_or_default();
        let (read, last): (u32, Option<String>) = sqlx::query_as(
            "select count(*), max(id) from (select id from token_buckets where id > ?1 order by id limit ?2)",
        )
        .bind(&after)
        .bind(limit)
        .fetch_one(&mut *transaction)
        .await?;
        let buckets = record_buckets(&mut transaction, period_start.as_deref(), &after, last.as_deref()).await?;
        let is_last = read < limit;
        let next = if is_last && is_ending {
            sqlx::query("delete from token_usage_recording")
        } else {
            sqlx::query("update token_usage_recording set period_start = ?1, recorded_to = ?2")
                .bind(if is_last { Some(period) } else { period_start })
                .bind(last.filter(|_| !is_last))
        };
        next.execute(&mut *transaction).await?;
        RecordedUsage { buckets, finished: is_last && is_ending }
    };
    transaction.commit().await?;
    Ok(recorded)
}

/// Seconds of a period, days for which periods are kept, whether this is the last round, the period, and the last bucket recorded.
type RecordingRow = (i64, i64, bool, Option<String>, Option<String>);

/// Records the usage of the buckets after one id and up to another, and begins to count anew. Without a period, only begins to count.
async fn record_buckets(
    connection: &mut SqliteConnection,
    period_start: Option<&str>,
    after: &str,
    last: Option<&str>,
) -> Result<u64, sqlx::Error> {
    sqlx::query(
        "insert into token_usage_records (id, period_start, plan, granted, charged, refunded)
         select id, ?1, coalesce(substr(plan, 1, instr(plan || char(1), char(1)) - 1), ''),
                min(granted, 9223372036854775807 + min(recorded, 0)) - recorded, charged, refunded
           from token_buckets
          where ?1 is not null and id > ?2 and id <= ?3 and (granted <> recorded or charged <> 0 or refunded <> 0)
             on conflict (id, period_start, plan) do update
            set granted = min(granted, 9223372036854775807 - excluded.granted) + excluded.granted,
                charged = min(charged, 9223372036854775807 - excluded.charged) + excluded.charged,
                refunded = min(refunded, 9223372036854775807 - excluded.refunded) + excluded.refunded",
    )
    .bind(period_start)
    .bind(after)
    .bind(last)
    .execute(&mut *connection)
    .await?;
    let begin = sqlx::query(
        "update token_buckets set recorded = granted, charged = 0, refunded = 0
          where id > ?1 and id <= ?2 and (granted <> recorded or charged <> 0 or refunded <> 0)",
    );
    Ok(begin.bind(after).bind(last).execute(connection).await?.rows_affected())
}

/// Deletes periods that started before an instant, and returns how many rows.
async fn delete_old(connection: &mut SqliteConnection, before: DateTime<Utc>, limit: u32) -> Result<u64, sqlx::Error> {
    let delete = sqlx::query(
        "delete from token_usage_records where (id, period_start, plan) in (
           select id, period_start, plan from token_usage_records where period_start < ?1 order by period_start, id limit ?2)",
    );
    Ok(delete.bind(timestamp(before)).bind(limit).execute(connection).await?.rows_affected())
}

/// Adds denials to the usage of the current period, if usage is recorded.
pub(super) async fn count_denials(
    connection: &mut SqliteConnection,
    key: &Key,
    denied: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into token_usage_records (id, period_start, plan, denied)
         select ?1, period_start, coalesce((select substr(plan, 1, instr(plan || char(1), char(1)) - 1) from token_buckets where id = ?1), ''), ?2
           from token_usage_recording where period_start is not null
             on conflict (id, period_start, plan) do update
            set denied = min(denied, 9223372036854775807 - excluded.denied) + excluded.denied",
    )
    .bind(key.as_str())
    .bind(denied)
    .execute(connection)
    .await
    .map(drop)
}

/// Reads the usage of a number of buckets after an id.
pub(super) async fn list(
    connection: &mut SqliteConnection,
    UsageFilter { from, until, key, plan }: &UsageFilter,
    after: Option<&Key>,
    limit: u32,
) -> Result<Vec<UsageColumns>, sqlx::Error> {
    // The ids of further limits have U+0001 behind the key.
    let rows = sqlx::query(
        "with recorded as (
           select * from token_usage_records
            where id > ?1 and id >= ?2 and id < ?3 and period_start >= ?4 and period_start < ?5 and (?6 is null or plan = ?6)
         ), unrecorded as (
           select b.id, coalesce(substr(b.plan, 1, instr(b.plan || char(1), char(1)) - 1), '') as plan,
                  min(b.granted, 9223372036854775807 + min(b.recorded, 0)) - b.recorded as granted, b.charged, b.refunded
             from token_usage_recording r cross join token_buckets b
            where b.id > ?1 and b.id >= ?2 and b.id < ?3 and r.period_start >= ?4 and r.period_start < ?5
              and (?6 is null or b.plan = ?6 or b.plan >= ?6 || char(1) and b.plan < ?6 || char(2)) and (b.granted <> b.recorded or b.charged <> 0 or b.refunded <> 0)
         ), recorded_page(last, read) as materialized (
           select max(id), count(*) from (select distinct id from recorded order by id limit ?7)
         ), page(last) as materialized (
           -- The buckets whose usage is not recorded yet are among those up to the last of the others, if these fill the page.
           select iif(count(*) = ?7, max(id), (select iif(read = ?7, last, ?3) from recorded_page))
             from (select id from unrecorded
                    where id <= (select iif(read = ?7, last, ?3) from recorded_page) order by id limit ?7)
         )
         select id, nullif(plan, ''), sum(granted), sum(charged), sum(refunded), sum(denied)
           from (select id, plan, granted, charged, refunded, denied from recorded where id <= (select last from page)
                 union all
                 select id, plan, granted, charged, refunded, 0 from unrecorded where id <= (select last from page))
          group by id, plan order by id, plan",
    )
    .bind(after.map_or("", Key::as_str))
    .bind(key.as_ref().map_or("", Key::as_str))
    .bind(key.as_ref().map_or_else(|| "\u{10ffff}".to_owned(), |key| format!("{}\u{2}", key.as_str())))
    .bind(timestamp(*from))
    .bind(timestamp(*until))
    .bind(plan.as_ref().map(Key::as_str))
    .bind(limit)
    .fetch_all(connection)
    .await?;
    rows.iter().map(UsageColumns::from_row).collect()
}
