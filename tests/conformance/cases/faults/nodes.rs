//! Several nodes of a database, of which one is away.

use anyhow::ensure;
use sqlx::ConnectOptions;
use tollgate::{PgStore, Quota, Rule, Store, Take, store::Durability};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres && !engine.is_pooled(), ..Setup::WITHOUT_LAYERS };
        a_node_without_a_network_is_passed_over,
    )
}

async fn a_node_without_a_network_is_passed_over(db: TestDb) -> anyhow::Result<()> {
    let AnyPool::Postgres(pool) = &db.pool else { anyhow::bail!("the engine is PostgreSQL") };
    let live = pool.connect_options().to_url_lossy().to_string();
    // No route leads to a broadcast address.
    let away = "postgres://postgres@255.255.255.255/postgres";
    for nodes in [[&*live, away], [away, &*live]] {
        let take = Take::from(db.key()).rule(Rule::Quota(Quota::once(2)?));
        let store = PgStore::connect_nodes(&nodes, Durability::Asynchronous)?.max_connections(2);
        for granted in [true, true, false] {
            let decision = store.take_one(&take).await??;
            ensure!(decision.is_granted() == granted, "{nodes:?}: {decision:?}");
        }
        store.pool().close().await;
    }
    Ok(())
}
