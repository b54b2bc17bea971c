//! Migrations of PostgreSQL and YugabyteDB, under a lock of the ledger.

use std::collections::HashSet;

use sqlx::{Connection, PgConnection, PgPool, Postgres, Transaction};

use super::{Ledger, Migrate, Migration, MigrationRunner, Scope, failed, files, locked_by, refused};
use crate::model::Error;

impl Migrate for Postgres {}

impl MigrationRunner for Postgres {
    const GRANTS: Option<&'static str> = Some(include_str!("../../../../migrations/grants/postgres.sql"));

    /// Each file resolves no name in a schema in which others can create objects, such as `public`. At its end, the objects
    /// that it created are their owner's alone, whatever the default privileges, and `PUBLIC` has no privileges. Existing
    /// objects keep their grants. The last statement restores the host's search path for tools that write a ledger of their
    /// own in the same transaction.
    const MIGRATIONS: &'static [Migration] = files!(
        "postgres",
        "do $$
begin
  perform pg_catalog.set_config('tollgate.host_search_path', pg_catalog.current_setting('search_path'), true);
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  if to_regclass('pg_dist_partition') is not null
     and coalesce(current_setting('tollgate.distributing', true), '') <> 'on' then
    if exists (select from pg_dist_partition p where p.logicalrelid = to_regclass('tollgate.token_buckets')) then
      raise exception 'tollgate: Citus distributes these tables: run `tollgate migrate --distributed citus`';
    end if;
  end if;
  perform set_config('tollgate.existing',
                     array(select oid from pg_namespace where nspname = 'tollgate'
                            union all select oid from pg_class where relnamespace = to_regnamespace('tollgate')
                            union all select oid from pg_proc where pronamespace = to_regnamespace('tollgate'))::text,
                     true);
end
$$;

",
        "
do $$
declare
  v_grant record;
begin
  for v_grant in
    select distinct o.name, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as grantee
      from (select oid, 'schema tollgate' as name, coalesce(nspacl, acldefault('n', nspowner)) as acl, nspowner as owner
              from pg_namespace where nspname = 'tollgate'
             union all
            select oid, 'table ' || oid::regclass, coalesce(relacl, acldefault('r', relowner)), relowner
              from pg_class where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v')
             union all
            select oid, 'function ' || oid::regprocedure, coalesce(proacl, acldefault('f', proowner)), proowner
              from pg_proc where pronamespace = 'tollgate'::regnamespace) o
     cross join aclexplode(o.acl) a
     -- Outside a transaction, the setting is empty: then only PUBLIC loses its privileges.
     where a.grantee = 0
        or a.grantee <> o.owner and o.oid <> all (nullif(current_setting('tollgate.existing', true), '')::oid[])
  loop
    execute format('revoke all on %s from %s cascade', v_grant.name, v_grant.grantee);
  end loop;
  perform set_config('search_path', current_setting('tollgate.host_search_path'), true);
end
$$;
",
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

    async fn applied(pool: &PgPool) -> Result<Vec<i64>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        Ok(ledger(&mut connection).await.map_err(failed::<Self>)?.applied::<Self>())
    }

    /// Migrates in one transaction, so a run that is killed leaves nothing. The lock ends with the transaction too, as
    /// a pooler in transaction mode needs.
    async fn migrate(pool: &PgPool, scope: Scope) -> Result<Vec<Migration>, Error> {
        let mut transaction = begin_migration(pool).await?;
        if is_distributed(&mut transaction).await.map_err(failed::<Self>)? {
            // These routines would lack the statements for it.
            return Err(refused("Citus distributes these tables: run `tollgate migrate --distributed citus`"));
        }
        let ledger = ledger(&mut transaction).await.map_err(failed::<Self>)?;
        let migrations = scope.of::<Self>(&ledger)?;
        for migration in &migrations {
            sqlx::raw_sql(migration.sql()).execute(&mut *transaction).await.map_err(failed::<Self>)?;
        }
        transaction.commit().await.map_err(failed::<Self>)?;
        Ok(migrations)
    }

    async fn needs(pool: &PgPool, message: &str) -> Result<Option<String>, sqlx::Error> {
        let needs = if message.contains("for database") {
            "select pg_catalog.format('grant create on database %I to %I', pg_catalog.current_database(), current_user)"
        } else if message.contains("for schema") {
            "select pg_catalog.format('grant usage, create on schema tollgate to %I', current_user)"
        } else {
            "select pg_catalog.format('migrate as %I, which owns what is there', r.rolname)
               from pg_catalog.pg_namespace n
               join pg_catalog.pg_class c on c.relnamespace operator(pg_catalog.=) n.oid
               join pg_catalog.pg_roles r on r.oid operator(pg_catalog.=) c.relowner
              where n.nspname operator(pg_catalog.=) 'tollgate' and c.relname operator(pg_catalog.=) 'migrations'"
        };
        sqlx::query_scalar(needs).fetch_optional(pool).await
    }
}

/// Begins the transaction of a migration, and [locks](lock) the ledger.
pub(super) async fn begin_migration(pool: &PgPool) -> Result<Transaction<'static, Postgres>, Error> {
    // Read committed, at any level of the pool: reads under the lock must not be older than the lock.
    let mut transaction = pool.begin_with("begin isolation level read committed").await.map_err(failed::<Postgres>)?;
    let Err(error) = lock(&mut transaction).await else { return Ok(transaction) };
    drop(transaction.rollback().await);
    if error.as_database_error().is_none_or(|error| error.code().as_deref() != Some(LOCK_NOT_AVAILABLE)) {
        return Err(failed::<Postgres>(error));
    }
    let holder = async { holder(&mut *pool.acquire().await?).await };
    Err(locked_by(holder.await.ok().flatten()))
}

/// Waits for other sessions that migrate, for a minute or for the session's own `lock_timeout`. Locks the ledger, which
/// only roles that migrate can do; where there is none yet, an advisory lock keeps two sessions from creating it. Afterwards,
/// waits for tables are short.
async fn lock(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let wait = "select pg_catalog.set_config('lock_timeout', '60s', true)
                 where pg_catalog.current_setting('lock_timeout') operator(pg_catalog.=) '0'";
    sqlx::query(wait).execute(&mut *connection).await?;
    if ledger(connection).await?.versions.is_none() {
        sqlx::query("select pg_catalog.pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    }
    if ledger(connection).await?.versions.is_some() {
        let exclusive = "lock table tollgate.migrations in share row exclusive mode";
        sqlx::query(exclusive).execute(&mut *connection).await?;
    }
    sqlx::query(WAIT_FOR_TABLES).execute(connection).await.map(drop)
}

/// Whether the tables are distributed already.
pub(super) async fn is_distributed(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let has_citus = "select pg_catalog.to_regclass('pg_catalog.pg_dist_partition') is not null
                        and pg_catalog.to_regclass('tollgate.token_buckets') is not null";
    if !sqlx::query_scalar(has_citus).fetch_one(&mut *connection).await? {
        return Ok(false);
    }
    let is_distributed = "select exists (
        select from pg_catalog.pg_dist_partition p
         where p.logicalrelid operator(pg_catalog.=) 'tollgate.token_buckets'::pg_catalog.regclass)";
    sqlx::query_scalar(is_distributed).fetch_one(connection).await
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

/// Reads the catalog's tables: a lookup by name can answer from before another instance migrated. Names each schema,
/// because the host's search path may list `public` before `pg_catalog`.
pub(super) async fn ledger(connection: &mut PgConnection) -> Result<Ledger, sqlx::Error> {
    let (names, reads, outdated): (Vec<String>, bool, bool) = sqlx::query_as(
        "select array(select c.relname::pg_catalog.text from pg_catalog.pg_class c
                       where c.relnamespace operator(pg_catalog.=) n.oid
                       union all select p.proname::pg_catalog.text from pg_catalog.pg_proc p
                                  where p.pronamespace operator(pg_catalog.=) n.oid
                       union all select t.tgname::pg_catalog.text from pg_catalog.pg_trigger t
                                   join pg_catalog.pg_class c on c.oid operator(pg_catalog.=) t.tgrelid
                                  where c.relnamespace operator(pg_catalog.=) n.oid),
                coalesce((select pg_catalog.has_table_privilege(c.oid, 'select') from pg_catalog.pg_class c
                           where c.relnamespace operator(pg_catalog.=) n.oid
                             and c.relname operator(pg_catalog.=) 'migrations'), false),
                exists (select from pg_catalog.pg_class c
                         where c.relnamespace operator(pg_catalog.=) n.oid and c.relname operator(pg_catalog.=) 'token_buckets'
                           and not exists (select from pg_catalog.pg_attribute a
                                            where a.attrelid operator(pg_catalog.=) c.oid
                                              and a.attname operator(pg_catalog.=) 'recorded'))
           from (values (coalesce((select s.oid from pg_catalog.pg_namespace s
                                    where s.nspname operator(pg_catalog.=) 'tollgate'), 0))) n (oid)",
    )
    .fetch_one(&mut *connection)
    .await?;
    let names: HashSet<String> = names.into_iter().collect();
    if !names.contains("migrations") {
        return Ok(Ledger { versions: None, names });
    }
    // Roles that take tokens may not read the table, and the function can be missing.
    let versions = if reads || !names.contains("applied_migrations") {
        "select version from tollgate.migrations"
    } else {
        "select version from tollgate.applied_migrations() version"
    };
    let versions: Vec<i64> = sqlx::query_scalar(versions).fetch_all(connection).await?;
    let ledger = Ledger { versions: Some(versions.into_iter().map(|version| (version, true)).collect()), names };
    // A table without the columns of usage is of a schema before the first release.
    Ok(if outdated { ledger.outdated() } else { ledger })
}

/// This crate's own lock, different from the host's locks and those of its migrations.
const LOCK: i64 = 0x746f_6c6c_6761_7465;

/// While a migration waits for a table that another transaction uses, all decisions wait behind the migration. So a longer
/// wait fails.
const WAIT_FOR_TABLES: &str = "select pg_catalog.set_config('lock_timeout', '2s', true)
  where pg_catalog.current_setting('lock_timeout')::pg_catalog.interval
        operator(pg_catalog.>) '2s'::pg_catalog.interval";

const LOCK_NOT_AVAILABLE: &str = "55P03";
