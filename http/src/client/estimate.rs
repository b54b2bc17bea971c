use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::report::{HeaderReport, OpenEstimate};
use super::reporter::UpstreamReporter;
use tollgate::middleware::MiddlewareHooks;
use tollgate::{Adjusted, Adjustment, Error, Receipt, Store, TakeError};

/// Tokens that a request took from limits that are [settled later](crate::ClientLimit::settle_later).
///
/// The answer's extensions have the `Estimate`. Settle it after you have read the body, which reports the use. An
/// `Estimate` takes no tokens itself. If it is dropped without a settlement, the estimate stands. Clones belong to the
/// same request, which only the first settlement changes.
#[derive(Clone)]
pub struct Estimate(Arc<dyn SettleEstimate>);

impl Estimate {
    pub(super) fn new<S: Store>(reporter: UpstreamReporter<S>, open: Vec<OpenEstimate>) -> Self {
        let (receipts, heads) = open.into_iter().map(|OpenEstimate { receipt, head }| (receipt, head)).unzip();
        Self(Arc::new(OpenSettlement { reporter, receipts, heads, taken_at: Instant::now() }))
    }

    /// Settles the estimate with the tokens that the request used. Returns how many tokens were given back.
    ///
    /// A negative number means that the request used more than its estimate. The bucket then owes the difference, and
    /// the next requests wait, for [`max_throttle`](crate::ClientLimit::max_throttle) at most.
    ///
    /// Returns [`Late`](Adjusted::Late) after [`settle_within`](crate::ClientLimit::settle_within), and
    /// [`Repeated`](Adjusted::Repeated) if the request was settled before. Both change nothing. If the request took
    /// nothing, because of a fallback or because the limiter is switched off, returns `Done(0)`.
    ///
    /// # Errors
    ///
    /// Returns [`TakeError::CostsDiffer`] if several limits are to be settled. The estimates then stand.
    ///
    /// Returns an error if the store does not answer by the limiter's [`deadline`](tollgate::LimiterBuilder::deadline).
    /// You can then settle again.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the call continues in a task.
    pub async fn settle(&self, used: u64) -> Result<Adjusted, Error> {
        // The buckets of one limit, such as those of a plan, have one cost.
        let is_of_one_limit = |pair: &[Receipt]| pair[0].key().without_limit() == pair[1].key().without_limit();
        if !self.receipts().windows(2).all(is_of_one_limit) {
            return Err(TakeError::CostsDiffer.into());
        }
        self.settle_each(|_| Some(used)).await
    }

    /// Settles the estimates of a request with several limits.
    ///
    /// The closure returns the tokens used under each limit. `None` leaves the estimate of that limit as it is. Returns
    /// the result of the limit that gave back the fewest tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer, as in [`settle`](Self::settle).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the call continues in a task.
    pub async fn settle_each(&self, used: impl Fn(&Receipt) -> Option<u64>) -> Result<Adjusted, Error> {
        let used = self.receipts().iter().map(used).collect();
        self.0.settle(used).await
    }

    /// Returns the tokens taken from each limit that is to be settled. Empty if no limit took tokens.
    #[must_use]
    pub fn receipts(&self) -> &[Receipt] {
        self.0.receipts()
    }
}

impl fmt::Debug for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Estimate").field(&self.receipts()).finish()
    }
}

/// Hides the type of the store, because the estimate is stored in the extensions of an answer.
trait SettleEstimate: Send + Sync {
    fn receipts(&self) -> &[Receipt];

    /// Settles with the tokens used, in the order of the receipts.
    fn settle(&self, used: Vec<Option<u64>>) -> Settling;
}

type Settling = Pin<Box<dyn Future<Output = Result<Adjusted, Error>> + Send>>;

struct OpenSettlement<S: Store> {
    reporter: UpstreamReporter<S>,
    receipts: Vec<Receipt>,
    /// The report in the head of the answer, for each receipt.
    heads: Vec<Option<HeaderReport>>,
    taken_at: Instant,
}

impl<S: Store> SettleEstimate for OpenSettlement<S> {
    fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }

    fn settle(&self, used: Vec<Option<u64>>) -> Settling {
        let (reporter, taken_at) = (self.reporter.clone(), self.taken_at);
        let used = self.receipts.iter().zip(&self.heads).zip(used);
        let settled = used.filter_map(|((receipt, head), used)| {
            let used = used?;
            Some((receipt.clone().settle(used), (head.clone(), receipt.cost().saturating_sub(used))))
        });
        let (settled, heads): (Vec<Adjustment>, Vec<_>) = settled.unzip();
        let settling = async move {
            if settled.is_empty() {
                return Ok(Adjusted::Done(0));
            }
            let adjusted = reporter.settle(settled).await;
            // Repeats the part of the head's report that still applies: the settlement can have raised the bucket.
            let (elapsed, max_throttle) = (taken_at.elapsed(), reporter.max_throttle);
            let applying = |(index, (head, unused)): (usize, (Option<HeaderReport>, u64))| {
                head?.remaining_after_settlement(given_back(&adjusted, index, unused), elapsed, max_throttle)
            };
            let limits = heads.into_iter().enumerate().filter_map(applying).collect();
            reporter.report(Vec::new(), limits).await;
            Ok(smallest_refund(adjusted?)?)
        };
        // The task continues if the caller is dropped.
        let limiter = self.reporter.limiter.clone();
        Box::pin(async move {
            limiter.spawn(settling).await.unwrap_or_else(|ended| Err(Error::OutcomeUnknown(Arc::new(ended))))
        })
    }
}

/// Returns how many tokens one settlement gave back. If the result is unknown, returns the expected number.
fn given_back(adjusted: &Result<Vec<Result<Adjusted, TakeError>>, Error>, index: usize, expected: u64) -> u64 {
    match adjusted.as_ref().map(|adjusted| adjusted.get(index)) {
        Err(_) => expected,
        Ok(Some(Ok(Adjusted::Done(given)))) => u64::try_from(*given).unwrap_or(0),
        Ok(_) => 0,
    }
}

/// Returns the result of the settlement that gave back the fewest tokens, or of one that was late.
fn smallest_refund(adjusted: Vec<Result<Adjusted, TakeError>>) -> Result<Adjusted, TakeError> {
    let adjusted = adjusted.into_iter().collect::<Result<Vec<Adjusted>, TakeError>>()?;
    let refund = |adjusted: &Adjusted| match adjusted {
        Adjusted::Done(tokens) => (*tokens, true),
        // Precedes `Done(0)`.
        _ => (0, false),
    };
    Ok(adjusted.into_iter().min_by_key(refund).unwrap_or(Adjusted::Done(0)))
}
