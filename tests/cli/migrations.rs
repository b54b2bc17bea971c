//! The schema comes by `tollgate migrate`, or by the tool that it prints for: with the same result.

use std::path::Path;

use sqlx::migrate::Migrator;
use sqlx::{MySqlPool, PgPool, SqlitePool};

use crate::clients;
use crate::databases::{Database, EACH, Engine};

#[test]
fn a_dry_run_lists_what_migrate_then_does_once() {
    for engine in EACH {
        let database = Database::empty(engine);
        let listed = database.run(&["migrate", "--dry-run"]).ended(0).says(&["token_buckets", "in all"]);
        assert!(listed.out.contains("pending"), "{listed:?}");
        database.run(&["migrate"]).ended(0).says(&["migrations run"]);
        database.run(&["migrate"]).ended(0).says(&["nothing is pending"]);
        database.run(&["migrate", "--dry-run"]).ended(0).says(&["nothing is pending"]);
    }
}

#[test]
fn what_a_newer_program_has_migrated_is_told_and_serves() {
    let database = Database::migrated(Engine::Postgres);
    database.sql("insert into tollgate.migrations (version, name) values (999, 'later')");
    database.run(&["migrate"]).ended(0).says(&["nothing is pending", "version 999, made by a newer program"]);
    database.run(&["doctor"]).ended(0).says(&["version 999, made by a newer program"]);
    works(&database);
    database.sql("delete from tollgate.migrations where version = 5");
    database.run(&["migrate"]).ended(78).says(&["version 999", "cargo install tollgate"]);
    database.run(&["doctor"]).ended(1).says(&["version 999", "cargo install tollgate"]);
}

#[test]
fn what_is_printed_for_a_client_is_the_whole_schema() {
    for (engine, format) in
        [(Engine::Postgres, "psql"), (Engine::MySql, "mysql"), (Engine::MariaDb, "mysql"), (Engine::Sqlite, "sqlite3")]
    {
        let database = Database::empty(engine);
        let script = database.run(&["migrate", "--print", format]).ended(0).out;
        clients::feed(&database, &script);
        works(&database);
    }
}

#[test]
fn the_roles_are_printed_for_each_engine_that_has_some() {
    for engine in EACH {
        let database = Database::empty(engine);
        let print = database.run(&["migrate", "--print", "grants"]);
        match engine {
            Engine::Sqlite => drop(print.ended(2).says(&["SQLite has no roles"])),
            _ => drop(print.ended(0).says(&["to tollgate_operator"])),
        }
    }
    let print = ["migrate", "--print", "grants", "--engine", "mysql"];
    Database::empty(Engine::Sqlite).run(&print).ended(0).says(&["create role if not exists tollgate_app"]);
}

#[test]
fn files_for_sqlx_are_run_by_it() {
    for engine in EACH {
        let database = Database::empty(engine);
        write(&database, "sqlx");
        let (migrations, runtime) = (database.directory.join("migrations"), runtime());
        runtime.block_on(async {
            let migrator = Migrator::new(migrations.as_path()).await.expect("files that it reads");
            assert!(migrator.iter().len() > 4);
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
        works(&database);
    }
}

#[test]
fn files_for_goose_are_statements_between_its_marks() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::Sqlite] {
        let database = Database::empty(engine);
        let mut statements = Vec::new();
        for file in write(&database, "goose") {
            let text = std::fs::read_to_string(file).expect("it is there");
            let (head, body) = text.split_once('\n').expect("lines");
            assert_eq!(head, "-- +goose Up");
            for part in body.split("-- +goose StatementBegin\n").skip(1) {
                let (statement, _) = part.split_once("-- +goose StatementEnd\n").expect("an end");
                statements.push(statement.to_owned());
            }
        }
        clients::run(&database, &statements);
        works(&database);
    }
}

#[test]
fn files_for_flyway_are_scripts_in_the_order_of_their_names() {
    for engine in [Engine::Postgres, Engine::MySql] {
        let database = Database::empty(engine);
        for file in write(&database, "flyway") {
            let name = Path::new(&file).file_name().expect("a name").to_string_lossy().into_owned();
            assert!(name.starts_with('V') && name.contains("__tollgate_"), "{name}");
            clients::feed(&database, &std::fs::read_to_string(file).expect("it is there"));
        }
        works(&database);
    }
}

#[test]
fn only_what_a_directory_lacks_is_written_into_it() {
    let database = Database::empty(Engine::Sqlite);
    let all = write(&database, "sqlx");
    std::fs::remove_file(all.last().expect("several")).expect("it is there");
    let print = ["migrate", "--print", "sqlx", "--into", "migrations"];
    database.run(&print).ended(0).says(&["1 files written"]);
    database.run(&print).ended(0).says(&["0 files written"]);
}

/// Writes a tool's files, and names them in their order.
fn write(database: &Database, format: &str) -> Vec<String> {
    database.run(&["migrate", "--print", format, "--into", "migrations"]).ended(0);
    let entries = std::fs::read_dir(database.directory.join("migrations")).expect("a directory");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path().display().to_string()).collect();
    files.sort();
    files
}

/// Nothing is left to do, and what is there decides.
fn works(database: &Database) {
    database.run(&["migrate"]).ended(0).says(&["nothing is pending"]);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    database.run(&["take", "a"]).ended(0);
    database.run(&["take", "a"]).ended(75);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
