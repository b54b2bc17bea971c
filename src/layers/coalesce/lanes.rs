use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::timeout;

use super::adjusting::Adjusting;
use super::lane::Lane;
use super::leading::Leading;
use crate::store::Store;

/// All who make calls to one store, and so need its connections.
#[derive(Debug)]
pub(super) struct Lanes<S: Store> {
    /// As many for requests for one bucket each as the store can do with, and then as many for those of several.
    pub(super) taking: Vec<Arc<Lane<S>>>,
    pub(super) adjusting: Arc<Adjusting<S>>,
}

/// The same, whatever the store.
pub(super) trait Callers: Send + Sync {
    /// Leaves no call to its caller: one that is no longer polled may keep a connection that others need.
    fn hand_over(&self);

    /// The same, but for the calls that adjust: for who makes one of these, and is polled.
    fn hand_over_taking(&self);
}

impl<S: Store> Callers for Lanes<S> {
    fn hand_over(&self) {
        self.hand_over_taking();
        self.adjusting.led().iter().for_each(Leading::hand_over);
    }

    fn hand_over_taking(&self) {
        for lane in &self.taking {
            // Out of the line before any is handed over, which takes its lock.
            let led = lane.queue.lock().led();
            led.iter().for_each(Leading::hand_over);
        }
    }
}

/// Waits for a call; if that takes long, no caller who is not polled keeps a connection from it. Never within a call that its
/// caller makes: to hand that over, its poll would have to end first.
pub(super) async fn see_through<T>(all: &Weak<dyn Callers>, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    let mut patience = SLOW;
    loop {
        if let Ok(result) = timeout(patience, &mut call).await {
            return result;
        }
        if let Some(all) = all.upgrade() {
            all.hand_over();
        }
        // Thousands may wait, and each looks at all.
        patience = (patience * 2).min(SLOWEST);
    }
}

/// A call that takes longer does not hold up those behind it.
pub(super) const SLOW: Duration = Duration::from_millis(25);

/// After how long a call that is awaited looks again at the latest.
const SLOWEST: Duration = Duration::from_secs(1);
