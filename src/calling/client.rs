use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::headers;
use super::refusals::Refusals;
use super::{ClientLimitError, Outgoing, Preset};
use crate::decision::Source;
use crate::{AnyStore, Error, HoldBack, HoldBackError, Key, Limiter, Mode, Store};

/// Keeps an HTTP client under the limit of whom it calls, together with every other process over the same store.
///
/// Before a request is sent it takes its tokens, of the bucket of its host unless [`keyed_by`](Self::keyed_by) says
/// otherwise. When none are left it waits for its turn, up to [`max_wait`](Self::max_wait), and beyond that fails with
/// [`ClientLimitError::Limited`] without having been sent. One that was sent has used its tokens, also if it fails.
///
/// An answer of 429, or of 503 that says `Retry-After`, [holds the bucket back](Limiter::hold_back) for everybody: nobody who
/// asks after that is sent before its time, unless tokens are given back or the quota is changed meanwhile. The answer goes
/// to the caller as it is. Requests that had been given their turn before ask for another one in this process; in others they
/// are sent, and are refused too. With [`read`](Self::read), what other headers say is passed on as well.
///
/// It is a layer for `tower` (feature `tower`), over any service of `http` requests, and `middleware()` makes it one for
/// `reqwest` (feature `reqwest`).
pub struct ClientLimit<S: Store = AnyStore> {
    limiter: Limiter<S>,
    key: Arc<Keyed>,
    cost: Arc<Priced>,
    max_wait: Duration,
    longest_hold: Duration,
    presets: Vec<Preset>,
    seen: Arc<Seen>,
}

type Keyed = dyn Fn(&Outgoing<'_>) -> Option<Key> + Send + Sync;
type Priced = dyn Fn(&Outgoing<'_>) -> u64 + Send + Sync;

/// What clones share.
#[derive(Debug, Default)]
struct Seen {
    refusals: Refusals,
    missed: AtomicU64,
}

/// Tokens that a request has taken.
#[derive(Debug)]
pub(super) struct Ticket {
    key: Key,
    /// What was left then.
    remaining: u64,
    /// Whether its limit would have denied it: else the next request is not held back either.
    enforced: bool,
}

impl<S: Store> ClientLimit<S> {
    /// Under a limiter: a token a request, by host, for which it waits up to 30 seconds.
    ///
    /// Let its quota be a continuous one, or its periods be short: see [`HoldBack::retry_after`]. A sliding window limits what
    /// is sent, but cannot be held back: what others answer is [`missed`](Self::missed), and nothing is sent again.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        Self {
            limiter,
            key: Arc::new(|request: &Outgoing<'_>| request.host_key()),
            cost: Arc::new(|_| 1),
            max_wait: Duration::from_secs(30),
            longest_hold: HoldBack::LONGEST,
            presets: Vec::new(),
            seen: Arc::default(),
        }
    }

    /// What requests are limited by, instead of their host. One without a key is not sent, and fails with
    /// [`ClientLimitError::NoKey`].
    #[must_use]
    pub fn keyed_by(self, key: impl Fn(&Outgoing<'_>) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self { key: Arc::new(key), ..self }
    }

    /// How many tokens a request takes; 0: it is sent at once, and its answer is not looked at.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Outgoing<'_>) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// How long a request waits for its turn; zero: not at all.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// The longest wait that an answer may ask for, whatever it says; an hour if not said. Of a quota by interval or by the
    /// calendar, tokens come with the first period after it: see [`HoldBack::retry_after`].
    #[must_use]
    pub fn longest_hold(self, longest_hold: Duration) -> Self {
        Self { longest_hold, ..self }
    }

    /// Lowers the bucket to what these headers say, too, where they say less than was left when the request was sent. The
    /// store is called only then. Several presets lower one bucket: let them count the same thing.
    #[must_use]
    pub fn read(mut self, preset: Preset) -> Self {
        self.presets.push(preset);
        self
    }

    /// How many answers could not be passed on to the store, because it failed or because the limit cannot be held back.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.seen.missed.load(Ordering::Relaxed)
    }

    /// The key and cost of a request, unless it is not limited.
    pub(super) fn price(&self, request: &Outgoing<'_>) -> Result<Option<(Key, u64)>, ClientLimitError> {
        match (self.cost)(request) {
            0 => Ok(None),
            cost => Ok(Some(((self.key)(request).ok_or(ClientLimitError::NoKey)?, cost))),
        }
    }

    /// Waits for the turn of a request.
    pub(super) async fn admit(&self, key: Key, cost: u64) -> Result<Ticket, ClientLimitError> {
        let until = Instant::now().checked_add(self.max_wait);
        let mut refusals = self.seen.refusals.watch(&key);
        loop {
            let left = until.map_or(self.max_wait, |until| until.saturating_duration_since(Instant::now()));
            let decision = if left.is_zero() {
                self.limiter.allow_n(&key, cost).await?
            } else {
                self.limiter.wait_n(&key, cost, left).await?
            };
            if !decision.is_granted() {
                drop(refusals);
                return Err(ClientLimitError::Limited { key, retry_after: decision.retry_after() });
            }
            // Else its turn was given before somebody was refused, and is worth nothing any more.
            if !refusals.was_refused() {
                drop(refusals);
                let enforced = decision.mode() == Mode::Enforce && self.limiter.mode() == Mode::Enforce;
                // Of a bucket that was not asked there is nothing to lower.
                let remaining = if decision.source() == Source::Fallback { 0 } else { decision.remaining() };
                return Ok(Ticket { key, remaining, enforced });
            }
        }
    }

    /// Passes on what an answer says, and says whether it was a refusal that holds back whoever asks again. A caller who gives
    /// up meanwhile does not stop it.
    pub(super) async fn answered(&self, ticket: Ticket, status: StatusCode, headers: &HeaderMap) -> bool {
        let refused = headers::is_refusal(status, headers, &self.presets);
        let Some(hold) = HoldBack::from_answer(status, headers, &self.presets) else {
            return false;
        };
        let lower = hold.left().is_some_and(|left| left < ticket.remaining);
        if !refused && !lower && hold.wait().is_zero() {
            return false;
        }
        let (limiter, seen) = (self.limiter.clone(), Arc::clone(&self.seen));
        let hold = hold.longest(self.longest_hold);
        let passing = async move {
            let refusal = || {
                if refused {
                    seen.refusals.add(&ticket.key);
                }
            };
            refusal();
            let passed_on = hold_back(&limiter, &ticket.key, hold).await.is_ok();
            if !passed_on {
                seen.missed.fetch_add(1, Ordering::Relaxed);
            }
            // Those who were given a turn in between ask again, too.
            refusal();
            refused && passed_on && ticket.enforced
        };
        // It fails if the runtime is ending.
        tokio::spawn(passing).await.unwrap_or(false)
    }
}

/// A bucket that never refills cannot be held back for a time, but to what is left.
async fn hold_back<S: Store>(limiter: &Limiter<S>, key: &Key, hold: HoldBack) -> Result<bool, Error> {
    let lowered = limiter.hold_back(key, hold).await;
    match (&lowered, hold.left()) {
        (Err(Error::HoldBack(HoldBackError::NeverRefills(_))), Some(left)) => {
            limiter.hold_back(key, HoldBack::remaining(left)).await
        }
        _ => lowered,
    }
}

impl<S: Store> Clone for ClientLimit<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: Arc::clone(&self.key),
            cost: Arc::clone(&self.cost),
            presets: self.presets.clone(),
            seen: Arc::clone(&self.seen),
            ..*self
        }
    }
}

impl<S: Store> fmt::Debug for ClientLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLimit")
            .field("rule", &self.limiter.rule())
            .field("max_wait", &self.max_wait)
            .field("longest_hold", &self.longest_hold)
            .field("presets", &self.presets)
            .finish_non_exhaustive()
    }
}
