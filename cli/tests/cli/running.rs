//! `tollgate run`: commands limited by a bucket.

use std::process::{Child, Stdio};

use crate::command::Ran;
use crate::databases::{Database, EACH, Engine};

#[test]
fn run_passes_on_exit_code_and_output() {
    let database = Database::migrated(Engine::Sqlite);
    let ran =
        database.run(&["run", "a", "--quota", "9/h", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).ended(7);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("out\n", "err\n"));
    database
        .run(&["run", "a", "--quota", "9/h", "--", "/"])
        .ended(126)
        .says(&["cannot start '/'", "its token is used"]);
    database.run(&["run", "none", "--", "echo", "ran"]).ended(64).says(&["--per 1h none`"]);
}

#[test]
fn command_inherits_the_url_only_with_its_option() {
    let database = Database::migrated(Engine::Sqlite);
    let shows = |options: &[&str], mode: &str| {
        let shown = ["--", "sh", "-c", "echo ${DATABASE_URL-none}, ${OTHER-none}"];
        let mut command = database.command(&[&["run", "a", "--quota", "9/h"], options, &shown].concat());
        Ran::new(command.env("TOLLGATE_MODE", mode).env("OTHER", "1").output().expect("it starts")).ended(0).out
    };
    for mode in ["enforce", "off"] {
        assert_eq!(shows(&[], mode), "none, 1\n", "{mode}");
        assert_eq!(shows(&["--database-url", "sqlite:app.db"], mode), "none, 1\n", "{mode}");
        assert_eq!(shows(&["--keep-database-url"], mode), "sqlite:app.db, 1\n", "{mode}");
    }
    let away = ["--database-url", "sqlite:none.db", "--if-unavailable", "run"];
    assert_eq!(shows(&away, "enforce"), "none, 1\n");
}

#[test]
fn key_option_accepts_a_leading_dash() {
    let database = Database::migrated(Engine::Sqlite);
    for key in ["-x", "--max-wait", "--"] {
        database.run(&["create", "--quota", "1 per 1d", "--", key]).ended(0);
        assert_eq!(database.run(&["run", "--key", key, "--", "echo", "ran"]).ended(0).out, "ran\n");
        assert_eq!(database.run(&["run", &format!("--key={key}"), "--no-wait", "--", "echo"]).ended(75).out, "");
    }
    database.run(&["run", "a", "--key", "-x", "--", "echo"]).ended(2).says(&["cannot be used with"]);
    database.run(&["run", "--", "echo"]).ended(2).says(&["error: missing: <KEY>\n"]);
}

#[cfg(unix)]
#[test]
fn signal_reaches_the_command() {
    use std::os::unix::process::ExitStatusExt;

    let database = Database::migrated(Engine::Sqlite);
    let mut command = database.command(&["run", "a", "--quota", "9/h", "--", "sh", "-c", "kill -TERM $$; echo alive"]);
    let output = command.output().expect("it starts");
    assert_eq!((output.status.signal(), output.stdout.as_slice()), (Some(15), &b""[..]));
}

#[cfg(target_os = "linux")]
#[test]
fn command_inherits_ignored_signals() {
    let database = Database::migrated(Engine::Sqlite);
    for traps in ["", "trap '' PIPE;", "trap '' PIPE HUP USR1;"] {
        let ignored = |program: &[&str]| {
            let tollgate = database.command(&[]);
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &format!("{traps} exec \"$@\""), "sh"]).args(program);
            shell.current_dir(&database.directory);
            shell.envs(tollgate.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let output = shell.args(["grep", "SigIgn", "/proc/self/status"]).output().expect("it starts");
            let line = String::from_utf8(output.stdout).expect("text");
            let mask = line.strip_prefix("SigIgn:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            // The C library reserves the signals above 31.
            mask.unwrap_or_else(|| panic!("{line}")) & 0x7fff_ffff
        };
        let tollgate = database.command(&[]).get_program().to_string_lossy().into_owned();
        let theirs = ignored(&["env"]);
        assert_eq!(ignored(&[&tollgate, "run", "a", "--quota", "9/h", "--"]), theirs, "{traps}");
    }
}

#[test]
fn command_does_not_run_without_a_token() {
    let database = Database::migrated(Engine::Sqlite);
    let run = |arguments: &[&str]| database.run(&[&["run", "a", "--quota", "1 per 1d"], arguments].concat());
    run(&["--no-wait", "--", "echo", "ran"]).ended(0).says(&["ran"]);
    for give_up in [&["--no-wait"][..], &["--max-wait", "1s"], &["--max-wait", "0s"]] {
        let ran = run(&[give_up, &["--", "echo", "ran"]].concat()).ended(75).says(&["denied by a: try again in"]);
        assert_eq!(ran.out, "");
    }
    run(&["--no-wait", "-E", "0", "--", "echo", "ran"]).ended(0);
}

#[test]
fn if_unavailable_run_applies_only_without_an_answer() {
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
    // An error of the request is an answer, too.
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

#[test]
fn missing_command_takes_no_token() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--capacity", "1", "--per", "1d"]).ended(0);
    for program in ["no-such-program", "./no-such-program", ""] {
        let ran = database.run(&["run", "a", "--", program]).ended(127);
        ran.says(&[&format!("cannot start '{program}'"), "no token was taken"]);
    }
    assert_eq!(database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"], 1);
    // A command that only the system's own search finds still runs.
    database.command(&["run", "a", "--", "true"]).env_remove("PATH").status().expect("it starts");
    assert_eq!(database.run(&["peek", "a", "--json"]).ended(0).json()[0]["available"], 0);
}

#[test]
fn processes_on_one_database_share_the_limit_exactly() {
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
fn all_waiting_commands_run() {
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

#[test]
fn unwritable_denial_keeps_its_exit_code() {
    let database = Database::migrated(Engine::Sqlite);
    let arguments = ["run", "a", "--quota", "1 per 1d", "--no-wait", "-E", "9", "--", "true"];
    database.run(&arguments).ended(0);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(database.command(&arguments).stderr(writer).status().expect("it starts").code(), Some(9));
}
