use sqlx::sqlite::{Sqlite, SqliteConnection};
use sqlx::{Connection, SqlitePool};

use super::{Migrate, Migration, failed, files, pending};
use crate::Error;

impl Migrate for Sqlite {
    const MIGRATIONS: &'static [Migration] = files!(
        "sqlite",
        "token_migrations",
        1 "0001_token_migrations",
        2 "0002_token_buckets",
        3 "0003_token_rules",
        4 "0004_token_bucket_levels",
        5 "0005_token_windows",
        6 "0006_token_stats",
        7 "0007_token_rules_and_sizes",
        8 "0008_token_window_levels",
    );

    async fn applied(pool: &SqlitePool) -> Result<Vec<i64>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        applied(&mut connection).await.map_err(failed::<Self>)
    }

    /// All in one transaction, which locks the database: a run that is killed leaves nothing.
    async fn migrate(pool: &SqlitePool) -> Result<Vec<Migration>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        let mut transaction = connection.begin_with("begin immediate").await.map_err(failed::<Self>)?;
        let pending = pending::<Self>(&applied(&mut transaction).await.map_err(failed::<Self>)?)?;
        encoded(&mut transaction).await?;
        for migration in &pending {
            sqlx::raw_sql(migration.sql()).execute(&mut *transaction).await.map_err(failed::<Self>)?;
            sqlx::query("insert into token_migrations (version, name) values (?1, ?2)")
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

/// As UTF-16 no text is the bytes of a key.
async fn encoded(connection: &mut SqliteConnection) -> Result<(), Error> {
    let encoding: String =
        sqlx::query_scalar("pragma encoding").fetch_one(connection).await.map_err(failed::<Sqlite>)?;
    if encoding != "UTF-8" {
        return Err(Error::other(std::io::Error::other(format!(
            "this file is encoded in {encoding}, and keys are UTF-8, as files are unless `pragma encoding` says otherwise: \
             give tollgate a file of its own"
        ))));
    }
    Ok(())
}

async fn applied(connection: &mut SqliteConnection) -> Result<Vec<i64>, sqlx::Error> {
    let exists: bool = sqlx::query_scalar("select count(*) > 0 from sqlite_schema where name = 'token_migrations'")
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(Vec::new());
    }
    sqlx::query_scalar("select version from token_migrations").fetch_all(connection).await
}
