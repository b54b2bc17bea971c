//! `tollgate list`: which buckets, and in which order.

use crate::clients;
use crate::databases::{Database, EACH, Engine};

/// The keys that are listed, with a space between them.
fn keys(database: &Database, arguments: &[&str]) -> String {
    let listed = database.run(&[&["list", "--json"], arguments].concat()).ended(0).json();
    let levels = listed.as_array().expect("an array").iter();
    levels.map(|level| level["key"].as_str().expect("a key")).collect::<Vec<_>>().join(" ")
}

#[test]
fn list_sorts_in_the_requested_order() {
    for engine in EACH {
        let database = Database::migrated(engine);
        database.run(&["create", "full", "--quota", "3/d"]).ended(0);
        for (key, quota, tokens) in
            [("soon", "10/d", "2"), ("never", "10 once", "7"), ("late", "10/d", "9"), ("later", "1/d burst 5", "1")]
        {
            database.run(&["take", key, "--quota", quota, "--cost", tokens]).ended(0);
        }
        for (sort, in_order) in [
            ("key", ["full", "late", "later", "never", "soon"]),
            ("available", ["late", "full", "never", "later", "soon"]),
            ("granted", ["late", "never", "soon", "later", "full"]),
            ("full", ["never", "later", "late", "soon", "full"]),
        ] {
            let sorted = |more: &[&str]| keys(&database, &[&["--sort", sort], more].concat());
            assert_eq!(sorted(&[]), in_order.join(" "), "by {sort} on {engine:?}");
            assert_eq!(sorted(&["--limit", "2"]), in_order[..2].join(" "), "by {sort} on {engine:?}");
            let reversed: Vec<_> = in_order.into_iter().rev().collect();
            assert_eq!(sorted(&["--reverse"]), reversed.join(" "), "by {sort}, reversed, on {engine:?}");
            assert_eq!(sorted(&["--reverse", "--limit", "1"]), reversed[0], "by {sort}, reversed, on {engine:?}");
        }
        assert_eq!(keys(&database, &[]), keys(&database, &["--sort", "key"]));
    }
}

#[test]
fn list_shows_only_the_requested_buckets() {
    for engine in EACH {
        let database = Database::migrated(engine);
        for plan in ["free", "paid"] {
            database.run(&["plan", "set", plan, "--quota", "10/h"]).ended(0);
        }
        for (key, plan) in [("user:1", "free"), ("user:2", "paid"), ("tenant:1", "free")] {
            database.run(&["take", key, "--plan", plan]).ended(0);
        }
        database.run(&["create", "user:api", "--quota", "3/d"]).ended(0);
        for (arguments, listed) in [
            (&["--plan", "free"][..], "tenant:1 user:1"),
            (&["--plan", "free", "--prefix", "user:"], "user:1"),
            (&["--plan", "free", "--sort", "available", "--reverse"], "user:1 tenant:1"),
            (&["--plan", "none"], ""),
            (&["--plan", "free", "--provisioned"], ""),
            (&["--provisioned"], "user:api"),
            (&["--first-use", "--limit", "0"], "tenant:1 user:1 user:2"),
            (&["--prefix", "user:"], "user:1 user:2 user:api"),
        ] {
            assert_eq!(keys(&database, arguments), listed, "{arguments:?} on {engine:?}");
        }
        database.run(&["list", "--plan", "none"]).ended(0).says(&["no buckets match these options\n"]);
    }
}

#[test]
fn sliding_windows_are_listed_by_themselves() {
    for engine in EACH {
        let database = Database::migrated(engine);
        for (key, tokens) in [("/a", "1"), ("/b", "9"), ("/c", "5"), ("other", "2")] {
            database.run(&["take", key, "--quota", "9 in 1d at 1h", "--cost", tokens]).ended(0);
        }
        database.run(&["create", "/bucket", "--quota", "3/d"]).ended(0);
        for (arguments, listed) in [
            (&[][..], "/a /b /c other"),
            (&["--prefix", "/"], "/a /b /c"),
            (&["--limit", "2"], "/a /b"),
            (&["--sort", "available"], "/b /c other /a"),
            (&["--sort", "granted", "--reverse", "--limit", "1"], "/a"),
            (&["--sort", "full", "--limit", "1"], "/b"),
            (&["--prefix", "/bucket"], ""),
        ] {
            let arguments = [&["--windows"], arguments].concat();
            assert_eq!(keys(&database, &arguments), listed, "{arguments:?} on {engine:?}");
        }
        let listed = database.run(&["list", "--windows", "--prefix", "/b", "--json"]).ended(0).json();
        let peeked = database.run(&["peek", "/b", "--json"]).ended(0).json();
        for field in ["key", "window", "counted", "available", "granted"] {
            assert_eq!(listed[0][field], peeked[0][field], "{field} on {engine:?}");
        }
        let table = database.run(&["list", "--windows"]).ended(0).out;
        assert!(table.starts_with("key    counted  sliding window"), "{table}");
        database
            .run(&["list", "--windows", "--prefix", "none"])
            .ended(0)
            .says(&["no sliding windows match these options\n"]);
        database.run(&["list", "--windows", "--plan", "free"]).ended(2).says(&["cannot be used with"]);
    }
}

#[test]
fn truncated_list_says_what_is_left_out() {
    let database = Database::migrated(Engine::Sqlite);
    for key in ["a", "b", "c"] {
        database.run(&["create", key, "--quota", "1/s"]).ended(0);
    }
    database.run(&["list", "--limit", "2"]).ended(0).says(&["… and more", "`--limit 0` lists all"]);
    for all in ["3", "0", "18446744073709551615"] {
        let ran = database.run(&["list", "--limit", all]).ended(0);
        assert!(!ran.out.contains("more") && ran.out.lines().count() == 4, "{ran:?}");
    }
}

#[test]
fn json_list_is_complete_without_a_limit() {
    let database = Database::migrated(Engine::Sqlite);
    let rows = (0..101).map(|n| format!("('k{n}', 1, 1)")).collect::<Vec<_>>().join(", ");
    let insert = format!("insert into token_buckets (id, capacity, refill_seconds) values {rows}");
    clients::run(&database, &[insert]);
    for (limit, listed, more) in [
        (&[][..], 101, false),
        (&["--limit", "0"], 101, false),
        (&["--limit", "101"], 101, false),
        (&["--limit", "100"], 100, true),
    ] {
        for sort in ["key", "available"] {
            let ran = database.run(&[&["list", "--json", "--sort", sort], limit].concat()).ended(0);
            assert_eq!(ran.err.contains("… and more"), more, "{limit:?}: {}", ran.err);
            assert_eq!(ran.json().as_array().map(Vec::len), Some(listed), "{limit:?} by {sort}");
        }
    }
    // For people it is as much as they read.
    let ran = database.run(&["list"]).ended(0).says(&["… and more: `--limit 0` lists all"]);
    assert_eq!(ran.out.lines().count(), 102);
}

#[test]
fn older_sqlite_shell_reads_the_values_of_the_views() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "bucket", "--quota", "5 once", "--cost", "3"]).ended(0);
    database.run(&["take", "window", "--quota", "5 in 1d at 1h", "--cost", "4"]).ended(0);
    database.run(&["mode", "shadow", "--all", "--for", "1d"]).ended(0);
    database.run(&["mode", "block", "--key", "user", "--for", "1d"]).ended(0);
    let sqlite = |sql| clients::sqlite_shell(&database, sql);
    sqlite("insert into token_buckets (id, capacity, refill_seconds) values ('provisioned', 2, 1)");
    sqlite(
        "insert into token_overrides (id, mode, reason, expires_at) values ('past', 'off', '', '2001-01-01 00:00:00')",
    );
    assert_eq!(sqlite("select id, available from token_bucket_levels order by id"), "bucket|2\nprovisioned|2\n");
    assert_eq!(sqlite("select id, counted, available from token_window_levels"), "window|4|1\n");
    assert_eq!(sqlite("select kind, name, mode from token_rules"), "all||shadow\noverride|user|block\n");
    // Where the shell is newer than 3.42, which first knew it.
    assert!(!sqlite("select sql from sqlite_schema").contains("subsec"));
}

#[test]
fn unreadable_rows_are_skipped_with_a_warning() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "user:1", "--quota", "3/d"]).ended(0);
    database.sql(
        "pragma ignore_check_constraints = on;
         insert into token_buckets (id, capacity, refill_seconds) values (cast(x'ff' as text), 1, 1), ('zero', 0, 1);
         insert into token_plans (name, capacity, refill_seconds) values ('zero', 0, 1);
         insert into token_windows (id, max_requests, interval_ns, resolution_ns, counts, empty_at, granted)
         values ('zero', 0, 1, 1, '', 0, 1);
         insert into token_stats (hour, id, denied, last_denied_at)
         select datetime('now'), ids.id, 1, datetime('now') from (select 'user:1' as id union all select char(1)) ids",
    );
    for (arguments, rows, listed) in [
        (&["list"][..], "2 rows cannot be read and are not listed", "user:1"),
        (&["list", "--sort", "available"], "2 rows cannot be read and are not listed", "user:1"),
        (&["list", "--windows", "--json"], "1 row cannot be read and is not listed", "[]"),
        (&["denied"], "1 row cannot be read and is not listed", "user:1"),
        (&["plan", "list", "--json"], "1 row cannot be read and is not listed", "[]"),
        (&["watch", "--once"], "3 rows cannot be read and are not listed", "user:1"),
    ] {
        let ran = database.run(arguments).ended(0);
        assert!(ran.out.contains(listed), "{arguments:?}: {}", ran.out);
        let warning =
            format!("warning: {rows}\nhint: run `tollgate doctor`: it names the tables that hold such rows\n");
        assert_eq!(ran.err, warning, "{arguments:?}");
    }
    assert_eq!(keys(&database, &[]), "user:1");
    database.run(&["peek", "zero"]).ended(69).says(&["error: the row of 'zero' breaks its bounds", "hint: run"]);
    database.run(&["doctor"]).ended(0).says(&[
        "2 rows of token_buckets cannot be read",
        "1 row of token_windows cannot be read",
        "1 row of token_stats cannot be read",
    ]);
}

#[test]
fn unreadable_mode_and_override_are_replaced_by_commands() {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["plan", "set", "free", "--quota", "9/h"]).ended(0);
    database.run(&["plan", "override", "user:1", "--quota", "5/h"]).ended(0);
    database.sql(
        "update token_plans set mode = 'off', mode_reason = cast(x'ff' as text);
         update token_mode set mode = 'shadow', reason = cast(x'ff' as text);
         insert into token_overrides (id, mode, reason)
         select id, 'block', cast(x'ff' as text) from (select 'user:2' as id union all select 'user:3')",
    );
    database.run(&["mode"]).ended(69).says(&["error: the row of 'token_mode' breaks its bounds", "hint: run"]);
    database.run(&["explain", "user:2"]).ended(69).says(&["error: the row of 'user:2' breaks its bounds"]);
    database.run(&["doctor"]).says(&[
        "1 row of token_mode cannot be read",
        "1 row of token_plans cannot be read",
        "2 rows of token_overrides cannot be read",
    ]);

    // The override of user:1 is readable, even if the global mode is not: its limit stays.
    database.run(&["mode", "off", "--key", "user:1"]).ended(0).says(&["override 5/h, mode off; it was 5/h"]);
    database.run(&["mode", "off", "--key", "user:2"]).ended(0).says(&["user:2: override mode off\n"]);
    database.run(&["plan", "override", "user:3", "--clear"]).ended(0).says(&["user:3: override taken away\n"]);
    let enforced = database.run(&["mode", "enforce", "--all"]).ended(0);
    assert_eq!(enforced.out, "all: enforce; the previous mode cannot be read\n");
    let enforced = database.run(&["mode", "enforce", "--plan", "free"]).ended(0);
    assert_eq!(enforced.out, "plan free: enforce; the previous mode cannot be read\n");
    database.run(&["explain", "user:2"]).ended(0).says(&["off"]);
    assert!(!database.run(&["doctor"]).ended(0).out.contains("cannot be read"));
}

#[test]
fn infinite_times_are_read_on_postgres() {
    let database = Database::migrated(Engine::Postgres);
    for end in ["infinity", "-infinity"] {
        database.sql(&format!(
            "truncate tollgate.token_stats, tollgate.token_plans, tollgate.token_overrides;
             insert into tollgate.token_stats values (now(), 'user:1', 3, '{end}');
             insert into tollgate.token_plans (name, capacity, refill_seconds, mode, mode_until)
             values ('free', 1, 1, 'off', '{end}');
             insert into tollgate.token_overrides (id, mode, reason, expires_at) values ('user:1', 'off', '', '{end}');
             update tollgate.token_mode set mode = 'shadow', until = '{end}'"
        ));
        for arguments in [
            &["denied"][..],
            &["watch", "--once"],
            &["mode", "--json"],
            &["plan", "list", "--json"],
            &["plan", "overrides", "--json"],
            &["explain", "user:1"],
        ] {
            let ran = database.run(arguments);
            assert_eq!((ran.code, &*ran.err), (0, ""), "{arguments:?} until {end}: {ran:?}");
        }
    }
}
