use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, response};
use tollgate::{Error, Key, Limiter, Mode, Quota, Rule, Store};

use super::erased_limiter::ErasedLimiter;
use super::layer_limit::{LayerLimit, NoSuchName, RequestFn, RuleSource, SameName, UnusedFn, WindowAmongOthers};
use super::{ClientAddr, KeyExtractor, RateLimitHeaders, Refusal, respond};

/// Tower layer that takes tokens from a [`Limiter`] before each request.
///
/// If no token is available, the layer answers 429 with `Retry-After`, or `RESOURCE_EXHAUSTED` in gRPC (feature
/// `tonic`). The service is not called, and the body of the request is not read.
///
/// If the store fails, the limiter's [`Fallback`](tollgate::Fallback) decides. Without a fallback, the layer answers
/// 503. A request without a decision passes only if the limiter is [switched off or to shadow](Limiter::set_mode).
///
/// Each address of a [peer](ClientAddr::peer) has its own bucket, unless you choose another [`key`](Self::key). Layers
/// over one store share the bucket of a key. Give each layer a [name](Self::name) if their limits differ.
///
/// A request takes the same cost once from a bucket of a limiter and its clones. If a layer is mounted twice, such as around a router
/// and one of its nested routers, only the outer layer takes tokens and adds headers. A layer in [shadow](Self::shadow)
/// mode does not count.
///
/// The layer inserts the [`Decision`](tollgate::Decision) into the extensions of the request and of the answer.
/// Requests that are exempt or cost nothing have no decision. In [shadow](Self::shadow) mode, the answer has no
/// decision. The answer to a refused request also has the [`Refusal`].
///
/// # Cancel safety
///
/// If the client disconnects before the layer has called the store, the request takes nothing. Afterwards its tokens
/// stay taken.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_http::{ClientAddr, RateLimitLayer, TrustedProxies, is_success};
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(5))?;
/// let failed_logins = RateLimitLayer::new(limiter)
///     .name("login")
///     .key(ClientAddr::x_forwarded_for(TrustedProxies::hops(1)))
///     .refund(|answer, cost| if is_success(answer) { cost } else { 0 });
/// # let _ = failed_logins;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a layer limits what it is put before"]
pub struct RateLimitLayer {
    pub(super) limiter: Arc<dyn ErasedLimiter>,
    pub(super) limits: Vec<LayerLimit>,
    pub(super) max_wait: Duration,
    pub(super) shadow: bool,
    pub(super) cost: Option<RequestFn<u64>>,
    pub(super) exempt: Option<RequestFn<bool>>,
    pub(super) refund: Option<UnusedFn>,
    pub(super) respond: Respond,
    pub(super) headers: RateLimitHeaders,
    pub(super) x_headers: bool,
    pub(super) passes_without_key: bool,
}

type Respond = Arc<dyn Fn(&Refusal, &Parts) -> Response<Bytes> + Send + Sync>;

impl RateLimitLayer {
    /// Creates a layer that takes one token per request, under the limiter's rule.
    ///
    /// Each address of a peer has its own bucket. By default the layer denies a request at once if no token is
    /// available.
    pub fn new<S: Store>(limiter: Limiter<S>) -> Self {
        let key = Arc::new(ClientAddr::peer());
        Self {
            limiter: Arc::new(limiter),
            limits: vec![LayerLimit {
                has_name: false,
                ..LayerLimit::new("default".into(), key, RuleSource::OfLimiter)
            }],
            max_wait: Duration::ZERO,
            shadow: false,
            cost: None,
            exempt: None,
            refund: None,
            respond: Arc::new(respond::problem),
            headers: RateLimitHeaders::default(),
            x_headers: false,
            passes_without_key: false,
        }
    }

    /// Sets the key, which selects the bucket of a request.
    ///
    /// Default: [`ClientAddr::peer`], the peer's address.
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.limits[0].key = Arc::new(key);
        self
    }

    /// Sets the name of the limit, which clients read in `RateLimit` headers and in problem details.
    ///
    /// The name also becomes a prefix of the keys, so layers with different names do not share buckets. Without a name,
    /// the key is the text of the extractor. Default: `default`, without a prefix.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.limits[0].name = name.into();
        self.limits[0].has_name = true;
        self
    }

    /// Limits each request by a plan, instead of the limiter's rule.
    ///
    /// A plan is stored in the database and can change at any time. If the plan does not exist, the layer answers 500.
    /// The last request's plan applies to its bucket. A client that changes its plan keeps its bucket, with its tokens
    /// up to the new capacity. Clients of different plans must not share a bucket, such as that of their address.
    /// Default: the limiter's rule.
    ///
    /// While the store does not answer, [`Fallback::local_by`](tollgate::Fallback::local_by) gives each plan its own quota.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate_http::{ClientAddr, RateLimitLayer};
    /// # use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// #[derive(Clone)]
    /// struct Paid; // inserted by the authentication layer
    ///
    /// # let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
    /// let plan = |request: &Parts| if request.extensions.get::<Paid>().is_some() { "paid" } else { "free" };
    /// let key = (ClientAddr::peer(), move |request: &Parts| Some(plan(request))); // clients of both can share an address
    /// let layer = RateLimitLayer::new(limiter).key(key).plan(plan);
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn plan<K>(self, plan: impl Fn(&Parts) -> K + Send + Sync + 'static) -> Self
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.rule_source(move |request| Ok(Rule::Plan(plan(request).try_into()?)))
    }

    /// Limits each request by a rule that the closure chooses, instead of the limiter's rule.
    ///
    /// If the closure's value is not a valid rule, the layer answers 500. Default: the limiter's rule.
    pub fn rule<R>(self, rule: impl Fn(&Parts) -> R + Send + Sync + 'static) -> Self
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        self.rule_source(move |request| Ok(rule(request).try_into()?))
    }

    fn rule_source(mut self, rule_source: impl Fn(&Parts) -> Result<Rule, Error> + Send + Sync + 'static) -> Self {
        self.limits[0].rule_source = RuleSource::ByRequest(Arc::new(rule_source));
        self
    }

    /// Adds a limit with its own name, key and rule.
    ///
    /// A request takes tokens from all limits or from none, in one call. If one limit has too few tokens, the request
    /// is denied and takes nothing.
    ///
    /// A layer with several limits cannot have a sliding [`Window`](tollgate::Window). If a closure chooses a window
    /// for a request, or the limiter's rule becomes one later, the layer answers 500.
    ///
    /// # Errors
    ///
    /// Returns an error if:
    ///
    /// - the rule is not valid,
    /// - another limit of the layer has this name (call [`name`](Self::name) before `and` to name the first limit),
    /// - this rule or the limiter's own is a sliding window.
    pub fn and<R>(self, name: impl Into<Arc<str>>, key: impl KeyExtractor, rule: R) -> Result<Self, Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        let (name, rule) = (name.into(), rule.try_into()?);
        if matches!(rule, Rule::Window(_)) {
            return Err(Error::other(WindowAmongOthers(name)));
        }
        self.push(LayerLimit::new(name, Arc::new(key), RuleSource::Always(rule)))
    }

    /// Adds a limit like [`and`](Self::and), with a rule that the closure chooses for each request.
    ///
    /// A daily plan beside a plan per second is an example. If the closure's value is not a valid rule, the layer
    /// answers 500.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate_http::{RateLimitLayer, extension};
    /// use tollgate::{Key, Limiter, MemoryStore, Quota, Rule};
    ///
    /// #[derive(Clone)]
    /// struct User { id: String, plan: String } // inserted by the authentication layer
    ///
    /// fn plan(request: &Parts, period: &str) -> Key {
    ///     let plan = request.extensions.get::<User>().map_or("free", |user| user.plan.as_str());
    ///     Key::try_from(format!("{plan} {period}")).unwrap_or(Key::from_hash(0)) // a plan that does not exist
    /// }
    ///
    /// let id = || extension(|user: &User| user.id.clone());
    /// # let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
    /// let layer = RateLimitLayer::new(limiter)
    ///     .key(id())
    ///     .plan(|request| plan(request, "by second"))
    ///     .and_with("day", id(), |request| Rule::Plan(plan(request, "by day")))?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if another limit of the layer has this name, or if the limiter's own rule is a sliding window.
    pub fn and_with<R>(
        self,
        name: impl Into<Arc<str>>,
        key: impl KeyExtractor,
        rule: impl Fn(&Parts) -> R + Send + Sync + 'static,
    ) -> Result<Self, Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        let rule_source = RuleSource::ByRequest(Arc::new(move |request: &Parts| Ok(rule(request).try_into()?)));
        self.push(LayerLimit::new(name.into(), Arc::new(key), rule_source))
    }

    fn push(mut self, limit: LayerLimit) -> Result<Self, Error> {
        if self.limits.iter().any(|other| other.name == limit.name) {
            return Err(Error::other(SameName(limit.name)));
        }
        if matches!((&self.limits[0].rule_source, self.limiter.rule()), (RuleSource::OfLimiter, Rule::Window(_))) {
            return Err(Error::other(WindowAmongOthers(Arc::clone(&self.limits[0].name))));
        }
        self.limits.push(limit);
        Ok(self)
    }

    /// Sets how many tokens a request takes from each limit without its [own cost](Self::cost_of).
    ///
    /// A request with a cost of 0 takes nothing from these limits. The layer answers 400 if the cost exceeds the
    /// capacity of the bucket. Default: 1 token.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Sets how many tokens a request takes from the named limit, regardless of its cost under other limits.
    ///
    /// A limit can then count bytes per day while another counts requests per second. The limiter's [minimum
    /// remaining](tollgate::LimiterBuilder::min_remaining) applies to its own limit, and to limits without their own
    /// cost.
    ///
    /// A request with a cost of 0 skips the limit. Never return 0 for a cost that you do not know. Default: the
    /// request's [`cost`](Self::cost).
    ///
    /// # Examples
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate_http::{ClientAddr, RateLimitLayer};
    /// use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// /// The longest body that the service reads, and the cost of a body of unknown length.
    /// const LONGEST: u64 = 10 << 20;
    ///
    /// fn length(request: &Parts) -> u64 {
    ///     let length = request.headers.get("content-length").and_then(|length| length.to_str().ok());
    ///     let unknown = if request.method.is_safe() { 0 } else { LONGEST }; // a GET has no body
    ///     length.and_then(|length| length.parse().ok()).unwrap_or(unknown).min(LONGEST)
    /// }
    ///
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
    /// let layer = RateLimitLayer::new(limiter)
    ///     .and("bytes", ClientAddr::peer(), Quota::per_day(1 << 30).burst(100 << 20))?
    ///     .cost_of("bytes", length)?
    ///     .unit_of("bytes", "content-bytes")?;
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has no limit of this name yet. The first limit is called `default`, unless you
    /// [named](Self::name) it.
    pub fn cost_of(
        mut self,
        name: impl AsRef<str>,
        cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        self.limit(name.as_ref())?.cost = Some(Arc::new(cost));
        Ok(self)
    }

    /// Sets the unit of the named limit in `RateLimit-Policy`.
    ///
    /// The draft also defines `content-bytes`. Default: none, which clients read as `requests`.
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has no limit of this name yet.
    pub fn unit_of(mut self, name: impl AsRef<str>, unit: impl Into<Arc<str>>) -> Result<Self, Error> {
        self.limit(name.as_ref())?.unit = Some(unit.into());
        Ok(self)
    }

    /// Sets the quota of the named limit, per process, while the store does not answer.
    ///
    /// The quota applies only if the limiter's fallback is a [local quota](tollgate::Fallback::Local), also
    /// [by limit](tollgate::Fallback::local_by). It replaces that fallback quota, or the quota that [`and`](Self::and) set
    /// for the limit. Set it if the [cost](Self::cost_of) of
    /// the limit is not in requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has no limit of this name yet.
    pub fn fallback_of(mut self, name: impl AsRef<str>, quota: Quota) -> Result<Self, Error> {
        self.limit(name.as_ref())?.fallback_quota = Some(quota);
        Ok(self)
    }

    /// Sets the [mode](tollgate::Limit::mode) of the named limit, for instance to try a new limit beside others that are enforced.
    /// Default: enforce.
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has no limit of this name yet.
    pub fn mode_of(mut self, name: impl AsRef<str>, mode: Mode) -> Result<Self, Error> {
        self.limit(name.as_ref())?.mode = mode;
        Ok(self)
    }

    fn limit(&mut self, name: &str) -> Result<&mut LayerLimit, Error> {
        let known: Vec<String> = self.limits.iter().map(|limit| format!("'{}'", limit.name)).collect();
        let limit = self.limits.iter_mut().find(|limit| *limit.name == *name);
        limit.ok_or_else(|| Error::other(NoSuchName { name: name.to_owned(), known: known.join(", ") }))
    }

    /// Lets the requests pass for which the closure returns true, such as health checks and CORS preflights.
    ///
    /// Exempt requests take no tokens. Default: no request is exempt.
    pub fn exempt(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.exempt = Some(Arc::new(exempt));
        self
    }

    /// Delays a request without tokens until its scheduled time, if the wait is at most `max_wait`.
    ///
    /// Otherwise the layer denies the request at once. Scheduled times follow the order in which requests reach the
    /// store. A delayed request holds the permit that the service gave in `poll_ready`.
    ///
    /// A limiter queues at most 32,768 requests, and 16,384 for one bucket. Further requests are
    /// [`Overloaded`](tollgate::Error::Overloaded) and get 503. Default: zero, so that no request waits.
    ///
    /// # Cancel safety
    ///
    /// If the client disconnects before the layer has called the store, the request takes nothing. Afterwards its
    /// tokens stay taken.
    pub fn wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Takes tokens but lets every request pass, so that you can try a limit on real traffic.
    ///
    /// If the layer would have refused the request, the answer's extensions have
    /// [`ShadowRefusal`](super::ShadowRefusal). The answer has no rate limit headers. The handler finds the
    /// [`Decision`](tollgate::Decision) in the request's extensions.
    ///
    /// With [`wait`](Self::wait), requests take their tokens but are not delayed. Each request still waits for the
    /// store's answer, up to the deadline of the limiter's [`fallback`](tollgate::LimiterBuilder::fallback).
    ///
    /// To switch the limit in all processes at once, set [`Mode::Shadow`](tollgate::Mode::Shadow). In that mode, a
    /// request that would have to wait takes nothing. Default: off.
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Lets requests without a key skip the limits that need the key. The other limits still apply.
    ///
    /// A malformed key, such as a header sent twice, still gets 400. A key that the service cannot determine still gets
    /// 500. Default: requests without a key get 400.
    pub fn allow_missing_key(mut self) -> Self {
        self.passes_without_key = true;
        self
    }

    /// Gives tokens back according to the head of the service's answer.
    ///
    /// The closure returns how many tokens the request did not use. Its second argument is the cost under one limit.
    /// The layer calls the closure for each limit without its [own refund](Self::refund_of), because limits can count
    /// different units.
    ///
    /// The layer takes the full cost before the request runs, so concurrent requests cannot exceed the limit. The
    /// answer waits for the refund, up to the deadline of the limiter's
    /// [`fallback`](tollgate::LimiterBuilder::fallback). A refund that takes longer continues in the background. If a
    /// refund fails, the tokens stay taken, and the layer counts and logs `could not give back`.
    ///
    /// A [`Lease`](tollgate::layers::Lease) does not serve refundable requests, because it cannot give tokens back. To
    /// recognize successes in HTTP and gRPC, call [`is_success`](super::is_success). Default: no refund.
    ///
    /// # Cancel safety
    ///
    /// If the service fails, or the client disconnects before the service has answered, the tokens stay taken. A refund
    /// that has begun continues.
    pub fn refund(mut self, unused: impl Fn(&response::Parts, u64) -> u64 + Send + Sync + 'static) -> Self {
        self.refund = Some(Arc::new(unused));
        self
    }

    /// Gives tokens back under the named limit, such as those of bytes that were not sent.
    ///
    /// The closure works as in [`refund`](Self::refund). Limits without their own refund give nothing back unless you
    /// also set `refund`. Default: the layer's `refund`.
    ///
    /// # Errors
    ///
    /// Returns an error if the layer has no limit of this name yet.
    pub fn refund_of(
        mut self,
        name: impl AsRef<str>,
        unused: impl Fn(&response::Parts, u64) -> u64 + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        self.limit(name.as_ref())?.refund = Some(Arc::new(unused));
        Ok(self)
    }

    /// Sets the answer to refused requests.
    ///
    /// The layer adds `Retry-After`, `RateLimit` and `Cache-Control: no-store`. It keeps the answer's own `Retry-After`
    /// and `Cache-Control`. With the feature `tonic`, gRPC clients get a gRPC status instead. Default:
    /// [`respond::problem`].
    pub fn respond<B: Into<Bytes>>(
        mut self,
        respond: impl Fn(&Refusal, &Parts) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.respond = Arc::new(move |refusal, request| respond(refusal, request).map(Into::into));
        self
    }

    /// Sets which answers have `RateLimit` and `RateLimit-Policy`.
    ///
    /// Default: [`RateLimitHeaders::OnDenials`].
    pub fn headers(mut self, headers: RateLimitHeaders) -> Self {
        self.headers = headers;
        self
    }

    /// Also adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, which many clients know, to the answers that
    /// [`headers`](Self::headers) selects.
    ///
    /// They state the limit that decided: the quota, the tokens left, and when these are more, in seconds since 1970 by the host's
    /// clock. `X-RateLimit-Reset` is absent if that is never. With several layers, those of the innermost stay. Default: without.
    pub fn x_headers(mut self) -> Self {
        self.x_headers = true;
        self
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.limits.iter().map(|limit| &*limit.name).collect();
        f.debug_struct("RateLimitLayer").field("limits", &names).field("shadow", &self.shadow).finish_non_exhaustive()
    }
}
