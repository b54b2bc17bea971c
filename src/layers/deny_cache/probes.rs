use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::model::Key;

/// Who asks, for those of a key, whether what was denied is still denied.
#[derive(Debug, Default)]
pub(super) struct Probes(Mutex<HashMap<Key, Arc<Semaphore>>>);

/// The one who asks. However it ends, dropped too, the others go on.
#[derive(Debug)]
pub(super) struct Probe<'a> {
    probes: &'a Probes,
    key: &'a Key,
    ended: Arc<Semaphore>,
}

impl Probes {
    /// The caller asks, or has waited until another one had the answer.
    pub(super) async fn begin<'a>(&'a self, key: &'a Key) -> Option<Probe<'a>> {
        let under_way = {
            let mut probes = self.0.lock();
            let under_way = probes.get(key).cloned();
            if under_way.is_none() {
                let ended = Arc::new(Semaphore::new(0));
                probes.insert(key.clone(), Arc::clone(&ended));
                return Some(Probe { probes: self, key, ended });
            }
            under_way
        };
        let under_way = under_way?;
        // It has no permits: this ends when it is closed.
        if timeout(LONGEST, under_way.acquire()).await.is_err() {
            self.end(key, &under_way);
        }
        None
    }

    /// Lets those go on who wait for this answer.
    fn end(&self, key: &Key, ended: &Arc<Semaphore>) {
        let mut probes = self.0.lock();
        if probes.get(key).is_some_and(|other| Arc::ptr_eq(other, ended)) {
            probes.remove(key);
        }
        ended.close();
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.probes.end(self.key, &self.ended);
    }
}

/// Whoever asks may not be polled any more, and keeps the others waiting no longer than this.
const LONGEST: Duration = Duration::from_millis(100);
