//! Runs printed scripts with the engines' own clients, or statement by statement if the client is not installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};

use crate::command::SECRET;
use crate::databases::{Database, Engine};

/// Runs a script with the client.
pub(crate) fn feed(database: &Database, script: &str) {
    try_feed(database, script).unwrap_or_else(|error| panic!("{:?}: {error}", database.engine));
}

/// Runs a script with the client, and returns its error.
pub(crate) fn try_feed(database: &Database, script: &str) -> Result<(), String> {
    let client = match database.engine {
        Engine::Sqlite => "sqlite3",
        Engine::MySql => "mysql",
        Engine::MariaDb => "mariadb",
        Engine::Postgres | Engine::PgBouncer => "psql",
    };
    let Some(program) = program(client) else { return try_run(database, &statements(script)) };
    let mut command = Command::new(program);
    match database.engine {
        Engine::Sqlite => command.arg(database.directory.join("app.db")),
        Engine::MySql | Engine::MariaDb => command.args(options(&database.url)).env("MYSQL_PWD", SECRET),
        Engine::Postgres | Engine::PgBouncer => command.args(["--quiet", "--set", "ON_ERROR_STOP=1", &database.url]),
    };
    let mut client = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let written = client.stdin.take().expect("a pipe").write_all(script.as_bytes());
    let output = client.wait_with_output().expect("it ends");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    written.expect("it has read everything");
    Ok(())
}

/// The output of SQLite's shell. Works with any version: the shell of Debian 12 is older than the linked library.
pub(crate) fn sqlite_shell(database: &Database, sql: &str) -> String {
    let program = program("sqlite3").expect("install sqlite3, SQLite's shell");
    let output = Command::new(program).arg(database.directory.join("app.db")).arg(sql).output().expect("it starts");
    let [answer, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
    assert_eq!(error, "", "{sql}");
    answer
}

/// Sends statements to the database, one by one, on one connection.
pub(crate) fn run(database: &Database, statements: &[String]) {
    try_run(database, statements).unwrap_or_else(|error| panic!("{error}"));
}

/// Sends statements to the database until one fails.
pub(crate) fn try_run(database: &Database, statements: &[String]) -> Result<(), String> {
    macro_rules! each {
        ($connection:ty, $url:expr) => {{
            let mut connection = <$connection>::connect($url).await?;
            for statement in statements {
                sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut connection).await?;
            }
            connection.close().await
        }};
    }
    let file = format!("sqlite:{}?mode=rwc", database.directory.join("app.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ran: Result<(), sqlx::Error> = runtime.block_on(async {
        match database.engine {
            Engine::Sqlite => each!(SqliteConnection, &file),
            Engine::MySql | Engine::MariaDb => each!(MySqlConnection, &database.url),
            Engine::Postgres | Engine::PgBouncer => each!(PgConnection, &database.url),
        }
    });
    ran.map_err(|error| error.to_string())
}

/// Finds a program in `PATH`, or in the files of scripts/servers.
fn program(name: &str) -> Option<PathBuf> {
    programs(name).into_iter().next()
}

/// Whether the client is installed.
pub(crate) fn has(name: &str) -> bool {
    program(name).is_some()
}

/// Finds a dump tool. Prefers that of scripts/servers, because an older tool refuses a newer server.
pub(crate) fn tool(name: &str, url: &str) -> Command {
    let program = programs(name).pop().unwrap_or_else(|| panic!("no {name}: scripts/servers start fetches it"));
    let mut command = Command::new(program);
    if url.starts_with("mysql") {
        command.args(options(url));
        let password = url.split_once("://").and_then(|(_, rest)| rest.split_once('@')?.0.split_once(':'));
        command.env("MYSQL_PWD", password.map_or("", |(_, password)| password));
    } else {
        command.args(["--dbname", url]);
    }
    command
}

fn programs(name: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let caches = [
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
        std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")),
        Some(PathBuf::from("/var/cache")),
    ];
    let copies = caches.into_iter().flatten().filter_map(|cache| cache.join("tollgate").read_dir().ok()).flatten();
    let copies = copies.flatten().flat_map(|copy| ["usr/bin", PG_BIN].map(|directory| copy.path().join(directory)));
    let files = std::env::split_paths(&path).chain(copies).map(|directory| directory.join(name));
    // `mysql` may be an alias of MariaDB's client, which cannot always log in to MySQL.
    let is_mariadb = |file: &Path| {
        let real = file.canonicalize().unwrap_or_default();
        real.file_name().is_some_and(|name| name.to_string_lossy().starts_with("mariadb"))
    };
    files.filter(|file| file.is_file() && (!name.starts_with("mysql") || !is_mariadb(file))).collect()
}

const PG_BIN: &str = "usr/lib/postgresql/18/bin";

/// The options of the mysql client for a URL. The password is in the environment.
fn options(url: &str) -> Vec<String> {
    let (user, rest) = url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).expect("a user");
    let (host, database) = rest.split_once('/').expect("a database");
    let (host, port) = host.split_once(':').expect("a port");
    let user = user.split(':').next().unwrap_or(user);
    let options = ["--protocol=tcp", "--default-character-set=utf8mb4", "--user", user, "--host", host, "--port", port];
    options.into_iter().chain([database]).map(str::to_owned).collect()
}

/// Splits a script of the mysql client into statements. Returns other scripts whole.
fn statements(script: &str) -> Vec<String> {
    let Some((head, rest)) = script.split_once("delimiter //") else {
        return vec![script.lines().filter(|line| !line.starts_with('.')).collect::<Vec<_>>().join("\n")];
    };
    let (body, tail) = rest.split_once("delimiter ;").expect("its end");
    let body = body.split("\n//").map(str::trim).filter(|statement| !statement.is_empty());
    std::iter::once(head).chain(body).chain([tail]).map(str::to_owned).collect()
}
