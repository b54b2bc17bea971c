/// What a [`Store`](super::Store) can do, as those above it need to know.
///
/// ```
/// use tollgate::{Capabilities, MemoryStore, Store};
///
/// assert_eq!(MemoryStore::new().capabilities(), Capabilities::default().in_process());
/// let database_with_one_writer = Capabilities::default().calls_at_once(1);
/// assert_ne!(database_with_one_writer, Capabilities::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "answer it as a store's capabilities"]
pub struct Capabilities {
    pub(crate) in_process: bool,
    pub(crate) most_together: usize,
    pub(crate) calls_at_once: usize,
}

impl Capabilities {
    /// It decides in this process: a limiter has no calls to save.
    #[inline]
    pub const fn in_process(self) -> Self {
        Self { in_process: true, ..self }
    }

    /// How many requests for several buckets each are one call to it; 1 if not said. If they are more, they are worth
    /// gathering.
    #[inline]
    pub const fn most_together(self, requests: usize) -> Self {
        Self { most_together: requests, ..self }
    }

    /// How many calls that each carry many requests it is quickest with; 2 if not said: while one is on the network, the other
    /// is in the database.
    #[inline]
    pub const fn calls_at_once(self, calls: usize) -> Self {
        Self { calls_at_once: if calls == 0 { 1 } else { calls }, ..self }
    }
}

impl Default for Capabilities {
    #[inline]
    fn default() -> Self {
        Self { in_process: false, most_together: 1, calls_at_once: 2 }
    }
}
