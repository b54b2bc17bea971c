use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::reporter::{UpstreamReporter, within};
use super::ticket::{OpenEstimate, UpstreamLimit};
use tollgate::{Adjusted, Adjustment, Error, Receipt, Store, TakeError, Throttle};

/// Tokens that a request took from limits that are [settled later](crate::ClientLimit::settle_later).
///
/// The answer's extensions have the `Estimate`. Settle it after you have read the body, which reports the use. An
/// `Estimate` takes no tokens itself. If it is dropped without a settlement, the estimate stands. Clones belong to the
/// same request, which only the first settlement changes.
#[derive(Clone)]
pub struct Estimate(Arc<dyn SettleEstimate>);

impl Estimate {
    pub(super) fn new<S: Store>(passing: UpstreamReporter<S>, open: Vec<OpenEstimate>) -> Self {
        let (receipts, said) = open.into_iter().map(|OpenEstimate { receipt, said }| (receipt, said)).unzip();
        Self(Arc::new(OpenSettlement { passing, receipts, said, since: Instant::now() }))
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
        if self.receipts().len() > 1 {
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
    passing: UpstreamReporter<S>,
    receipts: Vec<Receipt>,
    /// The report in the head of the answer, for each receipt.
    said: Vec<Option<HeaderReport>>,
    since: Instant,
}

/// The tokens left under a limit, as the head of an answer reported.
#[derive(Clone, Debug)]
pub(super) struct HeaderReport {
    pub(super) held: UpstreamLimit,
    /// How many tokens the bucket had left when the request was sent.
    pub(super) remaining: u64,
}

impl<S: Store> SettleEstimate for OpenSettlement<S> {
    fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }

    fn settle(&self, used: Vec<Option<u64>>) -> Settling {
        let (passing, since) = (self.passing.clone(), self.since);
        let used = self.receipts.iter().zip(&self.said).zip(used);
        let settled = used.filter_map(|((receipt, said), used)| {
            let used = used?;
            Some((receipt.clone().settle(used), (said.clone(), receipt.cost().saturating_sub(used))))
        });
        let (settled, said): (Vec<Adjustment>, Vec<_>) = settled.unzip();
        let settling = async move {
            if settled.is_empty() {
                return Ok(Adjusted::Done(0));
            }
            let adjusted = passing.settle(settled).await;
            // Repeats the part of the head's report that still applies: the settlement can have raised the bucket.
            let (passed, max_throttle) = (since.elapsed(), passing.max_throttle);
            let still = |(place, (said, back)): (usize, (Option<HeaderReport>, u64))| {
                said?.still(given_back(&adjusted, place, back), passed, max_throttle)
            };
            let held = said.into_iter().enumerate().filter_map(still).collect();
            passing.report(Vec::new(), held).await;
            Ok(least(adjusted?)?)
        };
        // The task continues if the caller is dropped.
        let limiter = self.passing.limiter.clone();
        Box::pin(async move {
            limiter.spawn(settling).await.unwrap_or_else(|ended| Err(Error::OutcomeUnknown(Arc::new(ended))))
        })
    }
}

impl HeaderReport {
    /// Returns the part of the report that still applies, after `passed` and after `back` tokens were given back.
    ///
    /// The tokens left describe the moment of the report. They apply only if tokens were given back, and only until the
    /// bucket refills, or while the wait lasts.
    fn still(self, back: u64, passed: Duration, max_throttle: Duration) -> Option<UpstreamLimit> {
        let wait = within(self.held.hold, max_throttle).wait().saturating_sub(passed);
        let left = self.held.hold.remaining_tokens().filter(|_| back > 0 && (passed < MAX_AGE || !wait.is_zero()));
        let news = left.is_some_and(|left| left < self.remaining.saturating_add(back));
        let hold = match left {
            Some(left) if news || !wait.is_zero() => Throttle::remaining(left).and(Throttle::retry_after(wait)),
            None if !wait.is_zero() => Throttle::retry_after(wait),
            _ => return None,
        };
        Some(UpstreamLimit { hold, ..self.held })
    }
}

/// Returns how many tokens one settlement gave back. If the result is unknown, returns the expected number.
fn given_back(adjusted: &Result<Vec<Result<Adjusted, TakeError>>, Error>, place: usize, expected: u64) -> u64 {
    match adjusted.as_ref().map(|adjusted| adjusted.get(place)) {
        Err(_) => expected,
        Ok(Some(Ok(Adjusted::Done(given)))) => u64::try_from(*given).unwrap_or(0),
        Ok(_) => 0,
    }
}

/// Returns the result of the settlement that gave back the fewest tokens, or of one that was late.
fn least(adjusted: Vec<Result<Adjusted, TakeError>>) -> Result<Adjusted, TakeError> {
    let adjusted = adjusted.into_iter().collect::<Result<Vec<Adjusted>, TakeError>>()?;
    let least = |adjusted: &Adjusted| match adjusted {
        Adjusted::Done(tokens) => (*tokens, true),
        // Precedes `Done(0)`.
        _ => (0, false),
    };
    Ok(adjusted.into_iter().min_by_key(least).unwrap_or(Adjusted::Done(0)))
}

/// How long the tokens left in a report apply.
const MAX_AGE: Duration = Duration::from_secs(1);
