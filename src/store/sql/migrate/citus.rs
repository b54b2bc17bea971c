//! The distribution of tollgate's tables and routines over the nodes of a Citus cluster.

use sqlx::{PgConnection, PgPool, Postgres};

use super::postgres::{begin_migration, is_distributed, ledger};
use super::{Migration, MigrationRunner, Scope, failed, refused, report};
use crate::model::Error;

/// Brings a database of Citus to this crate's schema, and distributes the tables and routines by key. Returns the migrations
/// that were pending.
///
/// Call it on the coordinator, after `create extension citus` in this database on every node. Existing rows move to their
/// nodes; requests fail meanwhile. It is one transaction, and can be repeated. [`migrate`](super::migrate) leaves a
/// distributed schema alone, so services can call it as before.
///
/// # Errors
///
/// As for [`migrate`](super::migrate). Returns [`Error::Database`] if the database has no extension `citus`, or is not the
/// coordinator's. Nothing is changed then.
pub async fn migrate_citus(pool: &PgPool) -> Result<Vec<Migration>, Error> {
    let mut transaction = begin_migration(pool).await?;
    require_coordinator(&mut transaction).await?;
    let ledger = ledger(&mut transaction).await.map_err(failed::<Postgres>)?;
    let pending = Scope::Pending.of::<Postgres>(&ledger)?;
    let run = async {
        sqlx::query(SETTINGS).execute(&mut *transaction).await?;
        if is_distributed(&mut transaction).await? {
            // New tables come before their distribution.
            one_by_one(&mut transaction, pending.iter().map(Migration::sql)).await?;
        } else {
            // Tables that are not distributed yet take the statements of a migration at once, as on PostgreSQL.
            for migration in &pending {
                sqlx::raw_sql(migration.sql()).execute(&mut *transaction).await?;
            }
        }
        sqlx::raw_sql(TABLES).execute(&mut *transaction).await?;
        // Citus creates a routine on every node if the tables that it depends on are distributed.
        one_by_one(&mut transaction, Postgres::MIGRATIONS.iter().map(Migration::sql)).await?;
        one_by_one(&mut transaction, [ROUTINES, DELEGATION]).await?;
        transaction.commit().await
    };
    run.await.map_err(failed::<Postgres>)?;
    report::<Postgres>(&pending);
    Ok(pending)
}

async fn one_by_one(
    connection: &mut PgConnection,
    files: impl IntoIterator<Item = &'static str>,
) -> Result<(), sqlx::Error> {
    for statement in files.into_iter().flat_map(statements) {
        sqlx::raw_sql(statement).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn require_coordinator(connection: &mut PgConnection) -> Result<(), Error> {
    let has_citus = "select pg_catalog.to_regclass('pg_catalog.pg_dist_local_group') is not null";
    if !sqlx::query_scalar(has_citus).fetch_one(&mut *connection).await.map_err(failed::<Postgres>)? {
        return Err(refused(
            "this database has no extension citus: on every node run `create extension citus` in a database of this name, then \
             on the coordinator `select citus_set_coordinator_host(…)` and `select citus_add_node(…)` for each worker",
        ));
    }
    let is_coordinator = "select groupid operator(pg_catalog.=) 0 from pg_catalog.pg_dist_local_group";
    if !sqlx::query_scalar(is_coordinator).fetch_one(&mut *connection).await.map_err(failed::<Postgres>)? {
        return Err(refused("this node is a worker of Citus: connect to the coordinator to migrate"));
    }
    let takes_shards = "select exists (select from pg_catalog.pg_dist_node n where n.isactive and n.shouldhaveshards)";
    if !sqlx::query_scalar(takes_shards).fetch_one(connection).await.map_err(failed::<Postgres>)? {
        return Err(refused("no node takes rows: add the workers, `select citus_add_node(…)` for each"));
    }
    Ok(())
}

/// The statements of a migration, one by one: Citus runs a statement on all nodes only if it is sent by itself.
fn statements(sql: &str) -> impl Iterator<Item = &str> {
    let (mut from, mut to, mut is_quoted) = (0, 0, false);
    sql.split_inclusive('\n').filter_map(move |line| {
        to += line.len();
        is_quoted ^= line.matches("$$").count() % 2 == 1;
        let is_last = !is_quoted && line.trim_end().ends_with(';') && !line.trim_start().starts_with("--");
        is_last.then(|| &sql[std::mem::replace(&mut from, to)..to])
    })
}

/// Allows the migrations here, and triggers that stay on the node of their row.
const SETTINGS: &str = "select pg_catalog.set_config('tollgate.distributing', 'on', true),
                               pg_catalog.set_config('citus.enable_unsafe_triggers', 'on', true)";
const TABLES: &str = include_str!("../../../../migrations/citus/0001_tables.sql");
const ROUTINES: &str = include_str!("../../../../migrations/citus/0002_routines.sql");
const DELEGATION: &str = include_str!("../../../../migrations/citus/0003_delegation.sql");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_outside_of_bodies_and_comments() {
        let sql = "-- a;\ncreate function f() as $$\nbegin\nselect 1;\nend\n$$;\nselect 2, -- b\n  3;\ninsert into t\nvalues (1);\n";
        let found: Vec<_> = statements(sql).map(|statement| statement.lines().count()).collect();
        assert_eq!(found, [6, 2, 2]);
        for sql in Postgres::MIGRATIONS.iter().map(Migration::sql).chain([TABLES, ROUTINES, DELEGATION]) {
            assert_eq!(statements(sql).collect::<String>(), sql.trim_end().to_owned() + "\n", "no rest is left");
        }
    }
}
