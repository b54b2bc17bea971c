use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::passing::{Seen, pass_on};
use super::ticket::{Held, Priced, Ticket};
use super::{ClientLimitError, Outgoing, Preset};
use crate::{AnyStore, HoldBack, Key, Limit, Limiter, Mode, Store};

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
/// Requests that are under several limits, as those of a language model are, take [from all of them](Self::and) or wait.
///
/// It is a layer for `tower` (feature `tower`), over any service of `http` requests, and `middleware()` makes it one for
/// `reqwest` (feature `reqwest`).
pub struct ClientLimit<S: Store = AnyStore> {
    limiter: Limiter<S>,
    key: OfRequest<Option<Key>>,
    cost: OfRequest<u64>,
    presets: Arc<[Preset]>,
    others: Vec<Other>,
    max_wait: Duration,
    longest_hold: Duration,
    seen: Arc<Seen>,
}

type OfRequest<T> = Arc<dyn Fn(&Outgoing<'_>) -> T + Send + Sync>;

/// A limit beside the limiter's own.
#[derive(Clone)]
struct Other {
    limit: OfRequest<Option<Limit>>,
    presets: Arc<[Preset]>,
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
            presets: Arc::default(),
            others: Vec::new(),
            max_wait: Duration::from_secs(30),
            longest_hold: HoldBack::LONGEST,
            seen: Arc::default(),
        }
    }

    /// What requests are limited by, instead of their host. One without a key is not sent, and fails with
    /// [`ClientLimitError::NoKey`].
    #[must_use]
    pub fn keyed_by(self, key: impl Fn(&Outgoing<'_>) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self { key: Arc::new(key), ..self }
    }

    /// How many tokens a request takes, of each bucket whose limit has no [cost of its own](Limit::cost); 0: none of those. What
    /// takes nothing at all is sent at once, and its answer is not looked at.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Outgoing<'_>) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// Another limit that requests are under, if this says one: they take from all of theirs or from none, in one call. For
    /// none it says `None`, so never of what is not known.
    ///
    /// Requests of one kind may be under this limit alone:
    ///
    /// ```
    /// use tollgate::{ClientLimit, Key, Limit, Limiter, MemoryStore, Outgoing, Preset, Quota, Rule};
    ///
    /// # fn main() -> Result<(), tollgate::Error> {
    /// fn is_search(request: &Outgoing<'_>) -> bool {
    ///     request.path().starts_with("/search/")
    /// }
    ///
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(5000))?;
    /// let (bucket, quota) = (Key::try_from("searches")?, Rule::try_from("30/min")?);
    /// let limit = ClientLimit::new(limiter)
    ///     .cost(|request| u64::from(!is_search(request)))
    ///     .read(Preset::XRateLimit)
    ///     .and(move |request| is_search(request).then(|| Limit::new(bucket.clone(), quota.clone()).cost(1)))
    ///     .read(Preset::XRateLimit);
    /// # let _ = limit;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A refusal holds back those limits of which less is left than the request took, by their [own headers](Self::read). If
    /// those do not say, it is of the limiter's own and of those with headers to read, but for such as have enough by
    /// them: so a limit without any, for instance of a tenant of yours, is none that a third party refuses. No limit among
    /// several can be a [`Window`](crate::Window): such requests are not sent.
    #[must_use]
    pub fn and(mut self, limit: impl Fn(&Outgoing<'_>) -> Option<Limit> + Send + Sync + 'static) -> Self {
        self.others.push(Other { limit: Arc::new(limit), presets: Arc::default() });
        self
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
    /// store is called only then. Of several limits it is the one that was said last. Several presets lower one bucket, and one
    /// preset the buckets of all limits that a request is under and that read it: let what is read count the same thing.
    #[must_use]
    pub fn read(mut self, preset: Preset) -> Self {
        let presets = self.others.last_mut().map_or(&mut self.presets, |other| &mut other.presets);
        *presets = presets.iter().copied().chain([preset]).collect();
        self
    }

    /// How many answers could not be passed on to the store, because it failed or because the limit cannot be held back.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.seen.missed.load(Ordering::Relaxed)
    }

    /// What a request takes, unless it is not limited.
    pub(super) fn price(&self, request: &Outgoing<'_>) -> Result<Option<Priced>, ClientLimitError> {
        let cost = (self.cost)(request);
        let mut priced = None;
        if cost > 0 {
            let key = (self.key)(request).ok_or(ClientLimitError::NoKey)?;
            priced = Some(Priced::new(self.limiter.take(key, cost), true, &self.presets));
        }
        for Other { limit, presets } in &self.others {
            let costs = |limit: &Limit| if limit.own_cost { limit.tokens() > 0 } else { cost > 0 };
            let Some(limit) = limit(request).filter(costs) else { continue };
            priced = Some(match priced {
                None => Priced::new(self.limiter.take_under(limit, cost, false), false, presets),
                Some(priced) => priced.and(limit, presets)?,
            });
        }
        Ok(priced.map(Priced::of_its_only))
    }

    /// Waits for the turn of a request.
    pub(super) async fn admit(&self, mut priced: Priced) -> Result<Ticket, ClientLimitError> {
        let until = Instant::now().checked_add(self.max_wait);
        let keys: Vec<Key> = priced.take.keys().cloned().collect();
        let mut refusals = self.seen.refusals.watch(&keys);
        loop {
            let left = until.map_or(self.max_wait, |until| until.saturating_duration_since(Instant::now()));
            priced.take = priced.take.max_wait(left);
            let decision = if left.is_zero() {
                self.limiter.decide(&priced.take).await?
            } else {
                self.limiter.wait_all(&priced.take).await?.into_decision()
            };
            if !decision.is_granted() {
                let key = priced.take.limits[decision.limit()].key().clone();
                return Err(ClientLimitError::Limited { key, retry_after: decision.retry_after() });
            }
            priced.granted(&decision);
            // Where somebody was refused meanwhile, its turn was given before, and is worth nothing any more.
            let refused = refusals.refused();
            if refused.is_empty() {
                return Ok(priced.ticket());
            }
            priced.again(&refused);
        }
    }

    /// Passes on what an answer says, and says whether it was a refusal that holds back whoever asks again. A caller who gives
    /// up meanwhile does not stop it.
    pub(super) async fn answered(&self, ticket: Ticket, status: StatusCode, headers: &HeaderMap) -> bool {
        let held = ticket.held(status, headers);
        if held.is_empty() {
            return false;
        }
        let refused: Vec<&Held> = held.iter().filter(|held| held.refused).collect();
        let enforced = self.limiter.mode() == Mode::Enforce && refused.iter().all(|held| held.enforced);
        let holds_back = enforced && !refused.is_empty();
        let passing = pass_on(self.limiter.clone(), Arc::clone(&self.seen), held, self.longest_hold);
        // It fails if the runtime is ending.
        tokio::spawn(passing).await.unwrap_or(false) && holds_back
    }
}

impl<S: Store> Clone for ClientLimit<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: Arc::clone(&self.key),
            cost: Arc::clone(&self.cost),
            presets: Arc::clone(&self.presets),
            others: self.others.clone(),
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
            .field("other limits", &self.others.len())
            .finish_non_exhaustive()
    }
}
