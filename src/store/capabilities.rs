/// What a [`Store`](super::Store) can do, as those above it need to know.
///
/// ```
/// use tollgate::{store::Capabilities, MemoryStore, Store};
///
/// assert_eq!(MemoryStore::new().capabilities(), Capabilities::default().in_process());
/// let database_with_one_writer = Capabilities::default().calls_at_once(1);
/// assert_ne!(database_with_one_writer, Capabilities::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "answer it as a store's capabilities"]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether it decides in this process.
    pub in_process: bool,
    /// How many requests for several buckets each are one call to it.
    pub most_together: usize,
    /// How many calls that each carry many requests it is quickest with.
    pub calls_at_once: usize,
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

    /// How many calls that each carry many requests it is quickest with, from 1 to 64; 2 if not said: while one is on the
    /// network, the other is in the database. One of a single call at a time is locked as a whole, if it is: what was
    /// [`Contended`](crate::Error::Contended) is not asked for again in parts.
    #[inline]
    pub fn calls_at_once(self, calls: usize) -> Self {
        Self { calls_at_once: calls.clamp(1, 64), ..self }
    }
}

impl Default for Capabilities {
    #[inline]
    fn default() -> Self {
        Self { in_process: false, most_together: 1, calls_at_once: 2 }
    }
}
