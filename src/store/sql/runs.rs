//! Which requests share a call, and how its answers return to the caller's order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{self, SqlRequest};
use crate::model::answer::BucketAnswer;
use crate::model::{Decision, Error, Outcome, Take};

/// The requests of one call, each with its place in the caller's order.
#[derive(Debug)]
pub(super) enum Run {
    /// Requests for one bucket each.
    Each(Vec<(usize, SqlRequest)>),
    /// Requests for several buckets each.
    All(Vec<(usize, SqlRequest)>),
    /// A request under a sliding window.
    Window(usize, SqlRequest),
}

/// Splits requests into as few calls as keep the order of requests for the same bucket, and returns the outcomes of
/// requests that need no call.
///
/// A call has at most `max_take_all` requests for several buckets each.
pub(super) fn runs(takes: &[Take], max_take_all: usize) -> (Vec<Run>, Vec<Option<Outcome>>) {
    let mut runs: Vec<Run> = Vec::new();
    let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(takes.len());
    for (place, take) in takes.iter().enumerate() {
        outcomes.push(match SqlRequest::try_from(take) {
            Err(error) => Some(Err(error)),
            Ok(_) if take.is_unlimited() => Some(Ok(Decision::grant(u64::MAX))),
            Ok(ask) if take.window().is_some() => {
                runs.push(Run::Window(place, ask));
                None
            }
            Ok(ask) => {
                let last = runs.len().saturating_sub(1);
                let joins_last = runs.last().is_some_and(|run| run.may_hold(take, max_take_all));
                let first =
                    if joins_last { last } else { runs.iter().rposition(|run| run.holds_up(take)).unwrap_or(0) };
                match runs[first..].iter_mut().find(|run| run.may_hold(take, max_take_all)) {
                    Some(run) => run.push(place, ask),
                    None if take.limits.len() > 1 => runs.push(Run::All(vec![(place, ask)])),
                    None => runs.push(Run::Each(vec![(place, ask)])),
                }
                None
            }
        });
    }
    (runs, outcomes)
}

impl Run {
    /// Whether a request must be decided after this call, because both take from one bucket.
    fn holds_up(&self, take: &Take) -> bool {
        let takes_from =
            |asks: &[(usize, SqlRequest)], key| asks.iter().any(|(_, ask)| ask.take.keys().any(|other| other == key));
        match self {
            Self::Each(asks) | Self::All(asks) => take.keys().any(|key| takes_from(asks, key)),
            // A window and a bucket of the same key are independent.
            Self::Window(..) => false,
        }
    }

    /// Whether a request can join this call.
    fn may_hold(&self, take: &Take, max_take_all: usize) -> bool {
        let is_for_one = take.limits.len() == 1;
        match self {
            Self::Each(_) => is_for_one,
            Self::All(asks) => {
                let momentary = take.is_momentary() && asks.iter().take(1).all(|(_, ask)| ask.take.is_momentary());
                !is_for_one && momentary && asks.len() < max_take_all
            }
            Self::Window(..) => false,
        }
    }

    fn push(&mut self, place: usize, ask: SqlRequest) {
        match self {
            Self::Each(asks) | Self::All(asks) => asks.push((place, ask)),
            Self::Window(..) => *self = Self::Window(place, ask),
        }
    }
}

/// Requests for one bucket each, in the order of their keys. Consecutive equal requests become one [`SqlRequest`] that stands
/// for them.
pub(super) struct TakeBatch {
    pub(super) asks: Arc<[SqlRequest]>,
    /// The place of each request in the caller's order.
    places: Vec<usize>,
}

impl TakeBatch {
    pub(super) fn of(mut each: Vec<(usize, SqlRequest)>) -> Self {
        // A stable sort: requests for one bucket stay in their order.
        each.sort_by_cached_key(|(_, ask)| ask.key().clone());
        let places = each.iter().map(|(place, _)| *place).collect();
        let mut asks: Vec<SqlRequest> = Vec::with_capacity(each.len());
        for (_, ask) in each {
            match asks.last_mut() {
                Some(last) if last.is_repeated_by(&ask) => last.times += 1,
                _ => asks.push(ask),
            }
        }
        Self { asks: asks.into(), places }
    }

    /// Enters the outcomes at the places of their requests.
    pub(super) fn enter(
        self,
        answers: Vec<BucketAnswer>,
        attempts: u32,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Error> {
        for (place, outcome) in self.places.into_iter().zip(call::of_each(answers, &self.asks, attempts)?) {
            outcomes[place] = Some(outcome);
        }
        Ok(())
    }
}

/// Requests for several buckets each, in the caller's order.
pub(super) struct TakeAllBatch {
    pub(super) asks: Arc<[SqlRequest]>,
    origins: Vec<RequestPlace>,
}

/// The place of a request in the caller's order. If some of its limits are unlimited, also the places of the other
/// limits.
struct RequestPlace {
    place: usize,
    limits: Option<SmallVec<[usize; 4]>>,
}

impl TakeAllBatch {
    pub(super) fn of(all: Vec<(usize, SqlRequest)>) -> Self {
        let (asks, origins): (Vec<SqlRequest>, Vec<RequestPlace>) = all
            .into_iter()
            .map(|(place, ask)| match ask.take.limited() {
                None => (ask, RequestPlace { place, limits: None }),
                Some((limited, limits)) => {
                    (SqlRequest { take: limited, ..ask }, RequestPlace { place, limits: Some(limits) })
                }
            })
            .unzip();
        Self { asks: asks.into(), origins }
    }

    /// Enters the outcomes at the places of their requests.
    pub(super) fn enter(
        self,
        answers: Vec<BucketAnswer>,
        attempts: u32,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Error> {
        let decided = call::of_all(answers, &self.asks, attempts)?;
        for (RequestPlace { place, limits }, outcome) in self.origins.into_iter().zip(decided) {
            outcomes[place] = Some(outcome.map(|decision| match limits {
                None => decision,
                Some(limits) => decision.among(&limits),
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Run, SqlRequest, TakeBatch, runs};
    use crate::model::{Key, Quota, Rule, Take, Window};

    /// The calls that requests make, each request by the names of its buckets. A `~` in front marks a request that
    /// waits.
    fn calls(requests: &[&str], max_take_all: usize) -> String {
        let rule = || Rule::Quota(Quota::per_second(1).build().unwrap());
        let take = |names: &&str| {
            let waits = names.starts_with('~');
            let mut keys = names.trim_start_matches('~').split('+').map(|name| Key::try_from(name).unwrap());
            let first = Take::from(keys.next().unwrap()).rule(rule());
            let take = keys.fold(first, |take, key| take.and(key, rule()));
            if waits { take.max_wait(Duration::from_secs(1)) } else { take }
        };
        let takes: Vec<Take> = requests.iter().map(take).collect();
        let (runs, _) = runs(&takes, max_take_all);
        let places = runs.iter().map(|run| match run {
            Run::Each(asks) | Run::All(asks) => {
                asks.iter().map(|(place, _)| requests[*place]).collect::<Vec<_>>().join(" ")
            }
            Run::Window(place, _) => requests[*place].to_owned(),
        });
        places.collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn requests_of_one_kind_share_a_call() {
        assert_eq!(calls(&["a", "b+c", "d", "e+f", "a"], 8), "a d a | b+c e+f");
    }

    #[test]
    fn requests_for_the_same_bucket_keep_their_order() {
        assert_eq!(calls(&["a", "a+b", "a", "c", "b+c"], 8), "a | a+b | a c | b+c");
        assert_eq!(calls(&["a+b", "b", "c", "b+d"], 8), "a+b | b c | b+d");
    }

    #[test]
    fn batch_of_several_buckets_is_bounded_and_has_no_waits() {
        assert_eq!(calls(&["a+b", "c+d", "e+f"], 2), "a+b c+d | e+f");
        assert_eq!(calls(&["a+b", "c+d"], 1), "a+b | c+d");
        assert_eq!(calls(&["a+b", "~c+d", "~e+f", "g+h"], 8), "a+b g+h | ~c+d | ~e+f");
    }

    #[test]
    fn window_takes_its_own_call_and_known_answers_take_none() {
        let window = Window::new(1, Duration::from_secs(2), Duration::from_secs(1)).unwrap();
        let take = || Take::from(Key::try_from("a").unwrap());
        let (runs, outcomes) =
            runs(&[take().rule(window.into()), take().rule(Quota::unlimited().into()), take().cost(0)], 8);
        assert!(matches!(runs[..], [Run::Window(0, _)]));
        assert_eq!(outcomes.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
    }

    fn batch(takes: &[(&str, u64, u64)]) -> (Vec<(String, i64, i64)>, Vec<usize>) {
        let ask = |&(key, cost, min_remaining): &(&str, u64, u64)| {
            SqlRequest::try_from(&Take::from(Key::try_from(key).unwrap()).cost(cost).min_remaining(min_remaining))
                .unwrap()
        };
        let TakeBatch { asks, places } = TakeBatch::of(takes.iter().map(ask).enumerate().collect());
        (asks.iter().map(|ask| (ask.key().to_string(), ask.request.cost, ask.times)).collect(), places)
    }

    #[test]
    fn equal_requests_become_one_entry_and_others_keep_order() {
        let (asks, places) = batch(&[("b", 1, 0), ("a", 2, 0), ("b", 1, 0), ("a", 1, 0), ("a", 1, 0), ("b", 1, 5)]);
        let expected = [("a", 2, 1), ("a", 1, 2), ("b", 1, 2), ("b", 1, 1)];
        assert_eq!(asks, expected.map(|(key, cost, times)| (key.to_owned(), cost, times)));
        assert_eq!(places, [1, 3, 4, 0, 2, 5]);
    }
}
