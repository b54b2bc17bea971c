use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::reporter::{UpstreamReporter, within};
use super::ticket::{OpenEstimate, UpstreamLimit};
use tollgate::{Adjusted, Adjustment, Error, Receipt, Store, TakeError, Throttle};

/// What a request has taken of limits that are [settled later](crate::ClientLimit::settle_later): it is among the extensions of
/// the answer, for whoever reads the body and knows then what was used.
///
/// It takes no tokens itself, and dropped without having been settled it lets the estimate stand. Clones are of the same request,
/// which is settled once, by whoever comes first.
#[derive(Clone)]
pub struct Estimate(Arc<dyn SettleEstimate>);

impl Estimate {
    pub(super) fn new<S: Store>(passing: UpstreamReporter<S>, open: Vec<OpenEstimate>) -> Self {
        let (receipts, said) = open.into_iter().map(|OpenEstimate { receipt, said }| (receipt, said)).unzip();
        Self(Arc::new(OpenSettlement { passing, receipts, said, since: Instant::now() }))
    }

    /// Pays what the request used in the end, in the limit's tokens, and says how many were given back; negative: so many more
    /// were taken. If there are none, the bucket owes them, and the next requests wait, for
    /// [`max_throttle`](crate::ClientLimit::max_throttle) at most.
    ///
    /// [`Late`](Adjusted::Late) if it is later than [said](crate::ClientLimit::settle_within), and
    /// [`Repeated`](Adjusted::Repeated) if it was settled before: nothing changes. A request that took nothing, by a fallback or
    /// because the limiter is switched off, has nothing to settle: `Done(0)`.
    ///
    /// # Errors
    ///
    /// [`TakeError::CostsDiffer`] if several limits are to be settled; the estimates stand then. And if there is no answer, or
    /// none by the limiter's [`deadline`](tollgate::LimiterBuilder::deadline): it may be settled again then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in a task of its own.
    pub async fn settle(&self, used: u64) -> Result<Adjusted, Error> {
        if self.receipts().len() > 1 {
            return Err(TakeError::CostsDiffer.into());
        }
        self.settle_each(|_| Some(used)).await
    }

    /// The same where several limits of a request are to be settled. `None`: what was taken of it stands. Says what is true of the
    /// one that gave back least.
    ///
    /// # Errors
    ///
    /// If there is no answer, as for [`settle`](Self::settle).
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn settle_each(&self, used: impl Fn(&Receipt) -> Option<u64>) -> Result<Adjusted, Error> {
        let used = self.receipts().iter().map(used).collect();
        self.0.settle(used).await
    }

    /// What was taken of each of the limits that are to be settled; nothing where nothing limits.
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

/// It is among others' extensions, so it does not say over which store.
trait SettleEstimate: Send + Sync {
    fn receipts(&self) -> &[Receipt];

    /// In the order of the receipts.
    fn settle(&self, used: Vec<Option<u64>>) -> Settling;
}

type Settling = Pin<Box<dyn Future<Output = Result<Adjusted, Error>> + Send>>;

struct OpenSettlement<S: Store> {
    passing: UpstreamReporter<S>,
    receipts: Vec<Receipt>,
    /// What the head of the answer said of each of them.
    said: Vec<Option<HeaderReport>>,
    since: Instant,
}

/// What the head of an answer said of a limit.
#[derive(Clone, Debug)]
pub(super) struct HeaderReport {
    pub(super) held: UpstreamLimit,
    /// How many tokens were left when the request was sent.
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
            // Of what was said before anything was given back, as far as it says anything still.
            let (passed, max_throttle) = (since.elapsed(), passing.max_throttle);
            let still = |(place, (said, back)): (usize, (Option<HeaderReport>, u64))| {
                said?.still(given_back(&adjusted, place, back), passed, max_throttle)
            };
            let held = said.into_iter().enumerate().filter_map(still).collect();
            passing.report(Vec::new(), held).await;
            Ok(least(adjusted?)?)
        };
        // In a task, which goes on if the caller is dropped.
        let limiter = self.passing.limiter.clone();
        Box::pin(async move {
            limiter.spawn(settling).await.unwrap_or_else(|ended| Err(Error::OutcomeUnknown(Arc::new(ended))))
        })
    }
}

impl HeaderReport {
    /// What it says so much later, when so many tokens have been given back: it must not be more than was said. What was left
    /// is of that moment, and a bucket that has refilled since is not lowered to it, nor one that was given nothing back.
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

/// How many tokens the settlement at a place gave back; if nobody knows, as many as it should have.
fn given_back(adjusted: &Result<Vec<Result<Adjusted, TakeError>>, Error>, place: usize, expected: u64) -> u64 {
    match adjusted.as_ref().map(|adjusted| adjusted.get(place)) {
        Err(_) => expected,
        Ok(Some(Ok(Adjusted::Done(given)))) => u64::try_from(*given).unwrap_or(0),
        Ok(_) => 0,
    }
}

/// Returns what is true of all settlements: of the one that gave back least, or that a limit's came too late.
fn least(adjusted: Vec<Result<Adjusted, TakeError>>) -> Result<Adjusted, TakeError> {
    let adjusted = adjusted.into_iter().collect::<Result<Vec<Adjusted>, TakeError>>()?;
    let least = |adjusted: &Adjusted| match adjusted {
        Adjusted::Done(tokens) => (*tokens, true),
        // Before what had nothing to give back.
        _ => (0, false),
    };
    Ok(adjusted.into_iter().min_by_key(least).unwrap_or(Adjusted::Done(0)))
}

/// For so long, what was left is what is left.
const MAX_AGE: Duration = Duration::from_secs(1);
