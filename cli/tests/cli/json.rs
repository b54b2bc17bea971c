//! The JSON output: fields are added, and never change.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::command::tollgate;
use crate::databases::{Database, Engine};

#[test]
fn json_output_conforms_to_the_schema() {
    let database = Database::migrated(Engine::Sqlite);
    let json = |arguments: &[&str]| database.run(&[arguments, &["--json"]].concat()).ended(0).json();
    database.run(&["create", "api", "--capacity", "2", "--per", "1h"]).ended(0);

    let take = json(&["take", "api"]);
    assert_conforms(&take, "take");
    assert_eq!((&take["granted"], &take["remaining"], &take["mode"]), (&true.into(), &1.into(), &"enforce".into()));

    for listing in [&["peek", "api"][..], &["list"]] {
        let listed = json(listing);
        assert_conforms(&listed, listing[0]);
        assert_eq!((&listed[0]["available"], &listed[0]["quota"]), (&1.into(), &"2 per 1h".into()));
        let full_at = listed[0]["full_at"].as_str().expect("it is not full");
        assert!(chrono::DateTime::parse_from_rfc3339(full_at).is_ok(), "{full_at}");
    }

    let why = json(&["explain", "api"]);
    assert_conforms(&why, "explain");
    assert_eq!((&why["quota_from"], &why["expected_outcome"]), (&"bucket".into(), &"granted".into()));
    assert_eq!(why["window"], Value::Null);

    let doctor = json(&["doctor"]);
    assert_conforms(&doctor, "doctor");

    let simulated = json(&["simulate", "10/s", "--pattern", "steady:9/s"]);
    assert_conforms(&simulated, "simulate");
    assert_eq!(simulated["limits"][0]["granted"]["requests"], 540);
    std::fs::write(database.directory.join("traffic"), "0 1 ada\n0.1 1 bob\n0.2 1 bob\n").expect("it is written");
    let by_client = json(&["simulate", "1/s", "--traffic", "traffic", "--by-client"]);
    assert_conforms(&by_client, "simulate");
    assert_eq!(by_client["limits"][0]["most_denied"][0]["client"], "bob");
}

#[test]
fn sliding_window_json_conforms_to_the_schema() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "search", "--quota", "1 in 60s at 5s"]).ended(0);
    let peeked = database.run(&["peek", "search", "--json"]).ended(0).json();
    assert_conforms(&peeked, "peek");
    assert_conforms(&database.run(&["list", "--windows", "--json"]).ended(0).json(), "list");
    assert_eq!((&peeked[0]["counted"], &peeked[0]["window"]), (&1.into(), &"1 in 1m at 5s".into()));
    assert_eq!((&peeked[0]["max_requests"], &peeked[0]["interval_ms"]), (&1.into(), &60_000.into()));
    let why = database.run(&["explain", "search", "--json"]).ended(0).json();
    assert_conforms(&why, "explain");
    let window = &why["window"];
    let more = fields(window).difference(&fields(&peeked[0])).cloned().collect::<Vec<_>>();
    assert_eq!(more, ["expected_outcome", "mode"]);
    assert_eq!((&window["counted"], &window["mode"]), (&1.into(), &"enforce".into()));
    assert_eq!(window["expected_outcome"], "denied");
}

#[test]
fn plan_and_mode_json_conforms_to_the_schema() {
    let database = Database::migrated(Engine::Sqlite);
    let json = |arguments: &[&str]| database.run(&[arguments, &["--json"]].concat()).ended(0).json();
    database.run(&["plan", "set", "free", "--quota", "1/s"]).ended(0);
    assert_conforms(&json(&["plan", "list"]), "plan list");

    database.run(&["mode", "shadow", "--plan", "free", "--for", "1h", "--reason", "incident 42"]).ended(0);
    database.run(&["mode", "block", "--key", "api"]).ended(0);
    let set = json(&["mode"]);
    assert_conforms(&set, "mode");
    assert_eq!((&set[0]["kind"], &set[0]["name"], &set[0]["mode"]), (&"all".into(), &Value::Null, &"enforce".into()));
    assert_eq!((&set[1]["kind"], &set[1]["name"], &set[1]["mode"]), (&"plan".into(), &"free".into(), &"shadow".into()));
    assert!(set[1]["mode_reason"] == "incident 42" && set[1]["mode_until"].is_string(), "{set}");
    assert_eq!((&set[2]["kind"], &set[2]["name"], &set[2]["mode"]), (&"key".into(), &"api".into(), &"block".into()));
    let mut own = json(&["mode", "--key", "api"])[0].clone();
    assert_eq!((own["from"].take(), &own), ("override".into(), &set[2]));
    database.run(&["take", "follows", "--plan", "free"]).ended(0);
    let inherited = json(&["mode", "--key", "follows"]);
    assert_conforms(&inherited, "mode");
    assert_eq!((&inherited[0]["from"], &inherited[0]["mode"]), (&"plan free".into(), &"shadow".into()));
    assert_eq!(json(&["mode", "--all"]), Value::Array(vec![set[0].clone()]));
    assert_eq!(json(&["mode", "--plan", "free"])[0], set[1]);
    database.run(&["plan", "override", "user:1", "--quota", "5/h", "--reason", "ticket 7", "--for", "1d"]).ended(0);
    let overrides = json(&["plan", "overrides"]);
    assert_conforms(&overrides, "plan overrides");
    let shown = |place: usize| ["key", "quota", "mode", "override_reason"].map(|field| overrides[place][field].clone());
    assert_eq!(shown(0), ["api".into(), Value::Null, "block".into(), Value::Null]);
    assert_eq!(shown(1), ["user:1".into(), "5/h".into(), Value::Null, "ticket 7".into()]);
    assert!(overrides[1]["override_until"].is_string() && overrides[1]["override_ended"] == false, "{overrides}");
}

#[test]
fn changed_object_is_json_before_and_after() {
    let database = Database::migrated(Engine::Sqlite);
    let change = |arguments: &[&str]| database.run(&[arguments, &["--json"]].concat()).ended(0).json();
    for (arguments, command, field) in [
        (&["create", "api", "--quota", "2 once"][..], "create", "quota"),
        (&["plan", "set", "free", "--quota", "2 once"], "plan set", "quota"),
        (&["plan", "override", "user:1", "--quota", "2 once"], "plan override", "quota"),
        (&["mode", "off", "--key", "user:2"], "mode", "mode"),
        (&["mode", "off", "--plan", "free"], "mode", "mode"),
        (&["mode", "off", "--all"], "mode", "mode"),
    ] {
        let first = change(arguments);
        assert_conforms(&first, command);
        let again = change(arguments);
        assert_eq!(again["before"], first["after"], "{arguments:?}");
        assert_eq!(first["after"][field], if field == "mode" { "off" } else { "2 once" });
    }
    let cleared = change(&["plan", "override", "user:1", "--clear"]);
    assert_eq!((&cleared["before"]["key"], &cleared["after"]), (&"user:1".into(), &Value::Null));
    database.run(&["mode", "--clear", "--all"]).ended(0);
    database.run(&["mode", "--clear", "--plan", "free"]).ended(0);
    database.run(&["take", "user:3", "--plan", "free"]).ended(0);
    let deleted = change(&["plan", "delete", "free", "--force"]);
    assert_conforms(&deleted, "plan delete");
    assert_eq!((&deleted["before"]["name"], &deleted["after"]), (&"free".into(), &Value::Null));
    assert_eq!(deleted["followers"], 1);
    let reset = change(&["reset", "--prefix", "api", "--force"]);
    assert_conforms(&reset, "reset");
    assert_eq!((&reset["buckets"], &reset["dry_run"]), (&1.into(), &false.into()));
    for command in ["reset", "delete"] {
        let reported = change(&[command, "api"]);
        assert_conforms(&reported, command);
        assert_eq!((&reported[0]["key"], &reported[0]["found"]), (&"api".into(), &true.into()));
    }
    let swept = change(&["sweep"]);
    assert_conforms(&swept, "sweep");
    assert_eq!(swept["deleted"], 0);
}

#[test]
fn apply_json_conforms_to_the_schema() {
    let database = Database::migrated(Engine::Sqlite);
    std::fs::write(database.directory.join("limits.toml"), "[plans]\nfree = { quota = '1/s' }\n")
        .expect("it is written");
    let planned = database.run(&["apply", "limits.toml", "--dry-run", "--json"]).ended(0).json();
    assert_conforms(&planned, "apply");
    assert_eq!(planned["entries"][0]["status"], "create");
    let applied = database.run(&["apply", "limits.toml", "--json"]).ended(0).json();
    assert_conforms(&applied, "apply");
    let entry = &applied["entries"][0];
    assert_eq!((&applied["dry_run"], &entry["before"]), (&false.into(), &Value::Null));
    assert_eq!((&entry["name"], &entry["after"]["quota"]), (&"free".into(), &"1/s".into()));
}

#[test]
fn denied_json_conforms_to_the_schema() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["denied"]).ended(0).says(&["LimiterBuilder::count_denials"]);
    assert_eq!(database.run(&["denied", "--json"]).ended(0).json(), Value::Array(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let url = format!("sqlite:{}", database.directory.join("app.db").display());
        let store = tollgate::SqliteStore::connect(&url, tollgate::store::Durability::Synchronous).expect("a file");
        let keys = ["a", "b\u{1b}[31m"].map(|key| tollgate::Key::try_from(key).expect("a key"));
        let [one, other] = keys;
        let daily = one.limit(&"day".try_into().expect("a name"));
        let denials = [(one, 3), (other, 7), (daily, 2)];
        tollgate::store::Maintenance::count_denials(&store, &denials).await.expect("it counts");
    });
    let denied = database.run(&["denied", "--json"]).ended(0).json();
    assert_conforms(&denied, "denied");
    assert_eq!((&denied[0]["denied"], &denied[1]["key"], &denied[1]["denied"]), (&7.into(), &"a".into(), &3.into()));
    assert_eq!(database.run(&["denied", "--json", "--top", "1"]).ended(0).json().as_array().map(Vec::len), Some(1));
    assert_eq!(database.run(&["denied", "--json", "--top", "0"]).ended(0).json(), denied, "0 is all of them");
    let by_day = database.run(&["denied", "--json", "--limit", "day"]).ended(0).json();
    assert_eq!((by_day.as_array().map(Vec::len), &by_day[0]["denied"]), (Some(1), &2.into()));
    let table = database.run(&["denied"]).ended(0).says(&["b\\u{1b}[31m", "7", "a", "3"]);
    assert!(!table.out.contains('\u{1b}'), "{table:?}");
}

#[test]
fn usage_json_conforms_to_the_schema() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["usage", "on"]).ended(0);
    database.run(&["take", "a", "--quota", "2/month"]).ended(0);
    for arguments in [&["usage", "--json"][..], &["usage", "--above", "50%", "--json"]] {
        let used = database.run(arguments).ended(0).json();
        assert_conforms(&used, "usage");
        assert_eq!((&used[0]["key"], &used[0]["used"]), (&"a".into(), &1.into()));
    }
}

#[test]
fn infinite_time_is_null_in_json() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "once", "--quota", "1 once"]).ended(0);
    let denied = database.run(&["take", "once", "--quota", "1 once", "--json"]).ended(75).json();
    assert_eq!((&denied["granted"], &denied["retry_after_ms"]), (&false.into(), &Value::Null));
    assert_eq!(database.run(&["list", "--prefix", "nobody", "--json"]).ended(0).json(), Value::Array(Vec::new()));
}

/// Asserts that the value is as `tollgate json-schema` describes the output of a command.
#[track_caller]
fn assert_conforms(value: &Value, command: &str) {
    let printed = tollgate(None, Path::new(".")).arg("json-schema").output().expect("tollgate runs");
    let document: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    if let Err(wrong) = conforms(value, &document["properties"][command], &document) {
        panic!("{command}: {wrong} in {value:#}");
    }
}

/// Checks the keywords that the schema uses. Refuses fields that the schema lacks.
fn conforms(value: &Value, schema: &Value, document: &Value) -> Result<(), String> {
    let schema = schema.as_object().ok_or_else(|| format!("no schema for {value}"))?;
    for (keyword, rule) in schema {
        match keyword.as_str() {
            "$ref" => {
                let name = rule.as_str().and_then(|rule| rule.strip_prefix("#/$defs/")).expect("a definition");
                conforms(value, &document["$defs"][name], document)?;
            }
            "anyOf" | "oneOf" => {
                let mut tried = rule.as_array().expect("schemas").iter().map(|one| conforms(value, one, document));
                if !tried.any(|tried| tried.is_ok()) {
                    return Err(format!("{value} is none of {rule}"));
                }
            }
            "type" => {
                let types: Vec<_> = rule.as_array().map_or_else(|| vec![rule], |types| types.iter().collect());
                let found = match value {
                    Value::Null => "null",
                    Value::Bool(_) => "boolean",
                    Value::Number(_) => "integer",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                };
                if !types.iter().any(|name| *name == found) {
                    return Err(format!("{value} is not {rule}"));
                }
            }
            "const" if value != rule => return Err(format!("{value} is not {rule}")),
            "enum" if !rule.as_array().expect("values").contains(value) => {
                return Err(format!("{value} not in {rule}"));
            }
            "minimum" if value.as_f64() < rule.as_f64() && !value.is_null() => return Err(format!("{value} < {rule}")),
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| conforms(item, rule, document))?,
            "required" if value.is_object() => {
                let wanted = rule.as_array().expect("names").iter().filter_map(|name| name.as_str().map(str::to_owned));
                if wanted.collect::<BTreeSet<_>>() != fields(value) {
                    return Err(format!("{value} has other fields than {rule}"));
                }
            }
            "properties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    conforms(field, &rule[name], document)?;
                }
            }
            "const" | "enum" | "minimum" | "required" | "description" | "title" | "format" => {}
            _ => return Err(format!("the test does not know {keyword}")),
        }
    }
    Ok(())
}

fn fields(object: &Value) -> BTreeSet<String> {
    object.as_object().expect("an object").keys().cloned().collect()
}
