use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tollgate::middleware::MiddlewareHooks;
use tollgate::{Decision, Error, Key, Limiter, Receipt, Reservation, Store, Take};

/// A reservation for a request that waits. If dropped before its scheduled time, gives its tokens back in a task.
#[derive(Debug)]
pub(super) struct ScheduledRequest<S: Store> {
    limiter: Limiter<S>,
    reservation: Reservation<S>,
    scheduled: Instant,
    /// The receipts to give back if dropped.
    unused: Vec<Receipt>,
}

impl<S: Store> ScheduledRequest<S> {
    /// Reserves through the limiter. If dropped during the call, the tokens are given back.
    pub(super) async fn reserve(limiter: &Limiter<S>, take: Take) -> Result<Self, Error> {
        let limiter = limiter.clone();
        let is_immediate = take.get_max_wait().is_zero() || limiter.store().capabilities().in_process;
        let reserving = {
            let limiter = limiter.clone();
            async move { Ok(Self::new(limiter.reserve_request(&take).await?, limiter)) }
        };
        if is_immediate {
            return reserving.await;
        }
        // If the caller is dropped, the task still ends, and drops the reservation.
        limiter.spawn(reserving).await.unwrap_or_else(|ended| Err(Error::OutcomeUnknown(Arc::new(ended))))
    }

    fn new(reservation: Reservation<S>, limiter: Limiter<S>) -> Self {
        let (now, decision) = (Instant::now(), reservation.decision());
        let delay = reservation.delay().filter(|_| !decision.wait().is_zero());
        // Tokens that were granted without a wait cannot be cancelled.
        let unused = if delay.is_some() { reservation.receipts().to_vec() } else { Vec::new() };
        let scheduled = delay.and_then(|delay| now.checked_add(delay)).unwrap_or(now);
        Self { limiter, reservation, scheduled, unused }
    }

    pub(super) fn decision(&self) -> &Decision {
        self.reservation.decision()
    }

    pub(super) fn receipts(&self) -> &[Receipt] {
        self.reservation.receipts()
    }

    /// Returns when the request can be sent.
    pub(super) fn scheduled(&self) -> Instant {
        self.scheduled
    }

    /// Sleeps until a time, which must not be before its own, or until `revoked` completes.
    pub(super) async fn sleep_until_or(&self, scheduled: Instant, revoked: impl Future<Output = ()>) {
        let mut revoked = pin!(revoked);
        let mut sleep = pin!(async {
            self.reservation.wait().await;
            sleep_until(scheduled).await;
        });
        poll_fn(
            |context| {
                if revoked.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { sleep.as_mut().poll(context) }
            },
        )
        .await;
    }

    /// Keeps the tokens of these buckets taken, even if the request is dropped.
    pub(super) fn forfeit(&mut self, keys: &[&Key]) {
        self.unused.retain(|receipt| !keys.contains(&&receipt.key().without_limit()));
    }

    /// Keeps all tokens taken, because the request is sent.
    pub(super) fn use_up(mut self) {
        self.unused.clear();
    }
}

impl<S: Store> Drop for ScheduledRequest<S> {
    fn drop(&mut self) {
        if self.unused.is_empty() || Handle::try_current().is_err() {
            // Without a runtime, the process is ending and the tokens stay taken.
            return;
        }
        let cancels = self.unused.drain(..).map(Receipt::cancel).collect();
        let limiter = self.limiter.clone();
        self.limiter.spawn(async move { drop(limiter.adjust(cancels).await) });
    }
}
