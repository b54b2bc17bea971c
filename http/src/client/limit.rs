use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::reporter::UpstreamReporter;
use super::response_reader::{Cost, ResponseFn, ResponseReader};
use super::scheduled_request::ScheduledRequest;
use super::throttles::Throttles;
use super::ticket::{PricedRequest, Ticket, UpstreamLimit, UpstreamReport};
use super::{ClientLimitError, Estimate, HeaderPreset, OutgoingRequest, UpstreamResponse};
use tollgate::{AnyStore, Key, Limit, Limiter, Mode, Store, Throttle};

/// Keeps an HTTP client under the limit of whom it calls, together with every other process over the same store.
///
/// Before a request is sent it takes its tokens, of the bucket of its host unless [`key`](Self::key) says
/// otherwise. When none are left it waits for its turn, up to [`max_wait`](Self::max_wait), and beyond that fails with
/// [`ClientLimitError::Limited`] without having been sent. One that was sent has used its tokens, also if it fails.
///
/// An answer of 429, or of 503 or 529 that says `Retry-After`, [holds the bucket back](Limiter::throttle) for everybody: nobody who
/// asks after that is sent before its time, unless tokens are given back or the quota is changed meanwhile. The answer goes
/// to the caller as it is, when the store has been told. Requests of this limit and its clones that are scheduled before that
/// time reserve again at once. Those of other processes, and of other `ClientLimit`s over the same limiter, are sent and refused too. With
/// [`read`](Self::read), what other headers say is passed on as well.
///
/// Requests that are under several limits, as those of a language model are, take [from all of them](Self::and) or wait.
///
/// It is a layer for `tower`, over any service of `http` requests, and `middleware()` makes it one for
/// `reqwest` (feature `reqwest`).
pub struct ClientLimit<S: Store = AnyStore> {
    limiter: Limiter<S>,
    key: RequestFn<Option<Key>>,
    cost: RequestFn<u64>,
    reading: Arc<ResponseReader>,
    others: Vec<Other>,
    refused_if: Vec<ResponseFn<bool>>,
    max_wait: Duration,
    settle_within: Duration,
    max_throttle: Duration,
    unreported: Arc<AtomicU64>,
    throttles: Arc<Throttles>,
}

type RequestFn<T> = Arc<dyn Fn(&OutgoingRequest<'_>) -> T + Send + Sync>;

/// A limit beside the limiter's own.
#[derive(Clone)]
struct Other {
    limit: RequestFn<Option<Limit>>,
    reading: Arc<ResponseReader>,
}

impl<S: Store> ClientLimit<S> {
    /// Under a limiter: a token a request, by host, for which it waits up to 30 seconds.
    ///
    /// Let its quota be a continuous one, or its periods be short: see [`Throttle::retry_after`]. A sliding window limits what
    /// is sent, but cannot be throttled: what others answer is [`unreported`](Self::unreported), and nothing is sent again.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        Self {
            limiter,
            key: Arc::new(|request: &OutgoingRequest<'_>| request.host_key()),
            cost: Arc::new(|_| 1),
            reading: Arc::default(),
            others: Vec::new(),
            refused_if: Vec::new(),
            max_wait: Duration::from_secs(30),
            settle_within: Duration::from_secs(600),
            max_throttle: Throttle::DEFAULT_MAX_WAIT,
            unreported: Arc::default(),
            throttles: Arc::default(),
        }
    }

    /// What requests are limited by, instead of their host. One without a key is not sent, and fails with
    /// [`ClientLimitError::MissingKey`]: those of a client that tonic generated have no host, unless it was made by `with_origin`.
    #[must_use]
    pub fn key(self, key: impl Fn(&OutgoingRequest<'_>) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self { key: Arc::new(key), ..self }
    }

    /// How many tokens a request takes, of each bucket whose limit has no [cost of its own](Limit::cost); 0: none of those. What
    /// takes nothing at all is sent at once, and its answer is not looked at.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&OutgoingRequest<'_>) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// Another limit that requests are under, if this says one: they take from all of theirs or from none, in one call. For
    /// none it says `None`, so never of what is not known.
    ///
    /// Requests of one kind may be under this limit alone:
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, MemoryStore, Quota, Rule};
    /// use tollgate_http::{ClientLimit, OutgoingRequest, HeaderPreset};
    ///
    /// # fn main() -> Result<(), tollgate::Error> {
    /// fn is_search(request: &OutgoingRequest<'_>) -> bool {
    ///     request.path().starts_with("/search/")
    /// }
    ///
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(5000))?;
    /// let (bucket, quota) = (Key::try_from("searches")?, Rule::try_from("30/min")?);
    /// let limit = ClientLimit::new(limiter)
    ///     .cost(|request| u64::from(!is_search(request)))
    ///     .read(HeaderPreset::XRateLimit)
    ///     .and(move |request| is_search(request).then(|| Limit::new(bucket.clone(), quota.clone()).cost(1)))
    ///     .read(HeaderPreset::XRateLimit);
    /// # let _ = limit;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A refusal throttles those limits of which less is left than the request took, by their [own headers](Self::read). If
    /// those do not say, it is of the limiter's own and of those with headers to read, but for such as have enough by
    /// them: so a limit without any, for instance of a tenant of yours, is none that a third party refuses. No limit among
    /// several can be a [`Window`](tollgate::Window): such requests are not sent.
    #[must_use]
    pub fn and(mut self, limit: impl Fn(&OutgoingRequest<'_>) -> Option<Limit> + Send + Sync + 'static) -> Self {
        self.others.push(Other { limit: Arc::new(limit), reading: Arc::default() });
        self
    }

    /// How long a request waits for its turn; zero: not at all.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// The longest wait that an answer may ask for, and the longest debt that a cost told by it may leave, whatever it says.
    /// Default: an hour. A shorter [longest](Throttle::max_wait) wait, of what [reads](Self::read_with) the answer, counts instead.
    ///
    /// Of a quota by interval or by the calendar, tokens come with the first period after it: see [`Throttle::retry_after`].
    #[must_use]
    pub fn max_throttle(self, max_throttle: Duration) -> Self {
        Self { max_throttle, ..self }
    }

    /// Lowers the bucket to what these headers say, too, where they say less than was left when the request was sent. The
    /// store is called only then. Of several limits it is the one that was said last. Several presets lower one bucket, and one
    /// preset the buckets of all limits that a request is under and that read it: let what is read count the same thing.
    #[must_use]
    pub fn read(mut self, preset: HeaderPreset) -> Self {
        self.reading().presets.push(preset);
        self
    }

    /// The same by headers that no preset reads: what this says is left, if an answer says it. Of several limits it is of the one that
    /// was said last.
    ///
    /// ```
    /// use tollgate::{Throttle, Limiter, MemoryStore, Quota};
    /// use tollgate_http::{UpstreamResponse, ClientLimit};
    ///
    /// # fn main() -> Result<(), tollgate::Error> {
    /// /// `X-App-Usage: 97`, in percent of 200 an hour.
    /// fn left(answer: &UpstreamResponse<'_>) -> Option<Throttle> {
    ///     let used: u64 = answer.headers().get("x-app-usage")?.to_str().ok()?.parse().ok()?;
    ///     Some(Throttle::remaining(200 * 100_u64.saturating_sub(used) / 100))
    /// }
    ///
    /// let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), Quota::per_hour(200))?).read_with(left);
    /// # let _ = limit;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn read_with(
        mut self,
        left: impl Fn(&UpstreamResponse<'_>) -> Option<Throttle> + Send + Sync + 'static,
    ) -> Self {
        self.reading().by.push(Arc::new(left));
        self
    }

    /// Answers that are refusals as well, of whichever limits: they throttle for as long as they say by `Retry-After` or by what
    /// is read, and are sent again as a 429 is, as if nobody had begun with them. Of an overload (503, 529) nobody knows that:
    /// only what is idempotent is sent again, and an estimate stands unless the answer says what was used.
    #[must_use]
    pub fn refused_if(mut self, is_refusal: impl Fn(&UpstreamResponse<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.refused_if.push(Arc::new(is_refusal));
        self
    }

    /// Its cost is an estimate, and by the head of the answer so much was used: then that is paid, more or less than was taken.
    /// `None`: the estimate stands. Of several limits it is the one that was said last.
    ///
    /// What gives tokens back is told before what the headers say is left, which knows of it; more than was estimated is a debt,
    /// and the next requests wait, for [`max_throttle`](Self::max_throttle) at most. Nothing was used of a request that is
    /// refused. The use of one that fails or is cancelled is unknown, and its estimate stands. Of an overload (503, 529), also one that
    /// refuses, the answer is asked as any other is. An answer that could not be settled is [`unreported`](Self::unreported).
    ///
    /// An answer that does not refuse is the caller's at once, while its estimate is settled and what its headers say is left is
    /// passed on: [`Limiter::close`] waits for that.
    ///
    /// A request with an estimate is remembered by an id, a row more for each of its limits, and asked for in a call of its own.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota};
    /// use tollgate_http::{UpstreamResponse, ClientLimit};
    ///
    /// # fn main() -> Result<(), tollgate::Error> {
    /// let charged = |answer: &UpstreamResponse<'_>| answer.headers().get("x-request-charge")?.to_str().ok()?.parse().ok();
    /// let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), Quota::per_second(400))?).cost(|_| 20).settle(charged);
    /// # let _ = limit;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn settle(mut self, used: impl Fn(&UpstreamResponse<'_>) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.reading().cost = Cost::ByHead(Arc::new(used));
        self
    }

    /// The same where only the body says what was used: whoever reads it settles the estimate, by the [`Estimate`] among the
    /// answer's extensions. An answer that refuses has none, and one that is dropped with its estimate lets it stand.
    ///
    /// What the headers say is left is passed on with the head. It is once more when the settlement gives something back, if that
    /// is within a second: later a bucket has refilled. Of layers of one client, one settles later.
    #[must_use]
    pub fn settle_later(mut self) -> Self {
        self.reading().cost = Cost::ByBody;
        self
    }

    /// For how long an estimate can be settled once its request's turn has come, or a little longer; ten minutes if not said.
    /// Later it stands.
    ///
    /// So long a request is remembered that nobody settles; in a database one that is settled, a day. A
    /// [`MemoryStore`](tollgate::MemoryStore) has room for half a million of one bucket, unless
    /// [`max_keys`](tollgate::MemoryStore::max_keys) says otherwise: in ten minutes, for 800 a second. Those that are settled
    /// need none of it, so that only those count whose estimates stand. Beyond that nothing is sent
    /// ([`TakeError::TooManyIds`](tollgate::TakeError::TooManyIds)).
    #[must_use]
    pub fn settle_within(self, hold: Duration) -> Self {
        Self { settle_within: hold, ..self }
    }

    /// How many answers could not be passed on to the store, because it failed, because the limit cannot be throttled, or because
    /// an estimate was settled too late by the head of its answer.
    #[must_use]
    pub fn unreported(&self) -> u64 {
        self.unreported.load(Ordering::Relaxed)
    }

    /// What a request takes, unless it is not limited.
    pub(super) fn price(&self, request: &OutgoingRequest<'_>) -> Result<Option<PricedRequest>, ClientLimitError> {
        let cost = (self.cost)(request);
        let mut priced = PricedRequest::new(cost);
        if cost > 0 {
            let key = (self.key)(request).ok_or(ClientLimitError::MissingKey)?;
            priced.add(Limit::new(key, self.limiter.rule()), true, &self.reading)?;
        }
        for Other { limit, reading } in &self.others {
            let costs = |limit: &Limit| if limit.has_own_cost() { limit.tokens() > 0 } else { cost > 0 };
            let Some(limit) = limit(request).filter(costs) else { continue };
            priced.add(limit, false, reading)?;
        }
        Ok(Some(priced).filter(|priced| !priced.is_free()))
    }

    /// Takes the tokens of a request, and sleeps until its scheduled time.
    ///
    /// Where an upstream throttles meanwhile until after that time, the request reserves again under the throttled limits, and
    /// keeps what it has of the others. The tokens of a revoked reservation stay taken: given back, they would end the throttle
    /// before its time.
    pub(super) async fn admit(&self, mut priced: PricedRequest) -> Result<Ticket, ClientLimitError> {
        let until = Instant::now().checked_add(self.max_wait);
        let keys: Vec<Key> = priced.keys().cloned().collect();
        let mut watch = self.throttles.watch(&keys);
        // Given back, as far as their scheduled times have not come, if the request is not sent.
        let mut turns: Vec<ScheduledRequest<S>> = Vec::new();
        let mut scheduled = Instant::now();
        loop {
            let left = until.map_or(self.max_wait, |until| until.saturating_duration_since(Instant::now()));
            let take = priced.take(&self.limiter, left, left.saturating_add(self.settle_within));
            let asked: Vec<Key> = take.keys().cloned().collect();
            let turn = ScheduledRequest::reserve(&self.limiter, take).await?;
            let decision = turn.decision();
            priced.decided(&asked, decision, turn.receipts());
            if !decision.is_granted() {
                let (key, retry_after) = (asked[decision.limit()].clone(), decision.retry_after());
                return Err(ClientLimitError::Limited { key, retry_after });
            }
            scheduled = scheduled.max(turn.scheduled());
            if Instant::now() < scheduled {
                let revoked = watch.until_revoked(scheduled, |key| priced.is_enforced(key));
                turn.sleep_until_or(scheduled, revoked).await;
            }
            turns.push(turn);
            // A limit that denies no request delays none.
            let mut throttled = watch.revoked(scheduled);
            throttled.retain(|key| priced.is_enforced(key));
            if throttled.is_empty() {
                turns.into_iter().for_each(ScheduledRequest::use_up);
                return Ok(priced.ticket());
            }
            for turn in &mut turns {
                turn.forfeit(&throttled);
            }
            priced.again(&throttled);
        }
    }

    /// Passes on what an answer says. Says whether it was a refusal that throttles whoever asks again, and has what is for whoever
    /// reads the body. Who asks again at once must find there what throttles, so the answer waits for the store; but only a
    /// refusal waits for a settlement, or a store that stalls would keep every answer. A caller who gives up does not stop it.
    pub(super) async fn answered(&self, ticket: Ticket, answer: &UpstreamResponse<'_>) -> (bool, Option<Estimate>) {
        let UpstreamReport { settled, held, open } = ticket.told(answer, &self.refused_if);
        let (limiter, throttles, unreported) =
            (self.limiter.clone(), Arc::clone(&self.throttles), Arc::clone(&self.unreported));
        let passing = UpstreamReporter { limiter, throttles, unreported, max_throttle: self.max_throttle };
        let estimate = open.map(|open| Estimate::new(passing.clone(), open));
        if settled.is_empty() && held.is_empty() {
            return (false, estimate);
        }
        let refused: Vec<&UpstreamLimit> = held.iter().filter(|held| held.refused).collect();
        let enforced = self.limiter.mode() == Mode::Enforce && refused.iter().all(|held| held.enforced);
        let is_refusal = !refused.is_empty();
        let waits = is_refusal || settled.is_empty();
        let passed_on = self.limiter.spawn(passing.report(settled, held));
        // It fails if the runtime is ending.
        let is_known = waits && passed_on.await.unwrap_or(false);
        (is_known && is_refusal && enforced, estimate)
    }

    /// Of the limit that was said last.
    fn reading(&mut self) -> &mut ResponseReader {
        Arc::make_mut(self.others.last_mut().map_or(&mut self.reading, |other| &mut other.reading))
    }
}

impl<S: Store> Clone for ClientLimit<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: Arc::clone(&self.key),
            cost: Arc::clone(&self.cost),
            reading: Arc::clone(&self.reading),
            others: self.others.clone(),
            refused_if: self.refused_if.clone(),
            unreported: Arc::clone(&self.unreported),
            throttles: Arc::clone(&self.throttles),
            ..*self
        }
    }
}

impl<S: Store> fmt::Debug for ClientLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLimit")
            .field("rule", &self.limiter.rule())
            .field("max_wait", &self.max_wait)
            .field("max_throttle", &self.max_throttle)
            .field("reading", &self.reading)
            .field("other limits", &self.others.len())
            .finish_non_exhaustive()
    }
}
