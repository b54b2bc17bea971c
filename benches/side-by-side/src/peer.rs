use std::pin::Pin;
use std::sync::Arc;

use crate::drive::{self, Plan};
use crate::pace::{self, Pace, Paced};
use crate::sample::Sample;

/// Something that limits, asked for a token of a key at a time, or of several.
pub(crate) trait Peer: Send + Sync + 'static {
    /// Whether it is granted.
    fn ask(&self, key: u32) -> impl Future<Output = anyhow::Result<bool>> + Send;

    /// Leaves nothing open.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A peer that is ready to be measured, whatever its type: one call for a whole measurement, so that a decision does not pay
/// for the indirection.
pub(crate) trait Opened: Send {
    fn measure(&self, plan: Plan) -> Later<'_, anyhow::Result<Sample>>;

    fn pace(&self, pace: Pace) -> Later<'_, anyhow::Result<Paced>>;

    fn close(self: Box<Self>) -> Later<'static, ()>;
}

pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes a peer ready.
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
