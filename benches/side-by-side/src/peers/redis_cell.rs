use redis::aio::ConnectionManager;
use redis::{Cmd, cmd};

use super::redis::connect;
use crate::peer::Peer;
use crate::scene::Scene;
use crate::server::Server;

/// The module redis-cell, over a multiplexed connection.
pub(crate) struct RedisCell {
    connection: ConnectionManager,
    scene: Scene,
}

impl RedisCell {
    pub(crate) async fn open(scene: &Scene) -> anyhow::Result<Self> {
        Ok(Self { connection: connect(Server::RedisCell).await?, scene: scene.clone() })
    }
}

impl Peer for RedisCell {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        let mut connection = self.connection.clone();
        let mut all = true;
        for key in self.scene.each(key) {
            let limited: Vec<i64> =
                throttle(&self.scene, &self.scene.names[key], 1).query_async(&mut connection).await?;
            all &= limited.first() == Some(&0);
        }
        Ok(all)
    }
}

/// Creates the buckets.
pub(crate) async fn load(scene: &Scene, names: &[String]) -> anyhow::Result<()> {
    let mut connection = connect(Server::RedisCell).await?;
    for names in names.chunks(1000) {
        let mut pipeline = redis::pipe();
        for name in names {
            pipeline.add_command(throttle(scene, name, scene.workload.bucket_limits.used)).ignore();
        }
        let () = pipeline.query_async(&mut connection).await?;
    }
    Ok(())
}

/// The burst of redis-cell excludes the first token, and its periods are whole seconds.
fn throttle(scene: &Scene, name: &str, tokens: u64) -> Cmd {
    let bucket_limits = scene.workload.bucket_limits;
    let period = bucket_limits.token.as_secs().max(1);
    let count = u128::from(period) * 1_000_000_000 / bucket_limits.token.as_nanos();
    let mut command = cmd("CL.THROTTLE");
    command.arg(name).arg(bucket_limits.capacity - 1).arg(count.to_string()).arg(period).arg(tokens);
    command
}
