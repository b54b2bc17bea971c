use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Client, Script};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, yield_now};

use crate::peer::Peer;
use crate::scene::Scene;
use crate::server::Server;

/// The fastest client that Redis allows. Requests queue while the last batch is in progress. Requests for one key share
/// a script, and a batch is one pipeline. No library provides such a client.
pub(crate) struct Pipelined {
    shards: Vec<Arc<Shard>>,
    scene: Scene,
    // Ends its tasks when dropped.
    _workers: JoinSet<()>,
}

impl Pipelined {
    pub(crate) async fn open(server: Server, scene: &Scene) -> anyhow::Result<Self> {
        let client = Client::open(server.url()?)?;
        let (mut shards, mut workers) = (Vec::new(), JoinSet::new());
        for _ in 0..SHARDS {
            let mut connection = client.get_multiplexed_async_connection().await?;
            let script = Script::new(GRANT_UP_TO);
            script.prepare_invoke().load_async(&mut connection).await?;
            let shard = Arc::new(Shard::default());
            shards.push(Arc::clone(&shard));
            let batches = Batches { connection, script, scene: scene.clone(), token_us: scene.token_us()? };
            workers.spawn(batches.run(shard));
        }
        Ok(Self { shards, scene: scene.clone(), _workers: workers })
    }

    fn enqueue(&self, key: usize) -> oneshot::Receiver<Reply> {
        let (reply, answer) = oneshot::channel();
        let shard = &self.shards[key % SHARDS];
        shard.queue.lock().push((key, reply));
        shard.filled.notify_one();
        answer
    }
}

impl Peer for Pipelined {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        let answers: Vec<_> = self.scene.each(key).map(|key| self.enqueue(key)).collect();
        let mut all = true;
        for answer in answers {
            all &= answer.await.context("the worker has ended")?.map_err(|error| anyhow!(error))?;
        }
        Ok(all)
    }
}

#[derive(Default)]
struct Shard {
    queue: Mutex<Vec<(usize, oneshot::Sender<Reply>)>>,
    filled: Notify,
}

/// The answer of a batch, shared by all its callers.
type Reply = Result<bool, Arc<str>>;

struct Batches {
    connection: MultiplexedConnection,
    script: Script,
    scene: Scene,
    token_us: u64,
}

impl Batches {
    async fn run(mut self, shard: Arc<Shard>) {
        loop {
            shard.filled.notified().await;
            // Callers that have their answer call again at once. Waits for them while the queue grows.
            let mut before = 0;
            loop {
                let waiting = shard.queue.lock().len();
                if waiting <= before {
                    break;
                }
                before = waiting;
                yield_now().await;
            }
            let batch = mem::take(&mut *shard.queue.lock());
            if !batch.is_empty() {
                self.send(batch).await;
            }
        }
    }

    async fn send(&mut self, batch: Vec<(usize, oneshot::Sender<Reply>)>) {
        let mut merged: HashMap<usize, Vec<oneshot::Sender<Reply>>> = HashMap::with_capacity(batch.len());
        for (key, reply) in batch {
            merged.entry(key).or_default().push(reply);
        }
        let (mut pipeline, mut waiting) = (redis::pipe(), Vec::with_capacity(merged.len()));
        for (key, replies) in merged {
            let mut call = self.script.key(&self.scene.names[key]);
            pipeline.invoke_script(
                call.arg(self.token_us).arg(self.scene.workload.bucket_limits.capacity).arg(replies.len()),
            );
            waiting.push(replies);
        }
        let granted: Result<Vec<usize>, _> = pipeline.query_async(&mut self.connection).await;
        match granted {
            Ok(granted) => {
                for (replies, granted) in waiting.into_iter().zip(granted) {
                    for (place, reply) in replies.into_iter().enumerate() {
                        drop(reply.send(Ok(place < granted)));
                    }
                }
            }
            Err(error) => {
                let error: Arc<str> = error.to_string().into();
                for reply in waiting.into_iter().flatten() {
                    drop(reply.send(Err(Arc::clone(&error))));
                }
            }
        }
    }
}

/// With one shard, sending and waiting alternate. More than two were no faster.
const SHARDS: usize = 2;
const GRANT_UP_TO: &str = include_str!("grant_up_to.lua");
