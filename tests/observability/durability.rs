//! Commits that are less durable than requested.

use std::env;

use tollgate::{MySqlStore, store::Durability};
use tollgate_tests::logged;

#[tokio::test]
async fn lower_server_durability_is_logged_once() -> anyhow::Result<()> {
    logged::listen();
    for variable in ["TOLLGATE_MYSQL_URL", "TOLLGATE_MARIADB_URL"] {
        let url = env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: scripts/servers start, then eval \"$(scripts/servers env)\"")
        });
        let warnings = |log: &str| {
            let of_it = log.lines().filter(|line| line.contains("less durable than was asked for"));
            of_it.map(str::to_owned).collect::<Vec<_>>()
        };
        for durability in [Durability::Asynchronous, Durability::Synchronous] {
            let before = logged::text().len();
            let store = MySqlStore::connect(&url, durability)?;
            // Takes two connections.
            let (mut one, _other) = (store.pool().acquire().await?, store.pool().acquire().await?);
            let settings = "select @@innodb_flush_log_at_trx_commit = 1 and (not @@log_bin or @@sync_binlog = 1)";
            let durable: bool = sqlx::query_scalar(settings).fetch_one(&mut *one).await?;
            let warnings = warnings(&logged::text()[before..]);
            let expected = usize::from(durability == Durability::Synchronous && !durable);
            assert_eq!(warnings.len(), expected, "{variable}, {durability:?}: {warnings:?}");
            let is_complete =
                |line: &String| line.contains(" WARN ") && line.contains("innodb_flush_log_at_trx_commit is ");
            assert!(warnings.iter().all(is_complete), "{warnings:?}");
        }
    }
    Ok(())
}
