//! An operator's statements.
//!
//! The statements run under the host's search path, which may even list `public` before `pg_catalog`. So each operator,
//! function and type names its schema. A setting of the path would cost a round trip, and a pooler would pass it on to
//! other clients.

use sqlx::FromRow as _;
use sqlx::postgres::{PgConnection, Postgres};

use super::super::admin::{
    self, DenialColumns, ExplanationColumns, KeyedOverrideColumns, LevelColumns, ModeColumns, PlanColumns,
    WindowCounts, WindowLevelColumns,
};
use super::super::answers;
use super::super::dialect::{
    LimitNames, OperationFuture, Operations, PageStart, RecordingColumns, RowResult, ThrottleOutcome, UsageColumns,
};
use super::super::instant::Instant;
use super::{LockTimeout, refill};
use crate::admin::{
    BucketLevel, DenialCount, Explanation, Filter, ModeSetting, Override, Plan, RecordedUsage, SweepResult,
    UsageFilter, UsageRecording,
};
use crate::clock::{Clock, SystemClock};
use crate::model::bucket::ThrottleLevel;
use crate::model::{Key, LimitName, Limits, Mode, Quota, Rule, WindowLevel};

/// An end, clamped to instants that Rust's types hold. An end after the year 9999 counts as none.
macro_rules! end {
    ($column:literal) => {
        concat!(
            "case when ",
            $column,
            " operator(pg_catalog.<) '10000-01-01Z' then greatest(",
            $column,
            ", '1970-01-01Z') end"
        )
    };
}

/// A numeric as a `bigint`. A number out of range becomes 0, so that the page skips its row instead of failing.
macro_rules! whole {
    ($($number:literal)+) => {
        concat!("case when ", $($number,)+ " operator(pg_catalog.>=) 0::numeric and ", $($number,)+
                " operator(pg_catalog.<=) 9223372036854775807::numeric then (", $($number,)+
                ")::bigint when ", $($number,)+ " is not null then 0 end")
    };
}

/// Seconds as nanoseconds, with the same range as `whole`.
macro_rules! nanoseconds {
    ($seconds:literal) => {
        whole!("(" $seconds " operator(pg_catalog.*) 1000000000::numeric)")
    };
}

macro_rules! planned {
    () => {
        concat!(
            "select name, ",
            whole!("capacity"),
            ", ",
            nanoseconds!("refill_seconds"),
            ", refill, mode, mode_reason, ",
            end!("mode_until"),
            ", limit_name, cost_name
               from tollgate.token_plans
               left join tollgate.token_plan_limits l
                 on l.plan operator(pg_catalog.=) pg_catalog.split_part(name, pg_catalog.chr(1), 1)
                    and (place operator(pg_catalog.=) 1 and l.plan operator(pg_catalog.=) name
                         or place operator(pg_catalog.>) 1
                            and limit_name operator(pg_catalog.=) pg_catalog.split_part(name, pg_catalog.chr(1), 2))"
        )
    };
}

impl Operations for Postgres {
    type CallContext = LockTimeout;

    fn now(_: &LockTimeout) -> i64 {
        SystemClock.now()
    }

    fn create_bucket<'c>(
        connection: &'c mut PgConnection,
        (key, quota): &'c (Key, Quota),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, ()> {
        let create = sqlx::query("select tollgate.create_bucket($1, $2, $3::pg_catalog.text::numeric, $4)")
            .bind(key.as_str())
            .bind(quota.capacity_i64())
            .bind(quota.refill_seconds())
            .bind(refill(quota));
        Box::pin(async move { create.execute(connection).await.map(drop) })
    }

    fn peek<'c>(
        connection: &'c mut PgConnection,
        key: &'c Key,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Option<RowResult<BucketLevel>>> {
        let peek = sqlx::query(concat!(
            "select id, capacity, ",
            nanoseconds!("refill_seconds"),
            ", refill, plan, provisioned, overridden, available, granted, full_at, next_refill_at
               from tollgate.peek($1)"
        ))
        .bind(key.as_str());
        Box::pin(async move {
            Ok(peek.fetch_optional(connection).await?.map(|row| LevelColumns::from_row(&row)?.try_into()))
        })
    }

    fn peek_window<'c>(
        connection: &'c mut PgConnection,
        key: &'c Key,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Option<RowResult<WindowLevel>>> {
        let peek = sqlx::query(
            "select max_requests, (interval_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    (resolution_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    counted, granted, retry_after_ms
               from tollgate.peek_window($1)",
        )
        .bind(key.as_str());
        Box::pin(async move {
            let row = peek.fetch_optional(connection).await?;
            Ok(row.map(|row| admin::window(key, WindowCounts::from_row(&row)?)))
        })
    }

    fn list<'c>(
        connection: &'c mut PgConnection,
        (filter, after, limit): &'c (Filter, PageStart, u32),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Vec<RowResult<BucketLevel>>> {
        let (first, last) = filter.range();
        let page = sqlx::query(concat!(
            "select id, capacity, ",
            nanoseconds!("refill_seconds"),
            ", refill, plan, provisioned, overridden, available, granted, full_at, next_refill_at
               from tollgate.token_bucket_levels
              where id operator(pg_catalog.>) $1 and id operator(pg_catalog.>=) $2 and id operator(pg_catalog.<=) $3
                and ($4::pg_catalog.text is null or plan operator(pg_catalog.=) $4)
                and ($5::boolean is null or provisioned operator(pg_catalog.=) $5)
              order by id limit $6 offset $7"
        ))
        .bind(after.key.as_ref().map_or("", Key::as_str))
        .bind(first)
        .bind(last)
        .bind(filter.plan.as_ref().map(Key::as_str))
        .bind(filter.provisioned)
        .bind(i64::from(*limit))
        .bind(after.skip);
        Box::pin(async move {
            Ok(page.fetch_all(connection).await?.iter().map(|row| LevelColumns::from_row(row)?.try_into()).collect())
        })
    }

    fn windows<'c>(
        connection: &'c mut PgConnection,
        (filter, after, limit): &'c (Filter, PageStart, u32),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Vec<RowResult<WindowLevel>>> {
        let (first, last) = filter.range();
        let page = sqlx::query(
            "select id, max_requests, (interval_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    (resolution_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    counted, granted, retry_after_ms
               from tollgate.token_window_levels
              where id operator(pg_catalog.>) $1 and id operator(pg_catalog.>=) $2 and id operator(pg_catalog.<=) $3
              order by id limit $4 offset $5",
        )
        .bind(after.key.as_ref().map_or("", Key::as_str))
        .bind(first)
        .bind(last)
        .bind(i64::from(*limit))
        .bind(after.skip);
        Box::pin(async move {
            let rows = page.fetch_all(connection).await?;
            Ok(rows.iter().map(|row| admin::windowed(WindowLevelColumns::from_row(row)?)).collect())
        })
    }

    fn reset<'c>(connection: &'c mut PgConnection, key: &'c Key, _: &'c LockTimeout) -> OperationFuture<'c, bool> {
        let reset = sqlx::query_scalar("select tollgate.reset_bucket($1)").bind(key.as_str());
        Box::pin(reset.fetch_one(connection))
    }

    fn delete<'c>(connection: &'c mut PgConnection, key: &'c Key, _: &'c LockTimeout) -> OperationFuture<'c, bool> {
        let delete = sqlx::query_scalar("select tollgate.delete_bucket($1)").bind(key.as_str());
        Box::pin(delete.fetch_one(connection))
    }

    fn explain<'c>(
        connection: &'c mut PgConnection,
        (key, plan): &'c (Key, Option<Key>),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, RowResult<Explanation>> {
        let explain = sqlx::query(concat!(
            "select known, limits_from, plan, capacity, ",
            nanoseconds!("refill_seconds"),
            ", refill, mode, mode_from, mode_reason, ",
            end!("mode_until"),
            ", override_reason, ",
            end!("override_until"),
            ", available, outcome, retry_after_ms from tollgate.explain($1, $2)"
        ))
        .bind(key.as_str())
        .bind(plan.as_ref().map(Key::as_str));
        Box::pin(async move {
            Ok(ExplanationColumns::from_row(&explain.fetch_one(connection).await?).and_then(Explanation::try_from))
        })
    }

    fn create_plan<'c>(
        connection: &'c mut PgConnection,
        (plan, limits): &'c (Key, Limits),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, ()> {
        Box::pin(async move {
            let create = sqlx::query("select tollgate.create_plan($1, $2, $3::pg_catalog.text::numeric, $4)");
            let first = limits.first();
            let create = create.bind(plan.as_str()).bind(first.quota.capacity_i64());
            create.bind(first.quota.refill_seconds()).bind(refill(&first.quota)).execute(&mut *connection).await?;
            // Further limits of the plan are between these two names.
            let others = "delete from tollgate.token_plans
                where name operator(pg_catalog.>) ($1 operator(pg_catalog.||) pg_catalog.chr(1))
                  and name operator(pg_catalog.<) ($1 operator(pg_catalog.||) pg_catalog.chr(2))
                  and name operator(pg_catalog.<>) all ($2)";
            let kept: Vec<String> = limits.buckets(plan).map(|(name, _)| name.into()).collect();
            sqlx::query(others).bind(plan.as_str()).bind(kept).execute(&mut *connection).await?;
            let names = "delete from tollgate.token_plan_limits where plan operator(pg_catalog.=) $1";
            sqlx::query(names).bind(plan.as_str()).execute(&mut *connection).await?;
            for (place, limit) in limits.iter().enumerate().filter(|_| limits.are_named()) {
                let [name, cost] = [&limit.name, &limit.cost].map(|name| name.as_ref().map(LimitName::as_str));
                let insert = if place == 0 {
                    let first = "insert into tollgate.token_plan_limits (plan, place, limit_name, cost_name)
                                 values ($1, 1, $2, $3)";
                    sqlx::query(first).bind(plan.as_str()).bind(name).bind(cost)
                } else {
                    let further = "select tollgate.create_plan_limit($1, $2, $4, $5::pg_catalog.text::numeric, $6, $3)";
                    let further = sqlx::query(further).bind(plan.as_str()).bind(name).bind(cost);
                    let further = further.bind(limit.quota.capacity_i64()).bind(limit.quota.refill_seconds());
                    further.bind(refill(&limit.quota))
                };
                insert.execute(&mut *connection).await?;
            }
            Ok(())
        })
    }

    fn plan_limits<'c>(
        connection: &'c mut PgConnection,
        plan: &'c Key,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Vec<LimitNames>> {
        let limits =
            sqlx::query_as("select limit_name, cost_name from tollgate.plan_limits_v1($1)").bind(plan.as_str());
        Box::pin(limits.fetch_all(connection))
    }

    fn set_plan_mode<'c>(
        connection: &'c mut PgConnection,
        (name, setting): &'c (Key, Option<ModeSetting>),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, bool> {
        let set = sqlx::query(
            "update tollgate.token_plans set mode = $2, mode_reason = $3, mode_until = $4
              where name operator(pg_catalog.=) $1
                 or name operator(pg_catalog.>) ($1 operator(pg_catalog.||) pg_catalog.chr(1))
                    and name operator(pg_catalog.<) ($1 operator(pg_catalog.||) pg_catalog.chr(2))",
        )
        .bind(name.as_str())
        .bind(setting.as_ref().map(|setting| setting.mode.as_str()))
        .bind(setting.as_ref().and_then(|setting| setting.reason.as_deref()))
        .bind(setting.as_ref().and_then(|setting| setting.until).map(Instant));
        Box::pin(async move { Ok(set.execute(connection).await?.rows_affected() > 0) })
    }

    fn plan<'c>(
        connection: &'c mut PgConnection,
        name: &'c Key,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Option<RowResult<Plan>>> {
        let plan = sqlx::query(concat!(planned!(), " where name operator(pg_catalog.=) $1")).bind(name.as_str());
        Box::pin(async move {
            Ok(plan.fetch_optional(connection).await?.map(|row| PlanColumns::from_row(&row)?.try_into()))
        })
    }

    fn plans<'c>(
        connection: &'c mut PgConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Vec<RowResult<Plan>>> {
        let plans =
            sqlx::query(concat!(planned!(), " where name operator(pg_catalog.>) $1 order by name limit $2 offset $3"))
                .bind(after.key.as_ref().map_or("", Key::as_str))
                .bind(i64::from(*limit))
                .bind(after.skip);
        Box::pin(async move {
            Ok(plans.fetch_all(connection).await?.iter().map(|row| PlanColumns::from_row(row)?.try_into()).collect())
        })
    }

    fn delete_plan<'c>(
        connection: &'c mut PgConnection,
        name: &'c Key,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, bool> {
        let delete = sqlx::query_scalar("select tollgate.delete_plan($1)").bind(name.as_str());
        Box::pin(delete.fetch_one(connection))
    }

    fn set_mode<'c>(
        connection: &'c mut PgConnection,
        setting: &'c ModeSetting,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, ()> {
        let set = sqlx::query(
            "insert into tollgate.token_mode (mode, reason, until) values ($1, $2, $3)
             on conflict (one) do update set mode = excluded.mode, reason = excluded.reason, until = excluded.until",
        )
        .bind(setting.mode.as_str())
        .bind(setting.reason.as_deref())
        .bind(setting.until.map(Instant));
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn mode<'c>(
        connection: &'c mut PgConnection,
        (): &'c (),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, RowResult<ModeSetting>> {
        let mode = sqlx::query(concat!("select mode, reason, ", end!("until"), " from tollgate.token_mode"));
        Box::pin(
            async move { Ok(admin::mode(mode.fetch_optional(connection).await?.as_ref().map(ModeColumns::from_row))) },
        )
    }

    fn set_override<'c>(
        connection: &'c mut PgConnection,
        (key, over): &'c (Key, Override),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, ()> {
        let set = sqlx::query(
            "insert into tollgate.token_overrides (id, capacity, refill_seconds, refill, mode, reason, expires_at)
             values ($1, $2, $3::pg_catalog.text::numeric, coalesce($4, 'continuous'), $5, $6, $7)
             on conflict (id) do update
                set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill,
                    mode = excluded.mode, reason = excluded.reason, expires_at = excluded.expires_at",
        )
        .bind(key.as_str())
        .bind(over.quota.as_ref().map(Quota::capacity_i64))
        .bind(over.quota.as_ref().map(Quota::refill_seconds))
        .bind(over.quota.as_ref().map(refill))
        .bind(over.mode.map(Mode::as_str))
        .bind(&over.reason)
        .bind(over.expires_at.map(Instant));
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn clear_override<'c>(
        connection: &'c mut PgConnection,
        key: &'c Key,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, bool> {
        let clear =
            sqlx::query("delete from tollgate.token_overrides where id operator(pg_catalog.=) $1").bind(key.as_str());
        Box::pin(async move { Ok(clear.execute(connection).await?.rows_affected() > 0) })
    }

    fn overrides<'c>(
        connection: &'c mut PgConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Vec<RowResult<(Key, Override)>>> {
        let overrides = sqlx::query(concat!(
            "select id, ",
            whole!("capacity"),
            ", ",
            nanoseconds!("refill_seconds"),
            ", refill, mode, reason, ",
            end!("expires_at"),
            " from tollgate.token_overrides where id operator(pg_catalog.>) $1 order by id limit $2 offset $3"
        ))
        .bind(after.key.as_ref().map_or("", Key::as_str))
        .bind(i64::from(*limit))
        .bind(after.skip);
        Box::pin(async move {
            let rows = overrides.fetch_all(connection).await?;
            Ok(rows.iter().map(|row| admin::overridden(KeyedOverrideColumns::from_row(row)?)).collect())
        })
    }

    fn count_denials<'c>(
        connection: &'c mut PgConnection,
        denials: &'c Vec<(Key, i64)>,
        timeout: &'c LockTimeout,
    ) -> OperationFuture<'c, ()> {
        let (ids, denied): (Vec<&str>, Vec<i64>) = denials.iter().map(|(key, denied)| (key.as_str(), *denied)).unzip();
        let text = locking!(timeout, "select tollgate.count_denials_v1(", "$1::pg_catalog.text[]", "$3", ", $2)");
        let query = sqlx::query(text).bind(ids).bind(denied);
        let count = bind_timeout!(query, timeout);
        Box::pin(async move { count.execute(connection).await.map(drop) })
    }

    fn most_denied<'c>(
        connection: &'c mut PgConnection,
        (after, limit): &'c (PageStart, u32),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Vec<RowResult<DenialCount>>> {
        // Clamped, because decoding an infinite instant panics.
        let most = sqlx::query(
            "select id, denied, least(greatest(last_denied_at, '1970-01-01Z'), '9999-12-31Z')
               from tollgate.token_most_denied order by denied desc, id limit $1 offset $2",
        )
        .bind(i64::from(*limit))
        .bind(after.skip);
        Box::pin(async move {
            Ok(most.fetch_all(connection).await?.iter().map(|row| DenialColumns::from_row(row)?.try_into()).collect())
        })
    }

    fn sweep<'c>(
        connection: &'c mut PgConnection,
        limit: &'c u32,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, SweepResult> {
        let step = sqlx::query_as::<_, (i64, bool)>("select deleted, finished from tollgate.sweep_v1($1)")
            .bind(i64::from(*limit));
        Box::pin(async move {
            let (deleted, finished) = step.fetch_one(connection).await?;
            Ok(SweepResult { deleted: deleted.unsigned_abs(), finished })
        })
    }

    fn set_usage_recording<'c>(
        connection: &'c mut PgConnection,
        recording: &'c Option<UsageRecording>,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, ()> {
        let set = match recording {
            Some(UsageRecording { period, keep_days }) => sqlx::query(
                "insert into tollgate.token_usage_recording (every_seconds, keep_days) values ($1, $2)
                 on conflict (one) do update set every_seconds = excluded.every_seconds, keep_days = excluded.keep_days, ending = false",
            )
            .bind(period.seconds())
            .bind(i64::from(*keep_days)),
            None => sqlx::query("update tollgate.token_usage_recording set ending = true, recorded_to = null"),
        };
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn usage_recording<'c>(
        connection: &'c mut PgConnection,
        (): &'c (),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Option<RecordingColumns>> {
        Box::pin(
            sqlx::query_as("select every_seconds, keep_days from tollgate.token_usage_recording where not ending")
                .fetch_optional(connection),
        )
    }

    fn usage<'c>(
        connection: &'c mut PgConnection,
        (filter, after, limit): &'c (UsageFilter, Option<Key>, u32),
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, Vec<UsageColumns>> {
        let list = sqlx::query_as(
            "select id, plan, granted, charged, refunded, denied from tollgate.list_usage_v1($1, $2, $3, $4, $5, $6)",
        )
        .bind(after.as_ref().map(Key::as_str))
        .bind(filter.key.as_ref().map(Key::as_str))
        .bind(filter.plan.as_ref().map(Key::as_str))
        .bind(Instant(filter.from))
        .bind(Instant(filter.until))
        .bind(i64::from(*limit));
        Box::pin(list.fetch_all(connection))
    }

    fn record_usage<'c>(
        connection: &'c mut PgConnection,
        limit: &'c u32,
        _: &'c LockTimeout,
    ) -> OperationFuture<'c, RecordedUsage> {
        let step = sqlx::query_as::<_, (i64, bool)>("select recorded, finished from tollgate.record_usage_v1($1)")
            .bind(i64::from(*limit));
        Box::pin(async move {
            let (buckets, finished) = step.fetch_one(connection).await?;
            Ok(RecordedUsage { buckets: buckets.unsigned_abs(), finished })
        })
    }

    fn throttle<'c>(
        connection: &'c mut PgConnection,
        (key, rule, level): &'c (Key, Rule, ThrottleLevel),
        timeout: &'c LockTimeout,
    ) -> OperationFuture<'c, ThrottleOutcome> {
        let text = locking!(
            timeout,
            "select tollgate.throttle_v1(",
            "$1",
            "$8",
            ", $2, $3, $4, $5::pg_catalog.text::numeric, $6, $7)"
        );
        let query = sqlx::query_scalar(text)
            .bind(key.as_str())
            .bind(level.remaining)
            .bind(level.wait)
            .bind(rule.quota().map(Quota::capacity_i64))
            .bind(rule.quota().map(Quota::refill_seconds))
            .bind(rule.quota().map(refill))
            .bind(rule.plan().map(Key::as_str));
        let lower = bind_timeout!(query, timeout);
        Box::pin(async move {
            let outcome: String = lower.fetch_one(connection).await?;
            answers::lowered(&outcome)
        })
    }
}
