use sqlx::{Connection, PgPool, Postgres};

use super::{Migrate, Migration, failed, files, pending};
use crate::Error;

impl Migrate for Postgres {
    const MIGRATIONS: &'static [Migration] = files!(
        "postgres",
        "tollgate.migrations",
        1 "0001_schema",
        2 "0002_token_clock",
        3 "0003_token_buckets",
        4 "0004_bucket_clock",
        5 "0005_bucket_instant",
        6 "0006_bucket_furthest",
        7 "0007_bucket_terms",
        8 "0008_new_terms",
        9 "0009_take",
        10 "0010_take_many",
        11 "0011_request_tokens",
        12 "0012_request_token",
        13 "0013_request_tokens_many",
        14 "0014_create_bucket",
        15 "0015_rate_limiting_request",
        16 "0016_token_bucket_levels",
    );

    async fn applied(pool: &PgPool) -> Result<Vec<i64>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        applied(&mut connection).await.map_err(failed::<Self>)
    }

    /// All in one transaction, so a run that is killed leaves nothing. The lock ends with it too, which a pooler in
    /// transaction mode needs.
    async fn migrate(pool: &PgPool) -> Result<Vec<Migration>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        // Whatever the pool's own level is: what is read once the lock is had must not be older than it.
        let begin = "begin isolation level read committed";
        let mut transaction = connection.begin_with(begin).await.map_err(failed::<Self>)?;
        sqlx::query("select pg_advisory_xact_lock($1)")
            .bind(LOCK)
            .execute(&mut *transaction)
            .await
            .map_err(failed::<Self>)?;
        let pending = pending::<Self>(&applied(&mut transaction).await.map_err(failed::<Self>)?)?;
        for migration in &pending {
            sqlx::raw_sql(migration.sql()).execute(&mut *transaction).await.map_err(failed::<Self>)?;
            sqlx::query("insert into tollgate.migrations (version, name) values ($1, $2)")
                .bind(migration.version())
                .bind(migration.name())
                .execute(&mut *transaction)
                .await
                .map_err(failed::<Self>)?;
        }
        transaction.commit().await.map_err(failed::<Self>)?;
        Ok(pending)
    }
}

async fn applied(connection: &mut sqlx::PgConnection) -> Result<Vec<i64>, sqlx::Error> {
    // Read from the catalog's tables: a lookup by name may answer from before another instance migrated.
    let exists: bool = sqlx::query_scalar(
        "select exists (select from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
                         where n.nspname = 'tollgate' and p.proname = 'applied_migrations')",
    )
    .fetch_one(&mut *connection)
    .await?;
    if !exists {
        return Ok(Vec::new());
    }
    sqlx::query_scalar("select version from tollgate.applied_migrations() version").fetch_all(connection).await
}

/// Of this crate's own, so that the host's locks and those of its migrations are other ones.
const LOCK: i64 = 0x746f_6c6c_6761_7465;
