//! Errors name the command to type.

use crate::clients;
use crate::command::{Ran, tollgate};
use crate::databases::{Database, EACH, Engine};

#[test]
fn missing_arguments_print_the_next_command() {
    let database = Database::empty(Engine::Sqlite);
    let nothing = tollgate(None, &database.directory).output().expect("it starts");
    Ran::new(nothing).ended(0).says(&["export DATABASE_URL=", "tollgate migrate", "tollgate create"]);
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&[]).ended(0).says(&["Next:\n\n  tollgate create"]);
        database.run(&["create", "a b", "--quota", "1/s"]).ended(0).says(&["tollgate take 'a b'"]);
        database.run(&[]).ended(0).says(&["tollgate explain 'a b'"]);
    }
}

#[test]
fn missing_database_hint_is_a_shell_command() {
    let database = Database::empty(Engine::Sqlite);
    let none = tollgate(None, &database.directory).arg("list").output().expect("it starts");
    let reported = Ran::new(none).ended(2).says(&["no database is given"]).err;
    let hint = reported.split_once("hint: ").expect("a hint").1.trim_end();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("{hint}\necho \"$DATABASE_URL\"")]).env_remove("DATABASE_URL");
    let pasted = Ran::new(shell.output().expect("a shell")).ended(0);
    assert_eq!((pasted.out.as_str(), pasted.err.as_str()), ("sqlite:app.db\n", ""), "{hint}");
}

#[test]
fn missing_schema_error_names_the_migrate_command() {
    for engine in EACH {
        for host in [&[][..], &["create table host (n integer)".to_owned()]] {
            let database = Database::empty(engine);
            if engine == Engine::Sqlite {
                std::fs::write(database.directory.join("app.db"), "").expect("an empty file");
            }
            clients::run(&database, host);
            database.run(&[]).ended(0).says(&["no tables of tollgate's yet. Next:\n\n  tollgate migrate"]);
            database.run(&["doctor"]).ended(1).says(&["fail  schema", "not there", "`tollgate migrate`"]);
            for arguments in [
                &["create", "a", "--quota", "1/s"][..],
                &["take", "a"],
                &["take", "a", "b", "--quota", "1/s"],
                &["take", "a", "--quota", "1 in 60s at 5s"],
                &["run", "a", "--", "echo", "ran"],
                &["peek", "a"],
                &["peek", "a", "--json"],
                &["list"],
                &["list", "--json"],
                &["list", "--windows"],
                &["denied"],
                &["denied", "--json"],
                &["usage"],
                &["usage", "--json"],
                &["usage", "--above", "80%"],
                &["usage", "on"],
                &["usage", "record"],
                &["explain", "a"],
                &["explain", "a", "--json"],
                &["take", "a", "--json"],
                &["plan", "list"],
                &["plan", "list", "--json"],
                &["plan", "overrides"],
                &["plan", "overrides", "--json"],
                &["plan", "set", "free", "--quota", "1/s"],
                &["plan", "delete", "free"],
                &["plan", "override", "a", "--quota", "1/s"],
                &["plan", "override", "a", "--clear"],
                &["mode"],
                &["mode", "--json"],
                &["mode", "--clear", "--all"],
                &["mode", "off", "--all"],
                &["mode", "off", "--plan", "free"],
                &["mode", "off", "--key", "a"],
                &["reset", "a"],
                &["delete", "a"],
                &["sweep"],
                &["watch", "--once"],
            ] {
                let ran = database.run(arguments).ended(78).says(&["hint: run `tollgate migrate`"]);
                assert_eq!(ran.out, "", "{arguments:?}");
            }
        }
    }
}

#[test]
fn file_that_is_not_sqlite_is_reported() {
    let database = Database::empty(Engine::Sqlite);
    std::fs::write(database.directory.join("app.db"), "a letter, and no database").expect("it is written");
    for arguments in [&["list"][..], &["migrate"], &["take", "a"], &[]] {
        database.run(arguments).ended(69).says(&["app.db is not a database of SQLite's", "name another file"]);
    }
    database
        .run(&["--database-url", "sqlite:.", "list"])
        .ended(69)
        .says(&["cannot connect to .: ", "hint: let this user read"]);
}

#[test]
fn only_migrate_creates_an_sqlite_file() {
    let database = Database::empty(Engine::Sqlite);
    for arguments in [&["list"][..], &["take", "a"], &["doctor"]] {
        database.run(arguments).ended(69).says(&["there is no file app.db", "tollgate migrate"]);
    }
    database.run(&["migrate", "--dry-run"]).ended(0).says(&["0001_tables", "in all"]);
    assert!(!database.directory.join("app.db").exists());
    database.run(&["migrate"]).ended(0);
    assert!(database.directory.join("app.db").exists());
    database.run(&["--database-url", "sqlite:no/such/app.db", "migrate"]).ended(69).says(&["mkdir -p no/such"]);
    database.run(&["--database-url", "sqlite::memory:", "migrate"]).ended(2).says(&["name a file"]);
}

#[test]
fn wrong_arguments_error_hints_at_valid_ones() {
    let database = Database::migrated(Engine::Sqlite);
    for (arguments, answers) in [
        (&["create", "a", "--capacity", "1", "--per", "1", "hour"][..], &["write a span without a space: 1h"][..]),
        (&["create", "a", "--capacity", "1", "--per", "soon"], &["such as 250ms", "1h"]),
        (&["create", "a"], &["--capacity 2 --per 1h"]),
        (&["create", "a", "--capacity", "2"], &["--per"]),
        (&["create", "a", "--quota", "ten a second"], &["10/s burst 20"]),
        (
            &["create", "a", "--capacity", "0", "--per", "1h"],
            &["error: out of range: --capacity 0\nhint: give 1 or more"],
        ),
        (
            &["create", "a", "--capacity", "1e6", "--per", "1h"],
            &["error: not a whole number: --capacity 1e6\nhint: write"],
        ),
        (&["create", "a", "--quota", "10/M"], &["error: months vary in length: --quota 10/M\nhint: write minutes"]),
        (
            &["create", "a", "--quota", "99999999999999999999/s"],
            &["error: out of range: --quota 99999999999999999999/s\nhint: give at most"],
        ),
        (
            &["simulate", "1/1000000d", "--pattern", "steady:1/s"],
            &["error: out of range: LIMIT 1/1000000d\nhint: give"],
        ),
        (&["create", "a", "--quota", "100 in 60s at 5s"], &["no sliding window", "tollgate take --quota"]),
        (&["mode", "shadow", "--all", "--for", "900000d"], &["leave --for out"]),
        (
            &["mode", "shadow", "--reason", &"x".repeat(70_000)],
            &["at most 65535 bytes, and this one has 70000: --reason xxx", "hint: shorten"],
        ),
        (&["create", "a", "--quota", "unlimited"], &["switch the mode to off"]),
        (&["create", "", "--quota", "1/s"], &["1 to 255 bytes"]),
        (&["mode", "shadow", "--all", "--for", "0s"], &["error: out of range: --for 0s\nhint: give a longer one"]),
        (&["take", "a", "--cost", "0"], &["error: out of range: --cost 0\nhint: give 1 or more\n"]),
        (&["take", "a", "--id", "abc"], &["error: not a UUID: --id abc\nhint: write it like 67e55044"]),
        (
            &["take", "-x"],
            &["error: unexpected argument: -x\nhint: write what begins with a dash last, after --: -- -x"],
        ),
        (&["sweep", "--step", "0"], &["error: out of range: --step 0\nhint: give a number from 1 to 1000\n"]),
        (
            &["list", "--sort", "size"],
            &["unknown value: --sort size\nhint: the values are key, available, granted, full\n"],
        ),
        (&["list", "--sort"], &["error: no value: --sort\n"]),
        (&["take"], &["error: missing: <KEY>...\nhint: write it like `tollgate take"]),
        (&["peek", "a", "--plan", "b"], &["error: unexpected argument: --plan\n"]),
        (&["mode", "of"], &["off"]),
        (&["mode", "--clear", "--reason", "over"], &["cannot be used with"]),
        (&["mode", "--json", "--reason", "over"], &["error: missing: "]),
        (&["create", "a", "--quota", "1/s", "--per", "1h"], &["cannot be used with"]),
        (&["migrate", "--dry-run", "--into", "migrations"], &["cannot be used with"]),
        (&["migrate", "--dry-run", "--engine", "mysql"], &["cannot be used with"]),
        (&["mode", "block", "--for", "1M"], &["--for", "months vary", "hint: write minutes as 1m", "30d"]),
        (
            &["create", "a", "--capacity", "5", "--per", "200y"],
            &["error: years vary in length: --per 200y\nhint: write years in days: 365d\n"],
        ),
        (&["create", "a", "--quota", "10/y"], &["error: years vary", "hint: write years of the calendar as 10/year\n"]),
        (&["tkae", "a"], &["error: unknown command: tkae\nhint: did you mean take?\n"]),
        (&["migrate", "--print", "sqlx"], &["--into migrations"]),
        (&["migrate", "--print", "psql", "--engine", "mysql"], &["leave out --engine mysql"]),
        (&["run", "a", "echo"], &["--"]),
    ] {
        let ran = database.run(arguments).ended(2).says(answers);
        assert!(ran.err.contains("\nhint: ") && ran.err.lines().count() == 2, "{ran:?}");
    }
    database.run(&["mode", "off", "--plan", "none"]).ended(1).says(&["no plan 'none'", "tollgate plan list"]);
    database.run(&["peek", "none"]).ended(1).says(&["no bucket 'none'", "tollgate explain none"]);
    database.run(&["create", "twin", "--quota", "2 once"]).ended(0);
    for command in ["take", "peek", "reset", "delete"] {
        let ran = database.run(&[command, "twin", "other", "twin"]).ended(2);
        assert_eq!(ran.says(&["'twin' is named more than once", "hint: name each"]).out, "");
    }
    database.run(&["take", "twin", "twin"]).ended(2).says(&["`--cost` says how many"]);
    database.run(&["take", "twin", "--cost", "2"]).ended(0);
    database.run(&["create", "--quota", "1/s", "--", "-x"]).ended(0).says(&["tollgate take -- -x"]);
    database.run(&["take", "--", "-y"]).ended(64).says(&["--per 1h -- -y`"]);
    database.run(&["create", "a", "--quota", "1/s"]).ended(0);
    for (quota, bound) in [("1/s", "capacity"), ("1 in 1m at 1s", "maximum")] {
        let says = format!("error: 2 tokens exceed the {bound} of 1: t\nhint: raise --quota");
        database.run(&["take", "t", "--quota", quota, "--cost", "2"]).ended(64).says(&[&says]);
    }
    database.run(&["take", "a", "--quota", "2/s"]).ended(64).says(&["without --quota and --plan"]);
}

#[test]
fn negative_or_missing_value_hints_at_a_valid_command() {
    let database = Database::migrated(Engine::Sqlite);
    for (arguments, answers) in [
        (&["take", "a", "--cost", "-1"][..], &["error: out of range: --cost -1\nhint: give 1 or more\n"][..]),
        (&["take", "a", "--cost=-1"], &["error: out of range: --cost -1\nhint: give 1 or more\n"]),
        (&["take", "a", "--min-remaining", "-1"], &["error: out of range: --min-remaining -1\nhint: give 0 or more\n"]),
        (&["create", "a", "--capacity", "-1", "--per", "1h"], &["error: out of range: --capacity -1\nhint: give 1 or"]),
        (&["list", "--limit", "-1"], &["error: out of range: --limit -1\nhint: give 0 or more\n"]),
        (&["watch", "--limit", "-1"], &["error: out of range: --limit -1\nhint: give a number from 1 to 100000\n"]),
        (&["mode", "off", "--all", "--for", "-1s"], &["error: out of range: --for -1s\nhint: give a length of time"]),
        (&["take", "--json", "-1"], &["error: unexpected argument: -1\nhint: numbers and spans are not negative"]),
        (&["mode", "--for", "1h"], &["error: missing: <MODE>\nhint: write it like `tollgate mode shadow --key KEY"]),
        (
            &["reset", "--force"],
            &["error: missing: --prefix", "hint: write it like `tollgate reset --prefix PREFIX --force`"],
        ),
        (
            &["migrate", "--after", "2"],
            &["hint: write it like `tollgate migrate --print <FORMAT> --after <VERSION>`\n"],
        ),
        (&["nosuch"], &["error: unknown command: nosuch\nhint: `tollgate --help` lists the commands\n"]),
        (
            &["list", "--prefix", ""],
            &["error: a prefix has 1 to 255 bytes, and this one is empty: --prefix ''\nhint: give"],
        ),
    ] {
        database.run(arguments).ended(2).says(answers);
    }
    database.run(&["list"]).ended(0).says(&["no buckets: create one with `tollgate create"]);
    database.run(&["list", "--windows"]).ended(0).says(&["no sliding windows: `tollgate take"]);
}

#[test]
fn wrong_url_error_hints_at_a_valid_one() {
    let database = Database::empty(Engine::Sqlite);
    for (url, code, answers) in [
        ("", 2, &["export DATABASE_URL="][..]),
        ("app.db", 2, &["begins with none of", "sqlite:app.db"]),
        ("http://localhost/app", 2, &["begins with none of"]),
        ("postgres:localhost", 2, &["no // after"]),
        ("postgres://localhost:port/app", 2, &["invalid URL of a PostgreSQL database"]),
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

#[cfg(unix)]
#[test]
fn non_utf8_arguments_are_refused_except_commands_and_files() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let database = Database::migrated(Engine::Sqlite);
    let bytes = OsStr::from_bytes(b"\xff\xfe");
    // `Ran` requires UTF-8 output.
    let run = |arguments: &[&str], more: &[&OsStr]| {
        Ran::new(database.command(arguments).args(more).output().expect("it starts"))
    };
    for arguments in [
        &["take"][..],
        &["peek", "a"],
        &["take", "a", "--quota"],
        &["take", "a", "--max-wait"],
        &["list", "--prefix"],
        &["mode", "off", "--reason"],
        &["plan", "set"],
        &["run", "a", "--plan"],
        &["simulate", "--pattern", "steady:1/s"],
    ] {
        run(arguments, &[bytes]).ended(2).says(&["invalid UTF-8", "hint: keys, names and reasons are UTF-8"]);
    }
    run(&[], &[bytes]).ended(2).says(&["unknown command"]);
    run(&["list", "--database-url"], &[OsStr::from_bytes(b"sqlite:\xff.db")]).ended(2).says(&["is not UTF-8", "%FF"]);
    let list = database.command(&["list"]).env("DATABASE_URL", bytes).output().expect("it starts");
    Ran::new(list).ended(2).says(&["is not UTF-8", "%FF"]);
    let command = [OsStr::new("--"), OsStr::new("test"), bytes, OsStr::new("!="), OsStr::new("a")];
    run(&["run", "a", "--quota", "9/h"], &command).ended(0);
    let svg = ["simulate", "1/s", "--pattern", "steady:1/s", "--svg"];
    run(&svg, &[bytes]).ended(0).says(&["of traffic"]);
    assert!(database.directory.join(bytes).is_file());
    run(&["migrate", "--print", "goose", "--into"], &[OsStr::from_bytes(b"\xfd")]).ended(0).says(&["files written"]);
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

#[test]
fn echoed_input_is_escaped_for_the_terminal() {
    let database = Database::migrated(Engine::Sqlite);
    let (long, steers) = ("a".repeat(300), "\u{1b}]52;c;QQ==\u{7}");
    for (arguments, code) in [
        (&["take", &format!("{long}{steers}")][..], 2),
        (&["take", &format!("-{steers}")], 2),
        (&[&format!("take{steers}")], 2),
        (&["completions", steers], 2),
        (&["take", "a", "--quota", &format!("1/s{steers}\nhint: x")], 2),
        (&["take", "a", "--id", steers], 2),
        (&["create", "a", "--quota", steers], 2),
        (&["simulate", "1/s", "--pattern", &format!("{steers}:1/s\nhint: x")], 2),
        (&["take", &format!("a{steers}\nhint: x")], 64),
        (&["take", "a", "--plan", &format!("a{steers}\nhint: x")], 64),
        (&["take", &format!("a{steers}\nhint: x"), "--quota", "1/s", "--cost", "2"], 64),
    ] {
        let ran = database.command(arguments).env("CLICOLOR_FORCE", "1").output().expect("it starts");
        let reported = Ran::new(ran).ended(code).says(&["\\u{1b}"]).err;
        assert!(!reported.contains('\u{7}') && !reported.contains("\u{1b}]"), "{arguments:?}: {reported:?}");
        assert!(!reported.lines().any(|line| line.trim_start().starts_with("hint: x")), "{arguments:?}: {reported}");
    }
}

#[test]
fn invisible_characters_of_keys_are_escaped() {
    let database = Database::migrated(Engine::Sqlite);
    for (c, escaped) in [('\u{ad}', "k\\u{ad}1"), ('\u{3164}', "k\\u{3164}1"), ('\u{e0041}', "k\\u{e0041}1")] {
        let key = format!("k{c}1");
        let file = format!("[buckets]\n\"{key}\" = {{ quota = '8/h' }}\n");
        std::fs::write(database.directory.join("limits.toml"), file).expect("it is written");
        let now = "strftime('%Y-%m-%d %H:00:00.000', 'now')";
        database.sql(&format!("insert into token_stats values ({now}, '{key}', 1, {now})"));
        for arguments in [
            &["take", &key, "--quota", "9/h"][..],
            &["list"],
            &["peek", &key],
            &["watch", "--once"],
            &["denied"],
            &["apply", "limits.toml", "--dry-run"],
        ] {
            let ran = database.run(arguments).ended(0);
            assert!(ran.out.contains(escaped) && !(ran.out + &ran.err).contains(c), "{arguments:?}");
        }
        let listed = database.run(&["list", "--json", "--prefix", &key]).ended(0);
        assert!(listed.out.is_ascii() && listed.json()[0]["key"] == *key);
    }
}

#[test]
fn invisible_key_is_hinted_with_shell_quoting() {
    let database = Database::migrated(Engine::Sqlite);
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().expect("a directory");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path"));
    for key in ["red\u{1b}[31m\nnext\u{202e}", "tab\t1's \\n", "\u{85}7"] {
        let out = database.run(&["create", key, "--quota", "9/h"]).ended(0).out;
        let hint = out.split_once("try it: ").expect("a hint").1;
        assert!(hint.starts_with("tollgate take $'") && !hint.trim_end().contains(char::is_control), "{hint}");
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", &format!("{} --json", hint.trim_end())]).env("PATH", &path);
        let ran = shell.env("DATABASE_URL", &database.url).current_dir(&database.directory).output();
        let taken = Ran::new(ran.expect("a shell")).ended(0).json();
        assert_eq!((&taken["key"], &taken["remaining"]), (&key.into(), &8.into()));
    }
    database.run(&[]).ended(0).says(&["tollgate explain $'red\\033[31m\\nnext\\342\\200\\256'"]);
}
