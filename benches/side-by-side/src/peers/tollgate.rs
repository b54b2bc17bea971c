use std::sync::Arc;

use sqlx::Pool;
use tollgate::{Key, Limiter, LimiterBuilder, MemoryStore, Quota, Rule, Store, Take, layers::LeaseOptions};

use crate::engine::Engine;
use crate::peer::Peer;
use crate::scene::Scene;
use crate::system::Kind;
use crate::workload::{BucketLimits, Workload};

/// tollgate as its users have it: a limiter over a store.
pub(crate) struct Tollgate<S: Store> {
    limiter: Limiter<S>,
    rule: Rule,
    keys: Arc<[Key]>,
    scene: Scene,
}

impl<S: Store> Tollgate<S> {
    pub(super) fn open(store: S, scene: &Scene, kind: Kind) -> anyhow::Result<Self> {
        let (limiter, rule) = (limiter(store, scene, kind)?, rule(scene.workload.bucket_limits)?);
        Ok(Self { limiter, rule, keys: keys(&scene.names)?, scene: scene.clone() })
    }
}

/// Builds a limiter with the users' defaults.
pub(crate) fn limiter<S: Store>(store: S, scene: &Scene, kind: Kind) -> anyhow::Result<Limiter<S>> {
    let builder = with(Limiter::builder(store), scene.workload, kind);
    Ok(builder.build(rule(scene.workload.bucket_limits)?)?)
}

/// Sets the options that differ from the users' defaults.
fn with<S: Store>(builder: LimiterBuilder<S>, workload: &Workload, kind: Kind) -> LimiterBuilder<S> {
    let builder = match kind {
        Kind::Leased => builder.lease(LeaseOptions::default().target(workload.lease)),
        Kind::Unbatched => builder.without_batching(),
        _ => builder,
    };
    if workload.denials_cached { builder } else { builder.without_deny_cache() }
}

impl<S: Store> Peer for Tollgate<S> {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        if self.scene.workload.limits == 1 {
            return Ok(self.limiter.allow(&self.keys[key as usize]).await?.is_granted());
        }
        let mut keys = self.scene.each(key).map(|key| self.keys[key].clone());
        let Some(first) = keys.next() else { return Ok(true) };
        let take = keys.fold(Take::from(first).rule(self.rule.clone()), |take, key| take.and(key, self.rule.clone()));
        Ok(self.limiter.decide(&take).await?.is_granted())
    }
}

/// tollgate on a SQL engine, with the pool to close.
pub(crate) struct OnSql<S: Store, E: Engine> {
    tollgate: Tollgate<S>,
    pool: Pool<E>,
}

impl<S: Store, E: Engine> OnSql<S, E> {
    pub(crate) fn open(store: S, pool: Pool<E>, scene: &Scene, kind: Kind) -> anyhow::Result<Self> {
        Ok(Self { tollgate: Tollgate::open(store, scene, kind)?, pool })
    }
}

impl<S: Store, E: Engine> Peer for OnSql<S, E> {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        self.tollgate.ask(key).await
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

/// tollgate in this process.
pub(crate) async fn memory(scene: &Scene) -> anyhow::Result<Tollgate<MemoryStore>> {
    Tollgate::open(memory_store(scene).await?, scene, Kind::Memory)
}

/// Creates a store with the buckets of the scene.
pub(crate) async fn memory_store(scene: &Scene) -> anyhow::Result<MemoryStore> {
    let store = MemoryStore::new().max_keys(2 * scene.names.len().max(1000));
    load(&store, scene, &scene.names).await?;
    Ok(store)
}

/// Creates the buckets.
pub(crate) async fn load<S: Store>(store: &S, scene: &Scene, names: &[String]) -> anyhow::Result<()> {
    let (keys, rule) = (keys(names)?, rule(scene.workload.bucket_limits)?);
    for keys in keys.chunks(256) {
        let take = |key: &Key| Take::from(key.clone()).rule(rule.clone()).cost(scene.workload.bucket_limits.used);
        let takes: Vec<Take> = keys.iter().map(take).collect();
        for outcome in store.take(&takes).await? {
            anyhow::ensure!(outcome?.is_granted(), "a new bucket is full");
        }
    }
    Ok(())
}

fn rule(bucket_limits: &BucketLimits) -> anyhow::Result<Rule> {
    Ok(quota(bucket_limits)?.into())
}

pub(crate) fn quota(bucket_limits: &BucketLimits) -> anyhow::Result<Quota> {
    Ok(Quota::continuous(bucket_limits.capacity, bucket_limits.token * u32::try_from(bucket_limits.capacity)?)?)
}

fn keys(names: &[String]) -> anyhow::Result<Arc<[Key]>> {
    Ok(names.iter().map(|name| Key::try_from(name.as_str())).collect::<Result<_, _>>()?)
}
