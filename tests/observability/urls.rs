//! Passwords in URLs, and URLs that are refused.

use tollgate::{MySqlStore, PgStore, SqliteStore, store::Durability};
use tollgate_tests::logged;

#[tokio::test]
async fn unknown_parameter_of_a_url_reaches_no_log() -> anyhow::Result<()> {
    logged::listen();
    let before = logged::text().len();
    let parameters = "pass=tr0ub4dor&passw%6Frd=tr0ub4dor&tr0ub4dor";
    PgStore::connect(&format!("postgres://app@localhost:1/app?sslmode=disable&{parameters}"), Durability::Synchronous)?;
    MySqlStore::connect(&format!("mysql://app@localhost:1/app?{parameters}"), Durability::Synchronous)?;
    let refused = SqliteStore::connect("sqlite:none.db?pass=tr0ub4dor", Durability::Synchronous);
    let refused = format!("{:?}", refused.map(drop).expect_err("SQLite's driver refuses what it does not know"));
    let log = logged::text().split_off(before) + &refused;
    assert!(!log.contains("tr0ub4dor"), "{}", log.replace("tr0ub4dor", "[it]"));
    let ignored = "unknown parameters of the database's URL are ignored engine=\"postgres\" parameters=3";
    assert!(log.contains(" WARN ") && log.contains(ignored), "{log}");
    Ok(())
}

#[tokio::test]
async fn in_memory_url_is_refused_with_a_hint() {
    for url in [
        "sqlite::memory:",
        "sqlite://:memory:",
        "sqlite:",
        "sqlite:%3Amemory%3A",
        "sqlite:file::memory:?cache=shared",
        "sqlite:file:a?mode=memory&cache=shared",
        "sqlite:a?mode=memory",
        "sqlite:file:/a?vfs=memdb",
    ] {
        let refused = SqliteStore::connect(url, Durability::Synchronous).map(drop).expect_err(url);
        assert!(format!("{refused:?}").contains("use MemoryStore, or name a file"), "{url}: {refused:?}");
    }
    SqliteStore::connect("sqlite:mode=memory?mode=ro", Durability::Synchronous).expect("the name of a file");
}
