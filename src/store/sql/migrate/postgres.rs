use std::collections::HashSet;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres};

use super::{Ledger, Migrate, Migration, Scope, failed, files, held};
use crate::model::Error;

impl Migrate for Postgres {
    /// Resolves no name in a schema that others may create objects in, such as `public`. The host's path comes back for
    /// tools that write a ledger of their own in the same transaction.
    const GRANTS: Option<&'static str> = Some(include_str!("../../../../migrations/grants/postgres.sql"));

    const MIGRATIONS: &'static [Migration] = files!(
        "postgres",
        "tollgate.migrations",
        "do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
end
$$;

",
        "
do $$
begin
  perform pg_catalog.set_config('search_path', pg_catalog.current_setting('tollgate.host_search_path'), true);
end
$$;
",
        1 "0001_schema",
        2 "0002_token_clock",
        3 "0003_terms",
        4 "0004_token_plans",
        5 "0005_token_buckets",
        6 "0006_bucket_clock",
        7 "0007_bucket_instant",
        8 "0008_bucket_furthest",
        9 "0009_settle",
        10 "0010_create_bucket",
        11 "0011_token_bucket_levels",
        12 "0012_create_plan",
        13 "0013_token_receipts",
        14 "0014_rule",
        15 "0015_take",
        16 "0016_take_all",
        17 "0017_take_many",
        18 "0018_adjust",
        19 "0019_answers",
        20 "0020_request_tokens",
        21 "0021_request_token",
        22 "0022_request_tokens_many",
        23 "0023_rate_limiting_request",
        24 "0024_explain",
        25 "0025_reset_bucket",
        26 "0026_sweep",
        27 "0027_token_windows",
        28 "0028_window_earliest",
        29 "0029_take_window",
        30 "0030_adjust_window",
        31 "0031_request_tokens_in_window",
        32 "0032_grant_many",
        33 "0033_weigh_many",
        34 "0034_make_many",
        35 "0035_take_times",
        36 "0036_take_all_many",
        37 "0037_hold_back",
        38 "0038_token_stats",
        39 "0039_count_denials",
        40 "0040_token_rules",
        41 "0041_token_sizes",
        42 "0042_peek_window",
        43 "0043_lock_all",
        44 "0044_peek",
        45 "0045_grant_alike",
        46 "0046_token_window_levels",
        47 "0047_adjust_many",
        48 "0048_make_alike",
    );

    async fn applied(pool: &PgPool) -> Result<Vec<i64>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        Ok(ledger(&mut connection).await.map_err(failed::<Self>)?.applied::<Self>())
    }

    /// All in one transaction, so a run that is killed leaves nothing. The lock ends with it too, which a pooler in
    /// transaction mode needs.
    async fn migrate(pool: &PgPool, scope: Scope) -> Result<Vec<Migration>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        // Whatever the pool's own level is: what is read once the lock is had must not be older than it.
        let begin = "begin isolation level read committed";
        let mut transaction = connection.begin_with(begin).await.map_err(failed::<Self>)?;
        if let Err(error) = lock(&mut transaction).await {
            drop(transaction);
            let is_held =
                error.as_database_error().is_some_and(|error| error.code().as_deref() == Some(LOCK_NOT_AVAILABLE));
            return Err(if is_held {
                held(holder(&mut connection).await.ok().flatten())
            } else {
                failed::<Self>(error)
            });
        }
        let ledger = ledger(&mut transaction).await.map_err(failed::<Self>)?;
        let migrations = scope.of::<Self>(&ledger)?;
        for migration in &migrations {
            if ledger.owns(migration, scope) {
                let again = AssertSqlSafe(migration.again(true));
                sqlx::raw_sql(again).execute(&mut *transaction).await.map_err(failed::<Self>)?;
            } else {
                sqlx::raw_sql(migration.sql()).execute(&mut *transaction).await.map_err(failed::<Self>)?;
            }
            sqlx::query("insert into tollgate.migrations (version, name) values ($1, $2) on conflict do nothing")
                .bind(migration.version())
                .bind(migration.name())
                .execute(&mut *transaction)
                .await
                .map_err(failed::<Self>)?;
        }
        transaction.commit().await.map_err(failed::<Self>)?;
        Ok(migrations)
    }

    async fn needs(pool: &PgPool, said: &str) -> Result<Option<String>, sqlx::Error> {
        let needs = if said.contains("for database") {
            "select pg_catalog.format('grant create on database %I to %I', current_database(), current_user)"
        } else if said.contains("for schema") {
            "select pg_catalog.format('grant usage, create on schema tollgate to %I', current_user)"
        } else {
            "select pg_catalog.format('migrate as %I, which owns what is there', r.rolname)
               from pg_catalog.pg_namespace n
               join pg_catalog.pg_class c on c.relnamespace = n.oid
               join pg_catalog.pg_roles r on r.oid = c.relowner
              where n.nspname = 'tollgate' and c.relname = 'migrations'"
        };
        sqlx::query_scalar(needs).fetch_optional(pool).await
    }
}

/// Waits for other sessions that migrate, for a minute or for the session's own `lock_timeout`. Locks the ledger, which only
/// roles that migrate can do; where there is none yet, an advisory lock keeps two sessions from creating it.
async fn lock(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let wait = "select pg_catalog.set_config('lock_timeout', '60s', true)
                 where pg_catalog.current_setting('lock_timeout') operator(pg_catalog.=) '0'";
    sqlx::query(wait).execute(&mut *connection).await?;
    if ledger(connection).await?.versions.is_none() {
        sqlx::query("select pg_catalog.pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    }
    if ledger(connection).await?.versions.is_some() {
        let exclusive = "lock table tollgate.migrations in share row exclusive mode";
        sqlx::query(exclusive).execute(connection).await?;
    }
    Ok(())
}

/// The session that holds the lock, and what ends it.
async fn holder(connection: &mut PgConnection) -> Result<Option<(String, String)>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query("set local search_path = pg_catalog, pg_temp").execute(&mut *transaction).await?;
    sqlx::query_as(
        "select format('session %s of %s', a.pid, a.usename), format('select pg_terminate_backend(%s)', a.pid)
           from pg_locks l join pg_stat_activity a on a.pid = l.pid
          where l.granted and a.pid <> pg_backend_pid()
            and (l.locktype = 'advisory' and l.classid::bigint << 32 | l.objid::bigint = $1
                 or l.relation = to_regclass('tollgate.migrations') and l.mode not in ('AccessShareLock', 'RowShareLock'))
          limit 1",
    )
    .bind(LOCK)
    .fetch_optional(&mut *transaction)
    .await
}

/// Read from the catalog's tables: a lookup by name may answer from before another instance migrated.
async fn ledger(connection: &mut PgConnection) -> Result<Ledger, sqlx::Error> {
    let (names, reads): (Vec<String>, bool) = sqlx::query_as(
        "select array(select relname::text from pg_catalog.pg_class where relnamespace = n.oid
                       union all select proname::text from pg_catalog.pg_proc where pronamespace = n.oid
                       union all select tgname::text from pg_catalog.pg_trigger t
                                   join pg_catalog.pg_class c on c.oid = t.tgrelid where c.relnamespace = n.oid),
                coalesce((select has_table_privilege(oid, 'select') from pg_catalog.pg_class
                           where relnamespace = n.oid and relname = 'migrations'), false)
           from (values (coalesce((select oid from pg_catalog.pg_namespace where nspname = 'tollgate'), 0))) n (oid)",
    )
    .fetch_one(&mut *connection)
    .await?;
    let names: HashSet<String> = names.into_iter().collect();
    if !names.contains("migrations") {
        return Ok(Ledger { versions: None, names });
    }
    // Roles that take tokens may not read the table; and the function may be missing.
    let versions = if reads || !names.contains("applied_migrations") {
        "select version from tollgate.migrations"
    } else {
        "select version from tollgate.applied_migrations() version"
    };
    let versions: Vec<i64> = sqlx::query_scalar(versions).fetch_all(connection).await?;
    Ok(Ledger { versions: Some(versions.into_iter().map(|version| (version, true)).collect()), names })
}

/// Of this crate's own, so that the host's locks and those of its migrations are other ones.
const LOCK: i64 = 0x746f_6c6c_6761_7465;

const LOCK_NOT_AVAILABLE: &str = "55P03";
