//! Signals while `tollgate run` and `take` wait.

use std::process::Stdio;

use crate::command::Ran;
use crate::databases::{Database, EACH, Engine};
use crate::processes::{is_listening, kill, signal, until};

#[test]
fn interrupted_wait_gives_its_token_back() {
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let database = Database::migrated(engine);
        database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
        database.run(&["take", "a"]).ended(0);
        let available = || database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"].clone();
        for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129), ("QUIT", 131), ("USR1", 138), ("USR2", 140)] {
            let mut command = database.command(&["run", "a", "--", "echo", "ran"]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
            until(|| available() == -1);
            kill(&child, signal);
            let ran = Ran::new(child.wait_with_output().expect("it ends")).ended(code);
            assert_eq!(ran.out, "");
            assert_eq!(available(), 0, "the token is back");
        }
    }
}

#[test]
fn interrupted_wait_with_queue_behind_reports_token_as_used() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
        database.run(&["take", "a"]).ended(0);
        let is_available =
            |tokens: i64| database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"] == tokens;
        let start = |tokens| {
            let mut command = database.command(&["run", "a", "--", "echo", "ran"]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
            until(|| is_available(tokens));
            child
        };
        let (first, last) = (start(-1), start(-2));
        kill(&first, "TERM");
        let first = Ran::new(first.wait_with_output().expect("it ends")).ended(143);
        assert!(first.says(&["others queue behind it", "1 of 1 tokens count as used"]).out.is_empty());
        assert!(is_available(-2), "on {engine:?}");
        kill(&last, "TERM");
        let last = Ran::new(last.wait_with_output().expect("it ends")).ended(143);
        assert_eq!((last.out.as_str(), last.err.as_str()), ("", ""));
        assert!(is_available(-1), "on {engine:?}");
    }
}

#[test]
fn long_wait_releases_connection_and_gives_token_back() {
    use sqlx::{Connection, PgConnection};

    let database = Database::migrated(Engine::Postgres);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    database.run(&["take", "a"]).ended(0);
    let available = || database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"].clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let looker = runtime.block_on(PgConnection::connect(&database.url_of_root())).expect("it connects");
    let looker = std::cell::RefCell::new(looker);
    for wait in [&["run", "a", "--", "echo", "ran"][..], &["take", "a", "--max-wait", "9d"]] {
        let child = database.command(wait).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        until(|| available() == -1);
        until(|| {
            let connected = "select count(*) from pg_stat_activity
                              where datname = current_database() and application_name = 'tollgate'";
            let mut looker = looker.borrow_mut();
            let connected = sqlx::query_scalar::<_, i64>(connected).fetch_one(&mut *looker);
            runtime.block_on(connected).expect("it is asked") == 0
        });
        kill(&child, "TERM");
        let ran = Ran::new(child.wait_with_output().expect("it ends")).ended(143);
        assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
        assert_eq!(available(), 0, "the token is back");
    }
}

#[test]
fn interrupted_shell_loop_stops() {
    use std::os::unix::process::CommandExt;

    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    database.run(&["take", "a"]).ended(0);
    for wait in ["run a -- true", "take a --max-wait 9d"] {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &format!("\"$0\" {wait}; echo on"), env!("CARGO_BIN_EXE_tollgate")]).process_group(0);
        shell.env("DATABASE_URL", &database.url).current_dir(&database.directory).stdin(Stdio::null());
        let shell = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
        until(|| database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"] == -1);
        // Signals the whole process group, like a terminal.
        signal(&format!("-{}", shell.id()), "INT");
        let ran = Ran::new(shell.wait_with_output().expect("it ends")).ended(130);
        assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
    }
}

#[test]
fn interrupt_during_decision_gives_token_back() {
    use sqlx::{Connection, SqliteConnection};

    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    let file = format!("sqlite:{}", database.directory.join("app.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut connection = runtime.block_on(SqliteConnection::connect(&file)).expect("it connects");
    for arguments in [&["run", "a", "--", "echo", "ran"][..], &["take", "a"]] {
        // Blocks the decision while this transaction is open.
        let writer = runtime.block_on(connection.begin_with("begin immediate")).expect("it begins");
        let mut command = database.command(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        until(|| is_listening(child.id()));
        kill(&child, "TERM");
        runtime.block_on(writer.rollback()).expect("it ends");
        assert_eq!(Ran::new(child.wait_with_output().expect("it ends")).ended(143).out, "");
        assert_eq!(database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"], 1);
    }
}

#[test]
fn interrupt_does_not_wait_for_unresponsive_database() {
    use sqlx::{Connection, SqliteConnection};

    let database = Database::migrated(Engine::Sqlite);
    let file = format!("sqlite:{}", database.directory.join("app.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut connection = runtime.block_on(SqliteConnection::connect(&file)).expect("it connects");
    let writer = runtime.block_on(connection.begin_with("begin immediate")).expect("it begins");
    let mut command = database.command(&["take", "a", "--quota", "1/d"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until(|| is_listening(child.id()));
    kill(&child, "INT");
    Ran::new(child.wait_with_output().expect("it ends")).ended(130).says(&["does not answer", "is unknown"]);
    runtime.block_on(writer.rollback()).expect("it ends");
}

#[test]
fn interrupt_ends_command_even_if_refund_fails() {
    let database = Database::migrated(Engine::Postgres);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    database.run(&["take", "a"]).ended(0);
    let mut command = database.command(&["run", "a", "--", "echo", "ran"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until(|| database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"] == -1);
    database.sql("alter schema tollgate rename to elsewhere");
    kill(&child, "TERM");
    let ran = Ran::new(child.wait_with_output().expect("it ends")).ended(143).says(&["not in this database"]);
    assert_eq!(ran.out, "");
}

#[cfg(target_os = "linux")]
#[test]
fn hangup_under_nohup_is_ignored() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    database.run(&["take", "a"]).ended(0);
    let mut command = std::process::Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_tollgate")).args(["run", "a", "--", "echo", "ran"]).stdin(Stdio::null());
    command.env("DATABASE_URL", &database.url).current_dir(&database.directory);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until(|| is_listening(child.id()));
    kill(&child, "HUP");
    kill(&child, "TERM");
    Ran::new(child.wait_with_output().expect("it ends")).ended(143);
}
