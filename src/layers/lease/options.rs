use std::time::Duration;

use super::slot;

/// How much a [`Lease`](super::Lease) takes ahead.
///
/// ```
/// use std::time::Duration;
/// use tollgate::layers::LeaseOptions;
///
/// let options = LeaseOptions::default().target(Duration::from_millis(50)).most_tokens(1000);
/// assert_eq!(options.lifetime(), Duration::from_millis(250));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it to a lease"]
pub struct LeaseOptions {
    pub(super) target: Duration,
    pub(super) most_tokens: u64,
    pub(super) most_keys: usize,
}

impl LeaseOptions {
    /// For how long the tokens taken at once should last; 100 ms if not said, from a millisecond to a second.
    ///
    /// The store is asked about twice in that time for each busy key, whatever its rate; so it should be several times what
    /// a call of the store takes.
    pub fn target(self, target: Duration) -> Self {
        Self { target: target.clamp(Duration::from_millis(1), LONGEST), ..self }
    }

    /// How many tokens it holds at most for each key, rule and keep; a million if not said, 16 million at most.
    pub fn most_tokens(self, most_tokens: u64) -> Self {
        Self { most_tokens: most_tokens.min(slot::MOST), ..self }
    }

    /// For how many keys, under a rule and a keep each, it holds tokens at most; 1000 if not said. Those that were busy
    /// first have a place until they are not.
    pub fn most_keys(self, most_keys: usize) -> Self {
        Self { most_keys, ..self }
    }

    /// By when tokens are used, from when they were asked for: five times the target, and a second at most.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        (self.target * 5).min(LONGEST)
    }
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self { target: Duration::from_millis(100), most_tokens: 1_000_000, most_keys: 1000 }
    }
}

/// By when everything is seen that an operator changes.
const LONGEST: Duration = Duration::from_secs(1);
