use std::sync::Arc;

use super::adjusting::Adjusting;
use super::lane::Lane;
use super::leading::Leading;
use crate::Store;

/// All who make calls to one store, and so need its connections.
#[derive(Debug)]
pub(super) struct Lanes<S: Store> {
    /// As many for requests for one bucket each as the store can do with, and then as many for those of several.
    pub(super) taking: Vec<Arc<Lane<S>>>,
    pub(super) adjusting: Arc<Adjusting<S>>,
}

impl<S: Store> Lanes<S> {
    /// Leaves no call to its caller: one that is no longer polled may keep a connection that others need.
    pub(super) fn hand_over(&self) {
        self.hand_over_taking();
        self.adjusting.led().iter().for_each(Leading::hand_over);
    }

    /// The same, but for the calls that adjust: for who makes one of these, and is polled.
    pub(super) fn hand_over_taking(&self) {
        for lane in &self.taking {
            // Out of the line before any is handed over, which takes its lock.
            let led = lane.queue.lock().led();
            led.iter().for_each(Leading::hand_over);
        }
    }
}
