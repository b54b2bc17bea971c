use sqlx::PgPool;
use tokio::runtime::{Builder, Runtime};
use tollgate::{Error, Limiter, PgStore};

/// A limiter for threads without a runtime. Share it in an `Arc`.
pub struct BlockingLimiter {
    runtime: Runtime,
    limiter: Limiter<PgStore>,
}

impl BlockingLimiter {
    pub fn connect(
        url: &str,
        rule: &str,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let pool = runtime.block_on(PgPool::connect(url))?;
        let limiter = Limiter::new(PgStore::from(pool), rule)?;
        Ok(Self { runtime, limiter })
    }

    /// Sleeps until a token is there. Denies at once if that is too late.
    pub fn wait(&self, key: &str) -> Result<bool, Error> {
        let wait = self.limiter.wait(key);
        Ok(self.runtime.block_on(wait)?.is_granted())
    }
}
