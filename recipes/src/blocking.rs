use std::time::Duration;

use sqlx::PgPool;
use tokio::runtime::{Builder, Runtime};
use tollgate::{Decision, Error, Limiter, PgStore};

/// A limiter for threads without an async runtime. Share it in an `Arc`.
pub struct BlockingLimiter {
    runtime: Runtime,
    limiter: Limiter<PgStore>,
}

impl BlockingLimiter {
    /// Opens a pool, and a runtime with one thread, which makes the calls of all threads.
    pub fn connect(url: &str, rule: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let pool = runtime.block_on(PgPool::connect(url))?;
        Ok(Self { limiter: Limiter::new(PgStore::from(pool), rule)?, runtime })
    }

    /// Takes a token now, or denies.
    pub fn allow(&self, key: &str) -> Result<Decision, Error> {
        self.runtime.block_on(self.limiter.allow(key))
    }

    /// Sleeps until a token is there. Denies at once if that takes longer than `longest`.
    pub fn wait(&self, key: &str, longest: Duration) -> Result<Decision, Error> {
        self.runtime.block_on(self.limiter.wait_n(key, 1, longest))
    }
}
