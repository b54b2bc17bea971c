use anyhow::Context;
use redis::aio::ConnectionManager;
use redis::{Client, Script};

use crate::peer::Peer;
use crate::scene::Scene;
use crate::server::Server;

/// Redis as services use it: one multiplexed connection that reconnects, and a script by its hash.
pub(crate) struct AsUsersRunIt {
    connection: ConnectionManager,
    script: Script,
    scene: Scene,
    token_us: u64,
}

impl AsUsersRunIt {
    pub(crate) async fn open(server: Server, scene: &Scene) -> anyhow::Result<Self> {
        let mut connection = connect(server).await?;
        let script = Script::new(GCRA);
        script.prepare_invoke().load_async(&mut connection).await?;
        Ok(Self { connection, script, scene: scene.clone(), token_us: scene.token_us()? })
    }
}

impl Peer for AsUsersRunIt {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        let capacity = self.scene.workload.bucket_limits.capacity;
        let mut connection = self.connection.clone();
        let call = |key: usize| {
            let mut call = self.script.key(&self.scene.names[key]);
            call.arg(self.token_us).arg(capacity).arg(1);
            call
        };
        if self.scene.workload.limits == 1 {
            let (granted, _, _): Answer = call(key as usize).invoke_async(&mut connection).await?;
            return Ok(granted == 1);
        }
        // Sends one script per limit together. If one denies, the others have still granted.
        let mut pipeline = redis::pipe();
        for key in self.scene.each(key) {
            pipeline.invoke_script(&call(key));
        }
        let answers: Vec<Answer> = pipeline.query_async(&mut connection).await?;
        Ok(answers.iter().all(|(granted, _, _)| *granted == 1))
    }
}

/// Whether granted, the tokens left, and the microseconds to wait.
type Answer = (u8, u64, u64);

pub(crate) async fn connect(server: Server) -> anyhow::Result<ConnectionManager> {
    Ok(ConnectionManager::new(Client::open(server.url()?)?).await?)
}

/// Creates the buckets.
pub(crate) async fn load(server: Server, scene: &Scene, names: &[String]) -> anyhow::Result<()> {
    let mut connection = connect(server).await?;
    let (script, bucket_limits) = (Script::new(GCRA), scene.workload.bucket_limits);
    script.prepare_invoke().load_async(&mut connection).await?;
    for names in names.chunks(1000) {
        let mut pipeline = redis::pipe();
        for name in names {
            pipeline
                .invoke_script(
                    script.key(name).arg(scene.token_us()?).arg(bucket_limits.capacity).arg(bucket_limits.used),
                )
                .ignore();
        }
        let () = pipeline.query_async(&mut connection).await?;
    }
    Ok(())
}

/// Returns how many tokens the buckets have granted. Each grant delays the time when a bucket is full again, so the
/// buckets must never be full.
pub(crate) async fn debited(server: Server, scene: &Scene) -> anyhow::Result<i64> {
    let mut connection = connect(server).await?;
    let mut tokens = 0;
    for names in scene.names.chunks(1000) {
        let full_at: Vec<Option<i64>> = redis::cmd("MGET").arg(names).query_async(&mut connection).await?;
        for full_at in full_at {
            tokens += full_at.context("a bucket is gone")? / i64::try_from(scene.token_us()?)?;
        }
    }
    Ok(tokens)
}

/// Removes the buckets of all workloads.
pub(crate) async fn unload(server: Server, run: &str) -> anyhow::Result<()> {
    let mut connection = connect(server).await?;
    let mut cursor = 0_u64;
    loop {
        let (next, names): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("{run}:*"))
            .arg("COUNT")
            .arg(1000)
            .query_async(&mut connection)
            .await?;
        if !names.is_empty() {
            let () = redis::cmd("UNLINK").arg(names).query_async(&mut connection).await?;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

/// Returns one value of the server's `INFO`.
pub(crate) async fn info(server: Server, name: &str) -> anyhow::Result<Option<String>> {
    let mut connection = connect(server).await?;
    let info: String = redis::cmd("INFO").arg("everything").query_async(&mut connection).await?;
    Ok(info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned())))
}

const GCRA: &str = include_str!("gcra.lua");
