//! A database for each test, dropped at its end.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::command::{Ran, SECRET, tollgate};

/// A database and a working directory.
pub(crate) struct Database {
    pub(crate) engine: Engine,
    pub(crate) url: String,
    pub(crate) directory: PathBuf,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    MariaDb,
    MySql,
    PgBouncer,
    Postgres,
    Sqlite,
}

/// The engines under test.
pub(crate) const EACH: [Engine; 4] = [Engine::Sqlite, Engine::Postgres, Engine::MySql, Engine::MariaDb];

impl Engine {
    /// The server of the environment, which is required.
    fn server(self) -> Option<String> {
        let variable = match self {
            Self::MariaDb => "TOLLGATE_MARIADB_URL",
            Self::MySql => "TOLLGATE_MYSQL_URL",
            Self::PgBouncer => "TOLLGATE_PGBOUNCER_URL",
            Self::Postgres => "TOLLGATE_POSTGRES_URL",
            Self::Sqlite => return None,
        };
        let missing = |_| panic!("{variable} is not set: scripts/servers start, then eval \"$(scripts/servers env)\"");
        Some(std::env::var(variable).unwrap_or_else(missing))
    }

    pub(crate) fn is_mysql(self) -> bool {
        matches!(self, Self::MariaDb | Self::MySql)
    }
}

impl Database {
    /// Creates an empty database.
    pub(crate) fn empty(engine: Engine) -> Self {
        let name = format!("tollgate_cli_{}", Uuid::new_v4().simple());
        let directory = std::env::temp_dir().join(&name);
        std::fs::create_dir(&directory).expect("a directory");
        let mut database = Self { engine, url: "sqlite:app.db".to_owned(), directory, name };
        if let Some(server) = engine.server() {
            database.administer(&format!("create database {}", database.name));
            // MySQL checks the password; PostgreSQL's test servers accept any.
            let user = if engine.is_mysql() { database.name[..30].to_owned() } else { "postgres".to_owned() };
            if engine.is_mysql() {
                database.administer(&format!("create user '{user}'@'%' identified by '{SECRET}'"));
                database.administer(&format!("grant all on {}.* to '{user}'@'%'", database.name));
            }
            database.url = with(&server, &user, SECRET, &database.name);
        }
        database
    }

    /// Creates an empty PostgreSQL database with an encoding other than the template's.
    pub(crate) fn encoded(encoding: &str) -> Self {
        let database = Self::empty(Engine::Postgres);
        database.administer(&format!("drop database {}", database.name));
        database.administer(&format!(
            "create database {} encoding '{encoding}' locale 'C' template template0",
            database.name
        ));
        database
    }

    /// Creates a database with tollgate's tables and routines.
    pub(crate) fn migrated(engine: Engine) -> Self {
        let database = Self::empty(engine);
        database.run(&["migrate"]).ended(0);
        database
    }

    /// Drops all objects. On MySQL and MariaDB, grants on the database remain.
    pub(crate) fn wipe(&self) {
        match self.engine {
            Engine::Sqlite => std::fs::remove_file(self.directory.join("app.db")).expect("a file"),
            Engine::MariaDb | Engine::MySql => self.administer(&format!("drop database {}", self.name)),
            _ => self.administer(&format!("drop database {} with (force)", self.name)),
        }
        if self.engine != Engine::Sqlite {
            self.administer(&format!("create database {}", self.name));
        }
    }

    /// The name. On MySQL and MariaDB, the account's name contains a part of it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs the CLI.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::new(self.command(arguments).output().expect("it starts"))
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tollgate(Some(&self.url), &self.directory);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a shell command with the CLI in `PATH`, and returns its output.
    pub(crate) fn shell(&self, line: &str) -> String {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().expect("a directory");
        let path = format!("{}:{}", program.display(), std::env::var("PATH").expect("a path"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{line} 2>&1")]).env("PATH", path).env("DATABASE_URL", &self.url);
        let output = shell.current_dir(&self.directory).output().expect("a shell");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The same database, for another user.
    pub(crate) fn url_of(&self, user: &str) -> String {
        with(&self.engine.server().expect("a server"), user, SECRET, &self.name)
    }

    /// The same database, for its server's administrator.
    pub(crate) fn url_of_root(&self) -> String {
        let server = self.engine.server().expect("a server");
        let root = if self.engine.is_mysql() { "root" } else { "postgres" };
        let password = server.split_once("://").and_then(|(_, rest)| rest.split_once('@')?.0.split_once(':'));
        with(&server, root, password.map_or("", |(_, password)| password), &self.name)
    }

    /// Runs a statement in the database, as its administrator.
    pub(crate) fn sql(&self, sql: &str) {
        let file = || format!("sqlite:{}", self.directory.join("app.db").display());
        run(&if self.engine == Engine::Sqlite { file() } else { self.url_of_root() }, sql);
    }

    /// Runs a statement on the server.
    fn administer(&self, sql: &str) {
        run(&self.engine.server().expect("a server"), sql);
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Ignores a failure: the directory is below the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.directory);
        match self.engine {
            Engine::Sqlite => {}
            Engine::Postgres | Engine::PgBouncer => {
                self.administer(&format!("drop database {} with (force)", self.name));
            }
            Engine::MariaDb | Engine::MySql => {
                self.administer(&format!("drop database {}", self.name));
                self.administer(&format!("drop user '{}'@'%'", &self.name[..30]));
            }
        }
    }
}

/// The server's URL with another user and database.
fn with(server: &str, user: &str, password: &str, database: &str) -> String {
    let (scheme, rest) = server.split_once("://").expect("a URL");
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host).split('/').next().unwrap_or_default();
    let colon = if password.is_empty() { "" } else { ":" };
    format!("{scheme}://{user}{colon}{password}@{host}/{database}")
}

fn run(url: &str, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ran = runtime.block_on(async {
        if url.starts_with("postgres") {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::raw_sql(sql).execute(&mut connection).await?;
            connection.close().await
        } else if url.starts_with("sqlite") {
            let mut connection = SqliteConnection::connect(url).await?;
            sqlx::raw_sql(sql).execute(&mut connection).await?;
            connection.close().await
        } else {
            let mut connection = MySqlConnection::connect(url).await?;
            sqlx::raw_sql(sql).execute(&mut connection).await?;
            connection.close().await
        }
    });
    ran.unwrap_or_else(|error: sqlx::Error| panic!("{error}"));
}
