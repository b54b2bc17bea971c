use std::pin::Pin;
use std::sync::Arc;

use crate::drive::{self, Plan};
use crate::pace::{self, Pace, Paced};
use crate::sample::Sample;

/// A limiter that decides one request for a token at a time, of one key or several.
pub(crate) trait Peer: Send + Sync + 'static {
    /// Returns whether the request is granted.
    fn ask(&self, key: u32) -> impl Future<Output = anyhow::Result<bool>> + Send;

    /// Closes all connections.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A peer of any type that is ready for a measurement. One call makes a whole measurement, so that decisions do not pay
/// for the indirection.
pub(crate) trait Opened: Send {
    fn measure(&self, plan: Plan) -> Later<'_, anyhow::Result<Sample>>;

    fn pace(&self, pace: Pace) -> Later<'_, anyhow::Result<Paced>>;

    fn close(self: Box<Self>) -> Later<'static, ()>;
}

pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Wraps a peer that runs in this process.
pub(crate) fn opened(peer: impl Peer) -> Box<dyn Opened> {
    Box::new(InProcess(Arc::new(peer)))
}

struct InProcess<P>(Arc<P>);

impl<P: Peer> Opened for InProcess<P> {
    fn measure(&self, plan: Plan) -> Later<'_, anyhow::Result<Sample>> {
        Box::pin(drive::drive(Arc::clone(&self.0), plan))
    }

    fn pace(&self, pace: Pace) -> Later<'_, anyhow::Result<Paced>> {
        Box::pin(pace::pace(Arc::clone(&self.0), pace))
    }

    fn close(self: Box<Self>) -> Later<'static, ()> {
        Box::pin(async move { self.0.close().await })
    }
}
