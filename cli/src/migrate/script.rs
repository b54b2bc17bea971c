//! The migrations as text for other tools.

use clap::ValueEnum;
use sqlx::{MySql, Postgres};
use tollgate::store::Migration;

/// The engine whose SQL is printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScriptDialect {
    /// PostgreSQL and YugabyteDB
    #[value(alias = "postgresql")]
    Postgres,
    /// MySQL and MariaDB
    #[value(alias = "mariadb")]
    Mysql,
    Sqlite,
}

/// The tool that runs the SQL.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Files for sqlx's `migrate`
    Sqlx,
    /// Files for goose
    Goose,
    /// Files for Flyway
    Flyway,
    /// A script for psql or another PostgreSQL client
    #[value(alias = "plain")]
    Psql,
    /// A script for the mysql and mariadb clients
    #[value(alias = "mariadb")]
    Mysql,
    /// A script for sqlite3
    Sqlite3,
    /// The roles for services and operators, with their grants: a script for psql, mysql or mariadb
    Grants,
    /// The role that owns all objects after a superuser migrated PostgreSQL: a script for psql
    Owner,
}

impl Format {
    /// Whether the tool needs one file per migration.
    pub(super) fn is_for_files(self) -> bool {
        matches!(self, Self::Sqlx | Self::Goose | Self::Flyway)
    }

    /// Whether the script runs after the migrations, again after each upgrade.
    pub(super) fn is_for_roles(self) -> bool {
        matches!(self, Self::Grants | Self::Owner)
    }

    /// The engine of the format, if it has only one.
    pub(super) fn dialect(self) -> Option<ScriptDialect> {
        match self {
            Self::Psql | Self::Owner => Some(ScriptDialect::Postgres),
            Self::Mysql => Some(ScriptDialect::Mysql),
            Self::Sqlite3 => Some(ScriptDialect::Sqlite),
            Self::Sqlx | Self::Goose | Self::Flyway | Self::Grants => None,
        }
    }
}

/// The script for the engine's own client: all migrations, or those after a version. In one transaction if the engine can roll
/// back DDL.
pub(super) fn whole(dialect: ScriptDialect, migrations: &[Migration], after: Option<i64>) -> String {
    let at = after.map_or_else(String::new, |version| at(dialect, version));
    match dialect {
        ScriptDialect::Postgres => format!("begin;\n\n{at}{}commit;\n", each(migrations)),
        ScriptDialect::Sqlite => format!(".bail on\nbegin immediate;\n\n{at}{}commit;\n", each(migrations)),
        ScriptDialect::Mysql => at + &delimited(migrations),
    }
}

/// Fails unless the database is at exactly this version. Otherwise, the script would skip missing migrations or repeat newer
/// ones.
fn at(dialect: ScriptDialect, version: i64) -> String {
    let at = |ledger: &str| {
        format!(
            "create temporary table tollgate_version (\n  \
               found bigint primary key, constraint the_database_is_not_at_version_{version} check (found = {version}));\n\
             insert into tollgate_version select case when count(*) = max(version) then max(version) else -1 end from {ledger};\n\
             drop table tollgate_version;\n\n"
        )
    };
    match dialect {
        // PostgreSQL needs no temporary table, so the role needs no privilege to create one.
        ScriptDialect::Postgres => format!(
            "do $$\n\
             begin\n  \
               perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);\n  \
               if (select count(*) <> {version} or max(version) <> {version} from tollgate.migrations) then\n    \
                 raise exception 'the_database_is_not_at_version_{version}';\n  \
               end if;\n\
             end\n\
             $$;\n\n"
        ),
        ScriptDialect::Mysql => at("token_migrations where applied_at is not null"),
        ScriptDialect::Sqlite => at("token_migrations"),
    }
}

/// The script that an administrator runs after the migrations to create the roles. `None` for SQLite, which has no roles.
/// On a server with several databases, a prefix separates their roles.
pub(super) fn grants(dialect: ScriptDialect, prefix: Option<&str>) -> Option<String> {
    let (grants, connect) = match dialect {
        ScriptDialect::Postgres => (tollgate::store::grants::<Postgres>()?, CONNECT),
        ScriptDialect::Mysql => (tollgate::store::grants::<MySql>()?, ""),
        ScriptDialect::Sqlite => return None,
    };
    Some(match prefix {
        Some(prefix) => format!("{grants}{connect}")
            .replace("tollgate_app", &format!("{prefix}_app"))
            .replace("tollgate_operator", &format!("{prefix}_operator")),
        None => grants.to_owned(),
    })
}

/// Restricts connections, because roles belong to the whole server and every role can connect to every database by default.
const CONNECT: &str = "
-- Only these roles, the database's owner and superusers may connect to it: grant connect to others that need it.
do $$
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  -- The revoke only warns a role that does not own the database.
  execute format('revoke connect on database %I from public', current_database());
  execute format('grant connect on database %I to tollgate_app', current_database());
  -- Checks the effect of the revoke.
  if has_database_privilege('public', current_database(), 'connect') then
    raise exception 'PUBLIC can still connect to database %', quote_ident(current_database())
      using hint = 'run this script as the owner of the database or as a superuser';
  end if;
end
$$;
";

/// The script that a superuser runs after the migrations, so that no routine runs with a superuser's privileges.
pub(super) const OWNER: &str = include_str!("owner.sql");

/// One migration as a file of the tool.
pub(super) fn file(format: Format, dialect: ScriptDialect, migration: &Migration) -> String {
    let one = std::slice::from_ref(migration);
    match (format, dialect) {
        (Format::Goose, ScriptDialect::Mysql) => {
            let own = [format!("{KEEP};"), format!("{SET};")].into_iter();
            let all = own.chain(migration.statements().map(str::to_owned)).chain([format!("{RESTORE};")]);
            format!("-- +goose Up\n{}\n{GOOSE_DOWN}", all.map(|sql| marked(&sql)).collect::<Vec<_>>().join("\n"))
        }
        (Format::Goose, _) => format!("-- +goose Up\n{}\n{GOOSE_DOWN}", marked(migration.sql().trim_end())),
        (Format::Flyway, ScriptDialect::Mysql) => delimited(one),
        (_, ScriptDialect::Mysql) => format!("{KEEP};\n\n{SET};\n\n{}\n{RESTORE};\n", each(one)),
        _ => each(one),
    }
}

/// Marks SQL that goose must send as one statement.
fn marked(sql: &str) -> String {
    format!("-- +goose StatementBegin\n{sql}\n-- +goose StatementEnd\n")
}

fn each(migrations: &[Migration]) -> String {
    migrations.iter().flat_map(|migration| [migration.sql().trim_end(), "\n\n"]).collect()
}

/// Sets another delimiter, because the client ends a statement at the first semicolon, even inside a routine.
fn delimited(migrations: &[Migration]) -> String {
    let statements: String = migrations
        .iter()
        .flat_map(Migration::statements)
        .flat_map(|statement| [statement.trim_end_matches(';').trim_end(), "\n//\n\n"])
        .collect();
    format!("{KEEP};\n{SET};\n\ndelimiter //\n\n{statements}delimiter ;\n\n{RESTORE};\n")
}

/// Makes `goose down` fail. Without this section, goose would remove the version, keep its objects and then fail to create them
/// again.
const GOOSE_DOWN: &str = "-- +goose Down\nselect tollgate_migrations_are_not_undone();\n";

// Sets the SQL mode and the collation, because routines keep those of the session that creates them. Comparisons of texts fail
// in some collations.
const KEEP: &str = "set @host_sql_mode = @@session.sql_mode, @host_client = @@session.character_set_client, \
                    @host_connection = @@session.collation_connection, @host_results = @@session.character_set_results";
const SET: &str = "set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', names utf8mb4";
const RESTORE: &str = "set session sql_mode = @host_sql_mode, character_set_client = @host_client, \
                       character_set_results = @host_results, collation_connection = @host_connection";
