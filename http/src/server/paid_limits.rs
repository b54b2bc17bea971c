use http::request::Parts;
use smallvec::SmallVec;
use tollgate::Key;

/// The limits whose tokens a request has taken. An extension of the request, so that a layer that is mounted twice takes
/// once.
#[derive(Clone, Debug, Default)]
pub(super) struct PaidLimits(SmallVec<[PaidLimit; 1]>);

/// A bucket of a limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PaidLimit {
    limiter: usize,
    key: Key,
}

impl PaidLimits {
    /// Whether the request has taken tokens from this bucket through this limiter.
    pub(super) fn contain(request: &Parts, limiter: usize, key: &Key) -> bool {
        let paid = request.extensions.get::<Self>();
        paid.is_some_and(|paid| paid.0.iter().any(|paid| paid.limiter == limiter && paid.key == *key))
    }

    /// Adds the buckets that a request has taken tokens from.
    pub(super) fn add<'k>(request: &mut Parts, limiter: usize, keys: impl Iterator<Item = &'k Key>) {
        let paid = request.extensions.get_or_insert_default::<Self>();
        paid.0.extend(keys.map(|key| PaidLimit { limiter, key: key.clone() }));
    }
}
