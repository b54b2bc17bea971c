//! PUBLIC, the pseudo-role of every PostgreSQL user, has no privileges.

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS };
        nothing_is_open_to_the_public,
    )
}

async fn nothing_is_open_to_the_public(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    assert_eq!(open(db).await?, NONE, "after the migrations");
    db.pool.run(include_str!("../../../../migrations/grants/postgres.sql")).await?;
    assert_eq!(open(db).await?, NONE, "after the grants");

    // `open` would find each of these privileges.
    db.pool
        .run(
            "grant usage on schema tollgate to public;
             grant insert (id) on tollgate.token_buckets to public;
             grant execute on function tollgate.clock to public",
        )
        .await?;
    assert_eq!(open(db).await?, ["schema tollgate", "tollgate.clock()", "tollgate.token_buckets"]);
    Ok(())
}

/// The objects of the schema on which PUBLIC has a privilege.
async fn open(db: &TestDb) -> anyhow::Result<Vec<String>> {
    let rows = db
        .sql(
            "select 'schema ' || nspname as name
               from pg_namespace where nspname = 'tollgate' and has_schema_privilege('public', oid, 'usage, create')
             union all
             select oid::regprocedure::text
               from pg_proc
              where pronamespace = 'tollgate'::regnamespace and has_function_privilege('public', oid, 'execute')
             union all
             select oid::regclass::text
               from pg_class
              where relnamespace = 'tollgate'::regnamespace and relkind in ('r', 'v', 'm', 'p')
                and (has_table_privilege('public', oid, 'select, insert, update, delete, truncate, references, trigger')
                     or has_any_column_privilege('public', oid, 'select, insert, update, references'))
             order by name",
        )
        .await?;
    rows.iter().map(|row| Ok(row.text("name")?.unwrap_or_default().to_owned())).collect()
}

const NONE: [String; 0] = [];
