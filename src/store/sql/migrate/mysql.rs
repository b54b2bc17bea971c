use std::collections::HashSet;

use sqlx::mysql::{MySql, MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, Connection, MySqlPool};

use super::{Ledger, Migrate, Migration, Scope, created, failed, files, held};
use crate::model::Error;

impl Migrate for MySql {
    const GRANTS: Option<&'static str> = Some(include_str!("../../../../migrations/grants/mysql.sql"));

    const MIGRATIONS: &'static [Migration] = files!(
        "mysql",
        "token_migrations",
        "",
        "",
        1 "0001_token_migrations",
        2 "0002_token_clock_v1",
        3 "0003_token_terms_v1",
        4 "0004_token_settle_v1",
        5 "0005_token_buckets",
        6 "0006_token_plans",
        7 "0007_token_mode",
        8 "0008_token_mode_row",
        9 "0009_token_overrides",
        10 "0010_token_receipts",
        11 "0011_token_claim_v1",
        12 "0012_token_rule_v1",
        13 "0013_token_decide_v1",
        14 "0014_token_take_v1",
        15 "0015_token_decide_many_v1",
        16 "0016_token_take_many_v1",
        17 "0017_token_decide_all_v1",
        18 "0018_token_adjust_v1",
        19 "0019_request_tokens_v1",
        20 "0020_request_tokens",
        21 "0021_request_planned_tokens",
        22 "0022_request_tokens_once",
        23 "0023_request_token",
        24 "0024_request_tokens_many",
        25 "0025_token_create_bucket",
        26 "0026_token_create_plan",
        27 "0027_rate_limiting_request",
        28 "0028_token_bucket_levels",
        29 "0029_token_explain",
        30 "0030_token_reset_bucket",
        31 "0031_token_delete_bucket",
        32 "0032_token_sweep_step_v1",
        33 "0033_token_sweep_v1",
        34 "0034_token_sweep",
        35 "0035_token_windows",
        36 "0036_token_window_count_v1",
        37 "0037_token_window_earliest_v1",
        38 "0038_token_decide_window_v1",
        39 "0039_token_adjust_window_v1",
        40 "0040_request_tokens_in_window_v1",
        41 "0041_request_tokens_in_window",
        42 "0042_token_lower_v1",
        43 "0043_token_hold_back_v1",
        44 "0044_token_hold_back",
        45 "0045_token_stats",
        46 "0046_token_most_denied",
        47 "0047_token_count_denials_v1",
        48 "0048_token_rules",
        49 "0049_token_sizes",
        50 "0050_token_peek_window",
        51 "0051_token_peek",
        52 "0052_token_make_many_v1",
        53 "0053_token_decide_all_many_v1",
        54 "0054_token_window_step_back_v1",
        55 "0055_token_take_alike_v1",
        56 "0056_token_list_windows",
        57 "0057_token_adjust_one_v1",
        58 "0058_token_adjust_one_in_window_v1",
        59 "0059_token_adjust_many_v1",
        60 "0060_token_sweep_position",
        61 "0061_token_not_whole_v1",
        62 "0062_token_check_id_v1",
    );

    async fn applied(pool: &MySqlPool) -> Result<Vec<i64>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        Ok(ledger(&mut connection).await.map_err(failed::<Self>)?.applied::<Self>())
    }

    /// On a connection of its own, which takes its lock and its settings with it when it closes.
    async fn migrate(pool: &MySqlPool, scope: Scope) -> Result<Vec<Migration>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?.detach();
        let migrated = migrate(&mut connection, scope).await;
        connection.close().await.map_err(failed::<Self>)?;
        migrated
    }

    /// On a connection of its own, too: one that stays in the pool would not learn of what is granted.
    async fn needs(pool: &MySqlPool, _: &str) -> Result<Option<String>, sqlx::Error> {
        let mut connection = pool.acquire().await?.detach();
        let needs = sqlx::query_scalar(
            "select concat('grant all on `', replace(database(), '`', '``'), '`.* to ',
                           quote(left(current_user(), length(current_user()) - length(h.host) - 1)), '@', quote(h.host))
               from (select substring_index(current_user(), '@', -1) as host) h",
        )
        .fetch_optional(&mut connection)
        .await;
        connection.close().await?;
        needs
    }
}

async fn migrate(connection: &mut MySqlConnection, scope: Scope) -> Result<Vec<Migration>, Error> {
    // Routines keep the mode that they are made in. And the last entry in the ledger has to be committed, too.
    sqlx::raw_sql(
        "set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'; set names utf8mb4; set autocommit = 1",
    )
    .execute(&mut *connection)
    .await
    .map_err(failed::<MySql>)?;
    // A lock's name is shorter than a database's may be. Any account can take it: MySQL has no lock that it could not.
    let (locked, holder): (Option<i64>, Option<i64>) = sqlx::query_as(
        "select cast(get_lock(l.name, least(60, @@session.lock_wait_timeout)) as signed),
                cast(is_used_lock(l.name) as signed)
           from (select concat('tollgate.', left(sha2(database(), 256), 48)) as name) l",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(failed::<MySql>)?;
    if locked != Some(1) {
        return Err(held(holder.map(|id| (format!("session {id}"), format!("kill {id}")))));
    }
    let ledger = ledger(connection).await.map_err(failed::<MySql>)?;
    let migrations = scope.of::<MySql>(&ledger)?;
    if scope == Scope::Pending && !migrations.is_empty() {
        same_definer(connection).await?;
    }
    for migration in &migrations {
        apply(connection, migration, ledger.owns(migration, scope)).await.map_err(failed::<MySql>)?;
    }
    Ok(migrations)
}

/// Routines run with the rights of whoever made them: those of two accounts may not call each other, and to make the rest as
/// another account would look complete.
async fn same_definer(connection: &mut MySqlConnection) -> Result<(), Error> {
    let routines: Vec<(String, String, String)> = sqlx::query_as(
        "select routine_name, definer, current_user() from information_schema.routines
          where routine_schema = database() and definer <> current_user()
          order by routine_name",
    )
    .fetch_all(connection)
    .await
    .map_err(failed::<MySql>)?;
    let is_ours = |name: &str| MySql::MIGRATIONS.iter().any(|migration| migration.creates().any(|made| made == name));
    let others: Vec<_> = routines.into_iter().filter(|(name, ..)| is_ours(name)).collect();
    let Some((routine, definer, ours)) = others.first() else { return Ok(()) };
    Err(Error::other(std::io::Error::other(format!(
        "{} of the routines here, such as {routine}, were made by {definer}, and this is {ours}: routines of two accounts \
         may not call each other. Migrate as {definer}, with all rights on this database; or make all of them as {ours}: \
         `tollgate migrate --repair`",
        others.len(),
    ))))
}

/// Each statement of DDL commits on its own. So what is about to run is written down first, and an object that is there
/// already is ours if a run that was killed had announced it.
async fn apply(connection: &mut MySqlConnection, migration: &Migration, is_ours: bool) -> Result<(), sqlx::Error> {
    let sql = || AssertSqlSafe(if is_ours { migration.again(false) } else { migration.sql().to_owned() });
    if migration.version() == 1 {
        sqlx::raw_sql(sql()).execute(&mut *connection).await?;
    }
    let announced = sqlx::query("insert ignore into token_migrations (version, name, applied_at) values (?, ?, null)")
        .bind(migration.version())
        .bind(migration.name())
        .execute(&mut *connection)
        .await?;
    if migration.version() > 1 {
        match sqlx::raw_sql(sql()).execute(&mut *connection).await {
            Err(error) if announced.rows_affected() == 1 && error.as_database_error().is_some() => {
                retract(connection, migration).await?;
                return Err(error);
            }
            result => result.map(drop)?,
        }
    }
    sqlx::query("update token_migrations set applied_at = utc_timestamp(6) where version = ?")
        .bind(migration.version())
        .execute(connection)
        .await
        .map(drop)
}

/// What the database refused did not happen: an object of that name that is there is somebody else's, and stays so.
async fn retract(connection: &mut MySqlConnection, migration: &Migration) -> Result<(), sqlx::Error> {
    sqlx::query("delete from token_migrations where version = ? and applied_at is null")
        .bind(migration.version())
        .execute(connection)
        .await
        .map(drop)
}

async fn ledger(connection: &mut MySqlConnection) -> Result<Ledger, sqlx::Error> {
    let versions = sqlx::query_as("select version, applied_at is not null from token_migrations")
        .fetch_all(&mut *connection)
        .await;
    let versions: Vec<(i64, bool)> = match versions {
        Err(error) if number(&error) == Some(NO_SUCH_TABLE) => {
            return Ok(Ledger { versions: None, names: HashSet::new() });
        }
        versions => versions?,
    };
    let names: Vec<String> = sqlx::query_scalar(
        "select routine_name from information_schema.routines where routine_schema = database()
          union all select table_name from information_schema.tables where table_schema = database()",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut names: HashSet<String> = names.into_iter().collect();
    // What an account may not use is not listed to it, nor on MySQL what it may use by a role. The call says more.
    let all = MySql::MIGRATIONS.iter().flat_map(|migration| migration.sql().lines().filter_map(created));
    for (kind, name) in all {
        if names.contains(name) {
            continue;
        }
        let look = if kind == "procedure" { format!("call {name}()") } else { format!("select 1 from {name} limit 0") };
        let looked = sqlx::raw_sql(AssertSqlSafe(look)).execute(&mut *connection).await;
        if !matches!(looked.as_ref().err().and_then(number), Some(NO_SUCH_TABLE | NO_SUCH_ROUTINE)) {
            // So this account cannot see what is missing, nor could it make that.
            names.extend(MySql::MIGRATIONS.iter().flat_map(Migration::creates).map(str::to_owned));
        }
    }
    Ok(Ledger { versions: Some(versions), names })
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

const NO_SUCH_TABLE: u16 = 1146;
const NO_SUCH_ROUTINE: u16 = 1305;
