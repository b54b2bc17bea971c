//! What is said when nobody knows what became of a request.

use std::process::Stdio;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::command::Ran;
use crate::databases::{Database, Engine};
use crate::processes::until;

#[test]
fn a_command_that_may_run_without_an_answer_does_so_if_the_connection_breaks() {
    let database = Database::migrated(Engine::Postgres);
    database.run(&["create", "a", "--quota", "9/h"]).ended(0);
    let run = ["run", "a", "--if-unavailable", "run", "--", "echo", "ran"];
    let ran = cut_off(&database, "select from tollgate.token_buckets for update", &run).ended(0);
    assert_eq!(ran.says(&["the command runs without a token", "whether a token was taken is unknown"]).out, "ran\n");
}

#[test]
fn each_command_is_told_what_it_means_to_itself() {
    let database = Database::migrated(Engine::Postgres);
    let lock = "lock table tollgate.token_buckets, tollgate.token_plans, tollgate.token_mode";
    let (unchanged, unknown) = ("nothing was changed", "whether anything was changed is unknown");
    for (arguments, expected) in [
        (&["list"][..], &[unchanged, "hint: repeat it"][..]),
        (&["plan", "list"], &[unchanged]),
        (&["mode"], &[unchanged]),
        (&["plan", "set", "free", "--quota", "1/s"], &[unknown, "hint: it may be repeated"]),
        (&["mode", "off"], &[unknown]),
        (&["reset", "a"], &[unknown]),
        (&["run", "a", "--", "true"], &["whether a token was taken is unknown"]),
        (&["take", "a"], &["whether the tokens were taken is unknown", "take --id"]),
    ] {
        let ran = cut_off(&database, lock, arguments).ended(69).says(expected).says(&["the connection broke"]);
        assert_eq!(ran.err.contains("take --id"), arguments[0] == "take", "{ran:?}");
    }
}

/// Runs the program, and ends its connection when it waits for this lock.
fn cut_off(database: &Database, lock: &str, arguments: &[&str]) -> Ran {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connect = || runtime.block_on(PgConnection::connect(&database.url_of_root())).expect("it connects");
    let (mut holder, looker) = (connect(), std::cell::RefCell::new(connect()));
    let lock = AssertSqlSafe(format!("begin; {lock}"));
    runtime.block_on(sqlx::raw_sql(lock).execute(&mut holder)).expect("the lock");
    let mut command = database.command(arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until(|| {
        let waiting = "select count(pg_terminate_backend(pid)) > 0 from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'";
        let mut looker = looker.borrow_mut();
        let ended = sqlx::query_scalar(waiting).fetch_one(&mut *looker);
        runtime.block_on(ended).expect("it is asked")
    });
    Ran::new(child.wait_with_output().expect("it ends"))
}
