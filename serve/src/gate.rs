//! Decides the descriptors of a proxy's request by the configuration.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::Response;
use tollgate::chrono::{DateTime, Utc};
use tollgate::{
    Decision, Error, Key, Limit, Limiter, Mode, Quota, Receipt, Reservation, Rule, Store as _, Take, TakeError,
};
use tollgate_http::{Refusal, joined_key};
use uuid::Uuid;

use crate::config::{Config, DescriptorRule, Domain, Entry, FailureMode, LimitSource, Unit};
use crate::counts::{Answer, Counts};
use crate::limiters::Limiters;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::r#type::v3::RateLimitUnit;

/// The decisions about a proxy's requests.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) config: ArcSwap<Config>,
    pub(crate) limiters: Limiters,
    pub(crate) counts: Counts,
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
    pub(crate) refusal: Option<Response<Bytes>>,
    /// The metadata of the limits that passed.
    pub(crate) metadata: serde_json::Map<String, serde_json::Value>,
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
    pub(crate) fn new(config: Config, limiters: Limiters) -> Self {
        Self { config: ArcSwap::from_pointee(config), limiters, counts: Counts::default() }
    }

    /// Decides a request. A denied request takes nothing. `time_left`: until the caller cancels.
    pub(crate) async fn decide(
        &self,
        request: &RateLimitRequest,
        time_left: Option<Duration>,
    ) -> Result<Verdict, Unanswered> {
        check_bounds(request)?;
        let config = self.config.load_full();
        let mut verdict = Verdict {
            statuses: vec![Status::default(); request.descriptors.len()],
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
        let requested: Vec<_> =
            requested.into_iter().filter(|one| !matches!(one.rule.source, LimitSource::Unlimited)).collect();
        if requested.is_empty() {
            return Ok(verdict);
        }
        let limiter = self.limiter(&requested, time_left);
        let decided = self.decide_each(&limiter, &requested, &mut verdict).await;
        for one in &requested {
            for equal in &one.equal {
                verdict.statuses[*equal] = verdict.statuses[one.place].clone();
            }
        }
        match &decided {
            Err(Unanswered::Failed(_)) => self.count(request, &requested, |_| Answer::Failed),
            Err(Unanswered::Invalid(_)) => {}
            Ok(passed) => {
                let statuses = &verdict.statuses;
                self.count(request, &requested, |one| {
                    match (statuses[one.place].is_over, passed.contains(&one.place)) {
                        (true, _) => Answer::Denied,
                        (false, true) => Answer::Shadow,
                        (false, false) => Answer::Granted,
                    }
                });
                for one in requested.iter().filter(|one| !statuses[one.place].is_over) {
                    verdict.metadata.extend(one.rule.metadata.clone().into_iter().flatten());
                }
            }
        }
        decided.map(|_| verdict)
    }

    fn count(
        &self,
        request: &RateLimitRequest,
        requested: &[RequestedLimit<'_>],
        answer: impl Fn(&RequestedLimit<'_>) -> Answer,
    ) {
        for one in requested {
            self.counts.add(&request.domain, &one.label, answer(one));
        }
    }

    /// The limiter of the strictest way to handle failures, with the shortest deadline.
    fn limiter(&self, requested: &[RequestedLimit<'_>], time_left: Option<Duration>) -> Cow<'_, Limiter> {
        let strictness = |mode: FailureMode| match mode {
            FailureMode::Error => 3,
            FailureMode::Closed => 2,
            FailureMode::Local(_) => 1,
            FailureMode::Open => 0,
        };
        let modes = requested.iter().map(|one| one.rule.on_failure);
        let limiter = self.limiters.get(modes.max_by_key(|mode| strictness(*mode)).unwrap_or_default());
        let own = limiter.deadline();
        match requested.iter().filter_map(|one| one.rule.deadline).chain(time_left).chain(own).min() {
            Some(deadline) if own != Some(deadline) => Cow::Owned(limiter.with_deadline(deadline)),
            _ => Cow::Borrowed(limiter),
        }
    }

    /// Decides the descriptors that have limits. Returns the places of those that passed without tokens.
    async fn decide_each(
        &self,
        limiter: &Limiter,
        requested: &[RequestedLimit<'_>],
        verdict: &mut Verdict,
    ) -> Result<Vec<usize>, Unanswered> {
        let of = |action: Action| requested.iter().filter(move |one| one.action == action);
        let mut passed = Vec::new();
        for one in of(Action::Look) {
            let (is_over, status) = look(limiter, one).await?;
            let status = Status { limit: verdict.statuses[one.place].limit.clone(), ..status };
            let is_trial = one.rule.mode == Mode::Shadow;
            if is_over && is_trial {
                passed.push(one.place);
            }
            verdict.statuses[one.place] = Status { is_over: is_over && !is_trial, ..status };
        }
        if !verdict.statuses.iter().any(|status| status.is_over) {
            self.take(limiter, &of(Action::Take).collect::<Vec<_>>(), verdict, &mut passed).await?;
        }
        for one in of(Action::Charge) {
            let charge = Take::from(one.limit()).cost(one.hits);
            limiter.charge_request(&charge).await.map_err(Unanswered::Failed)?;
        }
        for one in of(Action::Refund) {
            give_back(limiter, one).await.map_err(Unanswered::Failed)?;
        }
        Ok(passed)
    }

    /// Takes the tokens of all limits, or of none.
    async fn take(
        &self,
        limiter: &Limiter,
        requested: &[&RequestedLimit<'_>],
        verdict: &mut Verdict,
        passed: &mut Vec<usize>,
    ) -> Result<(), Unanswered> {
        // A sliding window is decided by itself.
        let (windows, buckets): (Vec<_>, Vec<_>) =
            requested.iter().partition(|one| matches!(one.rule.source, LimitSource::Rule(Rule::Window(_))));
        let groups = [buckets].into_iter().chain(windows.into_iter().map(|window| vec![window]));
        let mut taken: Vec<Reservation> = Vec::new();
        for group in groups.filter(|group: &Vec<&RequestedLimit<'_>>| !group.is_empty()) {
            match reserve(limiter, &group).await {
                Ok(reservation) => {
                    let is_denied = apply(reservation.decision(), &group, verdict, passed);
                    taken.push(reservation);
                    if is_denied {
                        give_back_all(taken).await;
                        return Ok(());
                    }
                }
                // No request of this cost ever passes.
                Err(Error::Take(TakeError::ExceedsCapacity { key, .. })) => {
                    give_back_all(taken).await;
                    let over = group.iter().find(|one| one.key == key.without_limit()).unwrap_or(&group[0]);
                    verdict.deny(over, &Decision::denial(None));
                    return Ok(());
                }
                Err(error) => {
                    give_back_all(taken).await;
                    return Err(Unanswered::Failed(error));
                }
            }
        }
        // Quotas deny together, after the others.
        let quotas: Vec<_> = requested.iter().filter(|one| one.rule.is_quota).collect();
        if let Some(first) = quotas.first().filter(|_| quotas.iter().all(|one| passed.contains(&one.place))) {
            let retry_after = quotas.iter().filter_map(|one| verdict.statuses[one.place].reset).min();
            for one in &quotas {
                verdict.statuses[one.place].is_over = true;
            }
            verdict.deny(first, &Decision::denial(retry_after));
            give_back_all(taken).await;
        }
        Ok(())
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
        let stated = override_of(descriptor)?;
        let (rule, values) = match (stated, &found) {
            (Some(rule), _) => {
                let rule = DescriptorRule { on_failure: domain.on_failure, deadline: domain.deadline, ..rule };
                (Cow::Owned(rule), None)
            }
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
        // The plan is not in the key: a client keeps its bucket when its plan changes.
        let key = key(request, &entries, values, plan_entry)?;
        let (hits, action) = action(request, descriptor, &rule, place)?;
        match requested.iter_mut().find(|other| other.key == key && other.action == action) {
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
    without: Option<&str>,
) -> Result<Key, Unanswered> {
    let mut texts = Vec::with_capacity(2 + 2 * entries.len());
    texts.push(request.domain.as_str());
    for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| without.is_none_or(|key| key != entry.key)) {
        texts.extend([entry.key, values.map_or(entry.value, |values| values[place])]);
    }
    if texts.len() == 1 {
        // Not the key of a caller that has the name of the domain.
        texts.push("");
    }
    joined_key(&texts).map_err(|error| Unanswered::Invalid(error.to_string()))
}

/// The keys and values of a descriptor, for metrics.
fn detailed(entries: &[Entry<'_>]) -> String {
    entries.iter().map(|entry| format!("{}_{}", entry.key, entry.value)).collect::<Vec<_>>().join(".")
}

/// The limit that a descriptor states, if it does.
fn override_of(descriptor: &RateLimitDescriptor) -> Result<Option<DescriptorRule>, Unanswered> {
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
    let source = LimitSource::of_unit(limit.requests_per_unit, unit, false);
    let source = source.map_err(|error| Unanswered::Invalid(error.to_string()))?;
    Ok(Some(DescriptorRule::stated("override", source, (limit.requests_per_unit, unit))))
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
        let longest = descriptor.entries.iter().map(|entry| entry.key.len() + entry.value.len()).max();
        if longest.is_some_and(|bytes| bytes > MAX_ENTRY_BYTES) {
            return invalid(format!("an entry has more than {MAX_ENTRY_BYTES} bytes: shorten it"));
        }
    }
    Ok(())
}

/// Reads the buckets or the window of a limit. Returns whether nothing is left.
async fn look(limiter: &Limiter, requested: &RequestedLimit<'_>) -> Result<(bool, Status), Unanswered> {
    let read = async {
        let LimitSource::Rule(rule) = &requested.rule.source else { return Ok((0, None)) };
        if let Rule::Window(window) = rule {
            let maintenance = limiter.store().maintenance().ok_or(tollgate::admin::AdminError::Unsupported)?;
            let level = maintenance.window_level(&requested.key, window).await?;
            return Ok((level.available(), Some(level.retry_after())));
        }
        let level = limiter.peek_limit(&Limit::new(requested.key.clone(), rule.clone())).await?;
        let reset = level.next_refill_at().and_then(|at| (at - DateTime::<Utc>::from(SystemTime::now())).to_std().ok());
        Ok((level.available(), reset))
    };
    let (available, reset) = match read.await.map_err(|error: tollgate::admin::AdminError| Error::from(error)) {
        Ok(level) => level,
        Err(error) if error.is_failure() && requested.rule.on_failure != FailureMode::Error => {
            return Ok((requested.rule.on_failure == FailureMode::Closed, Status::default()));
        }
        Err(error) => return Err(Unanswered::Failed(error)),
    };
    let status = Status { remaining: Some(available.max(0).unsigned_abs()), reset, ..Status::default() };
    Ok((available <= 0, status))
}

async fn reserve(limiter: &Limiter, group: &[&RequestedLimit<'_>]) -> Result<Reservation, Error> {
    let mut limits = group.iter().map(|one| one.limit());
    let first = Take::from(limits.next().expect("a group has a limit"));
    limiter.reserve_request(&limits.fold(first, Take::and_limit).refundable()).await
}

/// Gives the tokens of earlier limits back, because a later one denied. On an error they stay taken.
async fn give_back_all(taken: Vec<Reservation>) {
    for reservation in taken.into_iter().filter(Reservation::is_granted) {
        if let Err(error) = reservation.refund_each(Receipt::cost).await {
            tracing::warn!(%error, "tokens of a denied request stay taken");
        }
    }
}

/// Gives tokens back without the receipt of a grant, up to a full bucket.
async fn give_back(limiter: &Limiter, requested: &RequestedLimit<'_>) -> Result<(), Error> {
    let receipt = Receipt::new(Uuid::new_v4(), requested.key.clone(), requested.hits);
    // A bucket that does not exist is full.
    limiter.adjust(vec![receipt.refund(requested.hits)]).await.map(drop)
}

/// Enters a decision into the statuses. Returns whether it denied.
fn apply(decision: &Decision, group: &[&RequestedLimit<'_>], verdict: &mut Verdict, passed: &mut Vec<usize>) -> bool {
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
    if !decision.is_granted() {
        verdict.deny(group[decision.limit_index()], decision);
    }
    !decision.is_granted()
}

impl RequestedLimit<'_> {
    /// The limit of a request for its tokens.
    fn limit(&self) -> Limit {
        let (rule, mode) = match &self.rule.source {
            LimitSource::Rule(rule) => (rule.clone(), self.rule.mode),
            // Even a request that is only tried would take nothing.
            _ if self.rule.mode == Mode::Shadow => (Rule::Quota(Quota::unlimited()), Mode::Off),
            _ => (Rule::Quota(Quota::unlimited()), Mode::Block),
        };
        let mode = if self.rule.is_quota { Mode::Shadow } else { mode };
        let limit = Limit::new(self.key.clone(), rule).cost(self.hits.max(1)).mode(mode);
        match self.rule.on_failure {
            FailureMode::Local(quota) => limit.fallback_quota(quota),
            _ => limit,
        }
    }
}

impl Verdict {
    fn deny(&mut self, requested: &RequestedLimit<'_>, decision: &Decision) {
        self.statuses[requested.place].is_over = true;
        let refusal = Refusal::unless_granted(decision, requested.label.as_ref());
        self.refusal = refusal.err().map(Response::from);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.statuses.iter().any(|status| status.is_over)
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

impl DescriptorRule {
    /// A limit that a request states.
    fn stated(label: &str, source: LimitSource, stated: (u32, Unit)) -> Self {
        Self {
            label: label.to_owned(),
            source,
            stated: Some(stated),
            mode: Mode::Enforce,
            name: None,
            replaces: Vec::new(),
            is_quota: false,
            detailed_metric: false,
            metadata: None,
            after_use: false,
            refunds: false,
            on_failure: FailureMode::default(),
            deadline: None,
        }
    }
}

pub(crate) const MAX_DESCRIPTORS: usize = 64;
const MAX_ENTRIES: usize = 16;
const MAX_ENTRY_BYTES: usize = 1024;
/// The domain of requests that name none of the configuration.
const UNKNOWN_DOMAIN: &str = "unknown";
