use anyhow::Context;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, MySql, MySqlPool};

use super::{Engine, PATIENCE};

impl Engine for MySql {
    async fn open(url: &str, connections: u32, _durable: bool) -> anyhow::Result<MySqlPool> {
        let options: MySqlConnectOptions = url.parse().context("the server's URL")?;
        let pool = MySqlPoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .min_connections(connections)
            .max_connections(connections);
        Ok(pool.test_before_acquire(false).acquire_timeout(PATIENCE).connect_with(options).await?)
    }

    async fn bare(pool: &MySqlPool, id: &str) -> sqlx::Result<()> {
        sqlx::query("update bare set n = n + 1 where id = ?").bind(id).execute(pool).await.map(drop)
    }

    async fn bare_many(pool: &MySqlPool, ids: &[&str]) -> sqlx::Result<u64> {
        let change = "update json_table(?, '$[*]' columns (id varchar(255) path '$')) u
               straight_join bare b on b.id = cast(u.id as binary)
                set b.n = b.n + 1";
        Ok(sqlx::query(change).bind(serde_json::json!(ids).to_string()).execute(pool).await?.rows_affected())
    }

    async fn answer_many(pool: &MySqlPool, ids: &[&str]) -> sqlx::Result<u64> {
        let rows: Vec<(String,)> =
            sqlx::query_as("call buckets_answered(?)").bind(serde_json::json!(ids).to_string()).fetch_all(pool).await?;
        Ok(rows.iter().map(|(answers,)| answers.matches(';').count() as u64).sum())
    }

    async fn read_many(pool: &MySqlPool, ids: &[&str]) -> sqlx::Result<u64> {
        let read = "select b.n from json_table(?, '$[*]' columns (id varchar(255) path '$')) u
               straight_join bare b on b.id = cast(u.id as binary)";
        Ok(sqlx::query(read).bind(serde_json::json!(ids).to_string()).fetch_all(pool).await?.len() as u64)
    }

    async fn one(pool: &MySqlPool) -> sqlx::Result<i32> {
        sqlx::query_scalar("select 1").fetch_one(pool).await
    }

    async fn make_bare(pool: &MySqlPool) -> sqlx::Result<()> {
        sqlx::raw_sql("create table if not exists bare (id varbinary(255) primary key, n bigint not null)")
            .execute(pool)
            .await
            .map(drop)
    }

    async fn add_bare(pool: &MySqlPool, ids: &[&str]) -> sqlx::Result<u64> {
        let add =
            "insert ignore into bare select id, 0 from json_table(?, '$[*]' columns (id varchar(255) path '$')) u";
        sqlx::query(add).bind(serde_json::json!(ids).to_string()).execute(pool).await.map(|_| ids.len() as u64)
    }

    /// Does not copy buckets, but creates the procedure that [`answer_many`](Engine::answer_many) calls.
    async fn make_like(pool: &MySqlPool, _: &str, _: &[String]) -> sqlx::Result<bool> {
        sqlx::raw_sql("drop procedure if exists buckets_answered").execute(pool).await?;
        sqlx::raw_sql(BUCKETS_ANSWERED).execute(pool).await?;
        Ok(false)
    }

    async fn version(pool: &MySqlPool) -> sqlx::Result<String> {
        let version: String = sqlx::query_scalar("select version()").fetch_one(pool).await?;
        let name = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
        Ok(format!("{name} {}", version.split('-').next().unwrap_or_default()))
    }

    async fn settings(pool: &MySqlPool) -> sqlx::Result<Vec<String>> {
        let settings: Vec<(String, String)> = sqlx::query_as(
            "show global variables
              where variable_name in ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')",
        )
        .fetch_all(pool)
        .await?;
        Ok(settings.iter().map(|(name, value)| format!("{name} = {value}")).collect())
    }

    /// Counts statements.
    async fn calls(pool: &MySqlPool) -> sqlx::Result<Option<i64>> {
        let calls: Option<(String, String)> =
            sqlx::query_as("show global status where variable_name = 'Questions'").fetch_optional(pool).await?;
        Ok(calls.and_then(|(_, calls)| calls.parse().ok()))
    }

    async fn debited(pool: &MySqlPool, prefix: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar(
            "select cast(coalesce(sum(granted), 0) as signed) from token_buckets where id like concat(?, '%')",
        )
        .bind(prefix)
        .fetch_one(pool)
        .await
    }

    async fn make_durable(pool: &MySqlPool) -> sqlx::Result<()> {
        set(pool, &["innodb_flush_log_at_trx_commit = 1", "sync_binlog = 1"]).await
    }

    async fn restore(pool: &MySqlPool, settings: &[String]) -> sqlx::Result<()> {
        let changed = |setting: &&str| !setting.starts_with("log_bin");
        set(pool, &settings.iter().map(String::as_str).filter(changed).collect::<Vec<_>>()).await
    }
}

/// Does the work of PostgreSQL's `UPDATE … RETURNING`. It must lock and read a row before the write, so that no other
/// session changes the row in between.
const BUCKETS_ANSWERED: &str = "
create procedure buckets_answered(in p_ids longtext character set utf8mb4)
modifies sql data
begin
  declare v_length bigint unsigned default @@group_concat_max_len;
  declare v_answers longtext character set ascii;
  set group_concat_max_len = 1000000000;
  start transaction;
  select group_concat(u.place, ' ', b.full_at, ' ', b.granted, ';' separator '') into v_answers
    from json_table(p_ids, '$[*]' columns (place for ordinality, id varchar(255) path '$')) u
    straight_join token_buckets b on b.id = cast(u.id as binary)
     for update /*!80000 of b */;
  update json_table(p_ids, '$[*]' columns (id varchar(255) path '$')) u
    straight_join token_buckets b on b.id = cast(u.id as binary)
     set b.full_at = b.full_at + 1, b.granted = b.granted + 1;
  commit;
  set group_concat_max_len = v_length;
  select v_answers;
end";

async fn set(pool: &MySqlPool, settings: &[&str]) -> sqlx::Result<()> {
    for setting in settings {
        sqlx::raw_sql(AssertSqlSafe(format!("set global {setting}"))).execute(pool).await?;
    }
    Ok(())
}
