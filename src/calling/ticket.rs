use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::{Preset, headers};
use crate::decision::Source;
use crate::{Decision, HoldBack, Key, Limit, Mode, Rule, Take};

/// What a request asks for, with what answers say of each of its limits.
#[derive(Debug)]
pub(super) struct Priced {
    pub(super) take: Take,
    presets: Vec<Arc<[Preset]>>,
    /// Whether the first limit is the limiter's own, whose rule may change until there is an answer.
    own: bool,
}

impl Priced {
    /// Under one limit.
    pub(super) fn new(take: Take, presets: &Arc<[Preset]>, own: bool) -> Self {
        Self { take, presets: vec![Arc::clone(presets)], own }
    }

    /// Under another one as well; a bucket named twice is named once, by the limit that was named last.
    pub(super) fn and(self, limit: Limit, presets: &Arc<[Preset]>) -> Self {
        let stays = self.take.keys().map(|key| key != limit.key());
        let mut kept: Vec<_> =
            self.presets.into_iter().zip(stays).filter_map(|(one, stays)| stays.then_some(one)).collect();
        kept.push(Arc::clone(presets));
        let own = self.own && self.take.key() != limit.key();
        Self { take: self.take.and_limit(limit), presets: kept, own }
    }

    /// What its only limit says for itself, the request says.
    pub(super) fn of_its_only(self) -> Self {
        Self { take: self.take.of_its_only(), ..self }
    }

    /// It was granted.
    pub(super) fn ticket(self, decision: &Decision) -> Ticket {
        let Self { take, presets, own } = self;
        let fell_back = decision.source() == Source::Fallback;
        let limits = take.limits().zip(presets).enumerate().filter_map(|(place, (limit, presets))| {
            let asked = decision.each().iter().find(|one| one.limit() == place);
            // Of a bucket that was not asked there is nothing to lower, and without a limit, nothing to hold back.
            let remaining = if fell_back { 0 } else { asked?.remaining() };
            let rule = (place > 0 || !own).then(|| limit.rule().clone());
            Some(Charged { key: limit.key().clone(), rule, cost: limit.tokens(), remaining, presets })
        });
        Ticket { limits: limits.collect(), enforced: decision.each().iter().all(|one| one.mode() == Mode::Enforce) }
    }
}

/// Tokens that a request has taken.
#[derive(Debug)]
pub(super) struct Ticket {
    limits: Vec<Charged>,
    /// Whether its limits would have denied it: else the next request is not held back either.
    pub(super) enforced: bool,
}

/// Those of one of its limits.
#[derive(Debug)]
struct Charged {
    key: Key,
    /// If it is not the limiter's own.
    rule: Option<Rule>,
    cost: u64,
    /// What was left then.
    remaining: u64,
    presets: Arc<[Preset]>,
}

/// What an answer says of one limit, if that is less than was known.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: Key,
    /// If it is not the limiter's own.
    pub(super) rule: Option<Rule>,
    pub(super) hold: HoldBack,
    /// Whether the request was refused because of it, as far as anybody knows.
    pub(super) refused: bool,
}

impl Ticket {
    /// A refusal is of the limits of which less is left than the request cost, by their own headers; of all, if those
    /// do not say.
    pub(super) fn held(self, status: StatusCode, headers: &HeaderMap) -> Vec<Held> {
        let all: Vec<Preset> = self.limits.iter().flat_map(|limit| limit.presets.iter().copied()).collect();
        let said: Vec<_> = self.limits.iter().map(|limit| headers::said(headers, &limit.presets)).collect();
        let is_spent = |limit: &Charged, said: Option<HoldBack>| {
            said.and_then(|said| said.left()).is_some_and(|left| left < limit.cost)
        };
        let refused = headers::is_refusal(status, headers, &all);
        let told = self.limits.iter().zip(&said).any(|(limit, said)| is_spent(limit, *said));
        let held = self.limits.into_iter().zip(said).filter_map(|(limit, said)| {
            let refused = refused && (!told || is_spent(&limit, said));
            let hold = if refused { headers::refusal(headers, said) } else { said? };
            let lower = hold.left().is_some_and(|left| left < limit.remaining) || !hold.wait().is_zero();
            (refused || lower).then_some(Held { key: limit.key, rule: limit.rule, hold, refused })
        });
        held.collect()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use std::time::Duration;

    use super::*;

    fn ticket(presets: [&[Preset]; 2]) -> Ticket {
        let [requests, tokens] = presets.map(Arc::from);
        let limit = |name: &str| Limit::new(Key::try_from(name).unwrap(), "1000/h".try_into().unwrap());
        let take = Take::from(limit("requests"));
        let priced = Priced::new(take, &requests, true).and(limit("tokens").cost(100), &tokens);
        let decision = Decision::of_all([0, 1].map(|place| (place, Decision::grant(900))), &priced.take);
        priced.ticket(&decision.unwrap())
    }

    fn held(
        ticket: Ticket,
        status: StatusCode,
        lines: &[(&'static str, &'static str)],
    ) -> Vec<(String, HoldBack, bool)> {
        let lines = lines.iter().map(|(name, value)| ((*name).try_into().unwrap(), HeaderValue::from_static(value)));
        let held = ticket.held(status, &lines.collect());
        held.into_iter().map(|held| (held.key.to_string(), held.hold, held.refused)).collect()
    }

    #[test]
    fn a_refusal_is_of_the_limit_of_which_too_little_is_left() {
        let wait = |tokens| HoldBack::retry_after(Duration::from_secs(2)).and(HoldBack::remaining(tokens));
        let both: [&[Preset]; 2] = [&[Preset::OpenAiRequests], &[Preset::OpenAiTokens]];
        let none: [&[Preset]; 2] = [&[], &[]];
        let (requests, tokens) = ("requests".to_owned(), "tokens".to_owned());
        let retry = ("retry-after", "2");
        let left = |requests, tokens| {
            [("x-ratelimit-remaining-requests", requests), ("x-ratelimit-remaining-tokens", tokens), retry]
        };
        for (presets, lines, expected) in [
            (
                both,
                left("7", "99"),
                vec![(requests.clone(), HoldBack::remaining(7), false), (tokens.clone(), wait(0), true)],
            ),
            (both, left("0", "5000"), vec![(requests.clone(), wait(0), true)]),
            (both, left("0", "0"), vec![(requests.clone(), wait(0), true), (tokens.clone(), wait(0), true)]),
            // Nobody knows.
            (both, left("7", "5000"), vec![(requests.clone(), wait(0), true), (tokens.clone(), wait(0), true)]),
            (none, left("0", "5000"), vec![(requests.clone(), wait(0), true), (tokens.clone(), wait(0), true)]),
        ] {
            assert_eq!(held(ticket(presets), StatusCode::TOO_MANY_REQUESTS, &lines), expected, "{presets:?} {lines:?}");
        }
        let served = held(ticket(both), StatusCode::OK, &left("7", "5000"));
        assert_eq!(served, [(requests, HoldBack::remaining(7), false)], "only less than was known is news");
    }

    #[test]
    fn of_a_bucket_that_is_named_twice_the_limit_named_last_holds() {
        let limit = |rule: &str| Limit::new(Key::try_from("a").unwrap(), rule.try_into().unwrap());
        let presets: [Arc<[Preset]>; 2] = [[Preset::OpenAiRequests], [Preset::OpenAiTokens]].map(Arc::from);
        let priced = Priced::new(Take::from(limit("1/s")), &presets[0], true).and(limit("2/s").cost(3), &presets[1]);
        let ticket = priced.ticket(&Decision::grant(9));
        let [only] = &ticket.limits[..] else { panic!("{ticket:?}") };
        assert_eq!((only.cost, &only.presets[..]), (3, &[Preset::OpenAiTokens][..]));
        assert_eq!(only.rule, Some("2/s".try_into().unwrap()));
    }
}
