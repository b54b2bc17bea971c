//! The JSON output: fields are added, and never change.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::databases::{Database, Engine};

#[test]
fn json_output_has_the_documented_fields() {
    let database = Database::migrated(Engine::Sqlite);
    let json = |arguments: &[&str]| database.run(&[arguments, &["--json"]].concat()).ended(0).json();
    database.run(&["create", "api", "--capacity", "2", "--per", "1h"]).ended(0);

    let take = json(&["take", "api"]);
    assert_documented(&take, "`take`");
    assert_eq!((&take["granted"], &take["remaining"], &take["mode"]), (&true.into(), &1.into(), &"enforce".into()));

    for listing in [&["peek", "api"][..], &["list"]] {
        let listed = json(listing);
        assert_documented(&listed[0], "`list`; `peek` at a bucket");
        assert_eq!((&listed[0]["available"], &listed[0]["quota"]), (&1.into(), &"2 per 1h".into()));
        let full_at = listed[0]["full_at"].as_str().expect("it is not full");
        assert!(chrono::DateTime::parse_from_rfc3339(full_at).is_ok(), "{full_at}");
    }

    let why = json(&["explain", "api"]);
    assert_documented(&why, "`explain`");
    assert_eq!((&why["quota_from"], &why["expected_outcome"]), (&"bucket".into(), &"granted".into()));
    assert_eq!(why["window"], Value::Null);

    let doctor = json(&["doctor"]);
    assert_documented(&doctor, "`doctor`");
    assert_documented(&doctor["checks"][0], "a check");

    let simulated = json(&["simulate", "10/s", "--pattern", "steady:9/s"]);
    assert_documented(&simulated, "`simulate`");
    assert_documented(&simulated["limits"][0], "a limit");
    for count in ["arrived", "granted", "denied", "never_possible", "waited"] {
        assert_eq!(fields(&simulated["limits"][0][count]), ["requests", "tokens"].map(str::to_owned).into());
    }
}

#[test]
fn sliding_window_json_has_the_documented_fields() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "search", "--quota", "1 in 60s at 5s"]).ended(0);
    let peeked = database.run(&["peek", "search", "--json"]).ended(0).json();
    assert_documented(&peeked[0], "`peek` at a sliding window; `list --windows`");
    assert_eq!((&peeked[0]["counted"], &peeked[0]["window"]), (&1.into(), &"1 in 1m at 5s".into()));
    assert_eq!((&peeked[0]["max_requests"], &peeked[0]["interval_ms"]), (&1.into(), &60_000.into()));
    let window = &database.run(&["explain", "search", "--json"]).ended(0).json()["window"];
    let more = fields(window).difference(&fields(&peeked[0])).cloned().collect::<Vec<_>>();
    assert_eq!(more, ["expected_outcome", "mode"]);
    assert_eq!((&window["counted"], &window["mode"]), (&1.into(), &"enforce".into()));
    assert_eq!(window["expected_outcome"], "denied");
}

#[test]
fn plan_and_mode_json_has_the_documented_fields() {
    let database = Database::migrated(Engine::Sqlite);
    let json = |arguments: &[&str]| database.run(&[arguments, &["--json"]].concat()).ended(0).json();
    database.run(&["plan", "set", "free", "--quota", "1/s"]).ended(0);
    assert_documented(&json(&["plan", "list"])[0], "`plan list`");

    database.run(&["mode", "shadow", "--plan", "free", "--for", "1h", "--reason", "incident 42"]).ended(0);
    database.run(&["mode", "block", "--key", "api"]).ended(0);
    let set = json(&["mode"]);
    assert_documented(&set[0], "`mode`");
    assert_eq!((&set[0]["kind"], &set[0]["name"], &set[0]["mode"]), (&"all".into(), &Value::Null, &"enforce".into()));
    assert_eq!((&set[1]["kind"], &set[1]["name"], &set[1]["mode"]), (&"plan".into(), &"free".into(), &"shadow".into()));
    assert!(set[1]["mode_reason"] == "incident 42" && set[1]["mode_until"].is_string(), "{set}");
    let of_key = json(&["mode", "--key", "api"]);
    assert_eq!(
        (&of_key[0]["kind"], &of_key[0]["name"], &of_key[0]["mode"]),
        (&"key".into(), &"api".into(), &"block".into())
    );
    assert_eq!(json(&["mode", "--plan", "free"])[0], set[1]);
    database.run(&["plan", "override", "user:1", "--quota", "5/h", "--reason", "ticket 7", "--for", "1d"]).ended(0);
    let overrides = json(&["plan", "overrides"]);
    assert_documented(&overrides[0], "`plan overrides`");
    let shown = |place: usize| ["key", "quota", "mode", "override_reason"].map(|field| overrides[place][field].clone());
    assert_eq!(shown(0), ["api".into(), Value::Null, "block".into(), "".into()]);
    assert_eq!(shown(1), ["user:1".into(), "5/h".into(), Value::Null, "ticket 7".into()]);
    assert!(overrides[1]["override_until"].is_string() && overrides[1]["override_ended"] == false, "{overrides}");
}

#[test]
fn changed_object_is_json_before_and_after() {
    let database = Database::migrated(Engine::Sqlite);
    let change = |arguments: &[&str]| database.run(&[arguments, &["--json"]].concat()).ended(0).json();
    for (arguments, table, field) in [
        (&["create", "api", "--quota", "2 once"][..], "`list`; `peek` at a bucket", "quota"),
        (&["plan", "set", "free", "--quota", "2 once"], "`plan list`", "quota"),
        (&["plan", "override", "user:1", "--quota", "2 once"], "`plan overrides`", "quota"),
        (&["mode", "off", "--key", "user:2"], "`plan overrides`", "mode"),
        (&["mode", "off", "--plan", "free"], "`mode`", "mode"),
        (&["mode", "off", "--all"], "`mode`", "mode"),
    ] {
        let first = change(arguments);
        assert_eq!(fields(&first), ["after", "before"].map(str::to_owned).into());
        assert_documented(&first["after"], table);
        let again = change(arguments);
        assert_eq!(again["before"], first["after"], "{arguments:?}");
        assert_eq!(first["after"][field], if field == "mode" { "off" } else { "2 once" });
    }
    let cleared = change(&["plan", "override", "user:1", "--clear"]);
    assert_eq!((&cleared["before"]["key"], &cleared["after"]), (&"user:1".into(), &Value::Null));
    let deleted = change(&["plan", "delete", "free"]);
    assert_eq!((&deleted["before"]["name"], &deleted["after"]), (&"free".into(), &Value::Null));
    for command in ["reset", "delete"] {
        let reported = change(&[command, "api"]);
        assert_eq!((&reported[0]["key"], &reported[0]["found"]), (&"api".into(), &true.into()));
    }
    assert_eq!(change(&["sweep"])["deleted"], 0);
}

#[test]
fn apply_json_has_the_documented_fields() {
    let database = Database::migrated(Engine::Sqlite);
    std::fs::write(database.directory.join("limits.toml"), "[plans]\nfree = { quota = '1/s' }\n")
        .expect("it is written");
    let applied = database.run(&["apply", "limits.toml", "--json"]).ended(0).json();
    assert_documented(&applied, "`apply`");
    let entry = &applied["entries"][0];
    assert_documented(entry, "an entry");
    assert_documented(&entry["after"], "values of an entry");
    assert_eq!((&applied["dry_run"], &entry["before"]), (&false.into(), &Value::Null));
    assert_eq!((&entry["name"], &entry["after"]["quota"]), (&"free".into(), &"1/s".into()));
}

#[test]
fn denied_json_has_the_documented_fields() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["denied"]).ended(0).says(&["LimiterBuilder::count_denials"]);
    assert_eq!(database.run(&["denied", "--json"]).ended(0).json(), Value::Array(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let url = format!("sqlite:{}", database.directory.join("app.db").display());
        let store = tollgate::SqliteStore::connect(&url, tollgate::store::Durability::Synchronous).expect("a file");
        let keys = ["a", "b\u{1b}[31m"].map(|key| tollgate::Key::try_from(key).expect("a key"));
        let [one, other] = keys;
        tollgate::store::Maintenance::count_denials(&store, &[(one, 3), (other, 7)]).await.expect("it counts");
    });
    let denied = database.run(&["denied", "--json"]).ended(0).json();
    assert_documented(&denied[0], "`denied`");
    assert_eq!((&denied[0]["denied"], &denied[1]["key"], &denied[1]["denied"]), (&7.into(), &"a".into(), &3.into()));
    assert_eq!(database.run(&["denied", "--json", "--limit", "1"]).ended(0).json().as_array().map(Vec::len), Some(1));
    assert_eq!(database.run(&["denied", "--json", "--limit", "0"]).ended(0).json(), denied, "0 is all of them");
    let table = database.run(&["denied"]).ended(0).says(&["b\\u{1b}[31m", "7", "a", "3"]);
    assert!(!table.out.contains('\u{1b}'), "{table:?}");
}

#[test]
fn infinite_time_is_null_in_json() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "once", "--quota", "1 once"]).ended(0);
    let denied = database.run(&["take", "once", "--quota", "1 once", "--json"]).ended(75).json();
    assert_eq!((&denied["granted"], &denied["retry_after_ms"]), (&false.into(), &Value::Null));
    assert_eq!(database.run(&["list", "--prefix", "nobody", "--json"]).ended(0).json(), Value::Array(Vec::new()));
}

/// Asserts that the object has the fields of this table in `docs/cli.md`, and no others.
#[track_caller]
fn assert_documented(object: &Value, table: &str) {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md")).expect("it is there");
    let (_, rows) = text.split_once(&format!("\n| {table} | |\n|---|---|\n")).unwrap_or_else(|| panic!("no {table}"));
    let rows = rows.lines().take_while(|line| !line.is_empty());
    let names = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    assert_eq!(fields(object), names.map(str::to_owned).collect(), "of {table}");
}

fn fields(object: &Value) -> BTreeSet<String> {
    object.as_object().expect("an object").keys().cloned().collect()
}
