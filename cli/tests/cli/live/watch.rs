//! `tollgate watch`.

use tollgate::{
    Key, SqliteStore,
    store::{Durability, Maintenance},
};

use super::pty::Pty;
use crate::command::{Ran, tollgate};
use crate::databases::{Database, EACH, Engine};

/// A bucket that is used up in part, and for good.
fn take(database: &Database, key: &str, quota: &str, tokens: &str) {
    database.run(&["take", key, "--quota", quota, "--cost", tokens]).ended(0);
}

#[test]
fn single_read_is_a_table_on_every_engine() {
    for engine in EACH {
        let database = Database::migrated(engine);
        for (key, quota, tokens) in [
            ("a", "1000 once", "20"),
            ("b", "10 once", "10"),
            ("c\u{1b}[2J", "100 once", "5"),
            ("other", "1 once", "1"),
        ] {
            take(&database, &format!("user:{key}").replace("user:other", "other"), quota, tokens);
        }
        let look =
            |more: &[&str]| database.run(&[&["watch", "--once", "--prefix", "user:"], more].concat()).ended(0).out;
        let heading = "key              limit      available  granted  denied  full in\n";
        let a = "user:a           1000 once        980       20\n";
        let b = "user:b           10 once            0       10\n";
        let c = "user:c\\u{1b}[2J  100 once          95        5\n";
        let uncounted = "no denials counted in 24h: services do so by LimiterBuilder::count_denials\n";
        assert_eq!(look(&[]), [heading, a, b, c, uncounted].concat());
        assert_eq!(look(&["--sort", "emptiest"]), [heading, b, c, a, uncounted].concat());
        assert_eq!(look(&["--sort", "key"]), [heading, a, b, c, uncounted].concat());
        // Of more than it may print, those that come first, wherever they are.
        let more = "… and 2 more: these are emptiest first; choose by --prefix\n";
        let first = "key     limit    available  granted  denied  full in\nuser:b  10 once          0       10\n";
        assert_eq!(look(&["--limit", "1", "--sort", "emptiest"]), [first, more, uncounted].concat());
        assert_eq!(
            database.run(&["watch", "--once", "--prefix", "none"]).ended(0).out,
            "no bucket's key begins with 'none'\n".to_owned() + uncounted
        );
        // Without a terminal, `watch` reads once, too.
        assert_eq!(database.run(&["watch", "--prefix", "user:"]).ended(0).out, look(&[]));
    }
}

#[test]
fn unreadable_database_is_reported_before_the_screen_opens() {
    let database = Database::empty(Engine::Postgres);
    database.run(&["watch"]).ended(78).says(&["tollgate migrate"]);
    let database = Database::migrated(Engine::Sqlite);
    for (arguments, expected) in [
        (["--interval", "1ms"], "100ms to 1h"),
        (["--interval", "2h"], "100ms to 1h"),
        (["--interval", "soon"], "soon"),
        (["--limit", "0"], "from 1 to 100000"),
        (["--prefix", ""], "empty"),
        (["--sort", "colour"], "hottest, emptiest, denied, key"),
    ] {
        let ran = database.run(&[&["watch", "--once"], &arguments[..]].concat());
        assert_eq!(ran.ended(2).says(&[expected]).out, "");
    }
}

#[test]
fn screen_shows_changes_and_restores_the_terminal() -> anyhow::Result<()> {
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let database = Database::migrated(engine);
        take(&database, "user:early", "10 once", "3");
        let mut pty = Pty::start(&database, "watch --interval 100ms")?;
        pty.shows("user:early")?;
        if engine == Engine::Sqlite {
            pty.shows("sqlite:app.db")?;
        }
        pty.shows("no denials counted in 24h: services do so by LimiterBuilder::count_denials")?;
        take(&database, "user:late", "10 once", "3");
        pty.shows("user:late")?;
        pty.press("/LATE")?;
        pty.shows("filter: ")?;
        pty.press("\r")?;
        pty.shows("'LATE',")?;
        pty.press("p")?;
        pty.shows(" PAUSED ")?;
        pty.press("q")?;
        let (sent, status) = pty.end()?;
        assert!(status.success(), "{status}");
        assert_given_back(&sent);
    }
    Ok(())
}

#[test]
fn role_without_access_to_denials_is_reported() {
    let database = Database::migrated(Engine::Postgres);
    take(&database, "a", "10 once", "3");
    let role = format!("tollgate_live_{}", uuid::Uuid::new_v4().simple());
    database.sql(&format!(
        "create role {role} login; grant usage on schema tollgate to {role};
         grant execute on all functions in schema tollgate to {role};
         grant select on tollgate.token_bucket_levels to {role}"
    ));
    let mut command = tollgate(Some(&database.url_of(&role)), &database.directory);
    let ran = command.args(["watch", "--once"]).output().expect("it starts");
    database.sql(&format!("drop owned by {role}; drop role {role}"));
    let shown = Ran::new(ran).ended(0).out;
    assert!(shown.contains("a    10 once"), "{shown}");
    assert!(shown.ends_with("this role cannot see denials: run `tollgate migrate --print grants` again\n"));
}

#[test]
fn unsupported_terminal_is_reported_with_an_alternative() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Sqlite);
    // Neither its input nor a terminal of its session brings keys.
    let (sent, status) = Pty::start_by(&database, "setsid --wait", "watch < /dev/null")?.end()?;
    assert!(sent.contains("this terminal cannot show the screen") && sent.contains("use --once"), "{sent:?}");
    assert_eq!(status.code(), Some(70));
    Ok(())
}

#[test]
fn a_signal_gives_the_terminal_back() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Sqlite);
    take(&database, "user:1", "10 once", "3");
    for (signal, code) in [("HUP", 129), ("INT", 130), ("TERM", 143)] {
        let pty = Pty::start(&database, "watch")?;
        pty.shows("user:1")?;
        pty.kill(signal)?;
        let (sent, status) = pty.end()?;
        assert_eq!(status.code(), Some(code), "{signal}");
        assert_given_back(&sent);
    }
    Ok(())
}

#[test]
fn database_failure_is_shown_on_the_screen() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Postgres);
    take(&database, "user:1", "10 once", "3");
    let mut pty = Pty::start(&database, "watch --interval 100ms")?;
    pty.shows("user:1")?;
    database.sql("alter schema tollgate rename to elsewhere");
    pty.shows("no newer read: ")?;
    database.sql("alter schema elsewhere rename to tollgate");
    take(&database, "user:again", "10 once", "3");
    pty.shows("user:again")?;
    pty.press("q")?;
    let (sent, status) = pty.end()?;
    assert!(status.success(), "{status}");
    assert_given_back(&sent);
    Ok(())
}

#[test]
fn most_denied_order_spans_keys_without_bucket() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Sqlite);
    take(&database, "a", "10 once", "1");
    take(&database, "b", "10 once", "10");
    let denials = [("a", 1), ("b", 41), ("c", 99)].map(|(key, denied)| (Key::try_from(key).expect("a key"), denied));
    tokio::runtime::Runtime::new()?.block_on(async {
        let url = format!("sqlite:{}", database.directory.join("app.db").display());
        let store = SqliteStore::connect(&url, Durability::Synchronous)?;
        store.count_denials(&denials).await
    })?;
    let shown = database.run(&["watch", "--once", "--limit", "1", "--sort", "denied"]).ended(0).out;
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["c", "no", "bucket", "99"]);
    assert!(shown.ends_with("… and 2 more: these are most denied first; choose by --prefix\n"), "{shown}");
    Ok(())
}

#[test]
fn large_table_rotates_and_keeps_top_rows() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Postgres);
    let buckets = (0..200).map(|n| format!("('key:{n:03}', 100, 1000000)")).chain([
        "('alpha', 100, 1000000)".to_owned(),
        "('mmmmm', 100, 1000000)".to_owned(),
        "('zzzzz', 100, 1000000)".to_owned(),
    ]);
    let buckets = buckets.collect::<Vec<_>>().join(", ");
    database.sql(&format!("insert into tollgate.token_buckets (id, capacity, refill_seconds) values {buckets}"));
    for (key, tokens) in [("alpha", "10"), ("mmmmm", "99"), ("zzzzz", "98")] {
        database.run(&["take", key, "--cost", tokens]).ended(0);
    }
    let first = database.run(&["watch", "--once", "--sort", "emptiest", "--limit", "3"]).ended(0).out;
    let keys: Vec<_> = first.lines().skip(1).take(3).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(keys, ["mmmmm", "zzzzz", "alpha"]);
    // Reads ten at once, of which five are new. Only what changes on the screen is sent: these share no letter with others.
    let mut pty = Pty::start(&database, "watch --interval 100ms --limit 10 --sort emptiest")?;
    for shown in ["alpha", "mmmmm", "zzzzz"] {
        pty.shows(shown)?;
    }
    pty.press("q")?;
    let (_, status) = pty.end()?;
    assert!(status.success(), "{status}");
    Ok(())
}

/// The other screen was shown and left, and the cursor is there again.
fn assert_given_back(sent: &str) {
    let (entered, left) = (sent.find("\x1b[?1049h"), sent.rfind("\x1b[?1049l"));
    assert!(entered.is_some() && entered < left, "{sent:?}");
    assert!(sent.rfind("\x1b[?25h") > sent.rfind("\x1b[?25l"), "{sent:?}");
}
