use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, response};
use tollgate::{Error, Key, Limiter, Quota, Rule, Store};
use tower_layer::Layer;

use super::gate::Gate;
use super::limits::{LayerLimit, NoSuchName, RequestFn, RuleSource, SameName, UnusedFn, WindowAmongOthers};
use super::{ClientAddr, KeyExtractor, RateLimit, RateLimitHeaders, Refusal, respond};

/// Puts a [`Limiter`] before a service: each request takes a token first.
///
/// Without one it is answered with 429, or by gRPC with `RESOURCE_EXHAUSTED`, and told when to come again. The service
/// does not see it, and nothing reads its body. If the store fails, the limiter's [`Fallback`](tollgate::Fallback) decides;
/// without one the answer is 503. A request is never served because nobody knew, unless the limiter is switched
/// [off or to shadow](Limiter::set_mode).
///
/// Each address of a [peer](ClientAddr::peer) has a bucket, unless another [`key`](Self::key) is chosen. Layers over one
/// store share the bucket of a key, unless they have [names](Self::name): give one to each if their terms differ.
///
/// The [`Decision`](tollgate::Decision) is among the extensions of the request, for the handler, and of its answer, for layers
/// outside, if there is one: not of those that are exempt or cost nothing, and of an answer not in [shadow](Self::shadow), of
/// which nobody outside is to tell clients. A [`Refusal`] is among those of the answer, too. A client that goes away gets nothing
/// back.
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
    pub(super) gate: Arc<dyn Gate>,
    pub(super) limits: Vec<LayerLimit>,
    pub(super) max_wait: Duration,
    pub(super) shadow: bool,
    pub(super) cost: Option<RequestFn<u64>>,
    pub(super) exempt: Option<RequestFn<bool>>,
    pub(super) refund: Option<UnusedFn>,
    pub(super) respond: Respond,
    pub(super) headers: RateLimitHeaders,
    pub(super) passes_without_key: bool,
}

type Respond = Arc<dyn Fn(&Refusal, &Parts) -> Response<Bytes> + Send + Sync>;

impl RateLimitLayer {
    /// One token a request, for each address of a peer, under the limiter's rule.
    pub fn new<S: Store>(limiter: Limiter<S>) -> Self {
        let key = Arc::new(ClientAddr::peer());
        Self {
            gate: Arc::new(limiter),
            limits: vec![LayerLimit { named: false, ..LayerLimit::new("default".into(), key, RuleSource::OfLimiter) }],
            max_wait: Duration::ZERO,
            shadow: false,
            cost: None,
            exempt: None,
            refund: None,
            respond: Arc::new(respond::problem),
            headers: RateLimitHeaders::default(),
            passes_without_key: false,
        }
    }

    /// Whose request it is; the peer's address if not said.
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.limits[0].key = Arc::new(key);
        self
    }

    /// What clients know the limit by, in `RateLimit` headers and in problems: `default` if not said. It is also put
    /// before the keys, so that layers of two names have buckets of their own; without one a key is what the extractor says.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.limits[0].name = name.into();
        self.limits[0].named = true;
        self
    }

    /// The plan of whoever makes the request, a row that can be changed at any time; not the limiter's rule then.
    ///
    /// A plan that does not exist is an error: such requests are answered with 500. A bucket is under the plan that was named
    /// last, so clients of two plans need two keys.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate_http::{ClientAddr, RateLimitLayer};
    /// # use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// #[derive(Clone)]
    /// struct Paid; // put there by a layer outside, which has checked it
    ///
    /// # let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
    /// let plan = |request: &Parts| if request.extensions.get::<Paid>().is_some() { "paid" } else { "free" };
    /// let key = (ClientAddr::peer(), move |request: &Parts| Some(plan(request))); // two plans behind one address are two
    /// let layer = RateLimitLayer::new(limiter).key(key).plan(plan);
    /// # let _ = layer;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn plan<K>(self, plan: impl Fn(&Parts) -> K + Send + Sync + 'static) -> Self
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.terms(move |request| Ok(Rule::Plan(plan(request).try_into()?)))
    }

    /// The terms of a request; not the limiter's rule then.
    pub fn rule<R>(self, rule: impl Fn(&Parts) -> R + Send + Sync + 'static) -> Self
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        self.terms(move |request| Ok(rule(request).try_into()?))
    }

    fn terms(mut self, terms: impl Fn(&Parts) -> Result<Rule, Error> + Send + Sync + 'static) -> Self {
        self.limits[0].terms = RuleSource::ByRequest(Arc::new(terms));
        self
    }

    /// Another limit, under a name and a key of its own: a request takes from all or from none, in one call.
    ///
    /// No limit among several can be a [`Window`](tollgate::Window): where the first is one by request, or later, such requests
    /// are answered with 500.
    ///
    /// # Errors
    ///
    /// If the figures make no quota, another limit of the layer has the name (say that one's [name](Self::name) before), or
    /// this limit or the limiter's own is a sliding window.
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

    /// Another limit, as by [`and`](Self::and), under the terms of a request: such as a plan by the day beside one by the second.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate_http::{RateLimitLayer, extension};
    /// use tollgate::{Key, Limiter, MemoryStore, Quota, Rule};
    ///
    /// #[derive(Clone)]
    /// struct User { id: String, plan: String } // put there by a layer outside, which has checked it
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
    /// If another limit of the layer has the name, or the limiter's own is a sliding window.
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
        let terms = RuleSource::ByRequest(Arc::new(move |request: &Parts| Ok(rule(request).try_into()?)));
        self.push(LayerLimit::new(name.into(), Arc::new(key), terms))
    }

    fn push(mut self, limit: LayerLimit) -> Result<Self, Error> {
        if self.limits.iter().any(|other| other.name == limit.name) {
            return Err(Error::other(SameName(limit.name)));
        }
        if matches!((&self.limits[0].terms, self.gate.rule()), (RuleSource::OfLimiter, Rule::Window(_))) {
            return Err(Error::other(WindowAmongOthers(Arc::clone(&self.limits[0].name))));
        }
        self.limits.push(limit);
        Ok(self)
    }

    /// How many tokens a request takes, under each limit that has no [cost of its own](Self::cost_of); 1 if not said. One that
    /// costs nothing passes without being asked for.
    ///
    /// More than the bucket ever holds is answered with 400.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// How many tokens a request takes under the limit of that name, whatever it costs under the others: so many bytes by the
    /// day, and one request by the second. What the limiter [keeps](tollgate::LimiterBuilder::min_remaining) for others is kept of its own
    /// limit, and of those without a cost of their own.
    ///
    /// What costs nothing is not limited by it: so never say 0 of what is not known.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate_http::{ClientAddr, RateLimitLayer};
    /// use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// /// The longest body that is read, also of those that do not say how long theirs is.
    /// const LONGEST: u64 = 10 << 20;
    ///
    /// fn length(request: &Parts) -> u64 {
    ///     let length = request.headers.get("content-length").and_then(|length| length.to_str().ok());
    ///     let unknown = if request.method.is_safe() { 0 } else { LONGEST }; // nobody reads the body of a GET
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
    /// If no limit of the layer has that name yet; the limiter's own is `default` unless it was [named](Self::name).
    pub fn cost_of(
        mut self,
        name: impl AsRef<str>,
        cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        self.limit(name.as_ref())?.cost = Some(Arc::new(cost));
        Ok(self)
    }

    /// What the limit of that name counts, for clients that read `RateLimit-Policy`: `requests` if not said, and
    /// `content-bytes` of those that the draft knows beside.
    ///
    /// # Errors
    ///
    /// As for [`cost_of`](Self::cost_of).
    pub fn unit_of(mut self, name: impl AsRef<str>, unit: impl Into<Arc<str>>) -> Result<Self, Error> {
        self.limit(name.as_ref())?.unit = Some(unit.into());
        Ok(self)
    }

    /// What holds under the limit of that name while the store does not answer, in each process, if the limiter's fallback is a
    /// [local quota](tollgate::Fallback::Local): instead of that, or of the rule said for the limit. If its [cost](Self::cost_of) is
    /// of something else than requests, say it.
    ///
    /// # Errors
    ///
    /// As for [`cost_of`](Self::cost_of).
    pub fn fallback_of(mut self, name: impl AsRef<str>, quota: Quota) -> Result<Self, Error> {
        self.limit(name.as_ref())?.local = Some(quota);
        Ok(self)
    }

    fn limit(&mut self, name: &str) -> Result<&mut LayerLimit, Error> {
        let known: Vec<String> = self.limits.iter().map(|limit| format!("'{}'", limit.name)).collect();
        let limit = self.limits.iter_mut().find(|limit| *limit.name == *name);
        limit.ok_or_else(|| Error::other(NoSuchName { name: name.to_owned(), known: known.join(", ") }))
    }

    /// Which requests pass without a token: health checks, or a browser's preflights.
    pub fn exempt(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.exempt = Some(Arc::new(exempt));
        self
    }

    /// Lets a request without tokens wait for its scheduled time, if that comes within `max_wait`.
    ///
    /// Otherwise the request is denied at once. The store schedules requests in the order in which it is asked. A client that
    /// goes away has used its tokens if the store has been asked; before, it takes nothing. When 32,768 requests wait to be asked
    /// for, or 16,384 for one bucket, the next ones are [`Overloaded`](tollgate::Error::Overloaded). A request that waits holds
    /// what the service gave when it was ready for it.
    pub fn wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Counts, and lets everything pass, whatever comes of it: to try a limit on real traffic. A request that would have
    /// been refused has [`ShadowRefusal`](super::ShadowRefusal) among the extensions of its answer, and no further headers; a handler
    /// sees it by the [`Decision`](tollgate::Decision). Nobody [waits](Self::wait) for their turn, but they count as if they did.
    ///
    /// A request waits for the store's answer as it will when the limit is enforced: for as long as the deadline of the
    /// limiter's [`fallback`](tollgate::LimiterBuilder::fallback) at most, if there is one.
    ///
    /// The limit itself, for all processes at once, can be in [`Mode::Shadow`](tollgate::Mode::Shadow) as well, where who would wait
    /// takes nothing.
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Takes nothing under a limit for which a request does not say whose it is, because the client left that out; the
    /// layer's other limits hold. If not said, such requests are refused with 400.
    ///
    /// Those that say it wrongly, such as a header twice, are refused with 400 in any case, and with 500 if the service
    /// is not set up to know.
    pub fn allow_missing_key(mut self) -> Self {
        self.passes_without_key = true;
        self
    }

    /// How many of a request's tokens were not used, by the answer that the service gives: those are given back before it
    /// is sent, or when the deadline of the limiter's [`fallback`](tollgate::LimiterBuilder::fallback) has passed, behind it. It is
    /// asked for each limit that has none [of its own](Self::refund_of); its second argument is what the request cost under that,
    /// and what to give back of: where limits count different things, no other figure is true of all.
    ///
    /// They are taken first all the same: many requests at once are not more than the limit. An error of the service, and
    /// a client that goes away, give nothing back. Requests go past a [`Lease`](tollgate::layers::Lease), from which nothing can be given
    /// back. Tokens that cannot be given back stay taken, which is counted and told (`could not give back`). Whether a call
    /// [`is_success`](super::is_success), by gRPC too, the answer says.
    pub fn refund(mut self, unused: impl Fn(&response::Parts, u64) -> u64 + Send + Sync + 'static) -> Self {
        self.refund = Some(Arc::new(unused));
        self
    }

    /// How many tokens were not used under the limit of that name, whatever was not under the others: such as those of bytes
    /// that were not sent. If no [`refund`](Self::refund) is said beside, the others give nothing back.
    ///
    /// # Errors
    ///
    /// As for [`cost_of`](Self::cost_of).
    pub fn refund_of(
        mut self,
        name: impl AsRef<str>,
        unused: impl Fn(&response::Parts, u64) -> u64 + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        self.limit(name.as_ref())?.refund = Some(Arc::new(unused));
        Ok(self)
    }

    /// The answer to requests that are refused. Default: [`respond::problem`]. `Retry-After`, `RateLimit` and
    /// `Cache-Control: no-store` are added to it, unless it has its own `Retry-After` or `Cache-Control`. gRPC clients get a
    /// status that they understand instead, with the feature `tonic`.
    pub fn respond<B: Into<Bytes>>(
        mut self,
        respond: impl Fn(&Refusal, &Parts) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.respond = Arc::new(move |refusal, request| respond(refusal, request).map(Into::into));
        self
    }

    /// Which answers say what is left; denials if not said.
    pub fn headers(mut self, headers: RateLimitHeaders) -> Self {
        self.headers = headers;
        self
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.clone())
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.limits.iter().map(|limit| &*limit.name).collect();
        f.debug_struct("RateLimitLayer").field("limits", &names).field("shadow", &self.shadow).finish_non_exhaustive()
    }
}
