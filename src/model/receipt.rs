use std::time::Duration;

use uuid::Uuid;

use crate::model::bucket;
use crate::model::bucket::MAX_WAIT_NS;
use crate::model::quota::nanoseconds;
use crate::model::take::IdOf;
use crate::model::{Decision, Key, Take};

/// What a grant leaves in the hands of the caller for each bucket, to give tokens back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) id: Uuid,
    /// One that the crate made is nobody's to repeat a request with.
    pub(crate) id_of: IdOf,
    pub(crate) key: Key,
    pub(crate) taken: bucket::GrantRecord,
    /// Whether the key's sliding window granted, and not its bucket.
    pub(crate) window: bool,
}

impl Receipt {
    /// The receipts of a decision, one for each bucket that granted.
    pub(crate) fn of(take: &Take, decision: &Decision) -> Vec<Self> {
        let (id, id_of) = take.id.map_or_else(|| (receipt_id(), IdOf::Crate), |id| (id, take.id_of));
        let window = take.window().is_some();
        let receipt = |(place, taken): (usize, _)| {
            let key = take.limits[place].key.clone();
            Self { id, id_of, key, taken, window }
        };
        decision.taken().map(receipt).collect()
    }

    /// A receipt for tokens that may be used at once, from what is known of the request: to refund or settle it in
    /// another process.
    #[must_use]
    pub fn new(id: Uuid, key: Key, cost: u64) -> Self {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX).clamp(1, bucket::MAX_TOKENS);
        let taken = bucket::GrantRecord { cost, granted: 0, scheduled_at: 0 };
        Self { id, id_of: IdOf::Caller, key, taken, window: false }
    }

    /// The same, for requests that the key's sliding window granted at this time since 1970.
    #[must_use]
    pub fn in_window(mut self, granted_at: Duration) -> Self {
        self.taken.cost = self.taken.cost.min(crate::model::window::MAX_REQUESTS);
        self.taken.scheduled_at = nanoseconds(granted_at);
        self.window = true;
        self
    }

    /// The request's id, or one that was made for the receipt.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The bucket.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The tokens taken.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.taken.cost.unsigned_abs()
    }

    /// The tokens will not be used, and their time to act has not passed.
    #[must_use]
    pub fn cancel(self) -> Adjustment {
        Adjustment::new(self, AdjustmentKind::Cancel)
    }

    /// So many of the tokens were not used.
    #[must_use]
    pub fn refund(self, unused: u64) -> Adjustment {
        Adjustment::new(self, AdjustmentKind::Refund(unused))
    }

    /// So many tokens were used in the end, more or fewer than were taken. The request must have had an id.
    #[must_use]
    pub fn settle(self, used: u64) -> Adjustment {
        Adjustment::new(self, AdjustmentKind::Settle(used))
    }
}

/// A change to what a grant took: see [`Receipt`]. Only the first one for a receipt counts.
///
/// ```
/// use tollgate::{model::AdjustmentKind, Key, Receipt};
///
/// let refund = Receipt::new(uuid::Uuid::from_u128(7), Key::try_from("user:42")?, 5).refund(2);
/// assert_eq!((refund.receipt().cost(), refund.kind()), (5, AdjustmentKind::Refund(2)));
/// # Ok::<(), tollgate::model::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    pub(crate) receipt: Receipt,
    pub(crate) kind: AdjustmentKind,
    /// In nanoseconds, a year at most.
    pub(crate) max_debt: i64,
}

impl Adjustment {
    fn new(receipt: Receipt, kind: AdjustmentKind) -> Self {
        Self { receipt, kind, max_debt: MAX_WAIT_NS }
    }

    /// Limits the debt that a settlement can leave: the wait for the bucket's next token is at most this long, or as long as
    /// that of an empty bucket. Default: a year, which is also the longest.
    ///
    /// State it where an upstream says what was used. With an interval or calendar quota, tokens come with the first period
    /// after the wait. A sliding window owes nothing longer than its own interval.
    #[must_use]
    pub fn max_debt(self, max_debt: Duration) -> Self {
        Self { max_debt: nanoseconds(max_debt).min(MAX_WAIT_NS), ..self }
    }

    /// The longest debt that it can leave: see [`max_debt`](Self::max_debt).
    #[must_use]
    pub fn debt_limit(&self) -> Duration {
        Duration::from_nanos(self.max_debt.unsigned_abs())
    }

    /// What was taken.
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// What is to become of it.
    #[must_use]
    pub fn kind(&self) -> AdjustmentKind {
        self.kind
    }
}

/// What is to become of tokens that were taken: for a [`Store`](crate::Store) or a log of your own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdjustmentKind {
    /// They are given back unless their time to act has passed.
    Cancel,
    /// So many were not used.
    Refund(u64),
    /// So many were used.
    Settle(u64),
}

impl AdjustmentKind {
    /// The word that routines take, and the tokens with it.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn figures(self) -> (&'static str, i64) {
        let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(bucket::MAX_TOKENS);
        match self {
            Self::Cancel => ("cancel", 0),
            Self::Refund(unused) => ("refund", tokens(unused)),
            Self::Settle(used) => ("settle", tokens(used)),
        }
    }
}

/// What became of an [`Adjustment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adjusted {
    /// So many tokens were given back: perhaps none, if later requests queue behind them already; negative if more had
    /// to be paid.
    Done(i64),
    /// Too late: the tokens' time to act has passed, or the receipt has expired. Nothing changed.
    Late,
    /// The receipt was adjusted before. Nothing changed.
    Repeated,
}

/// An id that nobody else has, nor can guess: a request whose id is known already is granted and takes nothing.
pub(crate) fn random_id() -> Uuid {
    Uuid::new_v4()
}

/// An id for the receipts of a request that has none: only what is given back by it is remembered, so it need not be secret,
/// and costs no call of the system.
pub(crate) fn receipt_id() -> Uuid {
    let mut bytes = [0; 16];
    fastrand::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}
