//! What programs read: fields are added, and never change.

use serde_json::Value;

use crate::databases::{Database, Engine};

#[test]
fn every_json_output_has_the_fields_that_are_documented() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "api", "--capacity", "2", "--per", "1h"]).ended(0);

    let take = database.run(&["take", "api", "--json"]).ended(0).json();
    let fields = ["granted", "key", "mode", "remaining", "reset_after_ms", "retry_after_ms", "waited_ms"];
    assert_eq!(names(&take), fields);
    assert_eq!((&take["granted"], &take["remaining"], &take["mode"]), (&true.into(), &1.into(), &"enforce".into()));

    let level = [
        "available",
        "capacity",
        "full_at",
        "granted",
        "key",
        "next_refill_at",
        "overridden",
        "plan",
        "provisioned",
        "quota",
    ];
    for listing in [&["peek", "api", "--json"][..], &["list", "--json"]] {
        let listed = database.run(listing).ended(0).json();
        assert_eq!(names(&listed[0]), level);
        assert_eq!((&listed[0]["available"], &listed[0]["quota"]), (&1.into(), &"2 per 1h".into()));
        let full_at = listed[0]["full_at"].as_str().expect("it is not full");
        assert!(chrono::DateTime::parse_from_rfc3339(full_at).is_ok(), "{full_at}");
    }

    let why = database.run(&["explain", "api", "--json"]).ended(0).json();
    assert_eq!(
        names(&why),
        [
            "available",
            "key",
            "known",
            "mode",
            "mode_from",
            "mode_reason",
            "mode_until",
            "override_reason",
            "override_until",
            "plan",
            "prospect",
            "quota",
            "quota_from",
            "retry_after_ms",
            "window",
        ]
    );
    assert_eq!((&why["quota_from"], &why["prospect"]), (&"bucket".into(), &"granted".into()));

    assert_eq!(why["window"], Value::Null);

    database.run(&["take", "search", "--quota", "1 in 60s at 5s"]).ended(0);
    let level = [
        "available",
        "counted",
        "granted",
        "interval_ms",
        "key",
        "max_requests",
        "resolution_ms",
        "retry_after_ms",
        "window",
    ];
    let peeked = database.run(&["peek", "search", "--json"]).ended(0).json();
    assert_eq!(names(&peeked[0]), level);
    assert_eq!((&peeked[0]["counted"], &peeked[0]["window"]), (&1.into(), &"1 in 1min at 5s".into()));
    assert_eq!((&peeked[0]["max_requests"], &peeked[0]["interval_ms"]), (&1.into(), &60_000.into()));
    let window = &database.run(&["explain", "search", "--json"]).ended(0).json()["window"];
    assert_eq!((&window["counted"], &window["mode"]), (&1.into(), &"enforce".into()));
    assert_eq!(window["prospect"], "denied");

    database.run(&["plan", "set", "free", "--quota", "1/s"]).ended(0);
    let plans = database.run(&["plan", "list", "--json"]).ended(0).json();
    assert_eq!(names(&plans[0]), ["capacity", "mode", "mode_reason", "mode_until", "name", "quota"]);

    database.run(&["mode", "shadow", "--plan", "free", "--for", "1h", "--reason", "incident 42"]).ended(0);
    database.run(&["mode", "block", "--key", "api"]).ended(0);
    let set = database.run(&["mode", "--json"]).ended(0).json();
    assert_eq!(names(&set[0]), ["kind", "mode", "mode_reason", "mode_until", "name"]);
    assert_eq!((&set[0]["kind"], &set[0]["name"], &set[0]["mode"]), (&"all".into(), &Value::Null, &"enforce".into()));
    assert_eq!((&set[1]["kind"], &set[1]["name"], &set[1]["mode"]), (&"plan".into(), &"free".into(), &"shadow".into()));
    assert!(set[1]["mode_reason"] == "incident 42" && set[1]["mode_until"].is_string(), "{set}");
    let of_key = database.run(&["mode", "--key", "api", "--json"]).ended(0).json();
    assert_eq!(
        (&of_key[0]["kind"], &of_key[0]["name"], &of_key[0]["mode"]),
        (&"key".into(), &"api".into(), &"block".into())
    );
    assert_eq!(database.run(&["mode", "--plan", "free", "--json"]).ended(0).json()[0], set[1]);
    database.run(&["mode", "off", "--json"]).ended(2).says(&["cannot be used with"]);

    let doctor = database.run(&["doctor", "--json"]).ended(0).json();
    assert_eq!(names(&doctor), ["checks", "status"]);
    assert_eq!(names(&doctor["checks"][0]), ["advice", "found", "name", "status"]);
}

#[test]
fn what_never_comes_is_null() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "once", "--quota", "1 once"]).ended(0);
    let denied = database.run(&["take", "once", "--quota", "1 once", "--json"]).ended(75).json();
    assert_eq!((&denied["granted"], &denied["retry_after_ms"]), (&false.into(), &Value::Null));
    assert_eq!(database.run(&["list", "--prefix", "nobody", "--json"]).ended(0).json(), Value::Array(Vec::new()));
}

fn names(object: &Value) -> Vec<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}
