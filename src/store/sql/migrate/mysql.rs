//! Migrations of MySQL and MariaDB, whose DDL statements commit one by one.

use std::collections::HashSet;

use sqlx::mysql::{MySql, MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, Connection, MySqlPool};

use super::{Ledger, Migrate, Migration, MigrationRunner, Scope, created, failed, files, locked_by};
use crate::model::Error;

impl Migrate for MySql {}

impl MigrationRunner for MySql {
    const GRANTS: Option<&'static str> = Some(include_str!("../../../../migrations/grants/mysql.sql"));

    const MIGRATIONS: &'static [Migration] = files!(
        "mysql",
        "",
        "",
        1 "0001_tables",
        2 "0002_arithmetic",
        3 "0003_rules",
        4 "0004_take",
        5 "0005_take_batch",
        6 "0006_take_all",
        7 "0007_windows",
        8 "0008_adjust",
        9 "0009_requests",
        10 "0010_operations",
        11 "0011_usage",
    );

    async fn applied(pool: &MySqlPool) -> Result<Vec<i64>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        Ok(ledger(&mut connection).await.map_err(failed::<Self>)?.applied::<Self>())
    }

    /// Migrates on a connection of its own, whose lock and settings end with it.
    async fn migrate(pool: &MySqlPool, scope: Scope) -> Result<Vec<Migration>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?.detach();
        let migrated = migrate(&mut connection, scope).await;
        connection.close().await.map_err(failed::<Self>)?;
        migrated
    }

    /// Reads on a connection of its own, too: one that stays in the pool would not learn of new grants.
    async fn needs(pool: &MySqlPool, _: &str) -> Result<Option<String>, sqlx::Error> {
        let mut connection = pool.acquire().await?.detach();
        let needs = sqlx::query_scalar(
            // `_` and `%` stand for other characters in the name of a granted database. The backslash that escapes them is
            // not a literal, because the SQL mode decides what a literal backslash is.
            "select concat('grant all on `', replace(replace(replace(database(), '`', '``'), '_', concat(h.`escape`, '_')),
                                                     '%', concat(h.`escape`, '%')), '`.* to ',
                           quote(left(current_user(), length(current_user()) - length(h.host) - 1)), '@', quote(h.host))
               from (select substring_index(current_user(), '@', -1) as host, char(92 using utf8mb4) as `escape`) h",
        )
        .fetch_optional(&mut connection)
        .await;
        connection.close().await?;
        needs
    }
}

async fn migrate(connection: &mut MySqlConnection, scope: Scope) -> Result<Vec<Migration>, Error> {
    // Routines keep the SQL mode in which they are created. Autocommit commits the last entry in the ledger.
    sqlx::raw_sql(
        "set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'; set names utf8mb4; set autocommit = 1",
    )
    .execute(&mut *connection)
    .await
    .map_err(failed::<MySql>)?;
    // Hashed, because a database's name can be longer than a lock's. Any account can take the lock: MySQL has no
    // restricted locks.
    let (locked, holder): (Option<i64>, Option<i64>) = sqlx::query_as(
        "select cast(get_lock(l.name, least(60, @@session.lock_wait_timeout)) as signed),
                cast(is_used_lock(l.name) as signed)
           from (select concat('tollgate.', left(sha2(database(), 256), 48)) as name) l",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(failed::<MySql>)?;
    if locked != Some(1) {
        return Err(locked_by(holder.map(|id| (format!("session {id}"), format!("kill {id}")))));
    }
    let ledger = ledger(connection).await.map_err(failed::<MySql>)?;
    let migrations = scope.of::<MySql>(&ledger)?;
    if scope == Scope::Pending && !migrations.is_empty() {
        same_definer(connection).await?;
    }
    // While a migration waits for a routine or a table that another transaction uses, all decisions wait behind the migration.
    // So a longer wait fails.
    sqlx::raw_sql("set session lock_wait_timeout = cast(least(2, @@session.lock_wait_timeout) as unsigned)")
        .execute(&mut *connection)
        .await
        .map_err(failed::<MySql>)?;
    widen(connection).await.map_err(failed::<MySql>)?;
    for migration in &migrations {
        apply(connection, migration).await.map_err(failed::<MySql>)?;
    }
    Ok(migrations)
}

/// Rejects routines of another account. Routines run with their definer's rights, so routines of two accounts may not
/// call each other. Creating the missing ones as a second account would look complete.
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

/// Makes room for calendar periods and for usage in tables of a schema before the first release: more and wider columns. Drops
/// the checks that refuse a calendar period. The routines check the same bounds.
async fn widen(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    // Each statement commits by itself, so a run that was stopped continues here.
    let is_outdated = "select exists (select 1 from information_schema.table_constraints
                                       where table_schema = database() and constraint_name = ?)";
    for (constraint, sql) in WIDEN {
        if sqlx::query_scalar(is_outdated).bind(constraint).fetch_one(&mut *connection).await? {
            sqlx::raw_sql(sql).execute(&mut *connection).await?;
        }
    }
    for (column, sql) in ADD {
        if lacks(connection, column).await? {
            sqlx::raw_sql(sql).execute(&mut *connection).await?;
        }
    }
    Ok(())
}

/// Whether the table of buckets exists without a column. False for an account that cannot see the columns.
async fn lacks(connection: &mut MySqlConnection, column: &str) -> Result<bool, sqlx::Error> {
    let columns = "select count(*) = 1 and max(column_name = ?) = 0 from information_schema.columns
                    where table_schema = database() and table_name = 'token_buckets' and column_name in ('anchor', ?)";
    let found = sqlx::query_scalar::<_, Option<bool>>(columns).bind(column).bind(column).fetch_one(connection).await?;
    Ok(found.unwrap_or_default())
}

/// A constraint of an outdated table, and the statement that widens the table.
const WIDEN: [(&str, &str); 3] = [
    (
        "token_plan_refill_is_interval_calendar_continuous_or_once",
        "alter table token_plans
           modify refill varchar(80) character set ascii collate ascii_bin not null default 'continuous',
           drop constraint token_plan_refill_is_interval_calendar_continuous_or_once,
           drop constraint token_plan_refill_seconds_is_above_0,
           drop constraint token_plan_refill_is_at_most_1_token_a_nanosecond",
    ),
    (
        "token_override_refill_is_interval_calendar_continuous_or_once",
        "alter table token_overrides
           modify refill varchar(80) character set ascii collate ascii_bin not null default 'continuous',
           drop constraint token_override_refill_is_interval_calendar_continuous_or_once,
           drop constraint token_override_refill_seconds_is_above_0,
           drop constraint token_override_refill_is_at_most_1_token_a_nanosecond",
    ),
    (
        "token_bucket_refill_is_interval_calendar_continuous_or_once",
        "alter table token_buckets
           modify refill varchar(80) character set ascii collate ascii_bin not null default 'interval',
           modify under_refill varchar(80) character set ascii collate ascii_bin not null default (refill),
           alter step_ns set default (
             case when refill = 'continuous' then 1 when refill = 'once' then 9223372036854775807
               when refill like 'calendar %' then 31556952000000000
               else greatest(cast(least(refill_seconds, 9000000000) * 1000000000 as signed), 1) end),
           alter anchor set default (
             if(refill like 'calendar%', 0, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) * 1000 mod step_ns)),
           drop constraint token_bucket_refill_is_interval_calendar_continuous_or_once,
           drop constraint token_bucket_refill_seconds_is_above_0,
           drop constraint token_bucket_refill_is_at_most_1_token_a_nanosecond",
    ),
];

/// A column that an outdated table lacks, and the statements that add it.
const ADD: [(&str, &str); 2] = [
    (
        // No bucket is under a calendar period yet, so the end of each existing one is never.
        "period_end",
        "alter table token_buckets add column period_end bigint not null default 9223372036854775807;
         alter table token_buckets alter period_end set default (if(refill like 'calendar %', 0, 9223372036854775807))",
    ),
    (
        "recorded",
        "alter table token_buckets
           add column recorded bigint not null default 0 comment 'the part of granted that is recorded as usage, or is none',
           add column charged bigint not null default 0 comment 'tokens charged since usage was recorded last',
           add column refunded bigint not null default 0 comment 'tokens given back since usage was recorded last'",
    ),
];

/// Runs a file. Each DDL statement commits on its own, so the ledger lists the file without a time before it runs. If
/// the run stops midway, the ledger shows that the file's objects are tollgate's, and the next run repeats the file.
async fn apply(connection: &mut MySqlConnection, migration: &Migration) -> Result<(), sqlx::Error> {
    // The first file creates the ledger, before all else.
    if migration.version() > 1 {
        sqlx::query("insert ignore into token_migrations (version, name, applied_at) values (?, ?, null)")
            .bind(migration.version())
            .bind(migration.name())
            .execute(&mut *connection)
            .await?;
    }
    sqlx::raw_sql(migration.sql()).execute(connection).await.map(drop)
}

async fn ledger(connection: &mut MySqlConnection) -> Result<Ledger, sqlx::Error> {
    let versions = sqlx::query_as("select version, applied_at is not null from token_migrations")
        .fetch_all(&mut *connection)
        .await;
    let versions: Option<Vec<(i64, bool)>> = match versions {
        Err(error) if number(&error) == Some(NO_SUCH_TABLE) => None,
        versions => Some(versions?),
    };
    let names: Vec<String> = sqlx::query_scalar(
        "select routine_name from information_schema.routines where routine_schema = database()
          union all select table_name from information_schema.tables where table_schema = database()",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut names: HashSet<String> = names.into_iter().collect();
    if versions.is_none() {
        return Ok(Ledger { versions, names });
    }
    // The catalog hides what the account may not use, and on MySQL what it may use by a role. A call of the routine
    // tells more.
    let is_listed =
        |migration: &&Migration| versions.iter().flatten().any(|(listed, _)| *listed == migration.version());
    let listed = || MySql::MIGRATIONS.iter().filter(is_listed);
    for (kind, name) in listed().flat_map(|migration| migration.sql().lines().filter_map(created)) {
        if names.contains(name) {
            continue;
        }
        let look = if kind == "procedure" { format!("call {name}()") } else { format!("select 1 from {name} limit 0") };
        let looked = sqlx::raw_sql(AssertSqlSafe(look)).execute(&mut *connection).await;
        if !matches!(looked.as_ref().err().and_then(number), Some(NO_SUCH_TABLE | NO_SUCH_ROUTINE)) {
            // The object exists, and the catalog hides it. So this account cannot see what is missing, and could not
            // create it.
            names.extend(listed().flat_map(Migration::creates).map(str::to_owned));
        }
    }
    let ledger = Ledger { versions, names };
    Ok(if lacks(connection, "recorded").await? { ledger.outdated() } else { ledger })
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

const NO_SUCH_TABLE: u16 = 1146;
const NO_SUCH_ROUTINE: u16 = 1305;
