use http::request::Parts;
use smallvec::SmallVec;
use tollgate::Key;

/// The limits whose tokens a request has taken. An extension of the request, so that a layer that is mounted twice takes
/// once.
#[derive(Clone, Debug, Default)]
pub(super) struct PaidLimits(SmallVec<[PaidLimit; 1]>);

/// Tokens from a bucket of a limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PaidLimit {
    limiter: usize,
    key: Key,
    cost: u64,
}

impl PaidLimits {
    /// Whether the request has taken as many tokens from this bucket through this limiter.
    pub(super) fn contain(request: &Parts, limiter: usize, key: &Key, cost: u64) -> bool {
        let paid = request.extensions.get::<Self>();
        paid.is_some_and(|paid| {
            paid.0.iter().any(|paid| paid.limiter == limiter && paid.key == *key && paid.cost == cost)
        })
    }

    /// Adds the buckets that a request has taken tokens from, and their costs.
    pub(super) fn add(request: &mut Parts, limiter: usize, buckets: SmallVec<[(Key, u64); 1]>) {
        let paid = request.extensions.get_or_insert_default::<Self>();
        paid.0.extend(buckets.into_iter().map(|(key, cost)| PaidLimit { limiter, key, cost }));
    }
}
