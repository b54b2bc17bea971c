use crate::concurrency::atomics::{AtomicU64, Ordering};

/// How often keys were forgotten, each counted in one of a few places: so that a denial which was on its way meanwhile is
/// not kept.
///
/// Whoever forgets counts before it looks for a denial, and whoever keeps one looks at the count afterwards. One of the two
/// sees the other, which `tests/orderings` explores. A place shared by two keys costs a denial now and then.
#[derive(Debug)]
pub(super) struct Forgotten([AtomicU64; PLACES]);

impl Forgotten {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Before the store is asked.
    pub(super) fn times(&self, hash: u64) -> u64 {
        self.place(hash).load(Ordering::SeqCst)
    }

    /// Before a denial that is kept is taken away.
    pub(super) fn count(&self, hash: u64) {
        self.place(hash).fetch_add(1, Ordering::SeqCst);
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = hash as usize;
        &self.0[hash % PLACES]
    }
}

const PLACES: usize = 64;
