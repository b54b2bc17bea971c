use std::sync::Arc;
use std::time::Duration;

use super::estimate::Said;
use super::reading::{OfAnswer, Reading};
use super::{Answer, ClientLimitError, Preset, headers};
use crate::decision::Source;
use crate::{Adjustment, Decision, HoldBack, Key, Limit, Mode, Quota, Receipt, Rule, Take};

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
    reading: Arc<Reading>,
    /// What was left when the tokens were taken, if the bucket was asked.
    remaining: Option<u64>,
    /// The latest, if the cost is an estimate: tokens of a turn that was worth nothing stay with those of the hold.
    receipt: Option<Receipt>,
    /// Whether it would have denied the request: else the next one is not held back either.
    enforced: bool,
}

impl Charged {
    fn new(limit: &Limit, own: bool, reading: &Arc<Reading>) -> Self {
        let rule = (!own).then(|| limit.rule().clone());
        let (key, local, reading) = (limit.key().clone(), limit.local.clone(), Arc::clone(reading));
        Self { key, rule, local, cost: limit.tokens(), reading, remaining: None, receipt: None, enforced: true }
    }

    /// Why it may be what a request was refused for, by what its own headers say is left.
    fn blame(&self, said: Option<HoldBack>) -> Blame {
        match said.and_then(|said| said.left()) {
            Some(left) if left < self.cost => Blame::Spent,
            Some(_) => Blame::SaysEnough,
            None if self.rule.is_none() || self.reading.is_read() => Blame::SaysNothing,
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
    pub(super) fn new(take: Take, own: bool, reading: &Arc<Reading>) -> Self {
        let limits = take.limits().map(|limit| Charged::new(limit, own, reading)).collect();
        Self { of_all: take.clone(), take, limits }
    }

    /// Under another one as well.
    pub(super) fn and(mut self, limit: Limit, reading: &Arc<Reading>) -> Result<Self, ClientLimitError> {
        if self.take.keys().any(|key| key == limit.key()) {
            return Err(ClientLimitError::SameBucket(limit.key().clone()));
        }
        self.take = self.take.and_limit(limit);
        self.limits.extend(self.take.limits().last().map(|limit| Charged::new(limit, false, reading)));
        Ok(self)
    }

    /// There are no more: what its only limit says for itself, the request says.
    pub(super) fn of_its_only(self) -> Self {
        let take = self.take.of_its_only();
        Self { of_all: take.clone(), take, ..self }
    }

    /// What it asks for now. An id is needed to settle an estimate: a fresh one each time, as one that is known already takes
    /// nothing.
    pub(super) fn asks(&self, max_wait: Duration, hold: Duration) -> Take {
        let take = self.take.clone().max_wait(max_wait);
        let is_estimated =
            |limit: &Charged| limit.reading.is_estimated() && self.take.keys().any(|key| *key == limit.key);
        if self.limits.iter().any(is_estimated) { take.with_fresh_id(hold) } else { take }
    }

    /// What it asks for was decided: if that was a denial, it is not sent.
    pub(super) fn decided(&mut self, decision: &Decision, receipts: &[Receipt]) {
        let fell_back = decision.source() == Source::Fallback;
        for (place, key) in self.take.keys().enumerate() {
            let one = decision.each().iter().find(|one| one.limit() == place);
            // Of a bucket that was not asked there is nothing to lower, and without a limit, nothing to hold back.
            let remaining = if fell_back { Some(0) } else { one.map(Decision::remaining) };
            if let Some(limit) = self.limits.iter_mut().find(|limit| limit.key == *key) {
                limit.remaining = remaining;
                let receipt = receipts.iter().find(|receipt| receipt.key() == key);
                limit.receipt = receipt.filter(|_| limit.reading.is_estimated()).cloned();
                limit.enforced = one.unwrap_or(decision).mode() == Mode::Enforce;
            }
        }
    }

    /// Whether this bucket might have denied it.
    pub(super) fn is_enforced(&self, key: &Key) -> bool {
        self.limits.iter().any(|limit| limit.key == *key && limit.enforced)
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
        let settles_later = self.limits.iter().any(|limit| limit.reading.is_open());
        let limits = self.limits.into_iter().filter(|limit| limit.remaining.is_some()).collect();
        Ticket { limits, settles_later }
    }
}

/// Tokens that a request has taken.
#[derive(Debug)]
pub(super) struct Ticket {
    limits: Vec<Charged>,
    /// Whether one of its limits, which may have taken nothing, is settled by whoever reads the body.
    settles_later: bool,
}

/// What an answer says.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Of estimates.
    pub(super) settled: Vec<Adjustment>,
    /// Of what is left.
    pub(super) held: Vec<Held>,
    /// What is settled by whoever reads the body, if something is and the request was served.
    pub(super) open: Option<Vec<Open>>,
}

/// What an answer says of one limit, if that is less than was known.
#[derive(Clone, Debug)]
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

/// An estimate that nobody knows better yet, and what was said of its limit.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) receipt: Receipt,
    pub(super) said: Option<Said>,
}

impl Ticket {
    /// A refusal is of those limits that are likeliest to blame, all of them. Nothing was done of what is refused, unless there
    /// was too much to do.
    pub(super) fn told(self, answer: &Answer<'_>, refused_by: &[OfAnswer<bool>]) -> Told {
        let presets: Vec<Preset> = self.limits.iter().flat_map(|limit| limit.reading.presets.iter().copied()).collect();
        let is_refusal = headers::is_refusal(answer.status, answer.headers, &presets)
            || refused_by.iter().any(|refused_by| refused_by(answer));
        let said: Vec<_> = self.limits.iter().map(|limit| limit.reading.said(answer)).collect();
        let likeliest = self.limits.iter().zip(&said).map(|(limit, said)| limit.blame(*said)).min();
        let mut told = Told { open: (self.settles_later && !is_refusal).then(Vec::new), ..Told::default() };
        for (limit, said) in self.limits.into_iter().zip(said) {
            let refused = is_refusal && Some(limit.blame(said)) == likeliest;
            let says =
                if refused { Some(headers::refusal(answer.headers, said, &limit.reading.presets)) } else { said };
            let (settled, back) = limit.settled(answer, is_refusal);
            told.settled.extend(settled);
            let Charged { key, rule, local, reading, remaining, receipt, enforced, .. } = limit;
            let held = says.map(|hold| Held { key, rule, local, hold, refused, enforced });
            let remaining = remaining.unwrap_or(u64::MAX);
            if let (Some(open), Some(receipt), true) = (&mut told.open, receipt, reading.is_open()) {
                open.push(Open { receipt, said: held.clone().map(|held| Said { held, remaining }) });
            }
            // What is given back must not be more than is left.
            let known = remaining.saturating_add(back);
            let is_news =
                |held: &Held| held.hold.left().is_some_and(|left| left < known) || !held.hold.wait().is_zero();
            told.held.extend(held.filter(|held| refused || is_news(held)));
        }
        told
    }
}

impl Charged {
    /// What was used of an estimate, if that is known and is another number, and how many tokens that gives back.
    fn settled(&self, answer: &Answer<'_>, is_refusal: bool) -> (Option<Adjustment>, u64) {
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

    use super::*;

    fn limit(name: &str) -> Limit {
        Limit::new(Key::try_from(name).unwrap(), "1000/h".try_into().unwrap())
    }

    /// The limiter's own limit, and another one.
    fn ticket(presets: [&[Preset]; 2]) -> Ticket {
        let [requests, tokens] =
            presets.map(|presets| Arc::new(Reading { presets: presets.to_vec(), ..Reading::default() }));
        let priced = Priced::new(Take::from(limit("requests")), true, &requests);
        let mut priced = priced.and(limit("tokens").cost(100), &tokens).unwrap();
        let decision = Decision::of_all([0, 1].map(|place| (place, Decision::grant(900))), &priced.take);
        priced.decided(&decision.unwrap(), &[]);
        priced.ticket()
    }

    fn held(
        presets: [&[Preset]; 2],
        status: StatusCode,
        lines: &[(&'static str, &'static str)],
    ) -> Vec<(String, HoldBack, bool)> {
        let lines = lines.iter().map(|(name, value)| ((*name).try_into().unwrap(), HeaderValue::from_static(value)));
        let (headers, extensions): (HeaderMap, _) = (lines.collect(), Extensions::new());
        let told = ticket(presets).told(&Answer { status, headers: &headers, extensions: &extensions }, &[]);
        told.held.into_iter().map(|held| (held.key.to_string(), held.hold, held.refused)).collect()
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
        priced.decided(&decision.unwrap(), &[]);
        priced.again(&[&tokens]);
        assert_eq!(
            priced.take.limits().map(|limit| (limit.key(), limit.tokens())).collect::<Vec<_>>(),
            [(&tokens, 100)]
        );
        assert!(!priced.take.own);
        priced.decided(&Decision::grant(3), &[]);
        // Somebody was refused because of the other one meanwhile.
        let requests = Key::try_from("requests").unwrap();
        for keys in [&[&requests][..], &[&requests, &tokens]] {
            priced.again(keys);
            assert!(priced.take.keys().eq(keys.iter().copied()) && priced.take.own, "{keys:?}");
        }
        let remaining: Vec<_> = priced.ticket().limits.iter().map(|limit| limit.remaining).collect();
        assert_eq!(remaining, [Some(7), Some(3)]);
    }
}
