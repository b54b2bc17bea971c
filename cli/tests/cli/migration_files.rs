//! Migration files for other tools, which create the same schema as `tollgate migrate`.

use std::path::Path;

use sqlx::migrate::Migrator;
use sqlx::{Connection, MySqlConnection, MySqlPool, PgPool, SqlitePool};

use crate::clients;
use crate::databases::{Database, EACH, Engine};
use crate::migrations::works;
use crate::schema;

#[test]
fn sqlx_runs_the_written_files() {
    for engine in EACH {
        let database = Database::empty(engine);
        write(&database, "sqlx");
        let (migrations, runtime) = (database.directory.join("migrations"), runtime());
        runtime.block_on(async {
            let migrator = Migrator::new(migrations.as_path()).await.expect("files that it reads");
            assert!(migrator.iter().len() >= 3);
            let file = format!("sqlite:{}?mode=rwc", database.directory.join("app.db").display());
            match engine {
                Engine::Sqlite => migrator.run(&SqlitePool::connect(&file).await.expect("a file")).await,
                Engine::MySql | Engine::MariaDb => {
                    migrator.run(&MySqlPool::connect(&database.url).await.expect("a pool")).await
                }
                _ => migrator.run(&PgPool::connect(&database.url).await.expect("a pool")).await,
            }
            .expect("they run");
        });
        schema::is_that_of_migrate(&database);
        works(&database);
    }
}

#[test]
fn migration_keeps_the_connection_collation() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        let database = Database::empty(engine);
        write(&database, "sqlx");
        let (migrations, url) = (database.directory.join("migrations"), database.url.clone());
        runtime().block_on(async {
            // A collation other than the server's default for the character set, as with goose's driver.
            let mut connection =
                MySqlConnection::connect(&format!("{url}?collation=utf8mb4_unicode_ci")).await.expect("a connection");
            let before = settings(&mut connection).await;
            let migrator = Migrator::new(migrations.as_path()).await.expect("files that it reads");
            migrator.run(&mut connection).await.expect("they run");
            assert_eq!(settings(&mut connection).await, before, "{engine:?}");
        });
        schema::is_that_of_migrate(&database);
    }
}

#[test]
fn goose_files_create_the_schema() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::Sqlite] {
        let database = Database::empty(engine);
        let mut statements = Vec::new();
        for file in write(&database, "goose") {
            let text = std::fs::read_to_string(file).expect("it is there");
            let (up, _) = text.split_once("\n-- +goose Down\n").expect("two sections");
            let (head, body) = up.split_once('\n').expect("lines");
            assert_eq!(head, "-- +goose Up");
            for part in body.split("-- +goose StatementBegin\n").skip(1) {
                let (statement, _) = part.split_once("-- +goose StatementEnd\n").expect("an end");
                statements.push(statement.to_owned());
            }
        }
        clients::run(&database, &statements);
        schema::is_that_of_migrate(&database);
        works(&database);
    }
}

#[test]
fn goose_down_is_refused() {
    for engine in EACH {
        let database = Database::migrated(engine);
        for file in write(&database, "goose") {
            let text = std::fs::read_to_string(&file).expect("it is there");
            let (_, down) = text.split_once("\n-- +goose Down\n").expect("two sections");
            let refused = clients::try_run(&database, &[down.to_owned()]).expect_err("there is no such function");
            assert!(refused.contains("tollgate_migrations_are_not_undone"), "{file}: {refused}");
        }
        works(&database);
    }
}

#[test]
fn flyway_files_are_ordered_by_name() {
    for engine in [Engine::Postgres, Engine::MySql] {
        let database = Database::empty(engine);
        for file in write(&database, "flyway") {
            let name = Path::new(&file).file_name().expect("a name").to_string_lossy().into_owned();
            assert!(name.starts_with('V') && name.contains("__tollgate_"), "{name}");
            clients::feed(&database, &std::fs::read_to_string(file).expect("it is there"));
        }
        schema::is_that_of_migrate(&database);
        works(&database);
    }
}

#[test]
fn files_contain_nothing_that_tools_rewrite() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::Sqlite] {
        for format in ["sqlx", "goose", "flyway"] {
            for file in write(&Database::empty(engine), format) {
                let text = std::fs::read_to_string(&file).expect("it is there");
                assert!(!text.contains("${"), "{file}: goose and Flyway would put a variable there");
                // A server refuses Latin-1 bytes inside a routine, but not in a comment before it.
                let kept = text.lines().find(|line| !line.starts_with("--") && !line.is_ascii());
                assert_eq!(kept, None, "{file}");
            }
        }
    }
}

#[test]
fn create_files_writes_only_missing_files() {
    let database = Database::empty(Engine::Sqlite);
    let all = write(&database, "sqlx");
    std::fs::remove_file(all.last().expect("several")).expect("it is there");
    let print = ["migrate", "--print", "sqlx", "--into", "migrations"];
    database.run(&print).ended(0).says(&["1 file written"]);
    database.run(&print).ended(0).says(&["0 files written"]);
}

#[test]
fn directory_with_other_files_of_tollgate_is_refused() {
    let database = Database::empty(Engine::Sqlite);
    let print = |tool: &str, engine: &str, directory: &str| {
        database.run(&["migrate", "--print", tool, "--engine", engine, "--into", directory])
    };
    for (tool, engine) in [("sqlx", "mysql"), ("sqlx", "postgres"), ("goose", "sqlite"), ("flyway", "postgres")] {
        let directory = format!("{tool}-{engine}");
        print(tool, engine, &directory).ended(0);
        let files = list_of(&database, &directory);
        for (other_tool, other_engine) in [
            ("sqlx", "postgres"),
            ("sqlx", "mysql"),
            ("goose", "postgres"),
            ("goose", "sqlite"),
            ("flyway", "postgres"),
            ("flyway", "mysql"),
        ] {
            let ran = print(other_tool, other_engine, &directory);
            if (other_tool, other_engine) == (tool, engine) {
                ran.ended(0).says(&["0 files written, "]);
            } else {
                let first = format!("{directory}/{}\n", name(&files[0]));
                ran.ended(73).says(&["error: not a file that this command writes: ", &first, "hint: "]);
            }
            assert_eq!(list_of(&database, &directory), files, "{other_tool} {other_engine} into {directory}");
        }
    }
}

#[test]
fn changed_migration_file_is_refused() {
    let database = Database::empty(Engine::Sqlite);
    let files = write(&database, "goose");
    let print = ["migrate", "--print", "goose", "--into", "migrations"];
    let whole = std::fs::read_to_string(&files[1]).expect("it is there");
    std::fs::write(&files[1], &whole[..whole.len() / 2]).expect("it is written");
    database.run(&print).ended(73).says(&[name(&files[1])]);
    // A migration of a newer version, or of another engine that has more.
    std::fs::write(&files[1], whole.replace('\n', "\r\n")).expect("it is written");
    database.run(&print).ended(0).says(&["0 files written"]);
    let newer = database.directory.join("migrations/39990101000000_tollgate_0999_newer.sql");
    std::fs::write(newer, "").expect("it is written");
    database.run(&print).ended(73).says(&["_tollgate_0999_newer.sql"]);
}

#[test]
fn file_missing_between_others_is_refused() {
    for format in ["sqlx", "goose", "flyway"] {
        let database = Database::empty(Engine::Sqlite);
        let files = write(&database, format);
        let print = ["migrate", "--print", format, "--into", "migrations"];
        std::fs::remove_file(&files[0]).expect("it is removed");
        let (_, own) = files[0].split_once("_tollgate_").expect("a name");
        database.run(&print).ended(73).says(&[own, "restore it"]);
        assert_eq!(list(&database), files[1..], "{format}");
        // The last ones are those of a newer version.
        std::fs::remove_file(files.last().expect("several")).expect("it is removed");
        database.run(&print).ended(73).says(&[own]);
    }
    let database = Database::empty(Engine::Sqlite);
    let files = write(&database, "sqlx");
    std::fs::remove_file(files.last().expect("several")).expect("it is removed");
    database.run(&["migrate", "--print", "sqlx", "--into", "migrations"]).ended(0).says(&["1 file written"]);
}

#[test]
fn new_versions_follow_existing_versions() {
    for (format, host, first) in [
        // A future timestamp, a number that is not a timestamp, and a dotted version. Files that no tool runs have no version.
        ("sqlx", ["29991231235959_host.sql", "30000101000000_notes.txt"], "30000101000000_tollgate_0001_"),
        ("goose", ["99999999999999_host.go", "7_host.sql"], "100000000000000_tollgate_0001_"),
        ("flyway", ["V29991231235958.3__host.sql", "R__host.sql"], "V29991231235959__tollgate_0001_"),
    ] {
        let database = Database::empty(Engine::Sqlite);
        let directory = database.directory.join("migrations");
        std::fs::create_dir(&directory).expect("a directory");
        for host in host {
            std::fs::write(directory.join(host), "").expect("it is written");
        }
        let files = write(&database, format);
        assert!(files.iter().any(|file| name(file).starts_with(first)), "{format}: {files:?}");
    }
}

#[test]
fn file_timestamps_are_in_the_past_and_not_reused() {
    for format in ["sqlx", "goose", "flyway"] {
        let database = Database::empty(Engine::MySql);
        let files = write(&database, format);
        let (last, _) = name(files.last().expect("several")).split_once('_').expect("a version");
        let now = chrono::Utc::now().format("%Y%m%d%H%M%S").to_string();
        assert!(last.trim_start_matches('V') < now.as_str(), "{last} is not before {now}");
    }
}

#[test]
fn numbered_host_files_continue_after_tollgate() {
    for (format, host, first, second) in [
        ("goose", "00009_host.sql", "00010_tollgate_0001_", "00011_tollgate_0002_"),
        ("sqlx", "0002_host.sql", "0003_tollgate_0001_", "0004_tollgate_0002_"),
        ("flyway", "V2__host.sql", "V2.1__tollgate_0001_", "V2.2__tollgate_0002_"),
    ] {
        let database = Database::empty(Engine::Sqlite);
        let directory = database.directory.join("migrations");
        std::fs::create_dir(&directory).expect("a directory");
        std::fs::write(directory.join(host), "").expect("it is written");
        let files = write(&database, format);
        for expected in [first, second] {
            assert!(files.iter().any(|file| name(file).starts_with(expected)), "{format}: {files:?}");
        }
    }
}

#[test]
fn flyway_files_in_subdirectories_count() {
    let database = Database::empty(Engine::Sqlite);
    let migrations = database.directory.join("migrations");
    for (directory, file) in [("2026", "V7__host.sql"), ("2026/q1", "V8__host.sql"), (".git", "V9__host.sql")] {
        std::fs::create_dir_all(migrations.join(directory)).expect("a directory");
        std::fs::write(migrations.join(directory).join(file), "").expect("it is written");
    }
    let first = migrations.join("V8.1__tollgate_0001_tables.sql");
    write(&database, "flyway");
    std::fs::rename(&first, migrations.join("2026/V8.1__tollgate_0001_tables.sql")).expect("it is there");
    database.run(&["migrate", "--print", "flyway", "--into", "migrations"]).ended(0).says(&["0 files written"]);
}

#[test]
fn second_run_appends_after_existing_files() {
    let database = Database::empty(Engine::Sqlite);
    let all = write(&database, "sqlx");
    for file in &all[1..] {
        std::fs::remove_file(file).expect("it is there");
    }
    assert_eq!(steps(&write(&database, "sqlx")), steps(&all));
}

#[cfg(unix)]
#[test]
fn partially_written_file_is_removed() {
    let database = Database::empty(Engine::Sqlite);
    let print = ["migrate", "--print", "sqlx", "--engine", "postgres", "--into", "migrations"];
    database.run(&print).ended(0);
    let all = list(&database);
    std::fs::remove_dir_all(database.directory.join("migrations")).expect("it is there");
    // Limits files to 19 or 38 kB, like a full disk: rules and requests are larger than all files before them.
    let script = format!("trap '' XFSZ; ulimit -f 38; exec \"$0\" {}", print.join(" "));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tollgate")]).env("DATABASE_URL", &database.url);
    let output = command.current_dir(&database.directory).output().expect("it starts");
    crate::command::Ran::new(output).ended(73).says(&["cannot write into migrations"]);
    let written = list(&database);
    assert!(!written.is_empty() && written.len() < all.len(), "{written:?}");
    assert_eq!(steps(&written), steps(&all)[..written.len()]);
    let whole = std::fs::read_to_string(written.last().expect("one")).expect("it is there");
    assert!(whole.contains("insert into tollgate.migrations"), "{whole}");
    database.run(&print).ended(0);
    assert_eq!(steps(&list(&database)), steps(&all));
}

/// The names of the migrations in files, without versions.
fn steps(files: &[String]) -> Vec<&str> {
    files.iter().map(|file| name(file).split_once('_').expect("a version").1).collect()
}

fn name(file: &str) -> &str {
    file.rsplit_once('/').map_or(file, |(_, name)| name)
}

/// Writes a tool's files, and returns their names in order.
fn write(database: &Database, format: &str) -> Vec<String> {
    database.run(&["migrate", "--print", format, "--into", "migrations"]).ended(0);
    list(database)
}

/// The existing files in order.
fn list(database: &Database) -> Vec<String> {
    list_of(database, "migrations")
}

fn list_of(database: &Database, directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(database.directory.join(directory)).expect("a directory");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path().display().to_string()).collect();
    files.sort();
    files
}

/// The session settings that new objects keep.
async fn settings(connection: &mut MySqlConnection) -> Vec<String> {
    let settings =
        "select concat_ws(' ', @@sql_mode, @@character_set_client, @@character_set_results, @@collation_connection)";
    sqlx::query_scalar(settings).fetch_all(connection).await.expect("a row")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
