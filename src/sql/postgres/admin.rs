//! An operator's statements.
//!
//! They run under the host's search path, where an operator or function of `public` that matches the types better would
//! be called. So they call only routines of `tollgate`, name `pg_catalog` for arithmetic, and compare equal types.

use sqlx::postgres::{PgConnection, Postgres};

use super::super::admin::columns::{
    self, Choice, Denied, Explained, Level, Overridden, Planned, WindowCounts, Windowed,
};
use super::super::operations::{Conversation, Lowered, Operations};
use super::refill;
use crate::bucket::Hold;
use crate::{
    BucketLevel, Clock, Denials, Explanation, Filter, Key, Mode, Override, Plan, Quota, Rule, Swept, Switch,
    SystemClock, WindowLevel,
};

/// When something ends, if that is an instant that Rust's types hold; what ends later has no end that anybody sees.
macro_rules! end {
    ($column:literal) => {
        concat!("case when ", $column, " < '10000-01-01Z' then greatest(", $column, ", '1970-01-01Z') end")
    };
}

macro_rules! planned {
    () => {
        concat!(
            "select name, capacity::bigint, (refill_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint, refill,
                    mode, mode_reason, ",
            end!("mode_until"),
            " from tollgate.token_plans"
        )
    };
}

impl Operations for Postgres {
    type Clock = ();

    fn now((): &()) -> i64 {
        SystemClock.now()
    }

    fn create_bucket<'c>(
        connection: &'c mut PgConnection,
        (key, quota): &'c (Key, Quota),
        (): &'c (),
    ) -> Conversation<'c, ()> {
        let create = sqlx::query("select tollgate.create_bucket($1, $2, $3::text::numeric, $4)")
            .bind(key.as_str())
            .bind(quota.capacity_i64())
            .bind(quota.refill_seconds())
            .bind(refill(quota));
        Box::pin(async move { create.execute(connection).await.map(drop) })
    }

    fn peek<'c>(connection: &'c mut PgConnection, key: &'c Key, (): &'c ()) -> Conversation<'c, Option<BucketLevel>> {
        let peek = sqlx::query_as::<_, Level>(
            "select id, capacity, (refill_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint, refill, plan,
                    provisioned, overridden, available, granted, full_at, next_refill_at
               from tollgate.peek($1)",
        )
        .bind(key.as_str());
        Box::pin(async move { peek.fetch_optional(connection).await?.map(BucketLevel::try_from).transpose() })
    }

    fn peek_window<'c>(
        connection: &'c mut PgConnection,
        key: &'c Key,
        (): &'c (),
    ) -> Conversation<'c, Option<WindowLevel>> {
        let peek = sqlx::query_as::<_, WindowCounts>(
            "select max_requests, (interval_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    (resolution_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    counted, granted, retry_after_ms
               from tollgate.peek_window($1)",
        )
        .bind(key.as_str());
        Box::pin(async move { Ok(peek.fetch_optional(connection).await?.map(|counts| columns::window(key, counts))) })
    }

    fn list<'c>(
        connection: &'c mut PgConnection,
        (filter, after, limit): &'c (Filter, Option<Key>, u32),
        (): &'c (),
    ) -> Conversation<'c, Vec<BucketLevel>> {
        let (first, last) = filter.range();
        let page = sqlx::query_as::<_, Level>(
            "select id, capacity, (refill_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint, refill, plan,
                    provisioned, overridden, available, granted, full_at, next_refill_at
               from tollgate.token_bucket_levels
              where id > $1 and id >= $2 and id <= $3
                and ($4::text is null or plan = $4) and ($5::boolean is null or provisioned = $5)
              order by id limit $6",
        )
        .bind(after.as_ref().map_or("", Key::as_str))
        .bind(first)
        .bind(last)
        .bind(filter.plan.as_ref().map(Key::as_str))
        .bind(filter.provisioned)
        .bind(i64::from(*limit));
        Box::pin(async move { page.fetch_all(connection).await?.into_iter().map(BucketLevel::try_from).collect() })
    }

    fn windows<'c>(
        connection: &'c mut PgConnection,
        (filter, after, limit): &'c (Filter, Option<Key>, u32),
        (): &'c (),
    ) -> Conversation<'c, Vec<WindowLevel>> {
        let (first, last) = filter.range();
        let page = sqlx::query_as::<_, Windowed>(
            "select id, max_requests, (interval_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    (resolution_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    counted, granted, retry_after_ms
               from tollgate.token_window_levels
              where id > $1 and id >= $2 and id <= $3
              order by id limit $4",
        )
        .bind(after.as_ref().map_or("", Key::as_str))
        .bind(first)
        .bind(last)
        .bind(i64::from(*limit));
        Box::pin(async move { page.fetch_all(connection).await?.into_iter().map(columns::windowed).collect() })
    }

    fn reset<'c>(connection: &'c mut PgConnection, key: &'c Key, (): &'c ()) -> Conversation<'c, bool> {
        let reset = sqlx::query_scalar("select tollgate.reset_bucket($1)").bind(key.as_str());
        Box::pin(reset.fetch_one(connection))
    }

    fn delete<'c>(connection: &'c mut PgConnection, key: &'c Key, (): &'c ()) -> Conversation<'c, bool> {
        let delete = sqlx::query_scalar("select tollgate.delete_bucket($1)").bind(key.as_str());
        Box::pin(delete.fetch_one(connection))
    }

    fn explain<'c>(
        connection: &'c mut PgConnection,
        (key, plan): &'c (Key, Option<Key>),
        (): &'c (),
    ) -> Conversation<'c, Explanation> {
        let explain = sqlx::query_as::<_, Explained>(concat!(
            "select known, terms_from, plan, capacity, (refill_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint,
                    refill, mode, mode_from, mode_reason, ",
            end!("mode_until"),
            ", override_reason, ",
            end!("override_until"),
            ", available, outcome, retry_after_ms from tollgate.explain($1, $2)"
        ))
        .bind(key.as_str())
        .bind(plan.as_ref().map(Key::as_str));
        Box::pin(async move { explain.fetch_one(connection).await?.try_into() })
    }

    fn create_plan<'c>(
        connection: &'c mut PgConnection,
        (name, quota): &'c (Key, Quota),
        (): &'c (),
    ) -> Conversation<'c, ()> {
        let create = sqlx::query("select tollgate.create_plan($1, $2, $3::text::numeric, $4)")
            .bind(name.as_str())
            .bind(quota.capacity_i64())
            .bind(quota.refill_seconds())
            .bind(refill(quota));
        Box::pin(async move { create.execute(connection).await.map(drop) })
    }

    fn set_plan_mode<'c>(
        connection: &'c mut PgConnection,
        (name, switch): &'c (Key, Option<Switch>),
        (): &'c (),
    ) -> Conversation<'c, bool> {
        let set =
            sqlx::query("update tollgate.token_plans set mode = $2, mode_reason = $3, mode_until = $4 where name = $1")
                .bind(name.as_str())
                .bind(switch.as_ref().map(|switch| switch.mode.as_str()))
                .bind(switch.as_ref().and_then(|switch| switch.reason.as_deref()))
                .bind(switch.as_ref().and_then(|switch| switch.until));
        Box::pin(async move { Ok(set.execute(connection).await?.rows_affected() > 0) })
    }

    fn plan<'c>(connection: &'c mut PgConnection, name: &'c Key, (): &'c ()) -> Conversation<'c, Option<Plan>> {
        let plan = sqlx::query_as::<_, Planned>(concat!(planned!(), " where name = $1")).bind(name.as_str());
        Box::pin(async move { plan.fetch_optional(connection).await?.map(Plan::try_from).transpose() })
    }

    fn plans<'c>(
        connection: &'c mut PgConnection,
        (after, limit): &'c (Option<Key>, u32),
        (): &'c (),
    ) -> Conversation<'c, Vec<Plan>> {
        let plans = sqlx::query_as::<_, Planned>(concat!(planned!(), " where name > $1 order by name limit $2"))
            .bind(after.as_ref().map_or("", Key::as_str))
            .bind(i64::from(*limit));
        Box::pin(async move { plans.fetch_all(connection).await?.into_iter().map(Plan::try_from).collect() })
    }

    fn delete_plan<'c>(connection: &'c mut PgConnection, name: &'c Key, (): &'c ()) -> Conversation<'c, bool> {
        let delete = sqlx::query("delete from tollgate.token_plans where name = $1").bind(name.as_str());
        Box::pin(async move { Ok(delete.execute(connection).await?.rows_affected() > 0) })
    }

    fn set_mode<'c>(connection: &'c mut PgConnection, switch: &'c Switch, (): &'c ()) -> Conversation<'c, ()> {
        let set = sqlx::query(
            "insert into tollgate.token_mode (mode, reason, until) values ($1, $2, $3)
             on conflict (one) do update set mode = excluded.mode, reason = excluded.reason, until = excluded.until",
        )
        .bind(switch.mode.as_str())
        .bind(switch.reason.as_deref())
        .bind(switch.until);
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn mode<'c>(connection: &'c mut PgConnection, (): &'c (), (): &'c ()) -> Conversation<'c, Switch> {
        let mode =
            sqlx::query_as::<_, Choice>(concat!("select mode, reason, ", end!("until"), " from tollgate.token_mode"));
        Box::pin(async move { columns::mode(mode.fetch_optional(connection).await?) })
    }

    fn set_override<'c>(
        connection: &'c mut PgConnection,
        (key, over): &'c (Key, Override),
        (): &'c (),
    ) -> Conversation<'c, ()> {
        let set = sqlx::query(
            "insert into tollgate.token_overrides (id, capacity, refill_seconds, refill, mode, reason, expires_at)
             values ($1, $2, $3::text::numeric, coalesce($4, 'continuous'), $5, $6, $7)
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
        .bind(over.expires_at);
        Box::pin(async move { set.execute(connection).await.map(drop) })
    }

    fn clear_override<'c>(connection: &'c mut PgConnection, key: &'c Key, (): &'c ()) -> Conversation<'c, bool> {
        let clear = sqlx::query("delete from tollgate.token_overrides where id = $1").bind(key.as_str());
        Box::pin(async move { Ok(clear.execute(connection).await?.rows_affected() > 0) })
    }

    fn overrides<'c>(
        connection: &'c mut PgConnection,
        (after, limit): &'c (Option<Key>, u32),
        (): &'c (),
    ) -> Conversation<'c, Vec<(Key, Override)>> {
        let overrides = sqlx::query_as::<_, Overridden>(concat!(
            "select id, capacity::bigint, (refill_seconds operator(pg_catalog.*) 1000000000::numeric)::bigint, refill,
                    mode, reason, ",
            end!("expires_at"),
            " from tollgate.token_overrides where id > $1 order by id limit $2"
        ))
        .bind(after.as_ref().map_or("", Key::as_str))
        .bind(i64::from(*limit));
        Box::pin(async move { overrides.fetch_all(connection).await?.into_iter().map(columns::overridden).collect() })
    }

    fn count_denials<'c>(
        connection: &'c mut PgConnection,
        denials: &'c Vec<(Key, i64)>,
        (): &'c (),
    ) -> Conversation<'c, ()> {
        let (ids, denied): (Vec<&str>, Vec<i64>) = denials.iter().map(|(key, denied)| (key.as_str(), *denied)).unzip();
        let count = sqlx::query("select tollgate.count_denials_v1($1, $2)").bind(ids).bind(denied);
        Box::pin(async move { count.execute(connection).await.map(drop) })
    }

    fn most_denied<'c>(connection: &'c mut PgConnection, limit: &'c u32, (): &'c ()) -> Conversation<'c, Vec<Denials>> {
        let most = sqlx::query_as::<_, Denied>(
            "select id, denied, last_denied_at from tollgate.token_most_denied order by denied desc, id limit $1",
        )
        .bind(i64::from(*limit));
        Box::pin(async move { most.fetch_all(connection).await?.into_iter().map(Denials::try_from).collect() })
    }

    fn sweep<'c>(connection: &'c mut PgConnection, limit: &'c u32, (): &'c ()) -> Conversation<'c, Swept> {
        let step = sqlx::query_as::<_, (i64, bool)>("select deleted, finished from tollgate.sweep_v1($1)")
            .bind(i64::from(*limit));
        Box::pin(async move {
            let (deleted, finished) = step.fetch_one(connection).await?;
            Ok(Swept { deleted: deleted.unsigned_abs(), finished })
        })
    }

    fn hold_back<'c>(
        connection: &'c mut PgConnection,
        (key, rule, hold): &'c (Key, Rule, Hold),
        (): &'c (),
    ) -> Conversation<'c, Lowered> {
        let lower = sqlx::query_scalar("select tollgate.hold_back_v1($1, $2, $3, $4, $5::text::numeric, $6, $7)")
            .bind(key.as_str())
            .bind(hold.remaining)
            .bind(hold.wait)
            .bind(rule.quota().map(Quota::capacity_i64))
            .bind(rule.quota().map(Quota::refill_seconds))
            .bind(rule.quota().map(refill))
            .bind(rule.plan().map(Key::as_str));
        Box::pin(async move {
            let outcome: String = lower.fetch_one(connection).await?;
            super::super::columns::lowered(&outcome)
        })
    }
}
