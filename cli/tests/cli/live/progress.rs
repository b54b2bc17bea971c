//! Long commands show their progress on a terminal, and nowhere else.

use super::pty::Pty;
use crate::databases::{Database, EACH, Engine};

#[test]
fn terminal_progress_line_disappears_at_the_end() -> anyhow::Result<()> {
    for engine in EACH {
        let database = Database::empty(engine);
        for (arguments, lines) in [
            ("migrate", ["running ", " migrations run: "]),
            ("create a --quota 5/h", ["bucket a", "try it"]),
            ("list", ["1 bucket", "available"]),
            ("sweep", ["1000 rows looked at", "0 rows deleted"]),
            ("watch --once", ["1 bucket", "available"]),
            ("doctor", ["looking for buckets whose plan", "schema"]),
            ("plan delete free --force", ["looking for buckets whose plan", "1 bucket follows it"]),
        ] {
            if arguments.starts_with("plan") {
                database.run(&["plan", "set", "free", "--quota", "1/h"]).ended(0);
                database.run(&["take", "b", "--plan", "free"]).ended(0);
            }
            let (sent, status) = Pty::start(&database, arguments)?.end()?;
            assert!(status.success(), "{sent:?}");
            let (begin, end) = (sent.find(lines[0]), sent.rfind(lines[1]));
            assert!(begin.is_some() && begin < end, "{arguments} on {engine:?}: {sent:?}");
            let cleared = sent.rfind("\x1b[2K");
            assert_eq!(cleared.is_some(), !arguments.starts_with("create"), "{arguments}: {sent:?}");
            assert!(cleared < end, "{arguments} on {engine:?}: {sent:?}");
        }
    }
    Ok(())
}

#[test]
fn simulation_reports_reading_and_drawing() -> anyhow::Result<()> {
    let database = Database::empty(Engine::Sqlite);
    std::fs::write(database.directory.join("traffic.log"), "0\n1\n2\n")?;
    for arguments in ["1/s --traffic traffic.log --svg a.svg", "1/s --traffic - --svg a.svg < traffic.log"] {
        let (sent, status) = Pty::start(&database, &format!("simulate {arguments}"))?.end()?;
        assert!(status.success(), "{sent:?}");
        let reported = ["reading", "3 arrivals", "drawing", "granted"].map(|text| sent.find(text));
        assert!(reported.is_sorted() && reported[0].is_some(), "{reported:?} of {sent:?}");
        assert!(sent.rfind("\x1b[2K") < reported[3], "{sent:?}");
    }
    // Typed input stays visible.
    let mut pty = Pty::start(&database, "simulate 1/s --traffic -")?;
    pty.press("0\n\x04")?;
    let (sent, status) = pty.end()?;
    assert!(status.success() && !sent.contains("reading") && sent.contains("1 arrival"), "{sent:?}");
    Ok(())
}

#[test]
fn terminal_wait_shows_its_reason() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["take", "a", "--quota", "1 per 1d"]).ended(0);
    for command in ["take a --max-wait 2d", "run a -- echo ran"] {
        let pty = Pty::start(&database, command)?;
        pty.shows("a: a token in ")?;
        pty.kill("INT")?;
        let (sent, status) = pty.end()?;
        assert_eq!(status.code(), Some(130), "{sent:?}");
        assert!(sent.rfind("a: a token in") < sent.rfind("\x1b[2K"), "{sent:?}");
        assert!(!sent.contains("ran"), "{sent:?}");
    }
    Ok(())
}

#[test]
fn progress_is_not_written_outside_a_terminal() {
    let database = Database::empty(Engine::Sqlite);
    for arguments in [
        &["migrate"][..],
        &["take", "a", "--quota", "20/s burst 1"],
        &["take", "a", "--quota", "20/s burst 1", "--max-wait", "1min"],
        &["list"],
        &["sweep"],
        &["watch", "--once"],
        &["doctor"],
        &["simulate", "1/s", "--pattern", "steady:1000/s"],
        &["simulate", "1/s", "--pattern", "steady:1000/s", "--svg", "-"],
    ] {
        let ran = database.run(arguments).ended(0);
        assert_eq!(ran.err, "", "{arguments:?}");
        assert!(!ran.out.contains('\u{1b}') && !ran.out.is_empty(), "{ran:?}");
    }
}

#[test]
fn redirected_output_contains_no_progress() -> anyhow::Result<()> {
    let database = Database::migrated(Engine::Sqlite);
    database.run(&["create", "a", "--quota", "5/h"]).ended(0);
    let (sent, status) = Pty::start(&database, "list --json > list.json")?.end()?;
    assert!(status.success() && sent.contains("1 bucket"), "{sent:?}");
    let file = std::fs::read_to_string(database.directory.join("list.json"))?;
    assert_eq!(file, database.run(&["list", "--json"]).ended(0).out);
    Ok(())
}
