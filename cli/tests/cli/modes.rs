//! `tollgate mode`: its targets, and what applies after the end of a mode, by the server's clock.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Connection, PgConnection};

use crate::clients;
use crate::databases::{Database, EACH, Engine};

#[test]
fn expired_mode_is_shown_with_the_effective_mode() {
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
        database.run(&["mode", "block", "--all"]).ended(0);
        database.run(&["mode"]).ended(0).says(&["all: block\nplan free: that of all (off is over)\n"]);
        database.run(&["plan", "list"]).ended(0).says(&["that of all (off is over)"]);
        assert_eq!(ended(&[]), [false, true], "{engine:?}");
        assert_eq!(ended(&["--plan", "free"]), [true]);
        assert_eq!(database.run(&["plan", "list", "--json"]).ended(0).json()[0]["mode_ended"], true);
        database.run(&["take", "a", "--plan", "free"]).ended(75).says(&["(mode block)"]);

        database.run(&["mode", "shadow", "--all", "--for", "1h"]).ended(0);
        database.run(&["doctor"]).ended(0).says(&["warn  mode", "shadow, until"]);
        over(&database, "token_mode", "until");
        database.run(&["mode"]).ended(0).says(&["all: enforce (shadow is over)\n"]);
        assert_eq!(ended(&[]), [true, true], "{engine:?}");
        assert_eq!(set(&["--key", "a"])[0]["mode"], "enforce");
        database.run(&["doctor"]).ended(0).says(&["ok    mode", "enforce"]);
    }
}

#[test]
fn mode_change_without_target_is_refused() {
    let database = Database::migrated(Engine::Sqlite);
    for (change, named, unchanged) in [
        (&["block", "--reason", "abuse"][..], "block", "all: enforce\n"),
        (&["--clear"], "--clear", "all: block: abuse\n"),
    ] {
        let refused = database.run(&[&["mode"], change].concat()).ended(2);
        refused.says(&[&format!("error: no target for the mode: {named}\nhint: add --key KEY"), "--all"]);
        assert_eq!(database.run(&["mode"]).ended(0).out, unchanged);
        database.run(&[&["mode", "--all"], change].concat()).ended(0);
    }
    database.run(&["mode", "shadow", "--key", "user:1", "--reason", "ticket 7"]).ended(0);
    assert_eq!(database.run(&["mode", "--all"]).ended(0).out, "all: enforce\n");
    assert_eq!(database.run(&["mode"]).ended(0).out, "all: enforce\nkey user:1: shadow: ticket 7\n");
    // An inherited mode is shown with its source.
    database.run(&["plan", "set", "free", "--quota", "9/h"]).ended(0);
    database.run(&["take", "q1", "--plan", "free"]).ended(0);
    let shown = |key: &str| database.run(&["mode", "--key", key]).ended(0).out;
    assert_eq!(shown("q1"), "key q1: enforce\n");
    database.run(&["mode", "off", "--all"]).ended(0);
    assert_eq!(shown("q1"), "key q1: off, from all\n");
    database.run(&["mode", "shadow", "--plan", "free", "--reason", "why"]).ended(0);
    assert_eq!(shown("q1"), "key q1: shadow, from plan free: why\n");
    assert_eq!(shown("user:1"), "key user:1: shadow: ticket 7\n");
}

#[test]
fn expiry_uses_the_server_clock() {
    let database = Database::migrated(Engine::Postgres);
    // The CLI and this test see a server clock that is an hour ahead of this host's.
    database.sql(
        "alter function pg_catalog.clock_timestamp() rename to host_clock;
         create function pg_catalog.clock_timestamp() returns timestamptz language sql
           as $$ select pg_catalog.host_clock() + interval '1 hour' $$",
    );
    for (command, show, field) in [
        (&["mode", "shadow", "--all"][..], &["mode", "--json"][..], "mode_until"),
        (&["plan", "override", "a", "--quota", "5/h"], &["plan", "overrides", "--json"], "override_until"),
    ] {
        let before = clock(&database);
        let set = database.run(&[command, &["--for", "5min"]].concat()).ended(0).says(&["(in 5m)"]);
        let after = clock(&database);
        let shown = database.run(show).ended(0).json();
        let until = shown[0][field].as_str().and_then(|until| until.parse::<DateTime<Utc>>().ok()).expect("an end");
        // It is shown in whole milliseconds.
        let began = until - TimeDelta::minutes(5);
        let range = before - TimeDelta::milliseconds(1)..=after;
        assert!(range.contains(&began), "{began} is not in {range:?}: {set:?}");
    }
    database.sql("update tollgate.token_mode set until = pg_catalog.host_clock() + interval '30 min'");
    database.sql("update tollgate.token_overrides set expires_at = pg_catalog.host_clock() + interval '30 min'");
    database.run(&["mode"]).ended(0).says(&["all: enforce (shadow is over)\n"]);
    assert_eq!(database.run(&["mode", "--json"]).ended(0).json()[0]["mode_ended"], true);
    assert_eq!(database.run(&["plan", "overrides", "--json"]).ended(0).json()[0]["override_ended"], true);
    database.run(&["plan", "overrides"]).ended(0).says(&["over"]);
    database.run(&["doctor"]).ended(0).says(&["ok    mode", "warn  clock", "ahead of this host's"]);
}

/// The server's time.
fn clock(database: &Database) -> DateTime<Utc> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let requested = runtime.block_on(async {
        let mut connection = PgConnection::connect(&database.url).await?;
        sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut connection).await
    });
    requested.unwrap_or_else(|error: sqlx::Error| panic!("{error}"))
}

/// Its end was long ago.
fn over(database: &Database, table: &str, column: &str) {
    let schema = if database.engine == Engine::Postgres { "tollgate." } else { "" };
    clients::run(database, &[format!("update {schema}{table} set {column} = '2020-01-01 00:00:00'")]);
}
