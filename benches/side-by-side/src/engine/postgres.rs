use anyhow::Context;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool, Postgres};

use super::{Engine, PATIENCE, Written};

impl Engine for Postgres {
    async fn open(url: &str, connections: u32, durable: bool) -> anyhow::Result<PgPool> {
        let options: PgConnectOptions = url.parse().context("the server's URL")?;
        let options = options.options([("synchronous_commit", if durable { "on" } else { "off" })]);
        let pool = PgPoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .min_connections(connections)
            .max_connections(connections);
        Ok(pool.test_before_acquire(false).acquire_timeout(PATIENCE).connect_with(options).await?)
    }

    async fn bare(pool: &PgPool, id: &str) -> sqlx::Result<()> {
        sqlx::query("update bare set n = n + 1 where id = $1").bind(id).execute(pool).await.map(drop)
    }

    async fn bare_many(pool: &PgPool, ids: &[&str]) -> sqlx::Result<u64> {
        let change = "update bare b set n = b.n + 1 from unnest($1) u (id) where b.id = u.id";
        Ok(sqlx::query(change).bind(ids).execute(pool).await?.rows_affected())
    }

    async fn answer_many(pool: &PgPool, ids: &[&str]) -> sqlx::Result<u64> {
        let change = "update tollgate.token_buckets b set full_at = b.full_at + 1, granted = b.granted + 1
               from unnest($1) u (id) where b.id = u.id returning b.id, b.full_at, b.granted";
        Ok(sqlx::query(change).bind(ids).fetch_all(pool).await?.len() as u64)
    }

    async fn read_many(pool: &PgPool, ids: &[&str]) -> sqlx::Result<u64> {
        let read = "select b.n from bare b join unnest($1) u (id) on b.id = u.id";
        Ok(sqlx::query(read).bind(ids).fetch_all(pool).await?.len() as u64)
    }

    async fn one(pool: &PgPool) -> sqlx::Result<i32> {
        sqlx::query_scalar("select 1").fetch_one(pool).await
    }

    async fn make_bare(pool: &PgPool) -> sqlx::Result<()> {
        sqlx::raw_sql(BARE).execute(pool).await.map(drop)
    }

    async fn add_bare(pool: &PgPool, ids: &[&str]) -> sqlx::Result<u64> {
        let add = "insert into bare select id, 0 from unnest($1) id on conflict do nothing";
        sqlx::query(add).bind(ids).execute(pool).await.map(|_| ids.len() as u64)
    }

    async fn tidy(pool: &PgPool, table: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(format!("vacuum analyze {table}"))).execute(pool).await?;
        sqlx::raw_sql("checkpoint").execute(pool).await.map(drop)
    }

    async fn make_like(pool: &PgPool, one: &str, ids: &[String]) -> sqlx::Result<bool> {
        let (Some((prefix, _)), Some((_, first))) =
            (one.rsplit_once(':'), ids.first().and_then(|id| id.rsplit_once(':')))
        else {
            return Ok(false);
        };
        let Ok(first) = first.parse::<i64>() else { return Ok(false) };
        sqlx::query(LIKE_ONE)
            .bind(one)
            .bind(prefix)
            .bind(first)
            .bind(first + i64::try_from(ids.len()).unwrap_or(i64::MAX) - 1)
            .execute(pool)
            .await?;
        Self::tidy(pool, "tollgate.token_buckets").await?;
        Ok(true)
    }

    async fn version(pool: &PgPool) -> sqlx::Result<String> {
        sqlx::query_scalar("select 'PostgreSQL ' || current_setting('server_version')").fetch_one(pool).await
    }

    async fn settings(pool: &PgPool) -> sqlx::Result<Vec<String>> {
        sqlx::query_scalar(
            "select name || ' = ' || setting from pg_settings where name in ('fsync', 'synchronous_commit') order by 1",
        )
        .fetch_all(pool)
        .await
    }

    /// Counts transactions. Sessions report theirs at the latest when they end.
    async fn calls(pool: &PgPool) -> sqlx::Result<Option<i64>> {
        sqlx::query_scalar("select xact_commit from pg_stat_database where datname = current_database()")
            .fetch_optional(pool)
            .await
    }

    async fn written(pool: &PgPool) -> sqlx::Result<Option<Written>> {
        let (wal_bytes, updates, hot_updates) = sqlx::query_as(
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, coalesce(sum(n_tup_upd), 0)::bigint,
                    coalesce(sum(n_tup_hot_upd), 0)::bigint
               from pg_stat_user_tables",
        )
        .fetch_one(pool)
        .await?;
        Ok(Some(Written { wal_bytes, updates, hot_updates }))
    }

    async fn debited(pool: &PgPool, prefix: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar(
            "select coalesce(sum(granted), 0)::bigint from tollgate.token_buckets where starts_with(id, $1)",
        )
        .bind(prefix)
        .fetch_one(pool)
        .await
    }
}

/// A table with the layout of buckets.
const BARE: &str = r#"
do $$
begin
  execute (
    select format('create table if not exists bare (id text collate "C" primary key, n bigint not null) with (%s)',
                  array_to_string(reloptions, ', '))
      from pg_class where oid = 'tollgate.token_buckets'::regclass);
end
$$"#;

const LIKE_ONE: &str = "
insert into tollgate.token_buckets
  (id, capacity, refill_seconds, refill, plan, provisioned, overridden, anchor, full_at, granted, max_granted_wait, burst,
   step_ns, step_ticks, token_ticks)
select $2 || ':' || n, capacity, refill_seconds, refill, plan, provisioned, overridden, anchor, full_at, granted,
       max_granted_wait, burst, step_ns, step_ticks, token_ticks
  from tollgate.token_buckets, generate_series($3, $4) n
 where id = $1";
