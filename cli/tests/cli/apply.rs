//! `apply` brings plans, buckets and overrides to the values of a file, and deletes nothing.

use std::fs::File;

use serde_json::{Value, json};

use crate::command::{Ran, tollgate};
use crate::databases::{Database, EACH, Engine};

const LIMITS: &str = r#"
[plans.free]
quota = "10/s burst 20"

[plans.pro]
quota = "100/s"
mode = "shadow"

[buckets.api]
quota = "2 per 1h"

[overrides."user:42"]
quota = "1000/s"
mode = "block"
reason = "ticket 7"
until = 2099-01-31T12:00:00.5Z
"#;

const UNCHANGED: &str = "\
unchanged  plan free: 10/s burst 20
unchanged  plan pro: 100/s, mode shadow
unchanged  bucket api: 2 per 1h
unchanged  override user:42: 1000/s, mode block, until 2099-01-31 12:00:00 UTC: ticket 7
0 created, 0 changed, 4 unchanged
";

#[test]
fn repeated_apply_changes_nothing() {
    for engine in EACH {
        let database = Database::migrated(engine);
        let created = UNCHANGED.replace("unchanged  ", "created    ");
        let created = created.replace("0 created, 0 changed, 4 unchanged", "4 created, 0 changed, 0 unchanged");
        assert_eq!(apply(&database, LIMITS, &[]).ended(0).out, created, "{engine:?}");
        let state = state(&database);
        assert_eq!((&state[0][0]["quota"], &state[0][1]["mode"]), (&"10/s burst 20".into(), &"shadow".into()));
        assert_eq!((&state[1][0]["quota"], &state[1][0]["provisioned"]), (&"2 per 1h".into(), &true.into()));
        let over = ["quota", "mode", "override_reason", "override_until"].map(|field| state[2][0][field].clone());
        assert_eq!(over, ["1000/s", "block", "ticket 7", "2099-01-31T12:00:00.500Z"].map(Value::from), "{engine:?}");

        assert_eq!(apply(&database, LIMITS, &["--verbose"]).ended(0).out, UNCHANGED, "{engine:?}");
        assert_eq!(apply(&database, LIMITS, &[]).ended(0).out, "0 created, 0 changed, 4 unchanged\n", "{engine:?}");
        assert_eq!(self::state(&database), state, "{engine:?}");
    }
}

#[test]
fn check_exits_with_one_if_the_database_differs() {
    for engine in EACH {
        let database = Database::migrated(engine);
        let empty = state(&database);
        let missing = apply(&database, LIMITS, &["--check"]).ended(1).says(&["create     plan free", "4 to create"]);
        assert_eq!((missing.err.as_str(), state(&database)), ("", empty), "{engine:?}");
        apply(&database, LIMITS, &[]).ended(0);
        apply(&database, LIMITS, &["--check"]).ended(0).says(&["0 to create, 0 to change, 4 unchanged\n"]);
        database.run(&["plan", "set", "free", "--quota", "9/s"]).ended(0);
        apply(&database, LIMITS, &["--check"]).ended(1).says(&["change     plan free: 9/s → 10/s burst 20\n"]);
        let reported = apply(&database, LIMITS, &["--check", "--json"]).ended(1).json();
        assert_eq!((&reported["dry_run"], status(&reported, "free")), (&true.into(), "change".into()), "{engine:?}");
    }
}

#[test]
fn changed_entries_are_listed_and_others_stay() {
    for engine in EACH {
        let database = Database::migrated(engine);
        apply(&database, LIMITS, &[]).ended(0);
        database.run(&["take", "api"]).ended(0);
        let changed = "[plans]\nfree = { quota = '20/s', mode = 'off' }\n[buckets]\napi = { quota = '5 per 1h' }\n\
                       [overrides]\n'user:42' = { mode = 'off' }\n'user:43' = { quota = '1/s' }\n";
        let expected = "\
changed    plan free: 10/s burst 20 → 20/s, mode off
changed    bucket api: 2 per 1h → 5 per 1h
changed    override user:42: 1000/s, mode block, until 2099-01-31 12:00:00 UTC: ticket 7 → 1000/s, mode off, \
until 2099-01-31 12:00:00 UTC: ticket 7
created    override user:43: 1/s
1 created, 3 changed, 0 unchanged
";
        let planned = expected.replace("changed   ", "change    ").replace("created   ", "create    ");
        let planned = planned.replace("1 created, 3 changed", "1 to create, 3 to change");
        let before = state(&database);
        assert_eq!(apply(&database, changed, &["--dry-run"]).ended(0).out, planned, "{engine:?}");
        assert_eq!(state(&database), before, "{engine:?}: a dry run");
        assert_eq!(apply(&database, changed, &[]).ended(0).out, expected, "{engine:?}");
        let after = state(&database);
        assert_eq!((&after[0][0]["quota"], &after[0][0]["mode"]), (&"20/s".into(), &"off".into()));
        assert_eq!(after[0][1], before[0][1], "{engine:?}: a plan that the file leaves out");
        assert_eq!((&after[1][0]["quota"], &after[1][0]["available"]), (&"5 per 1h".into(), &1.into()));
        apply(&database, changed, &[]).ended(0).says(&["0 created, 0 changed, 4 unchanged"]);
    }
}

#[test]
fn fields_that_the_file_leaves_out_stay() {
    for engine in EACH {
        let database = Database::migrated(engine);
        let file = "[plans]\nfree = { quota = '10/s' }\n[overrides]\na = { quota = '1/s' }\n";
        apply(&database, file, &[]).ended(0);
        database.run(&["mode", "shadow", "--plan", "free", "--for", "1h", "--reason", "incident 42"]).ended(0);
        database.run(&["mode", "block", "--key", "a", "--reason", "abuse"]).ended(0);
        let before = state(&database);
        apply(&database, file, &[]).ended(0).says(&["0 created, 0 changed, 2 unchanged"]);
        assert_eq!(state(&database), before, "{engine:?}");
        apply(&database, &file.replace("10/s", "20/s").replace("1/s", "2/s"), &[]).ended(0);
        let after = state(&database);
        assert_eq!((&after[0][0]["quota"], &after[0][0]["mode_reason"]), (&"20/s".into(), &"incident 42".into()));
        assert_eq!((&after[2][0]["quota"], &after[2][0]["override_reason"]), (&"2/s".into(), &"abuse".into()));
        assert_eq!(after[2][0]["mode"], "block", "{engine:?}");
    }
}

#[test]
fn mode_of_the_file_replaces_an_end_and_a_reason() {
    let database = Database::migrated(Engine::Sqlite);
    let file = "[plans]\nfree = { quota = '1/s', mode = 'off' }\n";
    apply(&database, file, &[]).ended(0);
    for end in [&["--for", "1h"][..], &["--reason", "incident 42"]] {
        database.run(&[&["mode", "off", "--plan", "free"], end].concat()).ended(0);
        let reported = apply(&database, file, &["--dry-run", "--json"]).ended(0).json();
        let [before, after] = ["before", "after"].map(|which| reported["entries"][0][which].clone());
        assert!(before["until"].is_string() || before["reason"] == "incident 42", "{reported}");
        assert_eq!((&after["until"], &after["reason"]), (&Value::Null, &Value::Null));
        let line =
            if end[0] == "--for" { "1/s, mode off, until 2" } else { "1/s, mode off: incident 42 → 1/s, mode off" };
        apply(&database, file, &[]).ended(0).says(&[&format!("changed    plan free: {line}")]);
        let plan = state(&database)[0][0].clone();
        assert_eq!((&plan["mode_until"], &plan["mode_reason"]), (&Value::Null, &Value::Null), "{plan}");
    }
    apply(&database, file, &[]).ended(0).says(&["0 created, 0 changed, 1 unchanged"]);
}

#[test]
fn bucket_gets_own_limits_from_first_use_plan_or_override() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["plan", "set", "free", "--quota", "5/h"]).ended(0);
        database.run(&["take", "follows", "--plan", "free"]).ended(0);
        database.run(&["take", "used", "--quota", "7/h"]).ended(0);
        database.run(&["create", "over", "--quota", "7/h"]).ended(0);
        database.run(&["plan", "override", "over", "--quota", "1000/h"]).ended(0);
        let file = "[buckets]\nfollows = { quota = '7/h' }\nused = { quota = '7/h' }\nover = { quota = '7/h' }\n";
        let note = |name: &str| {
            format!("note: bucket {name} provisions the bucket: requests that name another quota or plan fail")
        };
        let planned = apply(&database, file, &["--dry-run"]).ended(0).says(&[&note("follows"), &note("used")]);
        assert!(!planned.err.contains("bucket over"), "{planned:?}");
        let reported = apply(&database, file, &["--json"]).ended(0).says(&[&note("follows"), &note("used")]).json();
        let statuses = |reported: &Value| ["follows", "over", "used"].map(|name| status(reported, name));
        assert_eq!(statuses(&reported), ["changed", "unchanged", "changed"].map(Value::from), "{reported}");
        assert_eq!(reported["entries"][0]["before"]["from"], "plan free");
        assert_eq!(reported["entries"][2]["before"]["from"], "first use");
        // A request settles the bucket under its override.
        database.run(&["take", "over"]).ended(0);
        let reported = apply(&database, &file.replace("7/h", "8/h"), &["--json"]).ended(0).json();
        assert_eq!(statuses(&reported), ["changed", "set", "changed"].map(Value::from), "{reported}");
        let listed = apply(&database, &file.replace("7/h", "8/h"), &[]).ended(0);
        listed.says(&["set        bucket over: 8/h; an override hides", "0 created, 0 changed, 2 unchanged, 1 set"]);
        database.run(&["plan", "override", "over", "--clear"]).ended(0);
        let buckets = state(&database)[1].clone();
        for bucket in buckets.as_array().expect("buckets") {
            assert_eq!((&bucket["provisioned"], &bucket["plan"]), (&true.into(), &Value::Null), "{bucket}");
        }
        let reported = apply(&database, &file.replace("7/h", "8/h"), &["--verbose"]).ended(0);
        let reported = reported.says(&["unchanged  bucket over: 8/h", "0 created, 0 changed, 3 unchanged"]);
        assert_eq!(reported.err, "");
    }
}

#[test]
fn expired_override_is_not_applied() {
    let database = Database::migrated(Engine::Sqlite);
    let file = "[overrides]\na = { mode = 'off', until = 2020-01-01T00:00:00Z }\nb = { mode = 'off' }\n";
    let reported = apply(&database, file, &[]).ended(0);
    assert_eq!(
        reported.out,
        "expired    override a: mode off, until 2020-01-01 00:00:00 UTC\ncreated    override b: mode off\n\
         1 created, 0 changed, 0 unchanged, 1 expired\n"
    );
    assert_eq!(state(&database)[2].as_array().map(Vec::len), Some(1));
    // A stored override stays.
    database.run(&["plan", "override", "a", "--quota", "9/h", "--reason", "ticket 7"]).ended(0);
    let reported = apply(&database, &file.replace("Z }", "Z, reason = 'its own' }"), &[]).ended(0);
    reported.says(&[
        "mode off, until 2020-01-01 00:00:00 UTC: its own; the override in the database stays: 9/h: ticket 7\n",
    ]);
    // An end that differs by less than a second.
    apply(&database, "[overrides]\nb = { mode = 'off', until = 2099-01-01T00:00:00Z }\n", &[]).ended(0);
    apply(&database, "[overrides]\nb = { mode = 'off', until = 2099-01-01T00:00:00.5Z }\n", &["--dry-run"])
        .ended(0)
        .says(&["mode off, until 2099-01-01 00:00:00.000000 UTC → mode off, until 2099-01-01 00:00:00.500000 UTC"]);
}

#[test]
fn mode_set_during_apply_stays() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["plan", "override", "a", "--quota", "1/h"]).ended(0);
    database.sql(
        "create trigger other_command after insert on token_plans \
         begin update token_overrides set mode = 'block', reason = 'abuse' where id = 'a'; end",
    );
    apply(&database, "[plans]\nfree = { quota = '1/s' }\n[overrides]\na = { quota = '2/h' }\n", &[])
        .ended(0)
        .says(&["changed    override a: 1/h, mode block: abuse → 2/h, mode block: abuse"]);
    assert_eq!(state(&database)[2][0]["mode"], "block");
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_output_says_how_many_entries_are_applied() {
    let database = Database::migrated(Engine::Sqlite);
    std::fs::write(database.directory.join("limits.toml"), LIMITS).expect("it is written");
    for (options, printed) in [(&[][..], "note: 1 of 4 entries"), (&["--json"], "note: 4 of 4 entries")] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
        let ran = database.command(&[&["apply", "limits.toml"], options].concat()).stdout(full).output();
        Ran::new(ran.expect("it starts")).ended(73).says(&[printed, "error: cannot write the output"]);
    }
    database.run(&["apply", "/dev/zero"]).ended(66).says(&["more than 4 MiB", "hint: name a readable file"]);
    let keys = format!("[plans]\n{}=1\n", "a.b.c.d.e=1\n".repeat(50_000));
    apply(&database, &keys, &[]).ended(66).says(&["cannot read limits.toml: more than 250000 keys", "hint: name"]);
}

#[test]
fn invalid_file_is_refused_with_line_before_any_change() {
    let database = Database::migrated(Engine::Sqlite);
    let valid = "[plans.free]\nquota = '1/s'\n";
    for (text, line, expected, advice) in [
        (
            "[plan.free]\nquota = '1/s'",
            3,
            "unknown field `plan`, expected one of `plans`, `buckets`, `overrides`",
            "correct",
        ),
        ("[buckets.a]\nquota = '1/s'\nmode = 'off'", 5, "bucket a: unknown field `mode`, expected `quota`", "correct"),
        ("[plans.pro]\nqota = '1/s'", 4, "plan pro: unknown field `qota`", "correct"),
        ("[plans.pro]\nmode = 'off'", 3, "plan pro: missing field `quota`", "correct"),
        ("[plans.pro]\n\nquota = 'ten a second'", 5, "invalid quota of plan pro: ten a second\n", "write"),
        (
            "[buckets]\nq = { quota = '0/s' }",
            4,
            "invalid quota of bucket q: 0/s: a capacity of 0 grants nothing\n",
            "give 1",
        ),
        ("[plans.pro]\nquota = 'unlimited'", 4, "invalid quota of plan pro: unlimited", "switch the mode to off"),
        ("[plans.pro]\nquota = 10", 4, "plan pro: invalid type: integer `10`, expected a string", "correct"),
        ("[buckets.a]\nquota = '100 in 60s at 5s'", 4, "no sliding window", "name it with each request"),
        ("[overrides.a]\nmode = 'of'", 4, "invalid mode of override a: of\n", "give \"enforce\""),
        (
            "[overrides.b]\nmode = 'off'\n[overrides.a]\nreason = 'x'",
            5,
            "override a: the override changes nothing",
            "give it",
        ),
        (
            "[overrides.a]\nmode = 'off'\nuntil = 2027-01-31",
            5,
            "invalid until of override a: 2027-01-31\n",
            "write a time",
        ),
        ("[overrides.a]\nmode = 'off'\nreason = \"\\u0000\"", 5, "invalid reason of override a: \\u{0}", "give 65535"),
        ("[buckets.'']\nquota = '1/s'", 3, "1 to 255 bytes", "correct"),
        ("[plans.free]\nquota = '1/s'", 3, "duplicate key: free\n", "correct"),
        (
            "[buckets.api.example.com]\nquota = '1/s'",
            3,
            "bucket api: unknown",
            "quote it: [buckets.\"api.example.com\"]",
        ),
        ("[plans.pro", 3, "table", "correct"),
    ] {
        let reported = apply(&database, &format!("{valid}{text}"), &[]).ended(66);
        let (at, hint) = (format!("error: limits.toml, line {line}: "), format!("hint: {advice}"));
        reported.says(&[&at, expected, &hint, "; nothing was applied"]);
    }
    let long = format!("[overrides.a]\nmode = 'off'\nreason = '{}'", "x".repeat(70_000));
    apply(&database, &long, &[]).ended(66).says(&["limits.toml, line 3: ", "at most 65535 bytes"]);
    assert_eq!(state(&database), json!([[], [], []]));
    // Before it connects.
    let none = tollgate(None, &database.directory).args(["apply", "none.toml"]).output().expect("it starts");
    Ran::new(none).ended(66).says(&["error: cannot read none.toml", "hint: name a readable file"]);
}

#[test]
fn failed_entry_stops_and_a_repetition_completes() {
    for engine in [Engine::Sqlite, Engine::Postgres, Engine::MySql] {
        let database = Database::migrated(engine);
        let schema = if engine == Engine::Postgres { "tollgate." } else { "" };
        let (refusal, permission) = match engine {
            Engine::Sqlite => (
                "create trigger no_b before insert on token_overrides when new.id = 'b' \
                 begin select raise(abort, 'no b'); end"
                    .to_owned(),
                "drop trigger no_b".to_owned(),
            ),
            _ => (
                format!("alter table {schema}token_overrides add constraint no_b check (id <> 'b')"),
                format!("alter table {schema}token_overrides drop constraint no_b"),
            ),
        };
        database.sql(&refusal);
        let file = "[plans]\nfree = { quota = '1/s' }\n[overrides]\na = { mode = 'off' }\nb = { mode = 'off' }\nc = { mode = 'off' }\n";
        let stopped = apply(&database, file, &[]);
        assert!(stopped.code != 0, "{stopped:?}");
        assert_eq!(stopped.out, "created    plan free: 1/s\ncreated    override a: mode off\n", "{engine:?}");
        let stopped =
            stopped.says(&["note: stopped at override b: 2 of 4 entries are applied. You can repeat", "error: "]);
        let reported = apply(&database, file, &["--json"]).ended(stopped.code).json();
        assert_eq!(reported["entries"].as_array().map(Vec::len), Some(2), "{reported}");
        database.sql(&permission);
        apply(&database, file, &[]).ended(0).says(&["2 created, 0 changed, 2 unchanged"]);
    }
}

#[test]
fn file_is_read_from_standard_input() {
    let database = Database::migrated(Engine::Sqlite);
    std::fs::write(database.directory.join("limits.toml"), LIMITS).expect("it is written");
    let file = File::open(database.directory.join("limits.toml")).expect("a file");
    let applied = database.command(&["apply", "-"]).stdin(file).output().expect("it starts");
    Ran::new(applied).ended(0).says(&["4 created, 0 changed, 0 unchanged"]);
    let mut nothing = database.command(&["apply", "-"]);
    Ran::new(nothing.output().expect("it starts")).ended(0).says(&["0 created, 0 changed, 0 unchanged"]);
}

#[test]
fn database_without_schema_is_left_as_it_is() {
    for engine in EACH {
        let database = Database::empty(engine);
        if engine == Engine::Sqlite {
            std::fs::write(database.directory.join("app.db"), "").expect("an empty file");
        }
        let refused = apply(&database, LIMITS, &[]).ended(78);
        assert_eq!(refused.says(&["hint: run `tollgate migrate`"]).out, "");
    }
}

fn apply(database: &Database, file: &str, options: &[&str]) -> Ran {
    std::fs::write(database.directory.join("limits.toml"), file).expect("it is written");
    database.run(&[&["apply", "limits.toml"], options].concat())
}

/// Plans, buckets and overrides, as the database has them.
fn state(database: &Database) -> Value {
    let json = |arguments: &[&str]| database.run(&[arguments, &["--json"]].concat()).ended(0).json();
    json!([json(&["plan", "list"]), json(&["list"]), json(&["plan", "overrides"])])
}

fn status(reported: &Value, name: &str) -> Value {
    let entries = reported["entries"].as_array().expect("entries");
    entries.iter().find(|entry| entry["name"] == name).expect("it is listed")["status"].clone()
}
