//! What rules buckets is replaced and taken away: it is said what was there, and what becomes of the buckets.

use crate::databases::{Database, EACH, Engine};

#[test]
fn a_plan_that_is_deleted_is_told_with_the_buckets_that_fail_and_the_command_that_makes_it_again() {
    for engine in EACH {
        let database = Database::migrated(engine);
        for plan in ["gold", "unused"] {
            database.run(&["plan", "set", plan, "--quota", "5/h burst 7"]).ended(0);
        }
        for key in ["a", "b"] {
            database.run(&["take", key, "--plan", "gold"]).ended(0);
        }
        database.run(&["create", "c", "--quota", "9/h"]).ended(0);
        database.run(&["doctor"]).ended(0).says(&["ok    plans", "each that a bucket follows is there"]);
        let unused = database.run(&["plan", "delete", "unused"]).ended(0);
        assert_eq!(unused.out, "plan unused: deleted; it was 5/h burst 7\n");

        let again = "tollgate plan set --quota '5/h burst 7' gold";
        let deleted = database.run(&["plan", "delete", "gold"]).ended(0).out;
        let told = "2 buckets follow it: their requests fail from now on; to make it again: ";
        assert_eq!(deleted, format!("plan gold: deleted; it was 5/h burst 7\n{told}{again}\n"), "{engine:?}");
        let failed = database.run(&["explain", "a"]).ended(0);
        failed.says(&[
            "terms      none: its plan 'gold' is not there\n",
            "would fail: there is no plan 'gold'; `",
            again,
        ]);
        let why = database.run(&["explain", "a", "--json"]).ended(0).json();
        assert_eq!((&why["plan"], &why["prospect"]), (&"gold".into(), &"unknown plan".into()));
        database.run(&["explain", "c", "--plan", "none"]).ended(0).says(&["none: the plan 'none' is not there"]);
        let hint = "`tollgate explain a` says which";
        database.run(&["take", "a"]).ended(64).says(&["follows a plan that is not there any more", hint]);
        let found = "2 buckets follow plans that are not there, and requests for them fail: gold (2)";
        let remedy = "tollgate plan set --quota '10/s burst 20' gold";
        database.run(&["doctor"]).ended(0).says(&["warn  plans", found, remedy, "tollgate list --plan NAME"]);

        database.run(&["plan", "set", "--quota", "5/h burst 7", "gold"]).ended(0);
        database.run(&["take", "a"]).ended(0);
        database.run(&["doctor"]).ended(0).says(&["ok    plans"]);
    }
}
