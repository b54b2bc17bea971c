//! Commands that replace or remove a limit or a mode print the previous one, and its consequence for buckets.

use crate::databases::{Database, EACH, Engine};

#[test]
fn deleting_a_plan_lists_affected_buckets_and_how_to_restore() {
    for engine in EACH {
        let database = Database::migrated(engine);
        for plan in ["gold", "unused"] {
            database.run(&["plan", "set", plan, "--quota", "5/h burst 7"]).ended(0);
        }
        for key in ["a", "b"] {
            database.run(&["take", key, "--plan", "gold"]).ended(0);
        }
        database.run(&["create", "c", "--quota", "9/h"]).ended(0);
        database.run(&["doctor"]).ended(0).says(&["ok    plans", "each plan that a bucket follows exists"]);
        database.run(&["mode", "block", "--plan", "unused", "--reason", "abuse"]).ended(0);
        let unused = database.run(&["plan", "delete", "unused"]).ended(0);
        assert_eq!(unused.out, "plan unused: deleted; it was 5/h burst 7, mode block: abuse\n");

        database.run(&["mode", "shadow", "--plan", "gold", "--for", "1h", "--reason", "it's 'abuse'"]).ended(0);
        let again = "tollgate plan set --quota '5/h burst 7' gold";
        let refused = database.run(&["plan", "delete", "gold"]).ended(2);
        refused.says(&["error: plan gold is not deleted: 2 buckets follow it\nhint: add --force"]);
        database.run(&["plan", "list"]).ended(0).says(&["gold"]);
        let deleted = database.run(&["plan", "delete", "gold", "--force"]).ended(0).out;
        let reported = "2 buckets follow it: their requests fail from now on; to make it again: ";
        let (_, undo) = deleted.split_once(reported).expect("the commands");
        assert!(undo.starts_with(&format!("{again} && tollgate mode shadow --plan=gold --for='59m ")), "{undo}");
        let failed = database.run(&["explain", "a"]).ended(0);
        failed.says(&[
            "limit      none: its plan 'gold' is not there\n",
            "would fail: there is no plan 'gold'; `",
            again,
        ]);
        let why = database.run(&["explain", "a", "--json"]).ended(0).json();
        assert_eq!((&why["plan"], &why["expected_outcome"]), (&"gold".into(), &"unknown plan".into()));
        database.run(&["explain", "c", "--plan", "none"]).ended(0).says(&["none: the plan 'none' is not there"]);
        let hint = "`tollgate explain a` shows which plan";
        database.run(&["take", "a"]).ended(64).says(&["follows a plan that is not there any more", hint]);
        let found = "2 buckets follow plans that are not there, and requests for them fail: gold (2)";
        let remedy = "tollgate plan set --quota QUOTA gold";
        database.run(&["doctor"]).ended(0).says(&["warn  plans", found, remedy, "tollgate list --plan NAME"]);

        database.shell(undo);
        let gold = database.run(&["plan", "list", "--json"]).ended(0).json()[0].clone();
        let restored = ["quota", "mode", "mode_reason"].map(|field| gold[field].clone());
        assert_eq!(restored, ["5/h burst 7", "shadow", "it's 'abuse'"].map(serde_json::Value::from), "{engine:?}");
        database.run(&["take", "a"]).ended(0);
        database.run(&["doctor"]).ended(0).says(&["ok    plans"]);
    }
}

#[test]
fn replaced_value_is_reported() {
    for engine in EACH {
        let database = Database::migrated(engine);
        let says = |arguments: &[&str], printed: &str| {
            assert_eq!(database.run(arguments).ended(0).out.lines().next(), Some(printed), "{engine:?}");
        };
        says(&["plan", "set", "free", "--quota", "10/s"], "plan free: 10/s");
        says(&["plan", "set", "free", "--quota", "20/s"], "plan free: 20/s; it was 10/s");
        says(&["mode", "off", "--plan", "free", "--reason", "test"], "plan free: off: test");
        says(&["mode", "shadow", "--plan", "free"], "plan free: shadow; it was off: test");
        says(&["mode", "--clear", "--plan", "free"], "plan free: that of all; it was shadow");
        says(&["mode", "--clear", "--all"], "all: enforce");
        says(&["mode", "shadow", "--all", "--reason", "incident 42"], "all: shadow: incident 42");
        says(&["mode", "block", "--all"], "all: block; it was shadow: incident 42");
        says(&["mode", "--clear", "--all"], "all: enforce; it was block");
    }
}

#[test]
fn override_keeps_its_end_unless_another_is_given() {
    let database = Database::migrated(Engine::Sqlite);
    let end = || {
        let shown = database.run(&["plan", "overrides", "--json"]).ended(0).json();
        shown[0]["override_until"].clone()
    };
    let block = ["mode", "block", "--key", "a"];
    let limit = ["plan", "override", "a", "--quota", "5/s"];
    for (first, second, kept) in [(&block[..], &limit[..], "mode block"), (&limit, &block, "limit 5/s")] {
        database.run(&[first, &["--for", "1h"]].concat()).ended(0);
        let hour = end();
        assert_eq!(database.run(second).ended(0).err, "");
        assert_eq!(end(), hour, "{second:?}");
        database
            .run(&[second, &["--for", "2h"]].concat())
            .ended(0)
            .says(&[&format!("note: the end of {kept} changes too, from 2"), "UTC: an override has one end"]);
        assert_ne!(end(), hour, "{second:?}");
        database.run(&["plan", "override", "a", "--clear"]).ended(0);
        database.run(&["mode", "--clear", "--key", "a"]).ended(0);
    }
}

#[test]
fn create_reports_kept_tokens_or_no_change() {
    for engine in EACH {
        let database = Database::migrated(engine);
        let creates = |key: &str, quota: &str, printed: &str| {
            let out = database.run(&["create", key, "--quota", quota]).ended(0).out;
            assert_eq!(out, format!("bucket {key}: {quota}{printed}\ntry it: tollgate take {key}\n"), "{engine:?}");
        };
        creates("a", "7/h", "");
        creates("a", "7/h", "; unchanged");
        database.run(&["take", "a", "--cost", "4"]).ended(0);
        creates("a", "9/h", "; it was 7/h; it keeps its tokens");
        database.run(&["take", "a", "--cost", "3"]).ended(0);
        database.run(&["take", "a", "--cost", "3"]).ended(75);
        database.run(&["take", "first", "--quota", "7/h"]).ended(0);
        creates("first", "7/h", "; its first request had made it; it keeps its tokens");
        database.run(&["plan", "set", "free", "--quota", "5/h"]).ended(0);
        database.run(&["take", "follows", "--plan", "free"]).ended(0);
        creates("follows", "7/h", "; it followed plan free; it keeps its tokens");
        database.run(&["plan", "override", "a", "--quota", "1000/h"]).ended(0);
        creates("a", "8/h", "; an override still holds, 1000/h; it keeps its tokens");
    }
}

#[test]
fn repeated_request_with_id_takes_nothing() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["create", "a", "--quota", "5 once"]).ended(0);
        let id = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let take = |more: &[&str]| database.run(&[&["take", "a", "--cost", "2", "--id", id], more].concat());
        take(&[]).ended(0).says(&["granted"]);
        take(&["--remember", "2h"]).ended(0).says(&["granted"]);
        assert_eq!(take(&["--json"]).ended(0).json()["granted"], true);
        assert_eq!(database.run(&["peek", "a", "--json"]).ended(0).json()[0]["granted"], 2, "{engine:?}");
        // An id is that of one request.
        database.run(&["take", "a", "--cost", "3", "--id", id]).ended(64).says(&["belongs to another request"]);
        database.run(&["take", "a", "--cost", "3"]).ended(0);
        let other = ["take", "a", "--id", "67e55044-10b1-426f-9247-bb680e5fe0c9"];
        database.run(&other).ended(75);
        // A denial is not remembered.
        database.run(&["reset", "a"]).ended(0);
        database.run(&other).ended(0);
    }
    let database = Database::empty(Engine::Sqlite);
    database.run(&["take", "a", "--id", "7"]).ended(2).says(&["--id"]);
    database.run(&["take", "a", "--remember", "1h"]).ended(2).says(&["--id"]);
}
