use std::sync::Arc;
use std::time::Duration;

use super::estimate::HeaderReport;
use super::response_reader::{ResponseFn, ResponseReader};
use super::{ClientLimitError, HeaderPreset, UpstreamResponse, headers};
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
    own: bool,
    cost: u64,
    reading: Arc<ResponseReader>,
    /// Whether the next call takes its tokens. Otherwise the request has them already.
    is_asked: bool,
    /// Tokens left after the take. `None` if the bucket was not asked.
    remaining: Option<u64>,
    /// The latest receipt, if the cost is an estimate. Tokens of a revoked reservation belong to the throttle.
    receipt: Option<Receipt>,
    /// Whether the limit could have denied the request. Otherwise it does not throttle the next one either.
    enforced: bool,
    /// The period of the limit's fixed window, if it has one.
    window: Option<Duration>,
}

impl ChargedLimit {
    /// Estimates how likely this limit caused a refusal, by the tokens left in its own headers.
    fn blame(&self, said: Option<Throttle>) -> Blame {
        match said.and_then(|said| said.remaining_tokens()) {
            Some(left) if left < self.cost => Blame::Spent,
            Some(_) => Blame::SaysEnough,
            None if self.own || self.reading.is_read() => Blame::SaysNothing,
            None => Blame::Unknown,
        }
    }
}

/// Ordered by likelihood, the likeliest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    Spent,
    SaysNothing,
    SaysEnough,
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
        own: bool,
        reading: &Arc<ResponseReader>,
    ) -> Result<(), ClientLimitError> {
        if self.keys().any(|key| key == limit.key()) {
            return Err(ClientLimitError::SameBucket(limit.key().clone()));
        }
        let cost = if limit.has_own_cost() { limit.tokens() } else { self.cost };
        let reading = Arc::clone(reading);
        let (is_asked, remaining, receipt, enforced, window) = (true, None, None, true, None);
        self.limits.push(ChargedLimit { limit, own, cost, reading, is_asked, remaining, receipt, enforced, window });
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
    pub(super) fn take<S: Store>(&self, limiter: &Limiter<S>, max_wait: Duration, hold: Duration) -> Take {
        let mut asked = self.limits.iter().filter(|limit| limit.is_asked);
        let first = asked.next().expect("a request without limits asks for nothing");
        let limit = first.limit.clone();
        let take = if first.own { Take::from(limit) } else { limiter.request_for(limit) };
        let take = asked.fold(take, |take, limit| take.and_limit(limit.limit.clone()));
        let take = take.min_remaining(limiter.required_remaining()).cost(self.cost).max_wait(max_wait);
        let is_estimated = self.limits.iter().any(|limit| limit.is_asked && limit.reading.is_estimated());
        if is_estimated { take.fresh_id(hold) } else { take }
    }

    /// Records the decision for these buckets. The caller does not send a denied request.
    pub(super) fn decided(&mut self, asked: &[Key], decision: &Decision, receipts: &[Receipt]) {
        let fell_back = decision.source() == Source::Fallback;
        for (place, key) in asked.iter().enumerate() {
            let one = decision.each().iter().find(|one| one.limit() == place);
            // A bucket that was not asked cannot be lowered, and a request without a limit cannot be throttled.
            let remaining = if fell_back { Some(0) } else { one.map(Decision::remaining) };
            if let Some(limit) = self.limits.iter_mut().find(|limit| limit.limit.key() == key) {
                limit.remaining = remaining;
                let receipt = receipts.iter().find(|receipt| receipt.key() == key);
                limit.receipt = receipt.filter(|_| limit.reading.is_estimated()).cloned();
                limit.enforced = one.unwrap_or(decision).mode() == Mode::Enforce;
                limit.window = one.and_then(Decision::fixed_window);
            }
        }
    }

    /// Whether this bucket could have denied the request.
    pub(super) fn is_enforced(&self, key: &Key) -> bool {
        self.limits.iter().any(|limit| limit.limit.key() == key && limit.enforced)
    }

    /// Takes the tokens of these buckets again, and keeps those of the others.
    pub(super) fn again(&mut self, keys: &[&Key]) {
        for limit in &mut self.limits {
            limit.is_asked = keys.contains(&limit.limit.key());
        }
    }

    /// Returns the ticket of a request that can be sent now.
    pub(super) fn ticket(self) -> Ticket {
        let settles_later = self.limits.iter().any(|limit| limit.reading.is_open());
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

/// The contents of an answer that concern the request's limits.
#[derive(Debug, Default)]
pub(super) struct UpstreamReport {
    /// Settlements of estimates.
    pub(super) settled: Vec<Adjustment>,
    /// Tokens left under each limit.
    pub(super) held: Vec<UpstreamLimit>,
    /// Estimates that the caller settles after reading the body. `None` if there are none, or if the request was
    /// refused.
    pub(super) open: Option<Vec<OpenEstimate>>,
}

/// The throttle that an answer states for one limit.
#[derive(Clone, Debug)]
pub(super) struct UpstreamLimit {
    pub(super) key: Key,
    /// `None` for the limiter's own limit.
    pub(super) limit: Option<Limit>,
    pub(super) hold: Throttle,
    /// Whether this limit probably caused the refusal.
    pub(super) refused: bool,
    /// Whether the limit throttles a retry.
    pub(super) enforced: bool,
    /// The period of the limit's fixed window, if it has one.
    pub(super) window: Option<Duration>,
}

/// An unsettled estimate, and the report of the answer's head for its limit.
#[derive(Debug)]
pub(super) struct OpenEstimate {
    pub(super) receipt: Receipt,
    pub(super) said: Option<HeaderReport>,
}

impl Ticket {
    /// Evaluates an answer. A refusal throttles all of the likeliest limits. A refused request used nothing, unless the
    /// upstream was overloaded.
    pub(super) fn told(self, answer: &UpstreamResponse<'_>, refused_if: &[ResponseFn<bool>]) -> UpstreamReport {
        let presets: Vec<HeaderPreset> =
            self.limits.iter().flat_map(|limit| limit.reading.presets.iter().copied()).collect();
        let is_refusal = headers::is_refusal(answer.status, answer.headers, &presets)
            || refused_if.iter().any(|refused_if| refused_if(answer));
        let said: Vec<_> = self.limits.iter().map(|limit| limit.reading.said(answer)).collect();
        let likeliest = self.limits.iter().zip(&said).map(|(limit, said)| limit.blame(*said)).min();
        let mut told =
            UpstreamReport { open: (self.settles_later && !is_refusal).then(Vec::new), ..UpstreamReport::default() };
        for (limit, said) in self.limits.into_iter().zip(said) {
            let refused = is_refusal && Some(limit.blame(said)) == likeliest;
            let says =
                if refused { Some(headers::refusal(answer.headers, said, &limit.reading.presets)) } else { said };
            let (settled, back) = limit.settled(answer, is_refusal);
            told.settled.extend(settled);
            let ChargedLimit { limit, own, reading, remaining, receipt, enforced, window, .. } = limit;
            let key = limit.key().clone();
            let limit = (!own).then_some(limit);
            let held = says.map(|hold| UpstreamLimit { key, limit, hold, refused, enforced, window });
            let remaining = remaining.unwrap_or(u64::MAX);
            if let (Some(open), Some(receipt), true) = (&mut told.open, receipt, reading.is_open()) {
                open.push(OpenEstimate { receipt, said: held.clone().map(|held| HeaderReport { held, remaining }) });
            }
            // The settlement must not raise the bucket above the tokens left.
            let known = remaining.saturating_add(back);
            let is_news = |held: &UpstreamLimit| {
                held.hold.remaining_tokens().is_some_and(|left| left < known) || !held.hold.wait().is_zero()
            };
            told.held.extend(held.filter(|held| refused || is_news(held)));
        }
        told
    }
}

impl ChargedLimit {
    /// Returns the settlement of an estimate, and how many tokens it gives back. `None` if the use is unknown or equals
    /// the estimate.
    fn settled(&self, answer: &UpstreamResponse<'_>, is_refusal: bool) -> (Option<Adjustment>, u64) {
        let used = self.reading.used(answer, is_refusal).filter(|used| *used != self.cost);
        match (&self.receipt, used) {
            (Some(receipt), Some(used)) => (Some(receipt.clone().settle(used)), self.cost.saturating_sub(used)),
            _ => (None, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Extensions, HeaderMap, HeaderValue, StatusCode};
    use tollgate::{Adjusted, Error, Fallback, MemoryStore, TakeError, model::Outcome};

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
        let asked: Vec<Key> = take.keys().cloned().collect();
        priced.decided(&asked, &limiter.store().decide(&take).unwrap(), &[]);
        take.limits().map(|limit| (limit.key().to_string(), limit.tokens())).collect()
    }

    /// Builds a ticket for the limiter's own limit and another one.
    fn ticket(presets: [&[HeaderPreset]; 2]) -> Ticket {
        let [requests, tokens] =
            presets.map(|presets| Arc::new(ResponseReader { presets: presets.to_vec(), ..ResponseReader::default() }));
        let mut priced = priced([&requests, &tokens]);
        decide(&mut priced, &limiter());
        priced.ticket()
    }

    fn held(
        presets: [&[HeaderPreset]; 2],
        status: StatusCode,
        lines: &[(&'static str, &'static str)],
    ) -> Vec<(String, Throttle, bool)> {
        let lines = lines.iter().map(|(name, value)| ((*name).try_into().unwrap(), HeaderValue::from_static(value)));
        let (headers, extensions): (HeaderMap, _) = (lines.collect(), Extensions::new());
        let told = ticket(presets).told(&UpstreamResponse { status, headers: &headers, extensions: &extensions }, &[]);
        told.held.into_iter().map(|held| (held.key.to_string(), held.hold, held.refused)).collect()
    }

    #[test]
    fn refusal_blames_the_likeliest_limits() {
        let wait = Throttle::retry_after(Duration::from_secs(2)).and(Throttle::remaining(0));
        let (requests, tokens) = ("requests".to_owned(), "tokens".to_owned());
        let both: [&[HeaderPreset]; 2] = [&[HeaderPreset::OpenAiRequests], &[HeaderPreset::OpenAiTokens]];
        let left = |requests, tokens| {
            [
                ("x-ratelimit-remaining-requests", requests),
                ("x-ratelimit-remaining-tokens", tokens),
                ("retry-after", "2"),
            ]
        };
        for (presets, lines, expected) in [
            (both, left("7", "99"), vec![(&requests, Throttle::remaining(7), false), (&tokens, wait, true)]),
            (both, left("0", "5000"), vec![(&requests, wait, true)]),
            (both, left("0", "0"), vec![(&requests, wait, true), (&tokens, wait, true)]),
            (both, left("many", "5000"), vec![(&requests, wait, true)]),
            // The cause is unknown.
            (both, left("7", "5000"), vec![(&requests, wait, true), (&tokens, wait, true)]),
            ([&[], &[HeaderPreset::OpenAiTokens]], left("0", "5000"), vec![(&requests, wait, true)]),
            // The caller can have defined a limit without headers to read.
            ([&[], &[]], left("0", "5000"), vec![(&requests, wait, true)]),
            ([&[HeaderPreset::OpenAiRequests], &[]], left("7", "0"), vec![(&requests, wait, true)]),
        ] {
            let found = held(presets, StatusCode::TOO_MANY_REQUESTS, &lines);
            let found: Vec<_> = found.iter().map(|(key, hold, refused)| (key, *hold, *refused)).collect();
            assert_eq!(found, expected, "{presets:?} {lines:?}");
        }
        let served = held(both, StatusCode::OK, &left("7", "5000"));
        assert_eq!(served, [(requests, Throttle::remaining(7), false)], "only less than was known is news");
    }

    #[test]
    fn retry_requests_only_the_refused_limits() {
        let (limiter, reading) = (limiter(), Arc::default());
        let mut priced = priced([&reading, &reading]);
        let [requests, tokens] = ["requests", "tokens"].map(|name| Key::try_from(name).unwrap());
        let of =
            |keys: &[(&str, u64)]| keys.iter().map(|(key, tokens)| ((*key).to_owned(), *tokens)).collect::<Vec<_>>();
        assert_eq!(decide(&mut priced, &limiter), of(&[("requests", 1), ("tokens", 100)]));
        priced.again(&[&tokens]);
        assert_eq!(decide(&mut priced, &limiter), of(&[("tokens", 100)]));
        let remaining: Vec<_> = priced.limits.iter().map(|limit| limit.remaining).collect();
        assert_eq!(remaining, [Some(999), Some(800)]);
        // Meanwhile the other limit refused another request.
        priced.again(&[&requests]);
        assert_eq!(decide(&mut priced, &limiter), of(&[("requests", 1)]));
        priced.again(&[&requests, &tokens]);
        assert_eq!(decide(&mut priced, &limiter), of(&[("requests", 1), ("tokens", 100)]));
    }

    /// The limiter's own limit is not first any more, and its fallback must not replace that of another limit.
    #[tokio::test]
    async fn limit_asked_again_alone_keeps_its_own_fallback_quota() {
        let fallback = Fallback::Local("1 once".parse().unwrap());
        let limiter = Limiter::builder(Down).fallback(Duration::from_secs(1), fallback).build("1000/h").unwrap();
        let reading = Arc::default();
        let mut priced = priced([&reading, &reading]);
        let tokens = Key::try_from("tokens").unwrap();
        priced.again(&[&tokens]);
        for _ in 0..2 {
            let take = priced.take(&limiter, Duration::ZERO, Duration::ZERO);
            assert!(limiter.decide(&take).await.unwrap().is_granted(), "of 1000");
        }
    }

    /// A store without its database.
    #[derive(Debug)]
    struct Down;

    impl Store for Down {
        async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
            Err(Error::other(std::io::Error::other("down")))
        }

        async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
            Err(Error::other(std::io::Error::other("down")))
        }
    }
}
