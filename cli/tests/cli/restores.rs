//! Dumps and restores with the engines' own tools.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::clients::{self, tool};
use crate::databases::{Database, EACH, Engine};

#[test]
fn whole_dump_restores_every_row() {
    for engine in EACH {
        let database = provisioned(engine);
        let before = state(&database);
        let options: &[&str] = if engine.is_mysql() { &["--routines"] } else { &["--schema", "tollgate"] };
        restore(&database, options);
        assert_eq!(state(&database), before, "{engine:?}");
        database.run(&["migrate"]).ended(0).says(&["nothing is pending"]);
        database.run(&["migrate", "--repair"]).ended(0).says(&["run again"]);
        assert_eq!(state(&database), before, "{engine:?}");
        works(&database);
    }
}

#[test]
fn migrate_completes_a_partial_dump() {
    let mysql = [&[][..], &["--no-data", "--routines"], &["--no-data"]];
    let postgres = [&["--table", "tollgate.*"][..], &["--schema-only"]];
    for engine in EACH {
        let dumps: &[&[&str]] = match engine {
            Engine::Sqlite => &[&["--tables"], &["--schema-only"]],
            Engine::Postgres => &postgres,
            _ => &mysql,
        };
        for options in dumps {
            let database = provisioned(engine);
            restore(&database, options);
            database.run(&["doctor"]).ended(1).says(&["fail  schema", "tollgate migrate"]);
            database.run(&["migrate"]).ended(0).says(&["run: the schema is at version"]);
            database.run(&["migrate"]).ended(0).says(&["nothing is pending"]);
            works(&database);
            if options.is_empty() {
                database.run(&["peek", "provisioned"]).ended(0).says(&["4"]);
            }
        }
    }
}

#[test]
fn lost_ledger_is_repaired_and_rows_are_kept() {
    for engine in EACH {
        let database = provisioned(engine);
        let ledger = if engine == Engine::Postgres { "tollgate.migrations" } else { "token_migrations" };
        database.sql(&format!("drop table {ledger}"));
        database.run(&["migrate"]).ended(69).says(&["already exists", "`tollgate migrate --repair`"]);
        for _ in 0..2 {
            database.run(&["migrate", "--repair"]).ended(0);
        }
        database.run(&["migrate"]).ended(0).says(&["nothing is pending"]);
        works(&database);
        database.run(&["peek", "provisioned"]).ended(0).says(&["4"]);
    }
}

#[test]
fn routines_of_an_account_without_rights_are_repaired() {
    for engine in [Engine::MySql, Engine::MariaDb] {
        for is_gone in [false, true] {
            let (from, to) = (provisioned(engine), Database::empty(engine));
            load(&to, &dump(&from, &["--routines"]));
            let definer = format!("'{}'@'%'", &from.name()[..30]);
            if is_gone {
                to.sql(&format!("drop user {definer}"));
            }
            let report = to.run(&["doctor"]).ended(1).says(&["fail  calls", &definer, "tollgate migrate --repair"]);
            if !is_gone {
                let grant = format!("grant all on `{}`.* to {definer}", to.name().replace('_', "\\_"));
                report.says(&["denied to user", &grant]);
                to.sql(&grant);
                to.run(&["doctor"]).ended(0).says(&["ok    calls"]);
                to.sql(&grant.replace("grant", "revoke").replace(" to ", " from "));
            }
            to.run(&["migrate", "--repair"]).ended(0).says(&["run again", "tollgate migrate --print grants"]);
            works(&to);
            to.run(&["peek", "provisioned"]).ended(0).says(&["4"]);
            if is_gone {
                from.sql(&format!("create user {definer}"));
            }
        }
    }
}

#[test]
fn functions_executable_by_public_are_a_warning() {
    let database = provisioned(Engine::Postgres);
    let before = state(&database);
    let dump = dump(&database, &["--format", "custom"]);
    database.wipe();
    let mut restore = tool("pg_restore", &database.url_of_root());
    feed(restore.args(["--no-owner", "--no-privileges"]), &dump);
    assert_eq!(state(&database), before);
    let revoke = "revoke execute on all functions in schema tollgate from public";
    database.run(&["doctor"]).ended(0).says(&["warn  public", "only the missing usage", revoke]);
    database.sql(revoke);
    let report = database.run(&["doctor"]).ended(0);
    assert!(!report.out.contains("public"), "{report:?}");
}

/// A database with a bucket, an override, a plan and used tokens.
fn provisioned(engine: Engine) -> Database {
    let database = Database::migrated(engine);
    for arguments in [
        &["create", "provisioned", "--quota", "5/365d"][..],
        &["take", "provisioned"],
        &["take", "first-use", "--quota", "7/365d", "--id", "0b8ec2f2-7d4c-4a43-8d0e-0d2d5a2b1c11"],
        &["plan", "set", "free", "--quota", "9/365d"],
        &["plan", "override", "over", "--quota", "8/365d", "--reason", "ticket 7"],
        &["mode", "block", "--key", "blocked", "--reason", "incident 42"],
    ] {
        database.run(arguments).ended(0);
    }
    database
}

fn state(database: &Database) -> Vec<String> {
    let commands = [
        &["list", "--json"][..],
        &["plan", "list", "--json"],
        &["plan", "overrides", "--json"],
        &["mode", "--json"],
        &["explain", "blocked", "--json"],
    ];
    commands.map(|arguments| database.run(arguments).ended(0).out).into()
}

/// Asserts that all objects exist and that limits apply.
fn works(database: &Database) {
    database.run(&["doctor"]).ended(0);
    let key = uuid::Uuid::new_v4().to_string();
    for (arguments, code) in [
        (&["take", &key, "--quota", "1/h"][..], 0),
        (&["take", &key, "--quota", "1/h"], 75),
        (&["peek", &key], 0),
        (&["explain", &key], 0),
        (&["reset", &key], 0),
        (&["take", &key], 0),
        (&["mode", "block", "--key", &key], 0),
        (&["take", &key], 75),
        (&["list"], 0),
        (&["denied"], 0),
        (&["sweep"], 0),
    ] {
        database.run(arguments).ended(code);
    }
}

/// Dumps a database, drops everything in it, and loads the dump.
fn restore(database: &Database, options: &[&str]) {
    if database.engine == Engine::Sqlite {
        return copy(database, options);
    }
    let dump = dump(database, options);
    database.wipe();
    load(database, &dump);
}

fn dump(database: &Database, options: &[&str]) -> Vec<u8> {
    let name = match database.engine {
        Engine::MySql => "mysqldump",
        Engine::MariaDb => "mariadb-dump",
        _ => "pg_dump",
    };
    let mut command = tool(name, &database.url_of_root());
    if database.engine == Engine::MySql {
        // Without this option, the dump contains the transaction ids of the whole server, and only another server can load it.
        command.arg("--set-gtid-purged=OFF");
    }
    let output = command.args(options).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Loads a dump. Creates the schema first if the dump lacks it, like PostgreSQL's dump of tables only.
fn load(database: &Database, dump: &[u8]) {
    let client = match database.engine {
        Engine::MySql => "mysql",
        Engine::MariaDb => "mariadb",
        _ => "psql",
    };
    if database.engine == Engine::Postgres && !String::from_utf8_lossy(dump).contains("CREATE SCHEMA tollgate") {
        database.sql("create schema tollgate");
    }
    feed(&mut tool(client, &database.url_of_root()), dump);
}

fn feed(command: &mut Command, input: &[u8]) {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let written = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    written.expect("it has read everything");
}

/// Replaces a file by a copy: whole, without views and triggers, or without rows.
fn copy(database: &Database, options: &[&str]) {
    let drop = |kind: &str| {
        let names = ["view token_bucket_levels", "view token_rules", "trigger token_bucket_begins"];
        let names = names.into_iter().filter(|name| name.starts_with(kind));
        names.map(|name| format!("drop {name}; ")).collect::<Vec<_>>().concat()
    };
    let script = match options {
        ["--tables"] => format!("{}{}vacuum into 'copy.db'", drop("view"), drop("trigger")),
        ["--schema-only"] => "delete from token_buckets; delete from token_mode; delete from token_plans;
            delete from token_overrides; delete from token_migrations; vacuum into 'copy.db'"
            .to_owned(),
        _ if clients::has("sqlite3") => ".backup 'copy.db'".to_owned(),
        _ => "vacuum into 'copy.db'".to_owned(),
    };
    let file = database.directory.join("copy.db");
    clients::feed(database, &script.replace("copy.db", &file.display().to_string()));
    database.wipe();
    std::fs::rename(file, database.directory.join("app.db")).expect("a copy");
}
