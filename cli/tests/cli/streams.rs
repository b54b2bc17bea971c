//! Exit codes with a closed or unwritable output.

use std::process::{Command, Stdio};

use crate::command::Ran;
use crate::databases::{Database, Engine};

/// The exit code with a closed pipe as standard output.
fn without_a_reader(mut command: Command) -> Option<i32> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    command.stdout(writer).stderr(Stdio::null()).status().expect("it starts").code()
}

#[test]
fn exit_code_stays_the_same_without_a_reader() {
    let database = Database::migrated(Engine::Sqlite);
    let take = ["take", "a", "--quota", "1 per 1d"];
    assert_eq!(without_a_reader(database.command(&take)), Some(0));
    for (arguments, code) in [
        (&take[..], 75),
        (&["take", "a", "--quota", "1 per 1d", "--json"], 75),
        (&["reset", "nobody"], 1),
        (&["delete", "nobody"], 1),
        (&["peek", "a", "nobody"], 1),
        (&["list"], 0),
        (&["--help"], 0),
    ] {
        assert_eq!(without_a_reader(database.command(arguments)), Some(code), "{arguments:?}");
    }
    let database = Database::empty(Engine::Postgres);
    assert_eq!(without_a_reader(database.command(&["doctor"])), Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_output_is_reported() {
    let database = Database::migrated(Engine::Sqlite);
    for arguments in [
        &["list"][..],
        &["mode", "--json"],
        &["create", "a", "--quota", "1/s"],
        &["take", "a"],
        &["completions", "bash"],
        &["--help"],
        &["take", "--help"],
        &["--version"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let output = database.command(arguments).stdout(full).output().expect("it starts");
        Ran::new(output).ended(73).says(&["cannot write the output: No space left"]);
    }
}

#[test]
fn unwritable_directory_is_reported() {
    let database = Database::empty(Engine::Sqlite);
    std::fs::write(database.directory.join("file"), "").expect("it is written");
    for directory in ["file", "file/migrations"] {
        let print = ["migrate", "--print", "sqlx", "--into", directory];
        database.run(&print).ended(73).says(&["cannot write into file", "--into migrations"]);
    }
}
