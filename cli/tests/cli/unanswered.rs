//! Errors whose outcome is unknown say so.

use std::process::{Command, Stdio};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::runtime::Runtime;

use crate::command::Ran;
use crate::databases::{Database, Engine};
use crate::processes::until;

#[test]
fn if_unavailable_run_applies_when_the_connection_breaks() {
    let database = Database::migrated(Engine::Postgres);
    database.run(&["create", "a", "--quota", "9/h"]).ended(0);
    let run = ["run", "a", "--if-unavailable", "run", "--", "echo", "ran"];
    let ran = cut_off(&database, "select from tollgate.token_buckets for update", &run).ended(0);
    assert_eq!(ran.says(&["the command runs without a token", "whether a token was taken is unknown"]).out, "ran\n");
}

#[test]
fn run_ends_by_the_deadline_when_the_server_stops_answering() {
    let database = Database::migrated(Engine::Postgres);
    database.run(&["create", "a", "--quota", "9/h"]).ended(0);
    let (runtime, _holder, mut looker) = locked(&database, "select from tollgate.token_buckets for update");
    let [runs, fails] = ["run", "fail"].map(|if_unavailable| {
        let mut command = database.command(&["run", "a", "--if-unavailable", if_unavailable, "--", "echo", "ran"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    });
    let mut pids = Vec::new();
    until(|| {
        let waiting =
            "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        pids = runtime.block_on(sqlx::query_scalar(waiting).fetch_all(&mut looker)).expect("it is asked");
        pids.len() == 2
    });
    // The stopped server processes keep the connections open without answering.
    let stopped = Stopped::new(pids);
    let [ran, failed] = [runs, fails].map(|child| Ran::new(child.wait_with_output().expect("it ends")));
    drop(stopped);
    let ran = ran.ended(0).says(&["the command runs without a token", "whether a token was taken is unknown"]);
    assert_eq!(ran.out, "ran\n");
    assert_eq!(failed.ended(69).says(&["no answer within 5s"]).out, "");
}

/// Stops processes, and continues them on drop.
struct Stopped(Vec<i32>);

impl Stopped {
    fn new(pids: Vec<i32>) -> Self {
        Self::signal(&pids, "STOP");
        Self(pids)
    }

    fn signal(pids: &[i32], name: &str) {
        let pids = pids.iter().map(i32::to_string);
        let status = Command::new("bash").args(["-c", r#"kill -s "$0" "$@""#, name]).args(pids).status();
        assert!(status.expect("bash is needed").success(), "kill -s {name} failed");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        Self::signal(&self.0, "CONT");
    }
}

#[test]
fn unanswered_commands_say_what_it_means_for_them() {
    let database = Database::migrated(Engine::Postgres);
    let lock = "lock table tollgate.token_buckets, tollgate.token_plans, tollgate.token_mode";
    let (unchanged, unknown) = ("nothing was changed", "whether anything was changed is unknown");
    for (arguments, expected) in [
        (&["list"][..], &[unchanged, "hint: repeat it"][..]),
        (&["plan", "list"], &[unchanged]),
        (&["mode"], &[unchanged]),
        (&["plan", "set", "free", "--quota", "1/s"], &[unknown, "hint: repeat it, or check"]),
        (&["mode", "off", "--all"], &[unknown]),
        (&["reset", "a"], &[unknown]),
        (&["run", "a", "--", "true"], &["whether a token was taken is unknown"]),
        (&["take", "a"], &["whether the tokens were taken is unknown", "take --id"]),
    ] {
        let ran = cut_off(&database, lock, arguments).ended(69).says(expected).says(&["the connection broke"]);
        assert_eq!(ran.err.contains("take --id"), arguments[0] == "take", "{ran:?}");
    }
}

/// Runs the CLI, and ends its connection while it waits for this lock.
fn cut_off(database: &Database, lock: &str, arguments: &[&str]) -> Ran {
    let (runtime, _holder, mut looker) = locked(database, lock);
    let mut command = database.command(arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until(|| {
        let waiting = "select count(pg_terminate_backend(pid)) > 0 from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'";
        runtime.block_on(sqlx::query_scalar(waiting).fetch_one(&mut looker)).expect("it is asked")
    });
    Ran::new(child.wait_with_output().expect("it ends"))
}

/// Opens a session that holds this lock in a transaction, and a session that sees waiting sessions.
fn locked(database: &Database, lock: &str) -> (Runtime, PgConnection, PgConnection) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connect = || runtime.block_on(PgConnection::connect(&database.url_of_root())).expect("it connects");
    let (mut holder, looker) = (connect(), connect());
    let lock = AssertSqlSafe(format!("begin; {lock}"));
    runtime.block_on(sqlx::raw_sql(lock).execute(&mut holder)).expect("the lock");
    (runtime, holder, looker)
}
