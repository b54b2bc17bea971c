use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::{ClientLimitError, Preset, headers};
use crate::decision::Source;
use crate::{Decision, HoldBack, Key, Limit, Mode, Quota, Rule, Take};

/// What a request asks for, and what answers say of each of its limits.
#[derive(Debug)]
pub(super) struct Priced {
    /// For all of its limits, or for those that it has to ask again for.
    pub(super) take: Take,
    of_all: Take,
    limits: Vec<Charged>,
}

/// One of a request's limits.
#[derive(Debug)]
struct Charged {
    key: Key,
    /// If it is not the limiter's own, whose rule may change until there is an answer.
    rule: Option<Rule>,
    /// While the store does not answer.
    local: Option<Box<Quota>>,
    cost: u64,
    presets: Arc<[Preset]>,
    /// What was left when the tokens were taken, if the bucket was asked.
    remaining: Option<u64>,
    /// Whether it would have denied the request: else the next one is not held back either.
    enforced: bool,
}

impl Charged {
    fn new(limit: &Limit, own: bool, presets: &Arc<[Preset]>) -> Self {
        let rule = (!own).then(|| limit.rule().clone());
        let (key, local, presets) = (limit.key().clone(), limit.local.clone(), Arc::clone(presets));
        Self { key, rule, local, cost: limit.tokens(), presets, remaining: None, enforced: true }
    }

    /// Why it may be what a request was refused for, by what its own headers say is left.
    fn blame(&self, said: Option<HoldBack>) -> Blame {
        match said.and_then(|said| said.left()) {
            Some(left) if left < self.cost => Blame::Spent,
            Some(_) => Blame::SaysEnough,
            None if self.rule.is_none() || !self.presets.is_empty() => Blame::SaysNothing,
            None => Blame::Unknown,
        }
    }
}

/// The likeliest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    Spent,
    SaysNothing,
    SaysEnough,
    /// Nobody said that the third party knows of it.
    Unknown,
}

impl Priced {
    /// Under one limit.
    pub(super) fn new(take: Take, own: bool, presets: &Arc<[Preset]>) -> Self {
        let limits = take.limits().map(|limit| Charged::new(limit, own, presets)).collect();
        Self { of_all: take.clone(), take, limits }
    }

    /// Under another one as well.
    pub(super) fn and(mut self, limit: Limit, presets: &Arc<[Preset]>) -> Result<Self, ClientLimitError> {
        if self.take.keys().any(|key| key == limit.key()) {
            return Err(ClientLimitError::SameBucket(limit.key().clone()));
        }
        self.take = self.take.and_limit(limit);
        self.limits.extend(self.take.limits().last().map(|limit| Charged::new(limit, false, presets)));
        Ok(self)
    }

    /// There are no more: what its only limit says for itself, the request says.
    pub(super) fn of_its_only(self) -> Self {
        let take = self.take.of_its_only();
        Self { of_all: take.clone(), take, ..self }
    }

    /// What it asks for was granted.
    pub(super) fn granted(&mut self, decision: &Decision) {
        let fell_back = decision.source() == Source::Fallback;
        for (place, key) in self.take.keys().enumerate() {
            let one = decision.each().iter().find(|one| one.limit() == place);
            // Of a bucket that was not asked there is nothing to lower, and without a limit, nothing to hold back.
            let remaining = if fell_back { Some(0) } else { one.map(Decision::remaining) };
            if let Some(limit) = self.limits.iter_mut().find(|limit| limit.key == *key) {
                limit.remaining = remaining;
                limit.enforced = one.unwrap_or(decision).mode() == Mode::Enforce;
            }
        }
    }

    /// Asks again for the tokens of these buckets, and has those of the others.
    pub(super) fn again(&mut self, keys: &[&Key]) {
        let mut take = self.of_all.clone();
        take.own &= keys.contains(&take.key());
        take.limits.retain(|limit| keys.contains(&limit.key()));
        self.take = take.of_its_only();
    }

    /// It is its turn.
    pub(super) fn ticket(self) -> Ticket {
        Ticket(self.limits.into_iter().filter(|limit| limit.remaining.is_some()).collect())
    }
}

/// Tokens that a request has taken.
#[derive(Debug)]
pub(super) struct Ticket(Vec<Charged>);

/// What an answer says of one limit, if that is less than was known.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: Key,
    /// If it is not the limiter's own.
    pub(super) rule: Option<Rule>,
    pub(super) local: Option<Box<Quota>>,
    pub(super) hold: HoldBack,
    /// Whether the request was refused because of it, as far as anybody knows.
    pub(super) refused: bool,
    /// Whether who asks again is held back by it.
    pub(super) enforced: bool,
}

impl Ticket {
    /// A refusal is of those limits that are likeliest to blame, all of them.
    pub(super) fn held(self, status: StatusCode, headers: &HeaderMap) -> Vec<Held> {
        let presets: Vec<Preset> = self.0.iter().flat_map(|limit| limit.presets.iter().copied()).collect();
        let is_refusal = headers::is_refusal(status, headers, &presets);
        let said: Vec<_> = self.0.iter().map(|limit| headers::said(headers, &limit.presets)).collect();
        let likeliest = self.0.iter().zip(&said).map(|(limit, said)| limit.blame(*said)).min();
        let held = self.0.into_iter().zip(said).filter_map(|(limit, said)| {
            let refused = is_refusal && Some(limit.blame(said)) == likeliest;
            let hold = if refused { headers::refusal(headers, said) } else { said? };
            let less = hold.left().zip(limit.remaining).is_some_and(|(left, remaining)| left < remaining);
            let Charged { key, rule, local, enforced, .. } = limit;
            (refused || less || !hold.wait().is_zero()).then_some(Held { key, rule, local, hold, refused, enforced })
        });
        held.collect()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use std::time::Duration;

    use super::*;

    fn limit(name: &str) -> Limit {
        Limit::new(Key::try_from(name).unwrap(), "1000/h".try_into().unwrap())
    }

    /// The limiter's own limit, and another one.
    fn ticket(presets: [&[Preset]; 2]) -> Ticket {
        let [requests, tokens] = presets.map(Arc::from);
        let priced = Priced::new(Take::from(limit("requests")), true, &requests);
        let mut priced = priced.and(limit("tokens").cost(100), &tokens).unwrap();
        let decision = Decision::of_all([0, 1].map(|place| (place, Decision::grant(900))), &priced.take);
        priced.granted(&decision.unwrap());
        priced.ticket()
    }

    fn held(
        presets: [&[Preset]; 2],
        status: StatusCode,
        lines: &[(&'static str, &'static str)],
    ) -> Vec<(String, HoldBack, bool)> {
        let lines = lines.iter().map(|(name, value)| ((*name).try_into().unwrap(), HeaderValue::from_static(value)));
        let held = ticket(presets).held(status, &lines.collect());
        held.into_iter().map(|held| (held.key.to_string(), held.hold, held.refused)).collect()
    }

    #[test]
    fn a_refusal_is_of_the_limits_that_are_likeliest_to_blame() {
        let wait = HoldBack::retry_after(Duration::from_secs(2)).and(HoldBack::remaining(0));
        let (requests, tokens) = ("requests".to_owned(), "tokens".to_owned());
        let both: [&[Preset]; 2] = [&[Preset::OpenAiRequests], &[Preset::OpenAiTokens]];
        let left = |requests, tokens| {
            [
                ("x-ratelimit-remaining-requests", requests),
                ("x-ratelimit-remaining-tokens", tokens),
                ("retry-after", "2"),
            ]
        };
        for (presets, lines, expected) in [
            (both, left("7", "99"), vec![(&requests, HoldBack::remaining(7), false), (&tokens, wait, true)]),
            (both, left("0", "5000"), vec![(&requests, wait, true)]),
            (both, left("0", "0"), vec![(&requests, wait, true), (&tokens, wait, true)]),
            (both, left("many", "5000"), vec![(&requests, wait, true)]),
            // Nobody knows.
            (both, left("7", "5000"), vec![(&requests, wait, true), (&tokens, wait, true)]),
            ([&[], &[Preset::OpenAiTokens]], left("0", "5000"), vec![(&requests, wait, true)]),
            // A limit that nobody reads headers for may be of the caller's own making.
            ([&[], &[]], left("0", "5000"), vec![(&requests, wait, true)]),
            ([&[Preset::OpenAiRequests], &[]], left("7", "0"), vec![(&requests, wait, true)]),
        ] {
            let found = held(presets, StatusCode::TOO_MANY_REQUESTS, &lines);
            let found: Vec<_> = found.iter().map(|(key, hold, refused)| (key, *hold, *refused)).collect();
            assert_eq!(found, expected, "{presets:?} {lines:?}");
        }
        let served = held(both, StatusCode::OK, &left("7", "5000"));
        assert_eq!(served, [(requests, HoldBack::remaining(7), false)], "only less than was known is news");
    }

    #[test]
    fn a_request_asks_again_for_what_was_refused_and_has_the_rest() {
        let mut priced = Priced::new(Take::from(limit("requests")), true, &Arc::default());
        priced = priced.and(limit("tokens").cost(100), &Arc::default()).unwrap().of_its_only();
        let tokens = Key::try_from("tokens").unwrap();
        let decision = Decision::of_all([0, 1].map(|place| (place, Decision::grant(7))), &priced.take);
        priced.granted(&decision.unwrap());
        priced.again(&[&tokens]);
        assert_eq!(
            priced.take.limits().map(|limit| (limit.key(), limit.tokens())).collect::<Vec<_>>(),
            [(&tokens, 100)]
        );
        assert!(!priced.take.own);
        priced.granted(&Decision::grant(3));
        // Somebody was refused because of the other one meanwhile.
        let requests = Key::try_from("requests").unwrap();
        for keys in [&[&requests][..], &[&requests, &tokens]] {
            priced.again(keys);
            assert!(priced.take.keys().eq(keys.iter().copied()) && priced.take.own, "{keys:?}");
        }
        let remaining: Vec<_> = priced.ticket().0.iter().map(|limit| limit.remaining).collect();
        assert_eq!(remaining, [Some(7), Some(3)]);
    }
}
