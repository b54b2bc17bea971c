use std::sync::Arc;
use std::time::Duration;

use super::report::{HeaderReport, OpenEstimate, ReportedLimit, UpstreamReport};
use super::response_reader::{ResponseFn, ResponseReader};
use super::{ClientLimitError, HeaderPreset, UpstreamResponse, headers};
use tollgate::middleware::MiddlewareHooks;
use tollgate::{Adjustment, Decision, Key, Limit, Limiter, Mode, Receipt, Store, Take, Throttle, model::Source};

/// A request's limits, and which of their tokens it still has to take.
#[derive(Debug)]
pub(super) struct PricedRequest {
    limits: Vec<ChargedLimit>,
    /// Cost under limits without their own cost.
    cost: u64,
}

/// One of a request's limits.
#[derive(Debug)]
struct ChargedLimit {
    limit: Limit,
    /// Whether it is the limiter's own limit, whose rule can change before the answer.
    is_primary: bool,
    cost: u64,
    reader: Arc<ResponseReader>,
    /// Whether the next call takes its tokens. Otherwise the request has them already.
    is_requested: bool,
    /// Tokens left after the take. `None` if the bucket was not asked.
    remaining: Option<u64>,
    /// The latest receipts, one for each bucket of the limit, if the cost is an estimate. Tokens of a revoked reservation belong to the
    /// throttle.
    receipts: Vec<Receipt>,
    /// Whether the limit could have denied the request. Otherwise it does not throttle the next one either.
    enforced: bool,
    /// The period of the limit's fixed window, if it has one.
    window: Option<Duration>,
}

impl ChargedLimit {
    /// Estimates how likely this limit caused a refusal, by the tokens left in its own headers.
    fn blame(&self, reported: Option<Throttle>) -> Blame {
        match reported.and_then(|reported| reported.get_remaining()) {
            Some(tokens) if tokens < self.cost => Blame::Exhausted,
            Some(_) => Blame::Sufficient,
            None if self.is_primary || self.reader.reads_responses() => Blame::NotReported,
            None => Blame::Unknown,
        }
    }
}

/// Ordered by likelihood, the likeliest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    Exhausted,
    NotReported,
    Sufficient,
    /// The limit has no headers to read, so the upstream possibly does not know the limit.
    Unknown,
}

impl PricedRequest {
    /// Creates a request without limits.
    pub(super) fn new(cost: u64) -> Self {
        Self { limits: Vec::new(), cost }
    }

    /// Adds a limit. The limiter's own limit must come first.
    pub(super) fn add(
        &mut self,
        limit: Limit,
        is_primary: bool,
        reader: &Arc<ResponseReader>,
    ) -> Result<(), ClientLimitError> {
        if self.keys().any(|key| key == limit.key()) {
            return Err(ClientLimitError::SameBucket(limit.key().clone()));
        }
        let cost = if limit.has_own_cost() { limit.get_cost() } else { self.cost };
        let reader = Arc::clone(reader);
        let (is_requested, remaining, receipts, enforced, window) = (true, None, Vec::new(), true, None);
        self.limits.push(ChargedLimit {
            limit,
            is_primary,
            cost,
            reader,
            is_requested,
            remaining,
            receipts,
            enforced,
            window,
        });
        Ok(())
    }

    /// Whether the request has no limits.
    pub(super) fn is_free(&self) -> bool {
        self.limits.is_empty()
    }

    /// Returns the buckets of all limits.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.limits.iter().map(|limit| limit.limit.key())
    }

    /// Builds the next request for tokens. An estimate needs an id for its settlement, and a new id each time, because
    /// a known id takes nothing.
    pub(super) fn take<S: Store>(&self, limiter: &Limiter<S>, max_wait: Duration, throttle: Duration) -> Take {
        let mut requested = self.limits.iter().filter(|limit| limit.is_requested);
        let first = requested.next().expect("a request without limits asks for nothing");
        let limit = first.limit.clone();
        let take = if first.is_primary { Take::from(limit) } else { limiter.request_for(limit) };
        let take = requested.fold(take, |take, limit| take.and_limit(limit.limit.clone()));
        let take = take.min_remaining(limiter.min_remaining()).cost(self.cost).max_wait(max_wait);
        let is_estimated = self.limits.iter().any(|limit| limit.is_requested && limit.reader.is_estimated());
        if is_estimated { take.fresh_id(throttle) } else { take }
    }

    /// Records the decision for these buckets. The caller does not send a denied request.
    pub(super) fn record_decision(&mut self, requested: &[Key], decision: &Decision, receipts: &[Receipt]) {
        let is_fallback = decision.source() == Source::Fallback;
        for (index, key) in requested.iter().enumerate() {
            // Several, if the plan or the rule has several limits.
            let of_limit: Vec<_> = decision.each().iter().filter(|decision| decision.limit_index() == index).collect();
            // A bucket that was not asked cannot be lowered, and a request without a limit cannot be throttled.
            let remaining = if is_fallback {
                Some(0)
            } else {
                of_limit.iter().map(|decision| decision.remaining().unwrap_or(u64::MAX)).min()
            };
            if let Some(limit) = self.limits.iter_mut().find(|limit| limit.limit.key() == key) {
                limit.remaining = remaining;
                let receipts = receipts.iter().filter(|receipt| receipt.key().without_limit() == *key);
                limit.receipts = receipts.filter(|_| limit.reader.is_estimated()).cloned().collect();
                let is_enforced = |decision: &Decision| decision.mode() == Mode::Enforce;
                limit.enforced = match &of_limit[..] {
                    [] => is_enforced(decision),
                    each => each.iter().any(|decision| is_enforced(decision)),
                };
                limit.window = of_limit.first().and_then(|decision| decision.fixed_window());
            }
        }
    }

    /// Whether this bucket could have denied the request.
    pub(super) fn is_enforced(&self, key: &Key) -> bool {
        self.limits.iter().any(|limit| limit.limit.key() == key && limit.enforced)
    }

    /// Takes the tokens of these buckets again, and keeps those of the others.
    pub(super) fn request_again(&mut self, keys: &[&Key]) {
        for limit in &mut self.limits {
            limit.is_requested = keys.contains(&limit.limit.key());
        }
    }

    /// Returns the ticket of a request that can be sent now.
    pub(super) fn ticket(self) -> Ticket {
        let settles_later = self.limits.iter().any(|limit| limit.reader.settles_later());
        let limits = self.limits.into_iter().filter(|limit| limit.remaining.is_some()).collect();
        Ticket { limits, settles_later }
    }
}

/// Tokens that a request has taken.
#[derive(Debug)]
pub(super) struct Ticket {
    limits: Vec<ChargedLimit>,
    /// Whether the caller settles one of the limits after reading the body. That limit can have taken nothing.
    settles_later: bool,
}

impl Ticket {
    /// Evaluates an answer. A refusal throttles all of the likeliest limits. A refused request used nothing, unless the
    /// upstream was overloaded.
    pub(super) fn read_response(
        self,
        answer: &UpstreamResponse<'_>,
        refused_if: &[ResponseFn<bool>],
    ) -> UpstreamReport {
        let presets: Vec<HeaderPreset> =
            self.limits.iter().flat_map(|limit| limit.reader.presets.iter().copied()).collect();
        let is_refusal = headers::is_refusal(answer.status, answer.headers, &presets)
            || refused_if.iter().any(|refused_if| refused_if(answer));
        let reported: Vec<_> = self.limits.iter().map(|limit| limit.reader.reported(answer)).collect();
        let likeliest = self.limits.iter().zip(&reported).map(|(limit, reported)| limit.blame(*reported)).min();
        let mut report = UpstreamReport {
            open_estimates: (self.settles_later && !is_refusal).then(Vec::new),
            ..UpstreamReport::default()
        };
        for (limit, reported) in self.limits.into_iter().zip(reported) {
            let refused = is_refusal && Some(limit.blame(reported)) == likeliest;
            let throttle = if refused {
                Some(headers::refusal(answer.headers, reported, &limit.reader.presets))
            } else {
                reported
            };
            let (settlements, given_back) = limit.settlements(answer, is_refusal);
            report.settlements.extend(settlements);
            let ChargedLimit { limit, is_primary, reader, remaining, receipts, enforced, window, .. } = limit;
            let key = limit.key().clone();
            let limit = (!is_primary).then_some(limit);
            let limit_report =
                throttle.map(|throttle| ReportedLimit { key, limit, throttle, refused, enforced, window });
            let remaining = remaining.unwrap_or(u64::MAX);
            if let (Some(open), true) = (&mut report.open_estimates, reader.settles_later()) {
                // The headers lower the limit's first bucket.
                let mut head = limit_report.clone().map(|limit| HeaderReport { limit, remaining });
                open.extend(receipts.into_iter().map(|receipt| OpenEstimate { receipt, head: head.take() }));
            }
            // The settlement must not raise the bucket above the tokens left.
            let known = remaining.saturating_add(given_back);
            let is_news = |limit_report: &ReportedLimit| {
                limit_report.throttle.get_remaining().is_some_and(|tokens| tokens < known)
                    || !limit_report.throttle.wait().is_zero()
            };
            report.limits.extend(limit_report.filter(|limit_report| refused || is_news(limit_report)));
        }
        report
    }
}

impl ChargedLimit {
    /// Returns the settlements of an estimate, and how many tokens each gives back. None if the use is unknown or equals the
    /// estimate.
    fn settlements(&self, answer: &UpstreamResponse<'_>, is_refusal: bool) -> (Vec<Adjustment>, u64) {
        match self.reader.used(answer, is_refusal).filter(|used| *used != self.cost) {
            Some(used) if !self.receipts.is_empty() => {
                let settlements = self.receipts.iter().map(|receipt| receipt.clone().settle(used));
                (settlements.collect(), self.cost.saturating_sub(used))
            }
            _ => (Vec::new(), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Extensions, HeaderMap, HeaderValue, StatusCode};
    use tollgate::{Adjusted, Error, Fallback, MemoryStore, TakeError, model::Outcome, store::TestStore};

    use super::*;

    fn limit(name: &str) -> Limit {
        Limit::new(Key::try_from(name).unwrap(), "1000/h".try_into().unwrap())
    }

    fn limiter() -> Limiter<MemoryStore> {
        Limiter::new(MemoryStore::new(), "1000/h").unwrap()
    }

    /// Builds a request under the limiter's own limit and another one.
    fn priced([requests, tokens]: [&Arc<ResponseReader>; 2]) -> PricedRequest {
        let mut priced = PricedRequest::new(1);
        priced.add(limit("requests"), true, requests).unwrap();
        priced.add(limit("tokens").cost(100), false, tokens).unwrap();
        priced
    }

    /// Decides the request. Returns the keys and tokens that it asked for.
    fn decide(priced: &mut PricedRequest, limiter: &Limiter<MemoryStore>) -> Vec<(String, u64)> {
        let take = priced.take(limiter, Duration::ZERO, Duration::ZERO);
        let requested: Vec<Key> = take.keys().cloned().collect();
        priced.record_decision(&requested, &limiter.store().decide(&take).unwrap(), &[]);
        take.limits().map(|limit| (limit.key().to_string(), limit.get_cost())).collect()
    }

    /// Builds a ticket for the limiter's own limit and another one.
    fn ticket(presets: [&[HeaderPreset]; 2]) -> Ticket {
        let [requests, tokens] =
            presets.map(|presets| Arc::new(ResponseReader { presets: presets.to_vec(), ..ResponseReader::default() }));
        let mut priced = priced([&requests, &tokens]);
        decide(&mut priced, &limiter());
        priced.ticket()
    }

    fn reported_limits(
        presets: [&[HeaderPreset]; 2],
        status: StatusCode,
        lines: &[(&'static str, &'static str)],
    ) -> Vec<(String, Throttle, bool)> {
        let lines = lines.iter().map(|(name, value)| ((*name).try_into().unwrap(), HeaderValue::from_static(value)));
        let (headers, extensions): (HeaderMap, _) = (lines.collect(), Extensions::new());
        let response = UpstreamResponse { status, headers: &headers, extensions: &extensions };
        let report = ticket(presets).read_response(&response, &[]);
        report.limits.into_iter().map(|limit| (limit.key.to_string(), limit.throttle, limit.refused)).collect()
    }

    #[test]
    fn refusal_blames_the_likeliest_limits() {
        let wait = Throttle::retry_after(Duration::from_secs(2)).and(Throttle::remaining(0));
        let (requests, tokens) = ("requests".to_owned(), "tokens".to_owned());
        let both: [&[HeaderPreset]; 2] = [&[HeaderPreset::OpenAiRequests], &[HeaderPreset::OpenAiTokens]];
        let remaining = |requests, tokens| {
            [
                ("x-ratelimit-remaining-requests", requests),
                ("x-ratelimit-remaining-tokens", tokens),
                ("retry-after", "2"),
            ]
        };
        for (presets, lines, expected) in [
            (both, remaining("7", "99"), vec![(&requests, Throttle::remaining(7), false), (&tokens, wait, true)]),
            (both, remaining("0", "5000"), vec![(&requests, wait, true)]),
            (both, remaining("0", "0"), vec![(&requests, wait, true), (&tokens, wait, true)]),
            (both, remaining("many", "5000"), vec![(&requests, wait, true)]),
            // The cause is unknown.
            (both, remaining("7", "5000"), vec![(&requests, wait, true), (&tokens, wait, true)]),
            ([&[], &[HeaderPreset::OpenAiTokens]], remaining("0", "5000"), vec![(&requests, wait, true)]),
            // The caller can have defined a limit without headers to read.
            ([&[], &[]], remaining("0", "5000"), vec![(&requests, wait, true)]),
            ([&[HeaderPreset::OpenAiRequests], &[]], remaining("7", "0"), vec![(&requests, wait, true)]),
        ] {
            let found = reported_limits(presets, StatusCode::TOO_MANY_REQUESTS, &lines);
            let found: Vec<_> = found.iter().map(|(key, throttle, refused)| (key, *throttle, *refused)).collect();
            assert_eq!(found, expected, "{presets:?} {lines:?}");
        }
        let served = reported_limits(both, StatusCode::OK, &remaining("7", "5000"));
        assert_eq!(served, [(requests, Throttle::remaining(7), false)], "only less than was known is news");
    }

    #[test]
    fn retry_requests_only_the_refused_limits() {
        let (limiter, reader) = (limiter(), Arc::default());
        let mut priced = priced([&reader, &reader]);
        let [requests, tokens] = ["requests", "tokens"].map(|name| Key::try_from(name).unwrap());
        let of =
            |keys: &[(&str, u64)]| keys.iter().map(|(key, tokens)| ((*key).to_owned(), *tokens)).collect::<Vec<_>>();
        assert_eq!(decide(&mut priced, &limiter), of(&[("requests", 1), ("tokens", 100)]));
        priced.request_again(&[&tokens]);
        assert_eq!(decide(&mut priced, &limiter), of(&[("tokens", 100)]));
        let remaining: Vec<_> = priced.limits.iter().map(|limit| limit.remaining).collect();
        assert_eq!(remaining, [Some(999), Some(800)]);
        // Meanwhile the other limit refused another request.
        priced.request_again(&[&requests]);
        assert_eq!(decide(&mut priced, &limiter), of(&[("requests", 1)]));
        priced.request_again(&[&requests, &tokens]);
        assert_eq!(decide(&mut priced, &limiter), of(&[("requests", 1), ("tokens", 100)]));
    }

    /// The limiter's own limit is not first any more, and its fallback must not replace that of another limit.
    #[tokio::test]
    async fn limit_requested_again_alone_keeps_its_fallback_quota() {
        let fallback = Fallback::Local("1 once".parse().unwrap());
        let limiter =
            Limiter::builder(Down).deadline(Duration::from_secs(1)).fallback(fallback).build("1000/h").unwrap();
        let reader = Arc::default();
        let mut priced = priced([&reader, &reader]);
        let tokens = Key::try_from("tokens").unwrap();
        priced.request_again(&[&tokens]);
        for _ in 0..2 {
            let take = priced.take(&limiter, Duration::ZERO, Duration::ZERO);
            assert!(limiter.decide(&take).await.unwrap().is_granted(), "of 1000");
        }
    }

    /// A store without its database.
    #[derive(Debug)]
    struct Down;

    impl TestStore for Down {
        async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
            Err(Error::other(std::io::Error::other("down")))
        }

        async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
            Err(Error::other(std::io::Error::other("down")))
        }
    }
}
