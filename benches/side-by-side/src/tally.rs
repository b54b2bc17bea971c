use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Counts the grants of each key. Each thread has its own counters, so that the counting of a hot key does not distort
/// the measurement.
#[derive(Debug)]
pub(crate) struct Tally {
    of_threads: Vec<Box<[AtomicU32]>>,
}

impl Tally {
    pub(crate) fn new(keys: u32, threads: usize) -> Self {
        Self { of_threads: (0..threads).map(|_| (0..keys).map(|_| AtomicU32::new(0)).collect()).collect() }
    }

    #[inline]
    pub(crate) fn count(&self, key: u32) {
        let slot = SLOT.with(|slot| {
            if slot.get() == usize::MAX {
                slot.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            slot.get()
        });
        // If there are more threads than counters, threads share them without losing counts.
        self.of_threads[slot % self.of_threads.len()][key as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn grants(&self) -> BTreeMap<u32, u64> {
        let mut grants = BTreeMap::new();
        for counters in &self.of_threads {
            for (key, count) in (0..).zip(counters) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    *grants.entry(key).or_default() += u64::from(count);
                }
            }
        }
        grants
    }
}

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(usize::MAX) };
}

static NEXT: AtomicUsize = AtomicUsize::new(0);
