//! The engines' own clients, which read what is printed for them; where one is not installed, the statements of its script.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};

use crate::command::SECRET;
use crate::databases::{Database, Engine};

/// Feeds a script to the client.
pub(crate) fn feed(database: &Database, script: &str) {
    let command = match database.engine {
        Engine::Sqlite => program(&["sqlite3"]).map(|program| {
            let mut command = Command::new(program);
            command.arg(database.directory.join("app.db"));
            command
        }),
        Engine::MySql | Engine::MariaDb => program(&["mysql", "mariadb"]).map(|program| {
            let mut command = Command::new(program);
            command.args(options(&database.url)).env("MYSQL_PWD", SECRET);
            command
        }),
        _ => program(&["psql"]).map(|program| {
            let mut command = Command::new(program);
            command.args(["--quiet", "--set", "ON_ERROR_STOP=1", &database.url]);
            command
        }),
    };
    let Some(mut command) = command else {
        for statement in statements(script) {
            run_one(database, &statement);
        }
        return;
    };
    let mut client = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    client.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("it reads");
    let output = client.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{:?}: {}", database.engine, String::from_utf8_lossy(&output.stderr));
}

/// Sends statements to the database as they are.
pub(crate) fn run_one(database: &Database, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    let file = format!("sqlite:{}?mode=rwc", database.directory.join("app.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ran = runtime.block_on(async {
        match database.engine {
            Engine::Sqlite => sqlx::raw_sql(sql).execute(&mut SqliteConnection::connect(&file).await?).await.map(drop),
            Engine::MySql | Engine::MariaDb => {
                sqlx::raw_sql(sql).execute(&mut MySqlConnection::connect(&database.url).await?).await.map(drop)
            }
            _ => sqlx::raw_sql(sql).execute(&mut PgConnection::connect(&database.url).await?).await.map(drop),
        }
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

/// A program of the path, or of the servers that scripts/servers has unpacked.
fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let unpacked = [
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
        std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")),
        Some(PathBuf::from("/var/cache")),
    ];
    let copies = unpacked.into_iter().flatten().filter_map(|cache| cache.join("tollgate").read_dir().ok()).flatten();
    let directories = std::env::split_paths(&path).chain(copies.flatten().map(|copy| copy.path().join("usr/bin")));
    let found = directories.flat_map(|directory| names.iter().map(move |name| directory.join(name)));
    found.into_iter().find(|file| file.is_file())
}

/// What the mysql client calls the parts of a URL; the password is in the environment.
fn options(url: &str) -> Vec<String> {
    let (user, rest) = url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).expect("a user");
    let (host, database) = rest.split_once('/').expect("a database");
    let (host, port) = host.split_once(':').expect("a port");
    let user = user.split(':').next().unwrap_or(user);
    [&["--protocol=tcp", "--default-character-set=utf8mb4"][..]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .chain([format!("--user={user}"), format!("--host={host}"), format!("--port={port}"), database.to_owned()])
        .collect()
}

/// A script of the mysql client, statement by statement; other scripts need no taking apart.
fn statements(script: &str) -> Vec<String> {
    if !script.contains("delimiter //") {
        return vec![script.lines().filter(|line| !line.starts_with('.')).collect::<Vec<_>>().join("\n")];
    }
    let (head, rest) = script.split_once("delimiter //").expect("it is there");
    let (body, tail) = rest.split_once("delimiter ;").expect("its end");
    let body = body.split("\n//").map(str::trim).filter(|statement| !statement.is_empty());
    // On one connection each: what is set for the session is set for nothing.
    std::iter::once(head).chain(body).chain([tail]).map(str::to_owned).collect()
}
