//! `tollgate mode` after its time: what was set is over, and the next nearest rules.

use crate::clients;
use crate::databases::{Database, EACH, Engine};

#[test]
fn a_mode_whose_time_has_come_is_shown_as_over_and_what_rules_instead() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["plan", "set", "free", "--quota", "9/h"]).ended(0);
        database.run(&["mode", "off", "--plan", "free", "--for", "1h"]).ended(0);
        let set = |scope: &[&str]| database.run(&[&["mode", "--json"], scope].concat()).ended(0).json();
        let ended = |scope: &[&str]| {
            set(scope).as_array().expect("an array").iter().map(|set| set["mode_ended"] == true).collect::<Vec<_>>()
        };
        assert_eq!(ended(&[]), [false, false], "{engine:?}");
        over(&database, "token_plans", "mode_until");
        database.run(&["mode", "block"]).ended(0);
        database.run(&["mode"]).ended(0).says(&["all: block\nplan free: that of all (off is over)\n"]);
        database.run(&["plan", "list"]).ended(0).says(&["that of all (off is over)"]);
        assert_eq!(ended(&[]), [false, true], "{engine:?}");
        assert_eq!(ended(&["--plan", "free"]), [true]);
        assert_eq!(database.run(&["plan", "list", "--json"]).ended(0).json()[0]["mode_ended"], true);
        database.run(&["take", "a", "--plan", "free"]).ended(75).says(&["(mode block)"]);

        database.run(&["mode", "shadow", "--for", "1h"]).ended(0);
        database.run(&["doctor"]).ended(0).says(&["warn  mode", "shadow, until"]);
        over(&database, "token_mode", "until");
        database.run(&["mode"]).ended(0).says(&["all: enforce (shadow is over)\n"]);
        assert_eq!(ended(&[]), [true, true], "{engine:?}");
        assert_eq!(set(&["--key", "a"])[0]["mode"], "enforce");
        database.run(&["doctor"]).ended(0).says(&["ok    mode", "enforce"]);
    }
}

/// Its end was long ago.
fn over(database: &Database, table: &str, column: &str) {
    let schema = if database.engine == Engine::Postgres { "tollgate." } else { "" };
    clients::run(database, &[format!("update {schema}{table} set {column} = '2020-01-01 00:00:00'")]);
}
