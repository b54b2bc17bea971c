//! `tollgate run`: other programs, as often as a bucket lets them.

use std::process::{Child, Stdio};

use crate::command::Ran;
use crate::databases::{Database, EACH, Engine};

#[test]
fn its_exit_code_and_output_are_the_commands() {
    let database = Database::migrated(Engine::Sqlite);
    let ran =
        database.run(&["run", "a", "--quota", "9/h", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).ended(7);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("out\n", "err\n"));
    database.run(&["run", "a", "--quota", "9/h", "--", "no-such-program"]).ended(127).says(&["cannot start"]);
    database.run(&["run", "a", "--quota", "9/h", "--", "/"]).ended(126);
    database.run(&["run", "none", "--", "echo", "ran"]).ended(64).says(&["--per 1h none`"]);
}

#[cfg(unix)]
#[test]
fn a_signal_reaches_the_command() {
    use std::os::unix::process::ExitStatusExt;

    let database = Database::migrated(Engine::Sqlite);
    let mut command = database.command(&["run", "a", "--quota", "9/h", "--", "sh", "-c", "kill -TERM $$; echo alive"]);
    let output = command.output().expect("it starts");
    assert_eq!((output.status.signal(), output.stdout.as_slice()), (Some(15), &b""[..]));
}

#[test]
fn without_a_token_the_command_does_not_run() {
    let database = Database::migrated(Engine::Sqlite);
    let run = |arguments: &[&str]| database.run(&[&["run", "a", "--quota", "1 per 1d"], arguments].concat());
    run(&["--no-wait", "--", "echo", "ran"]).ended(0).says(&["ran"]);
    for give_up in [&["--no-wait"][..], &["--wait", "1s"], &["--wait", "0s"]] {
        let ran = run(&[give_up, &["--", "echo", "ran"]].concat()).ended(75).says(&["denied by a: try again in"]);
        assert_eq!(ran.out, "");
    }
    run(&["--no-wait", "-E", "0", "--", "echo", "ran"]).ended(0);
}

#[test]
fn a_command_that_may_run_without_the_database_does_so_only_if_that_does_not_answer() {
    let away = Database::empty(Engine::Sqlite);
    for url in ["postgres://app@localhost:1/app", "mysql://app@localhost:1/app", "sqlite:none.db"] {
        let run = |arguments: &[&str]| {
            let arguments = [&["--database-url", url, "run", "a"], arguments, &["--", "sh", "-c", "echo ran; exit 7"]];
            away.run(&arguments.concat())
        };
        for fails in [&[][..], &["--if-unavailable", "fail"]] {
            assert_eq!(run(fails).ended(69).out, "");
        }
        let ran = run(&["--if-unavailable", "run"]).ended(7).says(&["tollgate: the command runs without a token: "]);
        assert_eq!((ran.out.as_str(), ran.err.lines().count()), ("ran\n", 1), "{ran:?}");
    }
    // An answer is one, also that nothing can be had.
    let run = ["run", "a", "--if-unavailable", "run", "--no-wait"];
    let run = |database: &Database, quota: &[&str]| database.run(&[&run, quota, &["--", "echo", "ran"]].concat());
    let database = Database::empty(Engine::Sqlite);
    std::fs::write(database.directory.join("app.db"), "").expect("an empty file");
    assert_eq!(run(&database, &["--quota", "1/d"]).ended(78).out, "");
    database.run(&["migrate"]).ended(0);
    assert_eq!(run(&database, &[]).ended(64).out, "");
    assert_eq!(run(&database, &["--quota", "1/d"]).ended(0).out, "ran\n");
    assert_eq!(run(&database, &["--quota", "1/d"]).ended(75).out, "");
    database.run(&["--database-url", "app.db", "run", "a", "--if-unavailable", "run", "--", "echo"]).ended(2);
}

#[cfg(unix)]
#[test]
fn a_command_that_may_run_without_an_answer_does_so_if_the_connection_breaks() {
    use sqlx::{Connection, PgConnection};

    let database = Database::migrated(Engine::Postgres);
    database.run(&["create", "a", "--quota", "9/h"]).ended(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connect = || runtime.block_on(PgConnection::connect(&database.url_of_root())).expect("it connects");
    let (mut holder, looker) = (connect(), std::cell::RefCell::new(connect()));
    let lock = "begin; select from tollgate.token_buckets for update";
    runtime.block_on(sqlx::raw_sql(lock).execute(&mut holder)).expect("the lock");
    let mut command = database.command(&["run", "a", "--if-unavailable", "run", "--", "echo", "ran"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    until(|| {
        let waiting = "select count(pg_terminate_backend(pid)) > 0 from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'";
        let mut looker = looker.borrow_mut();
        let ended = sqlx::query_scalar(waiting).fetch_one(&mut *looker);
        runtime.block_on(ended).expect("it is asked")
    });
    let ran = Ran::new(child.wait_with_output().expect("it ends")).ended(0);
    assert_eq!(
        ran.says(&["the command runs without a token", "whether the tokens were taken is unknown"]).out,
        "ran\n"
    );
}

#[test]
fn processes_that_share_a_database_share_the_limit_exactly() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["create", "shared", "--capacity", "5", "--per", "1d"]).ended(0);
        let start = |_| {
            let mut command = database.command(&["run", "--no-wait", "shared", "--", "echo", "ran"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let children: Vec<Child> = (0..12).map(start).collect();
        let ended = children.into_iter().map(|child| Ran::new(child.wait_with_output().expect("it ends")));
        let (ran, denied): (Vec<_>, Vec<_>) = ended.partition(|ran| ran.code == 0);
        assert_eq!(ran.len(), 5, "on {engine:?}");
        assert!(ran.iter().all(|ran| ran.out == "ran\n"), "{ran:?}");
        assert!(denied.iter().all(|denied| denied.code == 75 && denied.out.is_empty()), "{denied:?}");
    }
}

#[test]
fn those_who_wait_all_run() {
    let database = Database::migrated(Engine::Postgres);
    let start = |_| {
        let mut command = database.command(&["run", "queue", "--quota", "50/s burst 1", "--", "echo", "ran"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let children: Vec<Child> = (0..6).map(start).collect();
    for child in children {
        assert_eq!(Ran::new(child.wait_with_output().expect("it ends")).ended(0).out, "ran\n");
    }
    let levels = database.run(&["peek", "queue", "--json"]).ended(0).json();
    assert_eq!(levels[0]["granted"], 6);
}

#[cfg(unix)]
#[test]
fn who_is_interrupted_while_it_waits_gives_its_token_back() {
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

#[cfg(unix)]
#[test]
fn who_is_interrupted_while_others_queue_behind_it_says_that_its_token_is_used() {
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

#[cfg(unix)]
#[test]
fn a_shell_that_is_interrupted_while_it_waits_does_not_go_on() {
    use std::os::unix::process::CommandExt;

    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    database.run(&["take", "a"]).ended(0);
    for wait in ["run a -- true", "take a --wait 9d"] {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &format!("\"$0\" {wait}; echo on"), env!("CARGO_BIN_EXE_tollgate")]).process_group(0);
        shell.env("DATABASE_URL", &database.url).current_dir(&database.directory).stdin(Stdio::null());
        let shell = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
        until(|| database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"] == -1);
        // As a terminal does: to all of the group.
        signal(&format!("-{}", shell.id()), "INT");
        let ran = Ran::new(shell.wait_with_output().expect("it ends")).ended(130);
        assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
    }
}

#[cfg(unix)]
#[test]
fn who_is_interrupted_while_the_database_decides_gives_its_token_back() {
    use sqlx::{Connection, SqliteConnection};

    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    let file = format!("sqlite:{}", database.directory.join("app.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut connection = runtime.block_on(SqliteConnection::connect(&file)).expect("it connects");
    for arguments in [&["run", "a", "--", "echo", "ran"][..], &["take", "a"]] {
        // Nothing is decided while this transaction lasts.
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

#[cfg(unix)]
#[test]
fn who_interrupts_is_not_kept_by_a_database_that_does_not_answer() {
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

#[cfg(unix)]
#[test]
fn who_is_interrupted_ends_so_even_if_the_token_cannot_be_given_back() {
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
fn a_hangup_that_nohup_has_it_ignore_is_ignored() {
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

#[test]
fn a_denial_that_cannot_be_written_ends_with_its_code() {
    let database = Database::migrated(Engine::Sqlite);
    let arguments = ["run", "a", "--quota", "1 per 1d", "--no-wait", "-E", "9", "--", "true"];
    database.run(&arguments).ended(0);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(database.command(&arguments).stderr(writer).status().expect("it starts").code(), Some(9));
}

#[cfg(unix)]
fn kill(child: &Child, signal: &str) {
    self::signal(&child.id().to_string(), signal);
}

/// Sends a process, or `-` and a group of them, a signal.
#[cfg(unix)]
fn signal(whom: &str, signal: &str) {
    assert!(std::process::Command::new("kill").args(["-s", signal, "--", whom]).status().expect("kill").success());
}

/// Whether the process catches SIGTERM.
#[cfg(unix)]
fn is_listening(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
    u64::from_str_radix(caught, 16).unwrap_or(0) >> 14 & 1 == 1
}

#[cfg(unix)]
fn until(condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it has not come about in half a minute");
}
