use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::report::{ReportedLimit, UpstreamReport};
use super::reporter::UpstreamReporter;
use super::response_reader::{Cost, ResponseFn, ResponseReader};
use super::scheduled_request::ScheduledRequest;
use super::throttles::Throttles;
use super::ticket::{PricedRequest, Ticket};
use super::{ClientLimitError, Estimate, HeaderPreset, OutgoingRequest, UpstreamResponse};
use tollgate::middleware::MiddlewareHooks;
use tollgate::{AnyStore, Key, Limit, Limiter, Mode, Store, Throttle};

/// Limits the requests of an HTTP client to an upstream. All processes over the same store share the limit.
///
/// Each request takes its tokens before it is sent, from the bucket of its host or of its [`key`](Self::key). If no
/// token is available, the request waits for its scheduled time, up to [`max_wait`](Self::max_wait). If the wait would
/// be longer, the request is not sent and fails with [`ClientLimitError::Limited`]. A request that was sent has used
/// its tokens, even if it fails.
///
/// If the upstream answers 429, or 503 or 529 with `Retry-After`, the limit [throttles the bucket](Limiter::throttle)
/// for all processes. Later requests wait until the throttle ends. It ends earlier if tokens are given back or the
/// quota changes. The caller gets the answer unchanged, after the store has the throttle. With [`read`](Self::read),
/// other headers throttle the bucket too.
///
/// Requests that already wait when the bucket is throttled:
///
/// - Requests of this limit and its clones reserve again if they are scheduled before the end of the throttle.
/// - Requests of other processes, and of other `ClientLimit`s over the same limiter, are sent and refused too.
///
/// A request under several limits, such as a call of a language model, takes [from all of them](Self::and) or waits.
///
/// `ClientLimit` is a `tower` layer for services of `http` requests. With the feature `reqwest`, `middleware()` makes
/// it a middleware for `reqwest`.
pub struct ClientLimit<S: Store = AnyStore> {
    limiter: Limiter<S>,
    key: RequestFn<Option<Key>>,
    cost: RequestFn<u64>,
    reader: Arc<ResponseReader>,
    additional: Vec<AdditionalLimit>,
    refused_if: Vec<ResponseFn<bool>>,
    max_wait: Duration,
    settle_within: Duration,
    max_throttle: Duration,
    unreported: Arc<AtomicU64>,
    throttles: Arc<Throttles>,
}

type RequestFn<T> = Arc<dyn Fn(&OutgoingRequest<'_>) -> T + Send + Sync>;

/// A limit in addition to the limiter's own.
#[derive(Clone)]
struct AdditionalLimit {
    limit: RequestFn<Option<Limit>>,
    reader: Arc<ResponseReader>,
}

impl<S: Store> ClientLimit<S> {
    /// Creates a limit that takes one token per request, from the bucket of its host, and waits up to 30 seconds.
    ///
    /// Use a continuous quota, or a fixed window that is short or equals the upstream's: see
    /// [`max_throttle`](Self::max_throttle). A sliding window limits requests but cannot be throttled. Refusals then count
    /// as [`unreported`](Self::unreported), and no request is sent again.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        Self {
            limiter,
            key: Arc::new(|request: &OutgoingRequest<'_>| request.host_key()),
            cost: Arc::new(|_| 1),
            reader: Arc::default(),
            additional: Vec::new(),
            refused_if: Vec::new(),
            max_wait: Duration::from_secs(30),
            settle_within: Duration::from_secs(600),
            max_throttle: Throttle::DEFAULT_MAX_WAIT,
            unreported: Arc::default(),
            throttles: Arc::default(),
        }
    }

    /// Sets the key, which selects the bucket of a request.
    ///
    /// A request without a key is not sent, and fails with [`ClientLimitError::MissingKey`]. Clients that tonic
    /// generated send requests without a host, unless you create them by `with_origin`. Default: the host.
    #[must_use]
    pub fn key(self, key: impl Fn(&OutgoingRequest<'_>) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self { key: Arc::new(key), ..self }
    }

    /// Sets how many tokens a request takes from each limit without its [own cost](Limit::cost).
    ///
    /// A request with a cost of 0 takes nothing from these limits. A request that takes nothing at all is sent at once,
    /// and its answer is not read. Default: 1 token.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&OutgoingRequest<'_>) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// Adds another limit, which the closure chooses for each request.
    ///
    /// A request takes tokens from all its limits or from none, in one call. `None` means that the limit does not
    /// apply, so never return it for a limit that you do not know.
    ///
    /// A request with several limits cannot have a sliding [`Window`](tollgate::Window). Such a request is not sent.
    ///
    /// # Throttling
    ///
    /// A refusal throttles the limits that are most likely to have caused it, by [the headers](Self::read) of each limit:
    ///
    /// 1. limits whose headers report less than the request took,
    /// 2. otherwise the limiter's own limit and limits with headers to read, if their headers are not in the answer,
    /// 3. otherwise limits whose headers report enough,
    /// 4. otherwise limits without headers to read.
    ///
    /// A limit without headers to read, such as a tenant's, is therefore throttled only if all limits of the request are of
    /// this kind.
    ///
    /// # Examples
    ///
    /// Requests of one kind can be under this limit only:
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
    #[must_use]
    pub fn and(mut self, limit: impl Fn(&OutgoingRequest<'_>) -> Option<Limit> + Send + Sync + 'static) -> Self {
        self.additional.push(AdditionalLimit { limit: Arc::new(limit), reader: Arc::default() });
        self
    }

    /// Sets how long a request waits for its scheduled time. With zero, requests do not wait.
    ///
    /// If the wait would be longer, the request is not sent and fails with [`ClientLimitError::Limited`].
    /// Default: 30 s.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Sets the longest throttle that an answer can cause, and the longest debt that a settled cost can leave.
    ///
    /// A shorter [`Throttle::max_wait`] of a closure in [`read_with`](Self::read_with) takes precedence.
    /// Default: one hour.
    ///
    /// With a fixed window, tokens come with the first window that begins after the throttle or in its last two seconds.
    /// Upstreams round seconds up, so a throttle would otherwise end just after the next window has begun.
    #[must_use]
    pub fn max_throttle(self, max_throttle: Duration) -> Self {
        Self { max_throttle, ..self }
    }

    /// Lowers the bucket of the last limit to what the headers of each answer report.
    ///
    /// Calls the store only if the headers report fewer tokens than were left when the request was sent. Several
    /// presets lower the same bucket, so they must count the same unit. If several limits read the same preset, it
    /// lowers the buckets of all of them. Default: reads no headers except those of refusals.
    #[must_use]
    pub fn read(mut self, preset: HeaderPreset) -> Self {
        self.reader().presets.push(preset);
        self
    }

    /// Lowers the bucket of the last limit to what the closure returns, for headers without a preset.
    ///
    /// `None` leaves the bucket unchanged.
    ///
    /// # Examples
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
        time_left: impl Fn(&UpstreamResponse<'_>) -> Option<Throttle> + Send + Sync + 'static,
    ) -> Self {
        self.reader().closures.push(Arc::new(time_left));
        self
    }

    /// Adds answers that count as refusals, for all limits.
    ///
    /// They throttle for as long as `Retry-After` or the headers that are read state, and are sent again like a 429.
    /// After an overload (503, 529), only idempotent requests are sent again, and an estimate stands unless the answer
    /// reports the use.
    #[must_use]
    pub fn refused_if(mut self, is_refusal: impl Fn(&UpstreamResponse<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.refused_if.push(Arc::new(is_refusal));
        self
    }

    /// Makes the cost of the last limit an estimate, and settles it by the head of each answer.
    ///
    /// The closure returns how many tokens the request used. `None` leaves the estimate as it is. If the request used
    /// less, all processes have the rest at once. If the request used more, the bucket owes the difference, and the
    /// next requests wait, for [`max_throttle`](Self::max_throttle) at most.
    ///
    /// - A refused request used nothing.
    /// - After an overload (503, 529), even one that refuses, the closure decides.
    /// - If a request fails or is cancelled, its use is unknown, and the estimate stands.
    /// - A settlement that fails counts as [`unreported`](Self::unreported).
    ///
    /// Settlements precede the tokens left in the headers, which already include the use. Only a refusal waits for its
    /// settlement. [`Limiter::close`] waits for settlements that are in progress.
    ///
    /// Each request with an estimate has its own id: one row per limit, and its own call to the store.
    ///
    /// # Examples
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
        self.reader().cost = Cost::ByHead(Arc::new(used));
        self
    }

    /// Makes the cost of the last limit an estimate, and settles it when the body has been read.
    ///
    /// Only the body reports the use. The answer's extensions have an [`Estimate`], which the reader of the body
    /// settles. If the `Estimate` is dropped, the estimate stands. A refusal has no `Estimate`: it used
    /// nothing, except that after an overload (503, 529) the estimate stands.
    ///
    /// The tokens left in the headers apply at once, and again if the settlement gives tokens back within a second.
    /// Later, the bucket has refilled. If a client has several layers, only one of them can settle later.
    #[must_use]
    pub fn settle_later(mut self) -> Self {
        self.reader().cost = Cost::ByBody;
        self
    }

    /// Sets how long an estimate can be settled after the scheduled time of its request. Later, it stands.
    ///
    /// The store remembers each unsettled request for this time. A database remembers settled requests for a day.
    ///
    /// A [`MemoryStore`](tollgate::MemoryStore) holds half a million unsettled requests per bucket, unless you set
    /// [`max_keys`](tollgate::MemoryStore::max_keys). That is 800 a second for ten minutes. Further requests are not
    /// sent, and fail with [`TakeError::TooManyIds`](tollgate::TakeError::TooManyIds). Default: 10 minutes.
    #[must_use]
    pub fn settle_within(self, settle_within: Duration) -> Self {
        Self { settle_within, ..self }
    }

    /// Returns how many answers could not be reported to the store.
    ///
    /// The store failed, the limit cannot be throttled, or an estimate was settled too late by the head of its answer.
    #[must_use]
    pub fn unreported(&self) -> u64 {
        self.unreported.load(Ordering::Relaxed)
    }

    /// Returns the limits and costs of a request. `None` if it is not limited.
    pub(super) fn price(&self, request: &OutgoingRequest<'_>) -> Result<Option<PricedRequest>, ClientLimitError> {
        let cost = (self.cost)(request);
        let mut priced = PricedRequest::new(cost);
        if cost > 0 {
            let key = (self.key)(request).ok_or(ClientLimitError::MissingKey)?;
            priced.add(Limit::new(key, self.limiter.rule()), true, &self.reader)?;
        }
        for AdditionalLimit { limit, reader } in &self.additional {
            let has_cost = |limit: &Limit| if limit.has_own_cost() { limit.get_cost() > 0 } else { cost > 0 };
            let Some(limit) = limit(request).filter(has_cost) else { continue };
            priced.add(limit, false, reader)?;
        }
        Ok(Some(priced).filter(|priced| !priced.is_free()))
    }

    /// Takes the tokens of a request, and sleeps until its scheduled time.
    ///
    /// If an upstream throttles until after that time, the request reserves again under the throttled limits, and keeps
    /// its tokens of the others. The tokens of the revoked reservation stay taken: giving them back would end the
    /// throttle early.
    pub(super) async fn admit(&self, mut priced: PricedRequest) -> Result<Ticket, ClientLimitError> {
        let deadline = Instant::now().checked_add(self.max_wait);
        let keys: Vec<Key> = priced.keys().cloned().collect();
        let mut watch = self.throttles.watch(&keys);
        // Dropped if the request is not sent. Reservations whose scheduled time has not come then give their tokens
        // back.
        let mut reservations: Vec<ScheduledRequest<S>> = Vec::new();
        let mut scheduled = Instant::now();
        loop {
            let time_left =
                deadline.map_or(self.max_wait, |deadline| deadline.saturating_duration_since(Instant::now()));
            let take = priced.take(&self.limiter, time_left, time_left.saturating_add(self.settle_within));
            let keys_requested: Vec<Key> = take.keys().cloned().collect();
            let reservation = ScheduledRequest::reserve(&self.limiter, take).await?;
            let decision = reservation.decision();
            priced.record_decision(&keys_requested, decision, reservation.receipts());
            if !decision.is_granted() {
                let (key, retry_after) = (keys_requested[decision.limit_index()].clone(), decision.retry_after());
                return Err(ClientLimitError::Limited { key, retry_after });
            }
            scheduled = scheduled.max(reservation.scheduled());
            if Instant::now() < scheduled {
                let revoked = watch.until_revoked(scheduled, |key| priced.is_enforced(key));
                reservation.sleep_until_or(scheduled, revoked).await;
            }
            reservations.push(reservation);
            // A limit that denies no request must not delay any.
            let mut revoked_keys = watch.revoked(scheduled);
            revoked_keys.retain(|key| priced.is_enforced(key));
            if revoked_keys.is_empty() {
                reservations.into_iter().for_each(ScheduledRequest::use_up);
                return Ok(priced.ticket());
            }
            for reservation in &mut reservations {
                reservation.forfeit(&revoked_keys);
            }
            priced.request_again(&revoked_keys);
        }
    }

    /// Reports an answer to the store. Returns whether it was a refusal that throttles retries, and the estimate that
    /// the reader of the body settles.
    ///
    /// Waits for a throttle, because a retry must find it in the store. Waits for a settlement only if the answer is a
    /// refusal, so that a stalled store does not delay other answers. The report continues if the caller is dropped.
    pub(super) async fn observe(&self, ticket: Ticket, answer: &UpstreamResponse<'_>) -> (bool, Option<Estimate>) {
        let UpstreamReport { settlements, limits, open_estimates } = ticket.read_response(answer, &self.refused_if);
        let (limiter, throttles, unreported) =
            (self.limiter.clone(), Arc::clone(&self.throttles), Arc::clone(&self.unreported));
        let reporter = UpstreamReporter { limiter, throttles, unreported, max_throttle: self.max_throttle };
        let estimate = open_estimates.map(|open_estimates| Estimate::new(reporter.clone(), open_estimates));
        if settlements.is_empty() && limits.is_empty() {
            return (false, estimate);
        }
        let refusals: Vec<&ReportedLimit> = limits.iter().filter(|limit| limit.refused).collect();
        let enforced = self.limiter.mode() == Mode::Enforce && refusals.iter().all(|limit| limit.enforced);
        let is_refusal = !refusals.is_empty();
        let waits_for_store = is_refusal || settlements.is_empty();
        let stored = self.limiter.spawn(reporter.report(settlements, limits));
        // The task fails if the runtime shuts down.
        let is_stored = waits_for_store && stored.await.unwrap_or(false);
        (is_stored && is_refusal && enforced, estimate)
    }

    /// Returns the reader of the last limit.
    fn reader(&mut self) -> &mut ResponseReader {
        Arc::make_mut(self.additional.last_mut().map_or(&mut self.reader, |other| &mut other.reader))
    }
}

impl<S: Store> Clone for ClientLimit<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: Arc::clone(&self.key),
            cost: Arc::clone(&self.cost),
            reader: Arc::clone(&self.reader),
            additional: self.additional.clone(),
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
            .field("reading", &self.reader)
            .field("other limits", &self.additional.len())
            .finish_non_exhaustive()
    }
}
