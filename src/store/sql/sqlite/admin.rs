//! An operator's statements. Rust computes what routines compute on a server.

use sqlx::Connection;
use sqlx::sqlite::{Sqlite, SqliteConnection};

use super::{HostClock, rows, rules, sweep, usage, windows};
use crate::admin::explain;
use crate::admin::{
    BucketLevel, DenialCount, Explanation, Filter, ModeSetting, Override, Plan, RecordedUsage, SweepResult,
    UsageFilter, UsageRecording,
};
use crate::model::bucket::ThrottleLevel;
use crate::model::decide;
use crate::model::decide::{BucketRow, KeySettings};
use crate::model::{Key, Limits, Quota, Rule, WindowLevel};
use crate::store::sql::dialect::{
    LimitNames, OperationFuture, Operations, PageStart, RecordingColumns, RowResult, ThrottleOutcome, UsageColumns,
};

impl Operations for Sqlite {
    type CallContext = HostClock;

    fn now(clock: &HostClock) -> i64 {
        clock.now()
    }

    fn create_bucket<'c>(
        connection: &'c mut SqliteConnection,
        (key, quota): &'c (Key, Quota),
        clock: &'c HostClock,
    ) -> OperationFuture<'c, ()> {
        Box::pin(async move {
            let mut transaction = super::begin(connection).await?;
            let row = match rows::find(&mut transaction, key).await? {
                None => BucketRow::provisioned(*quota, clock.now()),
                Some(mut row) => {
                    row.provision(*quota, clock.now());
                    row
                }
            };
            rows::write(&mut transaction, key, &row).await?;
            transaction.commit().await
        })
    }

    fn peek<'c>(
        connection: &'c mut SqliteConnection,
        key: &'c Key,
        clock: &'c HostClock,
    ) -> OperationFuture<'c, Option<RowResult<BucketLevel>>> {
        Box::pin(async move {
            let row = rows::peek(connection, key).await?;
            Ok(row.map(|row| Ok(BucketLevel::new(key.clone(), &row?, clock.now()))))
        })
    }

    fn peek_window<'c>(
        connection: &'c mut SqliteConnection,
        key: &'c Key,
        clock: &'c HostClock,
    ) -> OperationFuture<'c, Option<RowResult<WindowLevel>>> {
        Box::pin(async move {
            let row = windows::peek(connection, key).await?;
            Ok(row.and_then(|row| row.map(|row| WindowLevel::new(key, row, clock.now())).transpose()))
        })
    }

    fn list<'c>(
        connection: &'c mut SqliteConnection,
        (filter, after, limit): &'c (Filter, PageStart, u32),
        clock: &'c HostClock,
    ) -> OperationFuture<'c, Vec<RowResult<BucketLevel>>> {
        Box::pin(async move {
            let rows = rows::page(connection, filter, after, *limit).await?;
            let now = clock.now();
            Ok(rows.into_iter().map(|row| row.map(|(key, row)| BucketLevel::new(key, &row, now))).collect())
        })
    }

    fn windows<'c>(
        connection: &'c mut SqliteConnection,
        (filter, after, limit): &'c (Filter, PageStart, u32),
        clock: &'c HostClock,
    ) -> OperationFuture<'c, Vec<RowResult<WindowLevel>>> {
        Box::pin(async move {
            let rows = windows::page(connection, filter, after, *limit).await?;
            let now = clock.now();
            let level = |(key, row): (Key, _)| WindowLevel::new(&key, row, now);
            Ok(rows.into_iter().filter_map(|row| row.map(level).transpose()).collect())
        })
    }

    fn reset<'c>(
        connection: &'c mut SqliteConnection,
        key: &'c Key,
        clock: &'c HostClock,
    ) -> OperationFuture<'c, bool> {
        Box::pin(async move {
            let mut transaction = super::begin(connection).await?;
            let window = windows::delete(&mut transaction, key).await?;
            let row = rows::find(&mut transaction, key).await?;
            let found = window || row.is_some();
            if let Some(mut row) = row {
                let settings = rules::find(&mut transaction, key, row.plan.as_deref()).await?;
                let settings = settings.map_err(rows::unreadable(key))?;
                let granted = row.bucket.granted;
                decide::reset(&mut row, &(&settings).into(), clock.now());
                rows::write(&mut transaction, key, &row).await?;
                // No request took these tokens, so they are not usage.
                sqlx::query("update token_buckets set recorded = max(recorded, -4611686018427387904 - min(?2, 0)) + ?2 where id = ?1")
                    .bind(key.as_str())
                    .bind(row.bucket.granted - granted)
                    .execute(&mut *transaction)
                    .await?;
            }
            transaction.commit().await?;
            Ok(found)
        })
    }

    fn delete<'c>(connection: &'c mut SqliteConnection, key: &'c Key, _: &'c HostClock) -> OperationFuture<'c, bool> {
        let delete = sqlx::query("delete from token_buckets where id = ?1").bind(key.as_str());
        Box::pin(async move {
            let mut transaction = super::begin(connection).await?;
            let window = windows::delete(&mut transaction, key).await?;
            let found = delete.execute(&mut *transaction).await?.rows_affected() > 0;
            transaction.commit().await?;
            Ok(found || window)
        })
    }

    fn explain<'c>(
        connection: &'c mut SqliteConnection,
        (key, plan): &'c (Key, Option<Key>),
        clock: &'c HostClock,
    ) -> OperationFuture<'c, RowResult<Explanation>> {
        Box::pin(async move {
            // One transaction, so that all rows are of one instant.
            let mut transaction = connection.begin().await?;
            let row = match rows::peek(&mut transaction, key).await?.transpose() {
                Ok(row) => row,
                Err(why) => return Ok(Err(why)),
            };
            let named = plan.as_ref().or_else(|| row.as_ref()?.plan.as_deref());
            let settings = rules::find(&mut transaction, key, named).await?;
            transaction.commit().await?;
            Ok(settings.map(|settings| explain(row, plan.as_ref(), &settings, clock.now())))
        })
    }

    fn create_plan<'c>(
        connection: &'c mut SqliteConnection,
        (plan, limits): &'c (Key, Limits),
        _: &'c HostClock,
    ) -> OperationFuture<'c, ()> {
        Box::pin(rules::create_plan(connection, plan, limits))
    }

    fn plan_limits<'c>(
        connection: &'c mut SqliteConnection,
        plan: &'c Key,
        _: &'c HostClock,
    ) -> OperationFuture<'c, Vec<LimitNames>> {
        Box::pin(rules::plan_limits(connection, plan))
    }

    fn set_plan_mode<'c>(
        connection: &'c mut SqliteConnection,
        (name, setting): &'c (Key, Option<ModeSetting>),
        _: &'c HostClock,
    ) -> OperationFuture<'c, bool> {
        Box::pin(rules::set_plan_mode(connection, name, setting.as_ref()))
    }

    fn plan<'c>(
        connection: &'c mut SqliteConnection,
        name: &'c Key,
        _: &'c HostClock,
    ) -> OperationFuture<'c, Option<RowResult<Plan>>> {
        Box::pin(rules::find_plan(connection, name))
    }

    fn plans<'c>(
        connection: &'c mut SqliteConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c HostClock,
    ) -> OperationFuture<'c, Vec<RowResult<Plan>>> {
        Box::pin(rules::plans(connection, after, *limit))
    }

    fn delete_plan<'c>(
        connection: &'c mut SqliteConnection,
        name: &'c Key,
        _: &'c HostClock,
    ) -> OperationFuture<'c, bool> {
        Box::pin(rules::delete_plan(connection, name))
    }

    fn set_mode<'c>(
        connection: &'c mut SqliteConnection,
        setting: &'c ModeSetting,
        _: &'c HostClock,
    ) -> OperationFuture<'c, ()> {
        Box::pin(rules::set_mode(connection, setting))
    }

    fn mode<'c>(
        connection: &'c mut SqliteConnection,
        (): &'c (),
        _: &'c HostClock,
    ) -> OperationFuture<'c, RowResult<ModeSetting>> {
        Box::pin(rules::mode(connection))
    }

    fn set_override<'c>(
        connection: &'c mut SqliteConnection,
        (key, over): &'c (Key, Override),
        _: &'c HostClock,
    ) -> OperationFuture<'c, ()> {
        Box::pin(rules::set_override(connection, key, over))
    }

    fn clear_override<'c>(
        connection: &'c mut SqliteConnection,
        key: &'c Key,
        _: &'c HostClock,
    ) -> OperationFuture<'c, bool> {
        let clear = sqlx::query("delete from token_overrides where id = ?1").bind(key.as_str());
        Box::pin(async move { Ok(clear.execute(connection).await?.rows_affected() > 0) })
    }

    fn overrides<'c>(
        connection: &'c mut SqliteConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c HostClock,
    ) -> OperationFuture<'c, Vec<RowResult<(Key, Override)>>> {
        Box::pin(rules::overrides(connection, after, *limit))
    }

    fn count_denials<'c>(
        connection: &'c mut SqliteConnection,
        denials: &'c Vec<(Key, i64)>,
        clock: &'c HostClock,
    ) -> OperationFuture<'c, ()> {
        Box::pin(super::denials::count(connection, denials, clock))
    }

    fn most_denied<'c>(
        connection: &'c mut SqliteConnection,
        (after, limit): &'c (PageStart, u32),
        clock: &'c HostClock,
    ) -> OperationFuture<'c, Vec<RowResult<DenialCount>>> {
        Box::pin(super::denials::most(connection, after, *limit, clock))
    }

    fn sweep<'c>(
        connection: &'c mut SqliteConnection,
        limit: &'c u32,
        clock: &'c HostClock,
    ) -> OperationFuture<'c, SweepResult> {
        Box::pin(sweep::step(connection, *limit, clock))
    }

    fn set_usage_recording<'c>(
        connection: &'c mut SqliteConnection,
        recording: &'c Option<UsageRecording>,
        _: &'c HostClock,
    ) -> OperationFuture<'c, ()> {
        let set = match recording {
            Some(UsageRecording { period, keep_days }) => sqlx::query(
                "insert into token_usage_recording (one, every_seconds, keep_days) values (1, ?1, ?2)
                 on conflict (one) do update set every_seconds = excluded.every_seconds, keep_days = excluded.keep_days, ending = false",
            )
            .bind(period.seconds())
            .bind(keep_days),
            None => sqlx::query("update token_usage_recording set ending = true, recorded_to = null"),
        };
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn usage_recording<'c>(
        connection: &'c mut SqliteConnection,
        (): &'c (),
        _: &'c HostClock,
    ) -> OperationFuture<'c, Option<RecordingColumns>> {
        Box::pin(
            sqlx::query_as("select every_seconds, keep_days from token_usage_recording where not ending")
                .fetch_optional(connection),
        )
    }

    fn usage<'c>(
        connection: &'c mut SqliteConnection,
        (filter, after, limit): &'c (UsageFilter, Option<Key>, u32),
        _: &'c HostClock,
    ) -> OperationFuture<'c, Vec<UsageColumns>> {
        Box::pin(usage::list(connection, filter, after.as_ref(), *limit))
    }

    fn record_usage<'c>(
        connection: &'c mut SqliteConnection,
        limit: &'c u32,
        clock: &'c HostClock,
    ) -> OperationFuture<'c, RecordedUsage> {
        Box::pin(usage::record(connection, *limit, clock))
    }

    fn throttle<'c>(
        connection: &'c mut SqliteConnection,
        (key, rule, level): &'c (Key, Rule, ThrottleLevel),
        clock: &'c HostClock,
    ) -> OperationFuture<'c, ThrottleOutcome> {
        Box::pin(async move {
            let mut transaction = connection.begin_with("begin immediate").await?;
            let found = rows::find(&mut transaction, key).await?;
            let plan = match rule {
                Rule::Provisioned => found.as_ref().and_then(|row| row.plan.as_deref()),
                rule => rule.plan(),
            };
            let settings = rules::find(&mut transaction, key, plan).await?.map_err(rows::unreadable(key))?;
            let settings = KeySettings::from(&settings);
            let now = clock.now();
            let mut effective = match decide::effective_bucket(found.clone(), rule, &settings, now) {
                Ok(effective) => effective,
                Err(code) => return Ok(Err(code)),
            };
            let lowered = decide::throttle(&mut effective, *level, now);
            if let Some(row) = effective.row.filter(|row| Some(row) != found.as_ref()) {
                rows::write(&mut transaction, key, &row).await?;
            }
            transaction.commit().await?;
            Ok(Ok(lowered))
        })
    }
}
