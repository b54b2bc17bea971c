//! Everyday commands work the same on every engine.

use serde_json::Value;

use crate::databases::{Database, EACH, Engine};

#[test]
fn bucket_of_two_denies_third_take_until_reset() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["create", "api", "--capacity", "2", "--per", "1h"]).ended(0).says(&["2 per 1h"]);
        database.run(&["take", "api"]).ended(0).says(&["granted: 1 left"]);
        database.run(&["take", "api"]).ended(0).says(&["granted: 0 left"]);
        database.run(&["take", "api"]).ended(75).says(&["denied by api: try again in"]);
        database.run(&["peek", "api"]).ended(0).says(&["2 per 1h", "create"]);
        database.run(&["explain", "api"]).ended(0).says(&["would be denied"]);
        database.run(&["reset", "api"]).ended(0).says(&["api: full"]);
        database.run(&["explain", "api", "--cost", "2"]).ended(0).says(&["would be granted"]);
        database.run(&["explain", "api", "--cost", "3"]).ended(0).says(&["it costs more than the bucket ever holds"]);
        database.run(&["take", "api"]).ended(0);
        database.run(&["explain", "api"]).ended(0).says(&["would be granted"]);
        database.run(&["explain", "api", "--cost", "2"]).ended(0).says(&["would be denied: a token is missing"]);
        let why = database.run(&["explain", "api", "--cost", "2", "--json"]).ended(0).json();
        assert_eq!((&why["expected_outcome"], &why["available"]), (&"denied".into(), &1.into()));
        database.run(&["reset", "api"]).ended(0);
        database.run(&["take", "api", "--cost", "2"]).ended(0);
        let never = database.run(&["take", "api", "--cost", "3", "--min-remaining", "1"]).ended(64);
        never.says(&[
            "3 tokens, with 1 to remain, exceed the capacity of 2: api",
            "`tollgate explain api`",
            "`tollgate create --capacity 4 --per SPAN api`",
        ]);
        for beyond in ["3155760000000000001", "18446744073709551615"] {
            let never = database.run(&["take", "api", "--cost", beyond]).ended(64);
            never.says(&["take fewer: no bucket can hold so many"]);
        }
        database.run(&["delete", "api"]).ended(0);
        database.run(&["delete", "api"]).ended(1).says(&["there is no bucket 'api'", "tollgate list"]);
        database
            .run(&["take", "api"])
            .ended(64)
            .says(&["there is no bucket 'api'", "tollgate create --capacity 2 --per 1h api`"]);
    }
}

#[test]
fn unlimited_request_is_not_counted() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "a", "--quota", "unlimited"]).ended(0).says(&["granted: no limit for a"]);
    let granted = database.run(&["take", "a", "--quota", "unlimited", "--json"]).ended(0).json();
    assert_eq!(granted["remaining"], Value::Null);
    database.run(&["mode", "block", "--key", "a"]).ended(0);
    database.run(&["explain", "a"]).ended(0).says(&["block, from override\n"]);
}

#[test]
fn missing_bucket_is_reported_on_standard_error() {
    let database = Database::migrated(Engine::Sqlite);
    for command in ["peek", "reset", "delete"] {
        database.run(&["create", "a", "--quota", "1/s"]).ended(0);
        let ran =
            database.run(&[command, "none", "a", "no one"]).ended(1).says(&["no bucket 'none', 'no one'", "hint:"]);
        assert!(ran.out.contains('a') && !ran.out.contains("no"), "{ran:?}");
    }
}

#[test]
fn deleted_bucket_leaves_its_override_with_a_note() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["create", "a", "--quota", "9/h"]).ended(0);
        assert_eq!(database.run(&["delete", "a"]).ended(0).err, "");
        for key in ["a", "b"] {
            database.run(&["create", key, "--quota", "9/h"]).ended(0);
        }
        database.run(&["plan", "override", "a", "--quota", "5/s"]).ended(0);
        database.run(&["mode", "block", "--key", "a"]).ended(0);
        let note = database.run(&["delete", "a", "b"]).ended(0).err;
        let set = "note: the override of 'a' stays: 5/s, mode block; to remove it: `";
        assert!(note.starts_with(set) && note.lines().count() == 1, "{engine:?}: {note}");
        for command in note.split('`').skip(1).step_by(2) {
            database.shell(command);
        }
        assert_eq!(database.run(&["plan", "overrides", "--json"]).ended(0).json(), serde_json::json!([]));
    }
}

#[test]
fn request_names_its_sliding_window() {
    let database = Database::migrated(Engine::Sqlite);
    let take = ["take", "a", "--quota", "2 in 1d at 1h"];
    database.run(&take).ended(0).says(&["granted: 1 left"]);
    database.run(&take).ended(0);
    database.run(&take).ended(75).says(&["denied by a"]);
    database.run(&["run", "a", "--no-wait", "--quota", "2 in 1d at 1h", "--", "echo", "ran"]).ended(75);
}

#[test]
fn peek_shows_sliding_windows_like_buckets() {
    for engine in EACH {
        let database = Database::migrated(engine);
        let take = ["take", "a", "--quota", "2 in 1d at 1h"];
        database.run(&take).ended(0);
        database.run(&["explain", "a"]).ended(0).says(&[
            "window     sliding, 2 in 1d at 1h: 1 counted, 1 left\n  mode       enforce",
            "a request  would be granted\n",
        ]);
        database.run(&take).ended(0);
        let peek = database.run(&["peek", "a"]).ended(0).says(&["sliding window", "2 in 1d at 1h", "next passes in"]);
        assert!(!peek.out.contains("limit"), "{peek:?}");
        database.run(&["peek", "a", "b"]).ended(1).says(&["2 in 1d at 1h", "no bucket 'b'"]);
        database.run(&["explain", "a"]).ended(0).says(&["2 counted, 0 left", "would be denied: one passes in 1d"]);
        database.run(&["explain", "a", "--cost", "3"]).ended(0).says(&["more than the window ever lets pass"]);
        database.run(&["take", "wide", "--quota", "5 in 1d at 1h", "--cost", "3"]).ended(0);
        let why = database.run(&["explain", "wide", "--cost", "3"]).ended(0);
        assert!(why.out.contains("would be denied: 1 of 3 do not pass now"), "on {engine:?}: {why:?}");
        database.run(&["mode", "off", "--key", "a"]).ended(0);
        database.run(&["explain", "a"]).ended(0).says(&["would be granted, regardless of the count"]);
        // A bucket of the same key is another limit.
        database.run(&["create", "a", "--quota", "7/h"]).ended(0);
        database.run(&["peek", "a"]).ended(0).says(&["7/h", "2 in 1d at 1h"]);
        database.run(&["explain", "a"]).ended(0).says(&["7 available", "2 counted", "in window"]);
    }
}

#[test]
fn request_takes_from_all_buckets_or_none() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "wide", "--quota", "10/h"]).ended(0);
    database.run(&["create", "narrow", "--quota", "1/h"]).ended(0);
    database.run(&["take", "wide", "narrow"]).ended(0);
    database.run(&["take", "wide", "narrow"]).ended(75).says(&["denied by narrow"]);
    let levels = database.run(&["peek", "wide", "--json"]).ended(0).json();
    assert_eq!(levels[0]["granted"], 1);
}

#[test]
fn explain_shows_effective_plan_override_and_mode() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["take", "user:1", "--plan", "free"]).ended(64).says(&["no plan 'free'", "tollgate plan set"]);
        database.run(&["plan", "set", "free", "--quota", "1/h"]).ended(0);
        database.run(&["take", "user:1", "--plan", "free"]).ended(0);
        database.run(&["take", "user:1", "--plan", "free"]).ended(75);

        database.run(&["plan", "override", "user:1", "--quota", "5/h", "--reason", "ticket 7", "--for", "1d"]).ended(0);
        database.run(&["explain", "user:1"]).ended(0).says(&["5/h, from an override, until", "ticket 7"]);
        database.run(&["mode", "block", "--key", "user:1", "--reason", "abuse"]).ended(0).says(&["5/h, mode block"]);
        database.run(&["take", "user:1", "--plan", "free"]).ended(75).says(&["(mode block)"]);
        let replaced = database.run(&["plan", "override", "user:1", "--quota", "6/h"]).ended(0);
        replaced.says(&["override 6/h, mode block, until 2", "; it was 5/h, mode block, until 2", ": abuse\n"]);
        database.run(&["explain", "user:1"]).ended(0).says(&["6/h, from an override, until 2", ": abuse"]);
        database.run(&["plan", "overrides"]).ended(0).says(&["user:1", "6/h", "block", "abuse"]);
        database.run(&["mode", "--clear", "--key", "user:1"]).ended(0).says(&["override 6/h"]);
        database.run(&["plan", "override", "user:1", "--clear"]).ended(0).says(&["taken away"]);
        database.run(&["plan", "overrides"]).ended(0).says(&["no overrides; make one: tollgate plan override KEY"]);
        for again in [&["plan", "override", "user:1", "--clear"][..], &["mode", "--clear", "--key", "user:1"]] {
            let ran = database.run(again).ended(1).says(&["no override of 'user:1'", "tollgate explain user:1"]);
            assert_eq!(ran.out, "");
        }

        database.run(&["mode", "off", "--plan", "free"]).ended(0);
        database.run(&["take", "user:1", "--plan", "free"]).ended(0).says(&["(mode off)"]);
        database.run(&["plan", "list"]).ended(0).says(&["free", "1/h", "off"]);
        database.run(&["mode", "--clear", "--plan", "free"]).ended(0);
        database.run(&["mode", "shadow", "--all", "--for", "2h", "--reason", "incident 42"]).ended(0);
        database.run(&["mode"]).ended(0).says(&["shadow, until", "incident 42"]);
        database.run(&["mode", "--clear", "--all"]).ended(0).says(&["all: enforce"]);
        database.run(&["plan", "delete", "free", "--force"]).ended(0);
        database
            .run(&["take", "user:1"])
            .ended(64)
            .says(&["bucket 'user:1' follows a plan that is not there any more"]);
        database.run(&["plan", "delete", "free"]).ended(1).says(&["no plan 'free'"]);
    }
}

#[test]
fn partial_override_leaves_the_other_settings() {
    let database = Database::migrated(Engine::Sqlite);
    let overrides = || database.run(&["plan", "overrides", "--json"]).ended(0).out;
    database.run(&["plan", "override", "a", "--quota", "5/h", "--reason", "ticket 7"]).ended(0);
    database.run(&["mode", "block", "--key", "b", "--reason", "abuse"]).ended(0);
    let before = overrides();
    for (command, message, hint) in [
        (&["mode", "--clear", "--key", "a"][..], "the override of 'a' has no mode", "tollgate explain a"),
        (&["plan", "override", "b", "--clear"], "the override of 'b' has no limits", "tollgate explain b"),
    ] {
        let ran = database.run(command).ended(1).says(&[message, hint]);
        assert_eq!((ran.out.as_str(), overrides()), ("", before.clone()), "{command:?}");
    }
    database.run(&["plan", "override", "a", "--clear"]).ended(0).says(&["a: override taken away"]);
    database.run(&["mode", "--clear", "--key", "b"]).ended(0).says(&["b: override taken away"]);
}

#[test]
fn sweep_deletes_full_buckets_made_on_first_use() {
    let database = Database::migrated(Engine::Sqlite);
    for n in 0..7 {
        database.run(&["take", &format!("user:{n}"), "--quota", "1000000/s"]).ended(0);
    }
    database.run(&["create", "api", "--quota", "1/s"]).ended(0);
    database.run(&["sweep"]).ended(0).says(&["0 rows deleted"]);
    // As if the last request was a minute ago.
    database.sql("update token_buckets set full_at = full_at - 60000000000 where not provisioned");
    database.run(&["sweep", "--step", "2"]).ended(0).says(&["7 rows deleted"]);
    database.run(&["take", "user:7", "--quota", "1000000/s"]).ended(0);
    database.sql("update token_buckets set full_at = full_at - 60000000000 where not provisioned");
    assert_eq!(database.run(&["sweep"]).ended(0).out, "1 row deleted\n");
    database.run(&["take", "api", "--cost", "2"]).ended(64).says(&["error: 2 tokens exceed the capacity of 1: api"]);
    database.run(&["list"]).ended(0).says(&["api"]);
}

#[test]
fn foreign_text_does_not_steer_the_terminal() {
    let database = Database::migrated(Engine::Sqlite);
    let key = "red\u{1b}[31m\nnext\u{202e}";
    database.run(&["create", key, "--quota", "1/h"]).ended(0);
    for arguments in [&["list"][..], &["peek", key], &["explain", key], &["take", key], &["reset", key]] {
        let ran = database.run(arguments).ended(0);
        assert!(
            !ran.out.contains(['\u{1b}', '\u{202e}']) && ran.out.contains("red\\u{1b}[31m\\nnext\\u{202e}"),
            "{ran:?}"
        );
    }
    // JSON has the same text for its readers.
    for key in [key, "two\u{85}\u{2067}and\u{7f}three"] {
        let ran = database.run(&["take", key, "--quota", "1/h", "--json"]);
        assert!(!ran.out.contains(['\u{1b}', '\u{202e}', '\u{85}', '\u{2067}', '\u{7f}']), "{ran:?}");
        assert_eq!(ran.json()["key"], key);
    }
}

#[test]
fn colours_are_omitted_outside_terminals() {
    let database = Database::migrated(Engine::Sqlite);
    let take = ["take", "a", "--quota", "9/h"];
    let coloured = |variables: &[(&str, &str)]| {
        let output = database.command(&take).envs(variables.iter().copied()).output().expect("it starts");
        assert!(output.status.success());
        output.stdout.contains(&0x1b)
    };
    assert!(!coloured(&[]), "a pipe is no terminal");
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]));
}

#[test]
fn reset_of_a_prefix_counts_first_and_needs_force() {
    let database = Database::migrated(Engine::Sqlite);
    for key in ["user:1", "user:2", "other"] {
        database.run(&["take", key, "--quota", "2 once"]).ended(0);
    }
    database.run(&["take", "user:search", "--quota", "2 in 1h at 1m"]).ended(0);
    let reset = |more: &[&str]| database.run(&[&["reset", "--prefix", "user:"], more].concat());
    let available =
        || {
            database.run(&["list", "--json"]).ended(0).json().as_array().map(|levels| {
                levels.iter().map(|level| level["available"].as_i64().expect("a number")).collect::<Vec<_>>()
            })
        };
    reset(&[]).ended(2).says(&["error: 2 buckets and 1 sliding window not reset: --prefix user:\nhint: add --force"]);
    assert_eq!(reset(&["--dry-run"]).ended(0).out, "2 buckets and 1 sliding window would be reset\n");
    assert_eq!(available(), Some(vec![1, 1, 1]));
    assert_eq!(reset(&["--force"]).ended(0).out, "2 buckets and 1 sliding window reset\n");
    assert_eq!(available(), Some(vec![1, 2, 2]));
    assert_eq!(reset(&["--dry-run"]).ended(0).out, "2 buckets and 0 sliding windows would be reset\n");
    for more in [&[][..], &["--dry-run"], &["--force"]] {
        let none = database.run(&[&["reset", "--prefix", "nope"], more].concat()).ended(1);
        none.says(&["error: no bucket or sliding window has the prefix: nope\nhint: `tollgate list`"]);
    }
    for option in ["--dry-run", "--force"] {
        database.run(&["reset", option, "user:1"]).ended(2);
    }
    database.run(&["reset"]).ended(2);
}

#[test]
fn man_page_is_written_for_each_command() {
    let database = Database::empty(Engine::Sqlite);
    database.run(&["man", "pages/man1"]).ended(0);
    let page = |name: &str| std::fs::read_to_string(database.directory.join("pages/man1").join(name)).expect(name);
    assert!(page("tollgate.1").contains("tollgate\\-plan(1)") && page("tollgate-plan-set.1").contains("quota"));
    std::fs::write(database.directory.join("file"), "").expect("it is written");
    database.run(&["man", "file"]).ended(73).says(&["error: cannot write man pages into file"]);
}

#[test]
fn usage_is_listed_after_it_is_switched_on() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["usage"]).ended(0).says(&["no usage is recorded for this month", "`tollgate usage on`"]);
        database.run(&["plan", "set", "free", "100/s", "month: 10/month"]).ended(0);
        database.run(&["take", "a", "--plan", "free", "--cost", "2"]).ended(0);
        database.run(&["usage", "on", "--every", "1day", "--keep", "90d"]).ended(0).says(&["by day", "90 days"]);
        database.run(&["take", "a", "--plan", "free", "--cost", "6"]).ended(0);
        database.run(&["take", "b", "--plan", "free", "--cost", "7"]).ended(0);
        let used = database.run(&["usage", "--json"]).ended(0).json();
        let row =
            |place: usize| (used[place]["key"].clone(), used[place]["limit"].clone(), used[place]["used"].clone());
        assert_eq!(row(0), ("b".into(), Value::Null, 7.into()), "{engine:?}: the busiest first");
        assert_eq!(row(3), ("a".into(), "month".into(), 6.into()));
        database.run(&["usage", "--key", "b", "--csv"]).ended(0).says(&["b,month,free,7,0,0,7,0"]);
        let near = database.run(&["usage", "--above", "80%"]).ended(0);
        let near = near.says(&["a    month  free  10 per calendar month     8   80%"]);
        assert!(!near.out.contains('b'), "{near:?}");
        database.run(&["plan", "set", "daily", "first: 100/s", "day: 10 per calendar day"]).ended(0);
        database.run(&["take", "c", "--plan", "daily", "--cost", "9"]).ended(0);
        let near = database.run(&["usage", "--above", "80%", "--plan", "daily"]).ended(0);
        near.says(&["c    day    daily  10 per calendar 1d     9   90%"]);
        database.run(&["reset", "c", "--limit", "day"]).ended(0);
        database.run(&["reset", "c", "--limit", "first"]).ended(0);
        database.run(&["take", "c", "--plan", "daily", "--cost", "10"]).ended(0);
        database.run(&["charge", "c", "--limit", "day", "--cost", "3"]).ended(0).says(&["-3 tokens available"]);
        let typo = ["error: plan 'daily' has no limit 'dya'", "hint: it has first, day"];
        for mistyped in
            [&["reset", "c"][..], &["plan", "override", "c", "--quota", "9/s"], &["mode", "off", "--plan", "daily"]]
        {
            database.run(&[mistyped, &["--limit", "dya"]].concat()).ended(1).says(&typo);
        }
        database.run(&["usage", "off", "--keep", "1d"]).ended(2).says(&["error: only `usage on` takes"]);
        database.run(&["usage", "on"]).ended(0).says(&["by day", "90 days"]);
        database.run(&["usage", "--month", "2026-13"]).ended(2).says(&["not a month: --month 2026-13"]);
        database.run(&["usage", "off"]).ended(0);
        assert_eq!(database.run(&["usage", "--plan", "free", "--json"]).ended(0).json(), used, "{engine:?}: it stays");
    }
}
