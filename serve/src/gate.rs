//! Decides the descriptors of a proxy's request by the configuration.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::join_all;
use http::Response;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tollgate::admin::{AdminError, BucketLevel};
use tollgate::chrono::{DateTime, Utc};
use tollgate::{
    Decision, Error, Key, Limit, Limiter, Mode, Quota, Receipt, Reservation, Rule, Store as _, Take, TakeError,
    Throttle,
};
use tollgate_http::{Refusal, joined_key};
use uuid::Uuid;

use crate::config::{Config, DescriptorRule, Domain, Entry, FailureMode, Inherited, LimitSource, Unit};
use crate::counts::{Answer, Counts};
use crate::limiters::Limiters;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::r#type::v3::RateLimitUnit;
use crate::server::Operator;
use crate::warning_interval::WarningInterval;

/// The decisions about a proxy's requests.
pub(crate) struct Gate {
    /// Explains the modes of keys.
    operator: Arc<dyn Operator>,
    pub(crate) config: ArcSwap<Config>,
    pub(crate) limiters: Limiters,
    pub(crate) counts: Counts,
    /// Warnings that usage is not counted.
    charge_warnings: WarningInterval,
    /// Warnings that tokens are not given back.
    refund_warnings: WarningInterval,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The request is not valid.
    Invalid(String),
    /// The store failed, or a limit is not configured in it.
    Failed(Error),
}

/// The answer to a request: that of each descriptor, and the refusal if one of them denied.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) statuses: Vec<Status>,
    pub(crate) is_denied: bool,
    /// The headers and the body of a denial.
    pub(crate) refusal: Option<Response<Bytes>>,
    /// The metadata of the limits that passed.
    pub(crate) metadata: serde_json::Map<String, Value>,
}

/// The answer of a descriptor. Without a limit, it passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    pub(crate) is_over: bool,
    pub(crate) limit: Option<(u32, Option<Unit>, Option<String>)>,
    pub(crate) remaining: Option<u64>,
    pub(crate) reset: Option<Duration>,
}

/// A descriptor that has a limit.
struct RequestedLimit<'a> {
    /// Its place in the request.
    place: usize,
    /// The places of other descriptors of the bucket.
    equal: Vec<usize>,
    rule: Cow<'a, DescriptorRule>,
    label: Cow<'a, str>,
    key: Key,
    hits: u64,
    action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Take,
    /// Reads, and takes nothing.
    Look,
    /// Takes what was used already.
    Charge,
    Refund,
}

impl Gate {
    pub(crate) fn new(operator: Arc<dyn Operator>, config: Config, limiters: Limiters) -> Self {
        Self {
            operator,
            config: ArcSwap::from_pointee(config),
            limiters,
            counts: Counts::default(),
            charge_warnings: WarningInterval::default(),
            refund_warnings: WarningInterval::default(),
        }
    }

    /// Decides a request. A denied request takes nothing. `time_left`: until the caller cancels.
    ///
    /// Runs in a task if there are several limits: if the caller leaves, those that have granted still get their tokens back
    /// when a later one denies.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        request: RateLimitRequest,
        time_left: Option<Duration>,
    ) -> Result<Verdict, Unanswered> {
        if request.descriptors.len() == 1 {
            return self.decide_request(&request, time_left).await;
        }
        let gate = Arc::clone(self);
        let deciding = tokio::spawn(async move { gate.decide_request(&request, time_left).await });
        deciding.await.unwrap_or_else(|error| Err(Unanswered::Failed(Error::other(error))))
    }

    async fn decide_request(
        &self,
        request: &RateLimitRequest,
        time_left: Option<Duration>,
    ) -> Result<Verdict, Unanswered> {
        check_bounds(request)?;
        let config = self.config.load_full();
        let mut verdict = Verdict {
            statuses: vec![Status::default(); request.descriptors.len()],
            is_denied: false,
            refusal: None,
            metadata: serde_json::Map::new(),
        };
        let Some(domain) = config.domains.get(&request.domain) else {
            self.counts.add(UNKNOWN_DOMAIN, "", Answer::Granted);
            return Ok(verdict);
        };
        let requested = requested_limits(domain, request)?;
        for one in &requested {
            verdict.statuses[one.place] = Status::stated(&one.rule);
        }
        let is_limited = |one: &RequestedLimit<'_>| one.rule.source != LimitSource::Unlimited;
        let requested: Vec<_> = requested.into_iter().filter(is_limited).collect();
        if requested.is_empty() {
            return Ok(verdict);
        }
        let decided = self.decide_each(&self.calls(&requested, time_left), &requested, &mut verdict).await;
        for one in &requested {
            for equal in &one.equal {
                verdict.statuses[*equal] = verdict.statuses[one.place].clone();
            }
        }
        match decided {
            Ok(passed) => {
                self.count(request, &requested, &verdict, &passed);
                for one in requested.iter().filter(|one| !verdict.statuses[one.place].is_over) {
                    merge(&mut verdict.metadata, one.rule.metadata.clone().unwrap_or_default());
                }
                Ok(verdict)
            }
            Err(unanswered) => {
                if matches!(unanswered, Unanswered::Failed(_)) {
                    for one in &requested {
                        self.counts.add(&request.domain, &one.label, Answer::Failed);
                    }
                }
                Err(unanswered)
            }
        }
    }

    /// Counts the answers of the limits, except of those that were only read, or took nothing because another one denied.
    fn count(&self, request: &RateLimitRequest, requested: &[RequestedLimit<'_>], verdict: &Verdict, passed: &[usize]) {
        for one in requested.iter().filter(|one| matches!(one.action, Action::Take | Action::Charge)) {
            let is_over = verdict.statuses[one.place].is_over;
            let answer = match verdict.is_denied {
                true if is_over => Answer::Denied,
                true => continue,
                false if is_over || passed.contains(&one.place) => Answer::Shadow,
                false => Answer::Granted,
            };
            self.counts.add(&request.domain, &one.label, answer);
        }
    }

    /// The limiter of the strictest way to handle failures, with the shortest deadline for all calls together.
    fn calls(&self, requested: &[RequestedLimit<'_>], time_left: Option<Duration>) -> Calls<'_> {
        let strictness = |mode: FailureMode| match mode {
            FailureMode::Error => 3,
            FailureMode::Closed => 2,
            FailureMode::Local(_) => 1,
            FailureMode::Open => 0,
        };
        let modes = requested.iter().map(|one| one.rule.on_failure);
        let mode = modes.max_by_key(|mode| strictness(*mode)).unwrap_or_default();
        let limiter = self.limiters.get(mode);
        let stated = requested.iter().filter_map(|one| one.rule.deadline);
        let deadline = stated.chain(time_left).chain(limiter.deadline()).min().unwrap_or(LONGEST);
        Calls { limiter, mode, deadline, ends_at: Instant::now() + deadline }
    }

    /// Decides the descriptors that have limits. Returns the places of those that passed without tokens.
    async fn decide_each(
        &self,
        calls: &Calls<'_>,
        requested: &[RequestedLimit<'_>],
        verdict: &mut Verdict,
    ) -> Result<Vec<usize>, Unanswered> {
        let of = |action: Action| requested.iter().filter(move |one| one.action == action);
        let mut passed = Vec::new();
        let looks = join_all(of(Action::Look).map(|one| self.look(calls, one))).await;
        for (one, look) in of(Action::Look).zip(looks) {
            let look = look?;
            verdict.is_denied |= look.is_over && !one.is_quota();
            let limit = verdict.statuses[one.place].limit.clone();
            verdict.statuses[one.place] = Status { limit, ..look };
        }
        if !verdict.is_denied {
            self.take(calls, requested, verdict, &mut passed).await?;
        }
        for one in of(Action::Charge).chain(of(Action::Refund)) {
            match calls.adjust(one).await {
                Ok(()) => {}
                Err(error) if error.is_failure() && calls.mode != FailureMode::Error => {
                    if self.charge_warnings.is_due() {
                        tracing::warn!(%error, "usage is not counted, because the store does not answer");
                    }
                }
                Err(error) => return Err(Unanswered::Failed(error)),
            }
        }
        Ok(passed)
    }

    /// Takes the tokens of all limits, or of none.
    async fn take(
        &self,
        calls: &Calls<'_>,
        requested: &[RequestedLimit<'_>],
        verdict: &mut Verdict,
        passed: &mut Vec<usize>,
    ) -> Result<(), Unanswered> {
        let takes = requested.iter().filter(|one| one.action == Action::Take);
        let (quotas, others): (Vec<_>, Vec<_>) = takes.partition(|one| one.is_quota());
        // A sliding window is decided by itself, and so is a limit that denies only together with others.
        let (windows, buckets): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|one| matches!(one.rule.source, LimitSource::Rule(Rule::Window(_))));
        // A lease serves a request with one limit, because nothing of it is given back.
        let is_refundable = requested.len() > 1;
        let mut reservations: Vec<Reservation> = Vec::new();
        let groups: Vec<_> =
            [buckets].into_iter().chain(windows.into_iter().chain(quotas).map(|one| vec![one])).collect();
        for mut group in groups {
            // Repeats the call without a limit that cannot deny alone, if the cost exceeds its capacity.
            while !group.is_empty() {
                match reserve(&calls.limiter(), &group, is_refundable).await {
                    Ok(reservation) => {
                        apply(reservation.decision(), &group, verdict, passed);
                        reservations.push(reservation);
                        break;
                    }
                    Err(Error::Take(TakeError::ExceedsCapacity { key, .. })) => {
                        let place = group.iter().position(|one| one.key == key.without_limit()).unwrap_or_default();
                        let over = group.remove(place);
                        if self.is_lifted(calls, over).await {
                            passed.push(over.place);
                        } else if over.is_quota() {
                            verdict.statuses[over.place].is_over = true;
                        } else {
                            verdict.deny(over, &Decision::denial(None));
                            break;
                        }
                    }
                    Err(error) => {
                        self.give_back_all(reservations).await;
                        return Err(Unanswered::Failed(error));
                    }
                }
            }
            if verdict.is_denied {
                break;
            }
        }
        let quotas: Vec<_> = requested.iter().filter(|one| one.is_quota()).collect();
        let is_over = |one: &&RequestedLimit<'_>| verdict.statuses[one.place].is_over;
        if !verdict.is_denied
            && let Some(first) = quotas.first().filter(|_| quotas.iter().all(is_over))
        {
            let retry_after = quotas.iter().filter_map(|one| verdict.statuses[one.place].reset).min();
            verdict.deny(first, &Decision::denial(retry_after));
        }
        if verdict.is_denied {
            self.give_back_all(reservations).await;
        }
        Ok(())
    }

    /// Gives the tokens of earlier limits back, because a later one denied. On an error they stay taken.
    async fn give_back_all(&self, reservations: Vec<Reservation>) {
        for reservation in reservations.into_iter().filter(Reservation::is_granted) {
            if let Err(error) = reservation.refund_each(Receipt::cost).await
                && self.refund_warnings.is_due()
            {
                tracing::warn!(%error, "tokens of a denied request stay taken");
            }
        }
    }

    /// Whether a mode lets all requests of the key pass: that of the configuration, of this server, or of the database.
    async fn is_lifted(&self, calls: &Calls<'_>, requested: &RequestedLimit<'_>) -> bool {
        if calls.has_trial_mode(requested) {
            return true;
        }
        let plan = match &requested.rule.source {
            LimitSource::Rule(Rule::Plan(plan)) => Some(plan),
            _ => None,
        };
        let explained = timeout_at(calls.ends_at, self.operator.explain(&requested.key, plan)).await;
        matches!(explained, Ok(Ok(explained)) if passes(explained.mode))
    }

    /// Reads the buckets or the window of a limit. It is over if nothing is left.
    async fn look(&self, calls: &Calls<'_>, requested: &RequestedLimit<'_>) -> Result<Status, Unanswered> {
        let level = if calls.limiter.is_circuit_open() {
            Err(Error::other(NoAnswer))
        } else {
            let level = timeout_at(calls.ends_at, level(calls.limiter, requested)).await;
            level.unwrap_or_else(|_| Err(Error::other(NoAnswer)))
        };
        match level {
            Ok((available, reset)) => {
                let remaining = Some(available.max(0).unsigned_abs());
                let is_over = available <= 0 && !self.is_lifted(calls, requested).await;
                Ok(Status { is_over, remaining, reset, ..Status::default() })
            }
            Err(error) if error.is_failure() && calls.mode != FailureMode::Error => {
                let is_over = calls.mode == FailureMode::Closed && !calls.has_trial_mode(requested);
                Ok(Status { is_over, ..Status::default() })
            }
            Err(error) => Err(Unanswered::Failed(error)),
        }
    }
}

fn passes(mode: Mode) -> bool {
    matches!(mode, Mode::Off | Mode::Shadow)
}

/// A read of the store without an answer in time. It takes nothing.
#[derive(Debug, thiserror::Error)]
#[error("the database gave no answer in time: ask again")]
struct NoAnswer;

/// The calls of the store for one request, which share a deadline.
struct Calls<'a> {
    limiter: &'a Limiter,
    mode: FailureMode,
    deadline: Duration,
    ends_at: Instant,
}

impl Calls<'_> {
    /// Whether the mode of the configuration or of this server lets all requests of a limit pass.
    fn has_trial_mode(&self, requested: &RequestedLimit<'_>) -> bool {
        [requested.rule.mode, self.limiter.mode()].into_iter().any(passes)
    }

    /// The limiter, with the time that is left.
    fn limiter(&self) -> Cow<'_, Limiter> {
        let left = self.ends_at.saturating_duration_since(Instant::now()).max(SLACK);
        // The first call has the limiter's own deadline, unless something shortens it.
        let is_whole = self.limiter.deadline() == Some(self.deadline) && left + SLACK >= self.deadline;
        if is_whole { Cow::Borrowed(self.limiter) } else { Cow::Owned(self.limiter.with_deadline(left)) }
    }

    /// Charges the use that a request reports, or gives tokens back.
    async fn adjust(&self, requested: &RequestedLimit<'_>) -> Result<(), Error> {
        if self.limiter.is_circuit_open() {
            return Err(Error::other(NoAnswer));
        }
        let limiter = self.limiter().into_owned();
        let (action, hits, key, limit) = (requested.action, requested.hits, requested.key.clone(), requested.limit());
        let has_several = matches!(requested.rule.source, LimitSource::Rule(Rule::Plan(_) | Rule::Limits(_)));
        // A task, which goes on if the caller leaves: it can make several calls.
        let adjusting = tokio::spawn(async move {
            if action == Action::Charge {
                return limiter.charge_request(&Take::from(limit).cost(hits)).await.map(drop);
            }
            let mut keys = vec![key];
            if has_several {
                keys = limiter.peek_each(&limit).await?.iter().map(|level| level.key().clone()).collect();
            }
            let refund = |key: Key| Receipt::new(Uuid::new_v4(), key, hits).refund(hits);
            // A bucket that does not exist is full.
            limiter.adjust(keys.into_iter().map(refund).collect()).await.map(drop)
        });
        match timeout_at(self.ends_at, adjusting).await {
            Ok(Ok(adjusted)) => adjusted,
            Ok(Err(error)) => Err(Error::other(error)),
            Err(_) => Err(Error::DeadlineExceeded(self.deadline)),
        }
    }
}

/// Adds metadata, in objects member by member. Earlier values stay.
fn merge(metadata: &mut serde_json::Map<String, Value>, added: serde_json::Map<String, Value>) {
    for (name, value) in added {
        match (metadata.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(value)) => merge(known, value),
            (Some(_), _) => {}
            (None, value) => drop(metadata.insert(name, value)),
        }
    }
}

/// The descriptors that have limits, without those that others replace.
fn requested_limits<'a>(
    domain: &'a Domain,
    request: &'a RateLimitRequest,
) -> Result<Vec<RequestedLimit<'a>>, Unanswered> {
    let mut requested: Vec<RequestedLimit<'_>> = Vec::new();
    for (place, descriptor) in request.descriptors.iter().enumerate() {
        let entries: Vec<Entry<'_>> =
            descriptor.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect();
        let found = domain.find(&entries);
        let stated = override_of(descriptor, &domain.inherited)?;
        let (rule, values) = match (stated, &found) {
            (Some(rule), _) => (Cow::Owned(rule), None),
            (None, Some(found)) => (Cow::Borrowed(&**found.rule), Some(&found.values)),
            (None, None) => continue,
        };
        let label = match &rule {
            Cow::Owned(rule) => Cow::Owned(rule.label.clone()),
            Cow::Borrowed(rule) if rule.detailed_metric => Cow::Owned(detailed(&entries)),
            Cow::Borrowed(rule) => Cow::Borrowed(rule.label.as_str()),
        };
        let (rule, plan_entry) = match &rule.source {
            LimitSource::PlanOf(entry) => {
                let plan = entries.iter().find(|one| one.key == entry);
                let missing =
                    || Unanswered::Invalid(format!("descriptor {place} has no entry '{entry}', which names the plan"));
                let plan = plan.ok_or_else(missing)?;
                let source = LimitSource::plan(plan.value).map_err(|error| Unanswered::Invalid(error.to_string()))?;
                (Cow::Owned(DescriptorRule { source, ..rule.into_owned() }), Some(plan.key))
            }
            _ => (rule, None),
        };
        // The name of the plan is not in the key: a client keeps its bucket when its plan changes.
        let key = key(request, &entries, values, plan_entry)?;
        let (hits, action) = action(request, descriptor, &rule, place)?;
        let is_equal = |other: &&mut RequestedLimit<'_>| {
            other.key == key && other.action == action && other.rule.source == rule.source
        };
        match requested.iter_mut().find(is_equal) {
            // One bucket, which two equal descriptors name.
            Some(other) => {
                other.hits = other.hits.saturating_add(hits);
                other.equal.push(place);
            }
            None => requested.push(RequestedLimit { place, equal: Vec::new(), rule, label, key, hits, action }),
        }
    }
    let replaced: Vec<String> = requested.iter().flat_map(|one| one.rule.replaces.iter().cloned()).collect();
    let is_replaced = |one: &RequestedLimit<'_>| one.rule.name.as_ref().is_some_and(|name| replaced.contains(name));
    requested.retain(|one| !is_replaced(one));
    Ok(requested)
}

/// The key of a descriptor's bucket: the domain and the entries, each with its length.
fn key(
    request: &RateLimitRequest,
    entries: &[Entry<'_>],
    values: Option<&Vec<&str>>,
    plan_entry: Option<&str>,
) -> Result<Key, Unanswered> {
    let mut texts = Vec::with_capacity(1 + 2 * entries.len());
    texts.push(request.domain.as_str());
    for (place, entry) in entries.iter().enumerate() {
        let value = values.map_or(entry.value, |values| values[place]);
        texts.extend([entry.key, if plan_entry == Some(entry.key) { "" } else { value }]);
    }
    joined_key(&texts).map_err(|error| Unanswered::Invalid(error.to_string()))
}

/// The keys and values of a descriptor, for metrics.
fn detailed(entries: &[Entry<'_>]) -> String {
    let mut label = entries.iter().map(|entry| format!("{}_{}", entry.key, entry.value)).collect::<Vec<_>>().join(".");
    label.truncate(label.floor_char_boundary(MAX_LABEL));
    label
}

/// The limit that a descriptor states, if it does.
fn override_of(descriptor: &RateLimitDescriptor, inherited: &Inherited) -> Result<Option<DescriptorRule>, Unanswered> {
    let Some(limit) = &descriptor.limit else { return Ok(None) };
    let unit = match limit.unit() {
        RateLimitUnit::Unknown => {
            return Err(Unanswered::Invalid("the limit of a descriptor has no unit: state one".to_owned()));
        }
        RateLimitUnit::Second => Unit::Second,
        RateLimitUnit::Minute => Unit::Minute,
        RateLimitUnit::Hour => Unit::Hour,
        RateLimitUnit::Day => Unit::Day,
        RateLimitUnit::Month => Unit::Month,
        RateLimitUnit::Year => Unit::Year,
    };
    let source = LimitSource::of_unit(limit.requests_per_unit, unit, inherited.is_continuous);
    let is_nothing = source == LimitSource::Nothing;
    Ok(Some(DescriptorRule {
        label: "override".to_owned(),
        source,
        stated: Some((limit.requests_per_unit, unit)),
        mode: Mode::Enforce,
        name: None,
        replaces: Vec::new(),
        is_quota: false,
        detailed_metric: false,
        metadata: None,
        after_use: inherited.after_use && !is_nothing,
        refunds: inherited.refunds,
        on_failure: inherited.on_failure,
        deadline: inherited.deadline,
    }))
}

/// The action of a descriptor, and its number of tokens.
fn action(
    request: &RateLimitRequest,
    descriptor: &RateLimitDescriptor,
    rule: &DescriptorRule,
    place: usize,
) -> Result<(u64, Action), Unanswered> {
    let hits = descriptor.hits_addend.as_ref().map(|hits| hits.value);
    let cost = hits.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
    match hits {
        _ if descriptor.is_negative_hits && !rule.refunds => Err(Unanswered::Invalid(format!(
            "descriptor {place} gives tokens back, and its limit does not allow that: set `refunds: true` in `tollgate`"
        ))),
        _ if descriptor.is_negative_hits => Ok((cost, Action::Refund)),
        Some(0) => Ok((0, Action::Look)),
        _ if rule.after_use => Ok((cost, Action::Charge)),
        _ => Ok((cost, Action::Take)),
    }
}

fn check_bounds(request: &RateLimitRequest) -> Result<(), Unanswered> {
    let invalid = |message: String| Err(Unanswered::Invalid(message));
    if request.domain.is_empty() {
        return invalid("the domain is empty: name the one of the configuration".to_owned());
    }
    if request.descriptors.is_empty() {
        return invalid("the request has no descriptor: send at least one".to_owned());
    }
    if request.descriptors.len() > MAX_DESCRIPTORS {
        return invalid(format!(
            "{} descriptors are too many: send at most {MAX_DESCRIPTORS}",
            request.descriptors.len()
        ));
    }
    for descriptor in &request.descriptors {
        if descriptor.entries.is_empty() || descriptor.entries.len() > MAX_ENTRIES {
            return invalid(format!("a descriptor has {} entries: send 1 to {MAX_ENTRIES}", descriptor.entries.len()));
        }
    }
    Ok(())
}

/// The tokens of a limit, and when the next ones come.
async fn level(limiter: &Limiter, requested: &RequestedLimit<'_>) -> Result<(i64, Option<Duration>), Error> {
    let LimitSource::Rule(rule) = &requested.rule.source else { return Ok((0, None)) };
    if let Rule::Window(window) = rule {
        let maintenance = limiter.store().maintenance().ok_or(AdminError::Unsupported)?;
        let level = maintenance.window_level(&requested.key, window).await?;
        return Ok((level.available(), Some(level.retry_after())));
    }
    let limit = Limit::new(requested.key.clone(), rule.clone());
    let mut levels = limiter.peek_each(&limit).await?;
    if requested.rule.after_use && adopt(limiter, &levels).await? {
        levels = limiter.peek_each(&limit).await?;
    }
    let Some(level) = levels.into_iter().min_by_key(BucketLevel::available) else { return Ok((0, None)) };
    let until = |at: DateTime<Utc>| (at - DateTime::<Utc>::from(SystemTime::now())).to_std().ok();
    Ok((level.available(), level.next_refill_at().and_then(until)))
}

/// Gives buckets their changed quotas, as a request that takes tokens does, and a charge does not. Returns whether one changed.
async fn adopt(limiter: &Limiter, levels: &[BucketLevel]) -> Result<bool, Error> {
    let mut has_changed = false;
    // The level of a bucket that will change states no time, like the level of a full bucket.
    for level in levels.iter().filter(|level| level.full_at().is_none() && level.quota() != Quota::unlimited()) {
        let known = match limiter.peek_limit(&Limit::new(level.key().clone(), Rule::Provisioned)).await {
            Ok(known) => known,
            // The charge creates the bucket.
            Err(AdminError::Store(Error::Take(TakeError::UnknownBucket(_)))) => continue,
            Err(error) => return Err(error.into()),
        };
        if (known.quota(), known.plan()) != (level.quota(), level.plan()) {
            let rule = level.plan().map_or_else(|| Rule::Quota(level.quota()), |plan| Rule::Plan(plan.clone()));
            let limit = Limit::new(level.key().clone(), rule);
            limiter.throttle_limit(&limit, Throttle::remaining(u64::MAX)).await?;
            has_changed = true;
        }
    }
    Ok(has_changed)
}

async fn reserve(limiter: &Limiter, group: &[&RequestedLimit<'_>], is_refundable: bool) -> Result<Reservation, Error> {
    let mut limits = group.iter().map(|one| one.limit());
    let first = Take::from(limits.next().expect("a group has a limit"));
    let take = limits.fold(first, Take::and_limit);
    limiter.reserve_request(&if is_refundable { take.refundable() } else { take }).await
}

/// Enters a decision into the statuses.
fn apply(decision: &Decision, group: &[&RequestedLimit<'_>], verdict: &mut Verdict, passed: &mut Vec<usize>) {
    for one in decision.each() {
        let requested = group[one.limit_index()];
        let status = &mut verdict.statuses[requested.place];
        let reset = if one.is_granted() { one.reset_after() } else { one.retry_after() };
        // If a descriptor has several limits, the one with the fewest tokens.
        if status.remaining.is_none_or(|known| one.remaining().is_some_and(|left| left < known)) {
            (status.remaining, status.reset) = (one.remaining(), reset);
        }
        if !one.is_granted() {
            status.is_over = true;
            status.reset = one.retry_after();
        } else if one.mode() == Mode::Shadow && !passed.contains(&requested.place) {
            passed.push(requested.place);
            status.reset = one.retry_after();
        }
    }
    let decided_by = group[decision.limit_index()];
    if !decision.is_granted() && !decided_by.is_quota() {
        verdict.deny(decided_by, decision);
    }
}

impl RequestedLimit<'_> {
    /// Whether the limit denies a request only if all others of this kind deny it, too.
    fn is_quota(&self) -> bool {
        self.rule.is_quota && self.rule.mode == Mode::Enforce
    }

    /// The limit of a request for its tokens.
    fn limit(&self) -> Limit {
        let (rule, mode) = match &self.rule.source {
            LimitSource::Rule(rule) => (rule.clone(), self.rule.mode),
            // Even a request that is only tried would take nothing.
            _ if self.rule.mode == Mode::Shadow => (Rule::Quota(Quota::unlimited()), Mode::Off),
            _ => (Rule::Quota(Quota::unlimited()), Mode::Block),
        };
        let limit = Limit::new(self.key.clone(), rule).cost(self.hits.max(1)).mode(mode);
        match self.rule.on_failure {
            FailureMode::Local(quota) => limit.fallback_quota(quota),
            _ => limit,
        }
    }
}

impl Verdict {
    fn deny(&mut self, requested: &RequestedLimit<'_>, decision: &Decision) {
        self.is_denied = true;
        self.statuses[requested.place].is_over = true;
        let refusal = Refusal::unless_granted(decision, requested.label.as_ref());
        self.refusal = refusal.err().map(Response::from);
    }
}

impl Status {
    /// The limit as the configuration states it.
    fn stated(rule: &DescriptorRule) -> Self {
        let capacity = match &rule.source {
            LimitSource::Rule(Rule::Quota(quota)) => u32::try_from(quota.capacity()).ok(),
            LimitSource::Rule(Rule::Window(window)) => u32::try_from(window.max_requests()).ok(),
            _ => None,
        };
        let limit = match rule.stated {
            Some((requests, unit)) => Some((requests, Some(unit), rule.name.clone())),
            None => capacity.map(|capacity| (capacity, None, rule.name.clone())),
        };
        let remaining = matches!(rule.source, LimitSource::Unlimited).then_some(u64::MAX);
        Self { limit, remaining, ..Self::default() }
    }
}

/// Without a deadline.
const LONGEST: Duration = Duration::from_secs(30);
/// A call that begins so soon has the whole deadline.
const SLACK: Duration = Duration::from_millis(1);
pub(crate) const MAX_DESCRIPTORS: usize = 64;
const MAX_ENTRIES: usize = 16;
/// The longest name of a limit in metrics, in bytes.
const MAX_LABEL: usize = 255;
/// The domain of requests that name none of the configuration.
const UNKNOWN_DOMAIN: &str = "unknown";
