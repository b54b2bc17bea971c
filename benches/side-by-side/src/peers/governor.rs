use std::num::NonZeroU32;

use anyhow::Context;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::peer::Peer;
use crate::scene::Scene;

/// The `governor` crate: the cost of a decision that needs no agreement with other processes.
pub(crate) struct Governor {
    limiter: DefaultKeyedRateLimiter<String>,
    scene: Scene,
}

impl Governor {
    /// Creates the limiter with all keys in its table, as full as those of the other systems.
    pub(crate) fn open(scene: &Scene) -> anyhow::Result<Self> {
        let bucket_limits = scene.workload.bucket_limits;
        let tokens = |tokens: u64| {
            let tokens = u32::try_from(tokens).ok().and_then(NonZeroU32::new);
            tokens.context("governor counts up to u32::MAX, from 1 on")
        };
        let quota = Quota::with_period(bucket_limits.token).context("a token needs some time")?;
        let limiter = RateLimiter::keyed(quota.allow_burst(tokens(bucket_limits.capacity)?));
        for name in scene.names.iter() {
            limiter.check_key_n(name, tokens(bucket_limits.used)?)?.ok().context("a new bucket is full")?;
        }
        Ok(Self { limiter, scene: scene.clone() })
    }
}

impl Peer for Governor {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        Ok(self.scene.each(key).all(|key| self.limiter.check_key(&self.scene.names[key]).is_ok()))
    }
}
