//! Passwords in URLs.

use tollgate::{MySqlStore, PgStore, SqliteStore, store::Durability};

use crate::logged;

#[tokio::test]
async fn unknown_parameter_of_a_url_reaches_no_log() -> anyhow::Result<()> {
    logged::listen();
    let before = logged::text().len();
    let parameters = "pass=tr0ub4dor&passw%6Frd=tr0ub4dor&tr0ub4dor";
    PgStore::connect(&format!("postgres://app@localhost:1/app?sslmode=disable&{parameters}"), Durability::Synchronous)?;
    MySqlStore::connect(&format!("mysql://app@localhost:1/app?{parameters}"), Durability::Synchronous)?;
    let refused = SqliteStore::connect("sqlite:none.db?pass=tr0ub4dor", Durability::Synchronous);
    let refused = format!("{:?}", refused.map(drop).expect_err("SQLite's driver refuses what it does not know"));
    let told = logged::text().split_off(before) + &refused;
    assert!(!told.contains("tr0ub4dor"), "{}", told.replace("tr0ub4dor", "[it]"));
    let ignored = "unknown parameters of the database's URL are ignored engine=\"postgres\" parameters=3";
    assert!(told.contains(" WARN ") && told.contains(ignored), "{told}");
    Ok(())
}
