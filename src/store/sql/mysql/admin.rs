//! An operator's statements.

use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::query::QueryScalar;
use sqlx::{Decode, Row};

use super::super::admin::{
    self, DenialColumns, ExplanationColumns, KeyedOverrideColumns, LevelColumns, ModeColumns, PlanColumns, WindowCounts,
};
use super::super::answers;
use super::super::dialect::{
    LimitNames, OperationFuture, Operations, PageStart, RecordingColumns, RowResult, ThrottleOutcome, UsageColumns,
};
use super::super::instant::Instant;
use super::json::hex;
use super::{TransactionOwner, bytes, refill};
use crate::admin::{
    BucketLevel, DenialCount, Explanation, Filter, ModeSetting, Override, Plan, RecordedUsage, SweepResult,
    UsageFilter, UsageRecording,
};
use crate::clock::{Clock, SystemClock};
use crate::model::bucket::ThrottleLevel;
use crate::model::{Key, LimitName, Limits, Mode, Quota, Rule, WindowLevel};

macro_rules! planned {
    () => {
        "select name, capacity, refill_seconds, refill, mode, cast(mode_reason as binary) as mode_reason, mode_until,
                limit_name, cost_name
           from token_plans
           left join token_plan_limits l
             on l.plan = substring_index(name, x'01', 1)
                and (place = 1 and l.plan = name
                     or place > 1 and cast(limit_name as binary) = substring_index(name, x'01', -1) and l.plan <> name)"
    };
}

impl Operations for MySql {
    type CallContext = TransactionOwner;

    fn now(_: &TransactionOwner) -> i64 {
        SystemClock.now()
    }

    fn create_bucket<'c>(
        connection: &'c mut MySqlConnection,
        (key, quota): &'c (Key, Quota),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, ()> {
        let create = sqlx::query("call token_create_bucket(?, ?, ?, ?)")
            .bind(bytes(key))
            .bind(quota.capacity_i64())
            .bind(quota.refill_seconds())
            .bind(refill(quota));
        Box::pin(async move { create.execute(connection).await.map(drop) })
    }

    fn peek<'c>(
        connection: &'c mut MySqlConnection,
        key: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Option<RowResult<BucketLevel>>> {
        let peek = sqlx::query("call token_peek(?)").bind(bytes(key));
        Box::pin(async move {
            let rows = peek.fetch_all(connection).await?;
            Ok(rows.first().map(|row| level(row)?.try_into()))
        })
    }

    fn peek_window<'c>(
        connection: &'c mut MySqlConnection,
        key: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Option<RowResult<WindowLevel>>> {
        let peek = sqlx::query("call token_peek_window(?)").bind(bytes(key));
        Box::pin(async move {
            let rows = peek.fetch_all(connection).await?;
            Ok(rows.first().map(|row| admin::window(key, counts(row)?)))
        })
    }

    fn list<'c>(
        connection: &'c mut MySqlConnection,
        (filter, after, limit): &'c (Filter, PageStart, u32),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Vec<RowResult<BucketLevel>>> {
        let (first, last) = filter.range();
        // Ids that are not UTF-8 sort after every key.
        let last = if filter.prefix.is_some() { last.into_bytes() } else { vec![0xff; 256] };
        let page = sqlx::query(
            "/*M! set statement sql_big_selects = 1 for */ select /*+ set_var(sql_big_selects = 1) */
                    id_bytes, capacity, refill_seconds, refill, plan_bytes, provisioned, overridden, available, granted,
                    full_at, next_refill_at
               from token_bucket_levels
              where id_bytes > ? and id_bytes >= ? and id_bytes <= ?
                and coalesce(plan_bytes = ?, ?) and coalesce(provisioned = ?, true)
              order by id_bytes limit ? offset ?",
        )
        .bind(after.key.as_ref().map_or(&[][..], bytes))
        .bind(first.into_bytes())
        .bind(last)
        .bind(filter.plan.as_ref().map(bytes))
        .bind(filter.plan.is_none())
        .bind(filter.provisioned)
        .bind(limit)
        .bind(after.skip);
        Box::pin(
            async move { Ok(page.fetch_all(connection).await?.iter().map(|row| level(row)?.try_into()).collect()) },
        )
    }

    fn windows<'c>(
        connection: &'c mut MySqlConnection,
        (filter, after, limit): &'c (Filter, PageStart, u32),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Vec<RowResult<WindowLevel>>> {
        let page = sqlx::query("call token_list_windows(?, ?, ?)")
            .bind(filter.prefix.as_ref().map(bytes))
            .bind(after.key.as_ref().map(bytes))
            .bind(i64::from(*limit) + after.skip);
        let skipped = usize::try_from(after.skip).unwrap_or(usize::MAX);
        Box::pin(async move {
            let rows = page.fetch_all(connection).await?;
            let read = |row| admin::window(&admin::key(text(row, "id_bytes")?)?, counts(row)?);
            Ok(rows.iter().skip(skipped).map(read).collect())
        })
    }

    fn reset<'c>(
        connection: &'c mut MySqlConnection,
        key: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, bool> {
        found(connection, sqlx::query_scalar("call token_reset_bucket(?)").bind(bytes(key)))
    }

    fn delete<'c>(
        connection: &'c mut MySqlConnection,
        key: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, bool> {
        found(connection, sqlx::query_scalar("call token_delete_bucket(?)").bind(bytes(key)))
    }

    fn explain<'c>(
        connection: &'c mut MySqlConnection,
        (key, plan): &'c (Key, Option<Key>),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, RowResult<Explanation>> {
        let explain = sqlx::query("call token_explain(?, ?)").bind(bytes(key)).bind(plan.as_ref().map(bytes));
        Box::pin(async move {
            let rows = explain.fetch_all(connection).await?;
            let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
            Ok(explained(row).and_then(Explanation::try_from))
        })
    }

    fn create_plan<'c>(
        connection: &'c mut MySqlConnection,
        (plan, limits): &'c (Key, Limits),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, ()> {
        Box::pin(async move {
            // Further limits of the plan are between these two names. Those that stay keep their modes.
            let names: Vec<Key> = limits.buckets(plan).map(|(name, _)| name).collect();
            let others: Vec<(Vec<u8>,)> = sqlx::query_as(
                "select name from token_plans where name > concat(?, x'01') and name < concat(?, x'02') for update",
            )
            .bind(bytes(plan))
            .bind(bytes(plan))
            .fetch_all(&mut *connection)
            .await?;
            for (other,) in others.iter().filter(|(other,)| names.iter().all(|name| bytes(name) != other)) {
                sqlx::query("delete from token_plans where name = ?").bind(other).execute(&mut *connection).await?;
            }
            let first = limits.first();
            let create = sqlx::query("call token_create_plan(?, ?, ?, ?)").bind(bytes(plan));
            let create = create.bind(first.quota.capacity_i64()).bind(first.quota.refill_seconds());
            create.bind(refill(&first.quota)).execute(&mut *connection).await?;
            let names = sqlx::query("delete from token_plan_limits where plan = ?").bind(bytes(plan));
            names.execute(&mut *connection).await?;
            for (place, limit) in limits.iter().enumerate().filter(|_| limits.are_named()) {
                let [name, cost] = [&limit.name, &limit.cost].map(|name| name.as_ref().map(LimitName::as_str));
                let insert = if place == 0 {
                    let first =
                        "insert into token_plan_limits (plan, place, limit_name, cost_name) values (?, 1, ?, ?)";
                    sqlx::query(first).bind(bytes(plan)).bind(name)
                } else {
                    let further =
                        sqlx::query("call token_create_plan_limit(?, ?, ?, ?, ?, ?)").bind(bytes(plan)).bind(name);
                    let further = further.bind(limit.quota.capacity_i64()).bind(limit.quota.refill_seconds());
                    further.bind(refill(&limit.quota))
                };
                insert.bind(cost).execute(&mut *connection).await?;
            }
            Ok(())
        })
    }

    fn plan_limits<'c>(
        connection: &'c mut MySqlConnection,
        plan: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Vec<LimitNames>> {
        Box::pin(sqlx::query_as("call token_plan_limits_v1(?)").bind(bytes(plan)).fetch_all(connection))
    }

    fn set_plan_mode<'c>(
        connection: &'c mut MySqlConnection,
        (name, setting): &'c (Key, Option<ModeSetting>),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, bool> {
        let set = sqlx::query(
            "update token_plans set mode = ?, mode_reason = ?, mode_until = ?
              where name = ? or name > concat(?, x'01') and name < concat(?, x'02')",
        )
        .bind(setting.as_ref().map(|setting| setting.mode.as_str()))
        .bind(setting.as_ref().and_then(|setting| setting.reason.as_deref()).map(str::as_bytes))
        .bind(setting.as_ref().and_then(|setting| setting.until).map(|until| Instant(until).to_datetime()))
        .bind(bytes(name))
        .bind(bytes(name))
        .bind(bytes(name));
        Box::pin(async move { Ok(set.execute(connection).await?.rows_affected() > 0) })
    }

    fn plan<'c>(
        connection: &'c mut MySqlConnection,
        name: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Option<RowResult<Plan>>> {
        let plan = sqlx::query(concat!(planned!(), " where name = ?")).bind(bytes(name));
        Box::pin(async move { Ok(plan.fetch_optional(connection).await?.map(|row| planned(&row)?.try_into())) })
    }

    fn plans<'c>(
        connection: &'c mut MySqlConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Vec<RowResult<Plan>>> {
        let plans = sqlx::query(concat!(planned!(), " where name > ? order by name limit ? offset ?"))
            .bind(after.key.as_ref().map_or(&[][..], bytes))
            .bind(limit)
            .bind(after.skip);
        Box::pin(
            async move { Ok(plans.fetch_all(connection).await?.iter().map(|row| planned(row)?.try_into()).collect()) },
        )
    }

    fn delete_plan<'c>(
        connection: &'c mut MySqlConnection,
        name: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, bool> {
        let delete = sqlx::query_scalar("call token_delete_plan(?)").bind(bytes(name));
        Box::pin(delete.fetch_one(connection))
    }

    fn set_mode<'c>(
        connection: &'c mut MySqlConnection,
        setting: &'c ModeSetting,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, ()> {
        let set = sqlx::query(
            "insert into token_mode (mode, reason, until) values (?, ?, ?)
             on duplicate key update mode = values(mode), reason = values(reason), until = values(until)",
        )
        .bind(setting.mode.as_str())
        .bind(setting.reason.as_deref().map(str::as_bytes))
        .bind(setting.until.map(|until| Instant(until).to_datetime()));
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn mode<'c>(
        connection: &'c mut MySqlConnection,
        (): &'c (),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, RowResult<ModeSetting>> {
        let mode = sqlx::query("select mode, cast(reason as binary) as reason, until from token_mode");
        Box::pin(async move { Ok(admin::mode(mode.fetch_optional(connection).await?.as_ref().map(choice))) })
    }

    fn set_override<'c>(
        connection: &'c mut MySqlConnection,
        (key, over): &'c (Key, Override),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, ()> {
        let set = sqlx::query(
            "insert into token_overrides (id, capacity, refill_seconds, refill, mode, reason, expires_at)
             values (?, ?, ?, coalesce(?, 'continuous'), ?, ?, ?)
             on duplicate key update
               capacity = values(capacity), refill_seconds = values(refill_seconds), refill = values(refill),
               mode = values(mode), reason = values(reason), expires_at = values(expires_at)",
        )
        .bind(bytes(key))
        .bind(over.quota.as_ref().map(Quota::capacity_i64))
        .bind(over.quota.as_ref().map(Quota::refill_seconds))
        .bind(over.quota.as_ref().map(refill))
        .bind(over.mode.map(Mode::as_str))
        .bind(over.reason.as_bytes())
        .bind(over.expires_at.map(|at| Instant(at).to_datetime()));
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn clear_override<'c>(
        connection: &'c mut MySqlConnection,
        key: &'c Key,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, bool> {
        let clear = sqlx::query("delete from token_overrides where id = ?").bind(bytes(key));
        Box::pin(async move { Ok(clear.execute(connection).await?.rows_affected() > 0) })
    }

    fn overrides<'c>(
        connection: &'c mut MySqlConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Vec<RowResult<(Key, Override)>>> {
        let overrides = sqlx::query(
            "select id, capacity, refill_seconds, refill, mode, cast(reason as binary) as reason, expires_at
               from token_overrides where id > ? order by id limit ? offset ?",
        )
        .bind(after.key.as_ref().map_or(&[][..], bytes))
        .bind(limit)
        .bind(after.skip);
        Box::pin(async move {
            let rows = overrides.fetch_all(connection).await?;
            Ok(rows.iter().map(|row| admin::overridden(overridden(row)?)).collect())
        })
    }

    fn count_denials<'c>(
        connection: &'c mut MySqlConnection,
        denials: &'c Vec<(Key, i64)>,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, ()> {
        let entries = denials.iter().map(|(key, denied)| format!("[{},{denied}]", hex(Some(key.as_str()))));
        let denials = format!("[{}]", entries.collect::<Vec<_>>().join(","));
        let count = sqlx::query("call token_count_denials_v1(?)").bind(denials);
        Box::pin(async move { count.execute(connection).await.map(drop) })
    }

    fn most_denied<'c>(
        connection: &'c mut MySqlConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Vec<RowResult<DenialCount>>> {
        let most = sqlx::query(
            "/*M! set statement sql_big_selects = 1 for */ select /*+ set_var(sql_big_selects = 1) */
                    id_bytes as id, denied, last_denied_at
               from token_most_denied order by denied desc, id limit ? offset ?",
        )
        .bind(limit)
        .bind(after.skip);
        Box::pin(
            async move { Ok(most.fetch_all(connection).await?.iter().map(|row| denied(row)?.try_into()).collect()) },
        )
    }

    fn sweep<'c>(
        connection: &'c mut MySqlConnection,
        limit: &'c u32,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, SweepResult> {
        let step = sqlx::query_as::<_, (i64, i64)>("call token_sweep_v1(?)").bind(limit);
        Box::pin(async move {
            let steps = step.fetch_all(connection).await?;
            let (deleted, finished) = steps.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
            Ok(SweepResult { deleted: deleted.unsigned_abs(), finished: finished != 0 })
        })
    }

    fn set_usage_recording<'c>(
        connection: &'c mut MySqlConnection,
        recording: &'c Option<UsageRecording>,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, ()> {
        let set = match recording {
            Some(UsageRecording { period, keep_days }) => sqlx::query(
                "insert into token_usage_recording (every_seconds, keep_days) values (?, ?)
                 on duplicate key update every_seconds = values(every_seconds), keep_days = values(keep_days), ending = false",
            )
            .bind(period.seconds())
            .bind(i64::from(*keep_days)),
            None => sqlx::query("update token_usage_recording set ending = true, recorded_to = null"),
        };
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn usage_recording<'c>(
        connection: &'c mut MySqlConnection,
        (): &'c (),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Option<RecordingColumns>> {
        Box::pin(
            sqlx::query_as("select every_seconds, keep_days from token_usage_recording where not ending")
                .fetch_optional(connection),
        )
    }

    fn usage<'c>(
        connection: &'c mut MySqlConnection,
        (filter, after, limit): &'c (UsageFilter, Option<Key>, u32),
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, Vec<UsageColumns>> {
        let list = sqlx::query("call token_list_usage_v1(?, ?, ?, ?, ?, ?)")
            .bind(after.as_ref().map(bytes))
            .bind(filter.key.as_ref().map(bytes))
            .bind(filter.plan.as_ref().map(bytes))
            .bind(Instant(filter.from).to_datetime())
            .bind(Instant(filter.until).to_datetime())
            .bind(limit);
        Box::pin(async move { list.fetch_all(connection).await?.iter().map(usage).collect() })
    }

    fn record_usage<'c>(
        connection: &'c mut MySqlConnection,
        limit: &'c u32,
        _: &'c TransactionOwner,
    ) -> OperationFuture<'c, RecordedUsage> {
        let step = sqlx::query_as::<_, (i64, i64)>("call token_record_usage_v1(?)").bind(limit);
        Box::pin(async move {
            let steps = step.fetch_all(connection).await?;
            let (buckets, finished) = steps.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
            Ok(RecordedUsage { buckets: buckets.unsigned_abs(), finished: finished != 0 })
        })
    }

    fn throttle<'c>(
        connection: &'c mut MySqlConnection,
        (key, rule, level): &'c (Key, Rule, ThrottleLevel),
        owner: &'c TransactionOwner,
    ) -> OperationFuture<'c, ThrottleOutcome> {
        let lower = sqlx::query_scalar("call token_throttle_v1(?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .bind(bytes(key))
            .bind(level.remaining)
            .bind(level.wait)
            .bind(rule.quota().map(Quota::capacity_i64))
            .bind(rule.quota().map(Quota::refill_seconds))
            .bind(rule.quota().map(refill))
            .bind(rule.plan().map(bytes))
            .bind(owner.is_own())
            .bind(None::<String>);
        Box::pin(async move {
            let outcomes: Vec<Vec<u8>> = lower.fetch_all(connection).await?;
            let outcome = outcomes.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
            answers::lowered(&super::text(outcome))
        })
    }
}

/// Whether a routine found its row. Fetches all rows: the next statement would read unread rows of a CALL as its own.
fn found<'c>(
    connection: &'c mut MySqlConnection,
    call: QueryScalar<'c, MySql, i64, MySqlArguments>,
) -> OperationFuture<'c, bool> {
    Box::pin(async move { Ok(call.fetch_all(connection).await?.contains(&1)) })
}

/// The row of `token_peek`, or one of `token_bucket_levels`.
fn level(row: &MySqlRow) -> Result<LevelColumns, sqlx::Error> {
    Ok((
        text(row, "id_bytes")?,
        row.try_get("capacity")?,
        span(row, "refill_seconds")?.unwrap_or_default(),
        row.try_get("refill")?,
        text(row, "plan_bytes")?,
        row.try_get("provisioned")?,
        row.try_get("overridden")?,
        row.try_get("available")?,
        row.try_get("granted")?,
        row.try_get_unchecked("full_at")?,
        row.try_get_unchecked("next_refill_at")?,
    ))
}

/// A row of `token_list_usage_v1`.
fn usage(row: &MySqlRow) -> Result<UsageColumns, sqlx::Error> {
    Ok((
        text(row, "id_bytes")?,
        text(row, "plan_bytes")?,
        row.try_get("granted")?,
        row.try_get("charged")?,
        row.try_get("refunded")?,
        row.try_get("denied")?,
    ))
}

/// The row of `token_explain`.
fn explained(row: &MySqlRow) -> Result<ExplanationColumns, sqlx::Error> {
    Ok((
        row.try_get::<i64, _>("known")? != 0,
        row.try_get("limits_from")?,
        text(row, "plan_bytes")?,
        row.try_get("capacity")?,
        span(row, "refill_seconds")?,
        row.try_get("refill")?,
        row.try_get("mode")?,
        row.try_get("mode_from")?,
        text(row, "mode_reason_bytes")?,
        row.try_get_unchecked("mode_until")?,
        text(row, "override_reason_bytes")?,
        row.try_get_unchecked("override_until")?,
        row.try_get("available")?,
        row.try_get("outcome")?,
        row.try_get("retry_after_ms")?,
    ))
}

/// A row of `token_plans`.
fn planned(row: &MySqlRow) -> Result<PlanColumns, sqlx::Error> {
    Ok((
        text(row, "name")?,
        row.try_get("capacity")?,
        span(row, "refill_seconds")?.unwrap_or_default(),
        row.try_get("refill")?,
        row.try_get("mode")?,
        text(row, "mode_reason")?,
        row.try_get_unchecked("mode_until")?,
        row.try_get("limit_name")?,
        row.try_get("cost_name")?,
    ))
}

/// The row of `token_mode`.
fn choice(row: &MySqlRow) -> Result<ModeColumns, sqlx::Error> {
    Ok((row.try_get("mode")?, text(row, "reason")?, row.try_get_unchecked("until")?))
}

/// A row of `token_overrides`.
fn overridden(row: &MySqlRow) -> Result<KeyedOverrideColumns, sqlx::Error> {
    Ok((
        text(row, "id")?,
        row.try_get("capacity")?,
        span(row, "refill_seconds")?,
        row.try_get("refill")?,
        row.try_get("mode")?,
        text(row, "reason")?,
        row.try_get_unchecked("expires_at")?,
    ))
}

/// A row of `token_most_denied`.
fn denied(row: &MySqlRow) -> Result<DenialColumns, sqlx::Error> {
    Ok((text(row, "id")?, row.try_get("denied")?, row.try_get_unchecked("last_denied_at")?))
}

/// The row of `token_peek_window`, or one of `token_list_windows`.
fn counts(row: &MySqlRow) -> Result<WindowCounts, sqlx::Error> {
    Ok((
        row.try_get("max_requests")?,
        span(row, "interval_seconds")?.unwrap_or_default(),
        span(row, "resolution_seconds")?.unwrap_or_default(),
        row.try_get("counted")?,
        row.try_get("granted")?,
        row.try_get("retry_after_ms")?,
    ))
}

/// A text, or null for an option, from a column of bytes: the server would convert a column of text to the session's
/// character set.
fn text<'r, T>(row: &'r MySqlRow, column: &str) -> Result<T, sqlx::Error>
where
    T: Decode<'r, MySql>,
{
    row.try_get_unchecked(column)
}

/// Seconds with nine decimals, as nanoseconds. Decimals travel as text.
fn span(row: &MySqlRow, column: &str) -> Result<Option<i64>, sqlx::Error> {
    let seconds: Option<String> = row.try_get_unchecked(column)?;
    let nanoseconds = |seconds: String| {
        let nanoseconds = seconds.replace('.', "").parse::<i128>();
        let nanoseconds = nanoseconds.map_err(|_| sqlx::Error::Protocol(format!("{seconds:?} seconds")))?;
        Ok(i64::try_from(nanoseconds).unwrap_or(i64::MAX))
    };
    seconds.map(nanoseconds).transpose()
}
