//! Receipts of grants, and the adjustments that cancel, refund or settle them.

use std::time::Duration;

use uuid::Uuid;

use crate::model::bucket;
use crate::model::bucket::MAX_WAIT_NS;
use crate::model::id::{IdOf, receipt_id};
use crate::model::quota::nanoseconds;
use crate::model::{Decision, Key, Limit, Rule, Take, TakeError};

/// The record of one bucket's grant, with which its tokens can be cancelled, refunded or settled: each receipt once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) id: Uuid,
    /// The maker of the id. A caller cannot repeat a request with an id that the crate made.
    pub(crate) id_of: IdOf,
    pub(crate) key: Key,
    pub(crate) grant: bucket::GrantRecord,
    /// Whether the key's sliding window granted, and not its bucket.
    pub(crate) window: bool,
}

impl Receipt {
    /// The receipts of a decision, one for each bucket that granted.
    pub(crate) fn of(take: &Take, decision: &Decision) -> Vec<Self> {
        let (id, id_of) = take.id.map_or_else(|| (receipt_id(), IdOf::Crate), |id| (id, take.id_of));
        let window = take.window().is_some();
        let receipt = |(place, grant): (usize, _)| {
            let key = take.limits[place].key.clone();
            Self { id, id_of, key, grant, window }
        };
        decision.grants().map(receipt).collect()
    }

    /// Creates a receipt from a request's id, key and cost, to refund or settle the request in another process.
    ///
    /// The cost is bounded to 1 or more.
    #[must_use]
    pub fn new(id: Uuid, key: Key, cost: u64) -> Self {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX).clamp(1, bucket::MAX_TOKENS);
        let grant = bucket::GrantRecord { cost, granted: 0, scheduled_at: 0 };
        Self { id, id_of: IdOf::Caller, key, grant, window: false }
    }

    /// Makes this the receipt of requests that the key's sliding window granted, at this time since 1970.
    #[must_use]
    pub fn in_window(mut self, granted_at: Duration) -> Self {
        self.grant.cost = self.grant.cost.min(crate::model::window::MAX_REQUESTS);
        self.grant.scheduled_at = nanoseconds(granted_at);
        self.window = true;
        self
    }

    /// Returns the request's id, or one that was made for the receipt.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Returns the key of the bucket.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the tokens taken.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.grant.cost.unsigned_abs()
    }

    /// Cancels the request before its scheduled time. Gives back the tokens that no later request queues behind.
    #[must_use]
    pub fn cancel(self) -> Adjustment {
        Adjustment::new(self, AdjustmentKind::Cancel)
    }

    /// Gives back `unused` of the tokens.
    #[must_use]
    pub fn refund(self, unused: u64) -> Adjustment {
        Adjustment::new(self, AdjustmentKind::Refund(unused))
    }

    /// Settles the request: `used` tokens were used, which can be more or fewer than were taken. The request must have an
    /// [id](Take::id).
    #[must_use]
    pub fn settle(self, used: u64) -> Adjustment {
        Adjustment::new(self, AdjustmentKind::Settle(used))
    }
}

/// A change to what a grant took, or a charge: see [`Receipt`]. Only the first one for a receipt counts.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{model::AdjustmentKind, Key, Receipt};
///
/// let receipt = Receipt::new(uuid::Uuid::from_u128(7), Key::try_from("user:42")?, 5);
/// let settlement = receipt.settle(7).max_debt(Duration::from_secs(60));
/// assert_eq!((settlement.receipt().cost(), settlement.kind()), (5, AdjustmentKind::Settle(7)));
/// assert_eq!(settlement.get_max_debt(), Duration::from_secs(60));
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

    /// Creates a charge: takes `tokens`, 1 or more, of a bucket, also if it holds fewer. The bucket then owes tokens, and denies
    /// requests until it has refilled.
    ///
    /// The bucket must exist: [`Limiter::charge`](crate::Limiter::charge) creates it.
    #[must_use]
    pub fn charge(key: Key, tokens: u64) -> Self {
        Self::new(
            Receipt { id_of: IdOf::Crate, ..Receipt::new(receipt_id(), key, tokens) },
            AdjustmentKind::Charge(tokens.max(1)),
        )
    }

    /// Creates a charge that is made once for an id: a repetition within a day is [`Repeated`](Adjusted::Repeated).
    #[must_use]
    pub fn charge_once(id: Uuid, key: Key, tokens: u64) -> Self {
        Self::new(Receipt::new(id, key, tokens), AdjustmentKind::Charge(tokens.max(1)))
    }

    /// The charge of a limit's cost, once for an id.
    pub(crate) fn charge_of(limit: &Limit, id: Option<Uuid>) -> Result<Self, TakeError> {
        if matches!(limit.rule(), Rule::Window(_)) || limit.is_unlimited() {
            return Err(TakeError::NothingToCharge(limit.key().clone()));
        }
        let (key, tokens) = (limit.key().clone(), limit.get_cost());
        Ok(match id {
            Some(id) => Self::charge_once(id, key, tokens),
            None => Self::charge(key, tokens),
        })
    }

    /// The id that the store remembers. A charge without an id of the caller's is not remembered.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn remembered_id(&self) -> Option<String> {
        let is_remembered = self.receipt.id_of == IdOf::Caller || !matches!(self.kind, AdjustmentKind::Charge(_));
        is_remembered.then(|| self.receipt.id.hyphenated().to_string())
    }

    /// Limits the debt that a settlement or a charge can leave. The wait for the bucket's next token is then at most this long, or as
    /// long as that of an empty bucket. Default: 366 days, which is also the maximum.
    ///
    /// Set it if an upstream reports the tokens used. With a quota by fixed windows, tokens come with the first period after
    /// the wait. The debt of a sliding window ends after its interval.
    #[must_use]
    pub fn max_debt(self, max_debt: Duration) -> Self {
        Self { max_debt: nanoseconds(max_debt).min(MAX_WAIT_NS), ..self }
    }

    /// Returns the longest debt that the settlement can leave: see [`max_debt`](Self::max_debt).
    #[must_use]
    pub fn get_max_debt(&self) -> Duration {
        Duration::from_nanos(self.max_debt.unsigned_abs())
    }

    /// Returns the receipt of the tokens.
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Returns the kind of the adjustment.
    #[must_use]
    pub fn kind(&self) -> AdjustmentKind {
        self.kind
    }
}

/// How to adjust tokens that were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdjustmentKind {
    /// Gives all tokens back, unless their scheduled time has passed.
    Cancel,
    /// Gives this number of tokens back.
    Refund(u64),
    /// Gives back or charges the difference to this number of used tokens.
    Settle(u64),
    /// Takes this number of tokens, also if the bucket holds fewer.
    Charge(u64),
}

impl AdjustmentKind {
    /// The arguments of the routines: the text for the kind, and the tokens.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn sql_arguments(self) -> (&'static str, i64) {
        let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(bucket::MAX_TOKENS);
        match self {
            Self::Cancel => ("cancel", 0),
            Self::Refund(unused) => ("refund", tokens(unused)),
            Self::Settle(used) => ("settle", tokens(used)),
            Self::Charge(charged) => ("charge", tokens(charged)),
        }
    }
}

/// The result of an [`Adjustment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adjusted {
    /// The adjustment was made. Holds the tokens given back: 0 if later requests queue behind them, negative if tokens were
    /// charged.
    Done(i64),
    /// The tokens' scheduled time has passed, or the receipt has expired. Nothing changed.
    Late,
    /// The receipt was adjusted before. Nothing changed.
    Repeated,
}
