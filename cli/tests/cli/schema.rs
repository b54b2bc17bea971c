//! Compares schemas, as the engine describes them.

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};

use crate::databases::{Database, Engine};

/// Asserts that a database has the schema of `tollgate migrate`: each table, column, constraint, index, view, trigger, routine
/// and grant.
pub(crate) fn is_that_of_migrate(database: &Database) {
    let (expected, found) = (of(&Database::migrated(database.engine)), of(database));
    assert!(expected.len() > 15, "{expected:?}");
    if let Some(missing) = expected.iter().find(|part| !found.contains(part)) {
        let like = missing.split(' ').take(2).collect::<Vec<_>>();
        let found: Vec<_> = found.iter().filter(|part| part.split(' ').take(2).eq(like.iter().copied())).collect();
        panic!("{:?} has not\n{missing}\nbut\n{found:#?}", database.engine);
    }
    assert_eq!(found.len(), expected.len(), "{:?} has more: {found:#?}", database.engine);
}

/// One text per object. Drops comments, because clients omit them, and joins white space.
fn of(database: &Database) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    macro_rules! parts {
        ($connection:ty, $url:expr, $parts:expr) => {
            runtime.block_on(async {
                let mut connection = <$connection>::connect(&$url).await.expect("a connection");
                let parts = sqlx::query_scalar::<_, String>(AssertSqlSafe($parts));
                parts.fetch_all(&mut connection).await.expect("parts of the schema")
            })
        };
    }
    let parts = match database.engine {
        Engine::Sqlite => {
            parts!(
                SqliteConnection,
                format!("sqlite:{}", database.directory.join("app.db").display()),
                SQLITE.to_owned()
            )
        }
        Engine::MySql | Engine::MariaDb => parts!(MySqlConnection, database.url_of_root(), MYSQL.join(" union all ")),
        _ => parts!(PgConnection, database.url_of_root(), POSTGRES.join(" union all ")),
    };
    let without_comment = |line: &str| line.split("-- ").next().unwrap_or_default().to_owned();
    let folded = |part: String| {
        let code: Vec<_> = part.replace(database.name(), "").lines().map(without_comment).collect();
        // The mysql client adds a space after a MariaDB-only comment.
        code.join(" ").replace("*/", "*/ ").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut parts: Vec<_> = parts.into_iter().map(folded).filter(|part| !part.contains("_sqlx_migrations")).collect();
    parts.sort();
    parts
}

const SQLITE: &str = "select concat_ws(' ', type, name, tbl_name, sql) from sqlite_schema";

const POSTGRES: [&str; 7] = [
    "select concat_ws(' ', 'schema', nspname, nspacl) from pg_namespace where nspname = 'tollgate'",
    "select concat_ws(' ', relkind, relname, reloptions, relacl, obj_description(oid, 'pg_class'),
                      case relkind when 'v' then pg_get_viewdef(oid) when 'i' then pg_get_indexdef(oid) end)
       from pg_class where relnamespace = 'tollgate'::regnamespace",
    "select concat_ws(' ', 'column', c.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                      a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid))
       from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
       left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
      where c.relnamespace = 'tollgate'::regnamespace and c.relkind in ('r', 'v', 'c')",
    "select concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(oid))
       from pg_constraint where connamespace = 'tollgate'::regnamespace",
    "select concat_ws(' ', 'trigger', t.tgname, t.tgenabled, pg_get_triggerdef(t.oid))
       from pg_trigger t join pg_class c on c.oid = t.tgrelid
      where c.relnamespace = 'tollgate'::regnamespace and not t.tgisinternal",
    "select concat_ws(' ', 'function', proname, proacl, pg_get_functiondef(oid))
       from pg_proc where pronamespace = 'tollgate'::regnamespace",
    "select concat_ws(' ', 'row', version, name) from tollgate.migrations",
];

const MYSQL: [&str; 9] = [
    "select concat_ws(' ', 'table', table_name, table_type, engine, table_collation, table_comment)
       from information_schema.tables where table_schema = database()",
    "select concat_ws(' ', 'column', table_name, column_name, ordinal_position, coalesce(column_default, 'none'), is_nullable,
                      column_type, collation_name, extra, column_comment)
       from information_schema.columns where table_schema = database()",
    "select concat_ws(' ', constraint_type, table_name, constraint_name)
       from information_schema.table_constraints where table_schema = database()",
    "select concat_ws(' ', 'check', constraint_name, check_clause)
       from information_schema.check_constraints where constraint_schema = database()",
    "select concat_ws(' ', 'index', table_name, index_name, seq_in_index, column_name, non_unique, index_comment)
       from information_schema.statistics where table_schema = database()",
    "select concat_ws(' ', 'parameter', specific_name, ordinal_position, parameter_mode, parameter_name, dtd_identifier,
                      collation_name)
       from information_schema.parameters where specific_schema = database()",
    "select concat_ws(' ', 'routine', routine_name, sql_data_access, security_type, sql_mode, character_set_client,
                      collation_connection, routine_definition)
       from information_schema.routines where routine_schema = database()",
    "select concat_ws(' ', 'view', table_name, security_type, check_option, character_set_client, collation_connection,
                      view_definition)
       from information_schema.views where table_schema = database()",
    "select concat_ws(' ', 'row', version, name, applied_at is not null) from token_migrations",
];
