//! Whoever is stuck is told what to type.

use crate::command::{Ran, SECRET, tollgate};
use crate::databases::{Database, EACH, Engine};

#[test]
fn without_arguments_the_next_command_is_named() {
    let database = Database::empty(Engine::Sqlite);
    let nothing = tollgate(None, &database.directory).output().expect("it starts");
    Ran::new(nothing).ended(0).says(&["export DATABASE_URL=", "tollgate migrate", "tollgate create"]);
    for engine in EACH {
        let database = Database::empty(engine);
        if engine != Engine::Sqlite {
            database.run(&[]).ended(0).says(&["Next:\n\n  tollgate migrate"]);
            database.run(&["list"]).ended(78).says(&["tollgate migrate"]);
        }
        database.run(&["migrate"]).ended(0);
        database.run(&[]).ended(0).says(&["Next:\n\n  tollgate create"]);
        database.run(&["create", "a b", "--quota", "1/s"]).ended(0).says(&["tollgate take 'a b'"]);
        database.run(&[]).ended(0).says(&["tollgate explain 'a b'"]);
    }
}

#[test]
fn a_sqlite_file_is_made_by_migrate_and_by_nothing_else() {
    let database = Database::empty(Engine::Sqlite);
    for arguments in [&["list"][..], &["take", "a"], &["doctor"]] {
        database.run(arguments).ended(69).says(&["there is no file app.db", "tollgate migrate"]);
    }
    database.run(&["migrate", "--dry-run"]).ended(0).says(&["token_buckets", "in all"]);
    assert!(!database.directory.join("app.db").exists());
    database.run(&["migrate"]).ended(0);
    assert!(database.directory.join("app.db").exists());
    database.run(&["--database-url", "sqlite:no/such/app.db", "migrate"]).ended(69).says(&["mkdir -p no/such"]);
    database.run(&["--database-url", "sqlite::memory:", "migrate"]).ended(2).says(&["name a file"]);
}

#[test]
fn wrong_arguments_are_answered_with_right_ones() {
    let database = Database::migrated(Engine::Sqlite);
    for (arguments, answers) in [
        (&["create", "a", "--capacity", "1", "--per", "1", "hour"][..], &["write a span without a space: 1h"][..]),
        (&["create", "a", "--capacity", "1", "--per", "soon"], &["such as 250ms", "1h"]),
        (&["create", "a"], &["--capacity 2 --per 1h"]),
        (&["create", "a", "--capacity", "2"], &["--per"]),
        (&["create", "a", "--quota", "ten a second"], &["10/s burst 20"]),
        (&["create", "a", "--capacity", "0", "--per", "1h"], &["grants nothing: give 1 or more"]),
        (&["create", "a", "--quota", "100 in 60s at 5s"], &["no sliding window", "tollgate take --quota"]),
        (&["mode", "shadow", "--for", "9000y"], &["leave --for out"]),
        (&["mode", "shadow", "--reason", &"x".repeat(70_000)], &["at most 65535 bytes"]),
        (&["create", "a", "--quota", "unlimited"], &["switch the mode to off"]),
        (&["create", "", "--quota", "1/s"], &["1 to 255 bytes"]),
        (&["take", "a", "--cost", "0"], &["1.."]),
        (&["mode", "of"], &["off"]),
        (&["mode", "--clear", "--reason", "over"], &["cannot be used with"]),
        (&["mode", "block", "--for", "999999999999999999y"], &["--for"]),
        (&["tkae", "a"], &["take"]),
        (&["migrate", "--print", "sqlx"], &["--into migrations"]),
        (&["migrate", "--print", "psql", "--engine", "mysql"], &["leave out --engine mysql"]),
        (&["run", "a", "echo"], &["--"]),
    ] {
        database.run(arguments).ended(2).says(answers);
    }
    database.run(&["mode", "off", "--plan", "none"]).ended(1).says(&["no plan 'none'", "tollgate plan list"]);
    database.run(&["peek", "none"]).ended(1).says(&["no bucket 'none'", "tollgate explain none"]);
    database.run(&["create", "--quota", "1/s", "--", "-x"]).ended(0).says(&["tollgate take -- -x"]);
    database.run(&["take", "--", "-y"]).ended(64).says(&["--per 1h -- -y`"]);
    database.run(&["create", "a", "--quota", "1/s"]).ended(0);
    database.run(&["take", "a", "--quota", "2/s"]).ended(64).says(&["without --quota and --plan"]);
}

#[test]
fn wrong_urls_are_answered_with_right_ones() {
    let database = Database::empty(Engine::Sqlite);
    for (url, code, answers) in [
        ("", 2, &["export DATABASE_URL="][..]),
        ("app.db", 2, &["begins with none of", "sqlite:app.db"]),
        ("http://localhost/app", 2, &["begins with none of"]),
        ("postgres:localhost", 2, &["no // after"]),
        ("postgres://localhost:port/app", 2, &["no URL of a PostgreSQL database"]),
        ("mysql://localhost", 2, &["names no database"]),
        ("postgres://app@x:12/a@localhost/app", 2, &["within its user or password", "@ is %40"]),
        (
            "postgres:///app?host=localhost&port=1&user=me@corp",
            69,
            &["cannot connect to app at localhost:1 as me@corp"],
        ),
        ("mariadb://localhost:1/app", 69, &["cannot connect to app at localhost:1", "is the server up"]),
        ("postgresql://app@localhost:1/app", 69, &["cannot connect to app at localhost:1 as app"]),
    ] {
        let ran = tollgate(Some(url), &database.directory).arg("list").output().expect("it starts");
        Ran::new(ran).ended(code).says(answers);
    }
}

#[test]
fn the_url_is_also_read_from_a_file() {
    let database = Database::migrated(Engine::Sqlite);
    std::fs::write(database.directory.join(".env"), "OTHER=1\nDATABASE_URL=sqlite:app.db\n").expect("it is written");
    let ran = tollgate(None, &database.directory).args(["create", "a", "--quota", "1/s"]).output().expect("it starts");
    Ran::new(ran).ended(0);
    // Nothing of the file is for the commands that are run.
    let mut command = tollgate(None, &database.directory);
    command.args(["run", "a", "--", "sh", "-c", "echo ${OTHER-none}"]);
    assert_eq!(Ran::new(command.output().expect("it starts")).ended(0).out, "none\n");
}

#[test]
fn a_file_that_cannot_be_read_is_not_taken_for_none() {
    let database = Database::migrated(Engine::Sqlite);
    let list = |text: &str| {
        std::fs::write(database.directory.join(".env"), text).expect("it is written");
        Ran::new(tollgate(None, &database.directory).arg("list").output().expect("it starts"))
    };
    let url = format!("postgres://app:{SECRET} x@localhost/app");
    list(&format!("# the app\nOTHER=1\nDATABASE_URL={url}\n")).ended(2).says(&["line 3 of ", "in single quotes"]);
    list(&format!("DATABASE_URL='{url}\n")).ended(2).says(&["line 1 of ", "in single quotes"]);
    list("OTHER=two words\nDATABASE_URL=sqlite:app.db\n").ended(0);
    list("\u{feff}DATABASE_URL=sqlite:app.db\n").ended(0);
    list("OTHER=1\n").ended(2).says(&["no database is given"]);
}

#[test]
fn completions_and_help_need_no_database() {
    let database = Database::empty(Engine::Sqlite);
    for arguments in [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"]] {
        let ran = tollgate(None, &database.directory).args(arguments).output().expect("it starts");
        Ran::new(ran).ended(0).says(&["database-url"]);
    }
    let ran = tollgate(None, &database.directory).arg("--help").output().expect("it starts");
    Ran::new(ran).ended(0).says(&["75  denied"]);
}
