//! Which requests share a call, and how its answers return to the caller's order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{self, Counting, RoutineCall, RoutineReply, SqlRequest};
use crate::model::answer::BucketAnswer;
use crate::model::{Checked, Decision, Error, Outcome, Take};

/// The requests of one call, each with its place in the caller's order.
#[derive(Debug)]
pub(super) enum CallGroup {
    /// Requests for one bucket each.
    Each(Vec<(usize, SqlRequest)>),
    /// Requests for several buckets each.
    All(Vec<(usize, SqlRequest)>),
    /// A request under a sliding window.
    Window(usize, Arc<SqlRequest>),
}

/// Splits requests into as few calls as keep the order of requests for the same bucket, and returns the outcomes of
/// requests that need no call.
///
/// A call has at most `max_take_all` requests for several buckets each.
pub(super) fn split_into_calls(takes: Checked<&[Take]>, max_take_all: usize) -> (Vec<CallGroup>, Vec<Option<Outcome>>) {
    let mut groups: Vec<CallGroup> = Vec::new();
    let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(takes.len());
    for (place, take) in takes.iter().enumerate() {
        if take.is_unlimited() {
            outcomes.push(Some(Ok(Decision::without_limit())));
            continue;
        }
        outcomes.push(None);
        let request = SqlRequest::from(take);
        if take.window().is_some() {
            groups.push(CallGroup::Window(place, Arc::new(request)));
            continue;
        }
        let last = groups.len().saturating_sub(1);
        let joins_last = groups.last().is_some_and(|group| group.can_carry(&take, max_take_all));
        let first = if joins_last { last } else { groups.iter().rposition(|group| group.precedes(&take)).unwrap_or(0) };
        match groups[first..].iter_mut().find(|group| group.can_carry(&take, max_take_all)) {
            Some(group) => group.push(place, request),
            None if take.limits.len() > 1 => groups.push(CallGroup::All(vec![(place, request)])),
            None => groups.push(CallGroup::Each(vec![(place, request)])),
        }
    }
    (groups, outcomes)
}

impl CallGroup {
    /// Whether a request must be decided after this call, because both take from one bucket.
    fn precedes(&self, take: &Take) -> bool {
        let takes_from = |requests: &[(usize, SqlRequest)], key| {
            requests.iter().any(|(_, request)| request.take.keys().any(|other| other == key))
        };
        match self {
            Self::Each(requests) | Self::All(requests) => take.keys().any(|key| takes_from(requests, key)),
            // A window and a bucket of the same key are independent.
            Self::Window(..) => false,
        }
    }

    /// Whether a request can join this call.
    fn can_carry(&self, take: &Take, max_take_all: usize) -> bool {
        let is_for_one = take.limits.len() == 1;
        match self {
            Self::Each(_) => is_for_one,
            Self::All(requests) => {
                let momentary =
                    take.is_momentary() && requests.iter().take(1).all(|(_, request)| request.take.is_momentary());
                !is_for_one && momentary && requests.len() < max_take_all
            }
            Self::Window(..) => false,
        }
    }

    fn push(&mut self, place: usize, request: SqlRequest) {
        match self {
            Self::Each(requests) | Self::All(requests) => requests.push((place, request)),
            Self::Window(..) => *self = Self::Window(place, Arc::new(request)),
        }
    }
}

/// The requests of one call, with the places of their outcomes.
pub(super) enum CallBatch {
    Each(TakeBatch),
    All(TakeAllBatch),
    Window(usize, Arc<SqlRequest>),
}

impl CallBatch {
    pub(super) fn of(group: CallGroup) -> Self {
        match group {
            CallGroup::Each(requests) => Self::Each(TakeBatch::of(requests)),
            CallGroup::All(requests) => Self::All(TakeAllBatch::of(requests)),
            CallGroup::Window(place, request) => Self::Window(place, request),
        }
    }

    pub(super) fn call(&self) -> RoutineCall {
        match self {
            Self::Each(batch) => RoutineCall::Each(Arc::clone(&batch.requests)),
            Self::All(batch) => RoutineCall::All(Arc::clone(&batch.requests)),
            Self::Window(_, request) => RoutineCall::Window(Arc::clone(request), Counting::Decide),
        }
    }

    /// Enters the outcomes at the places of their requests.
    pub(super) fn enter(
        self,
        reply: RoutineReply,
        attempts: u32,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Error> {
        match self {
            Self::Each(batch) => batch.enter(reply.answers()?, attempts, outcomes),
            Self::All(batch) => batch.enter(reply.answers()?, attempts, outcomes),
            Self::Window(place, request) => {
                outcomes[place] = Some(call::window_outcome(reply, &request, attempts)?);
                Ok(())
            }
        }
    }
}

/// Requests for one bucket each, in the order of their keys. Consecutive equal requests become one [`SqlRequest`] that stands
/// for them.
pub(super) struct TakeBatch {
    requests: Arc<[SqlRequest]>,
    /// The place of each request in the caller's order.
    places: Vec<usize>,
}

impl TakeBatch {
    pub(super) fn of(mut each: Vec<(usize, SqlRequest)>) -> Self {
        // A stable sort: requests for one bucket stay in their order.
        each.sort_by_cached_key(|(_, request)| request.key().clone());
        let places = each.iter().map(|(place, _)| *place).collect();
        let mut requests: Vec<SqlRequest> = Vec::with_capacity(each.len());
        for (_, request) in each {
            match requests.last_mut() {
                Some(last) if last.is_repeated_by(&request) => last.times += 1,
                _ => requests.push(request),
            }
        }
        Self { requests: requests.into(), places }
    }

    /// Enters the outcomes at the places of their requests.
    pub(super) fn enter(
        self,
        answers: Vec<BucketAnswer>,
        attempts: u32,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Error> {
        for (place, outcome) in self.places.into_iter().zip(call::each_outcomes(answers, &self.requests, attempts)?) {
            outcomes[place] = Some(outcome);
        }
        Ok(())
    }
}

/// Requests for several buckets each, in the caller's order.
pub(super) struct TakeAllBatch {
    requests: Arc<[SqlRequest]>,
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
        let (requests, origins): (Vec<SqlRequest>, Vec<RequestPlace>) = all
            .into_iter()
            .map(|(place, request)| match request.take.limited() {
                None => (request, RequestPlace { place, limits: None }),
                Some((limited, limits)) => {
                    (SqlRequest { take: limited, ..request }, RequestPlace { place, limits: Some(limits) })
                }
            })
            .unzip();
        Self { requests: requests.into(), origins }
    }

    /// Enters the outcomes at the places of their requests.
    pub(super) fn enter(
        self,
        answers: Vec<BucketAnswer>,
        attempts: u32,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Error> {
        let decided = call::all_outcomes(answers, &self.requests, attempts)?;
        for (RequestPlace { place, limits }, outcome) in self.origins.into_iter().zip(decided) {
            outcomes[place] = Some(outcome.map(|decision| match limits {
                None => decision,
                Some(limits) => decision.at_places(&limits),
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CallGroup, SqlRequest, TakeBatch, split_into_calls};
    use crate::model::{Checked, Key, Quota, Rule, Take, Window};

    /// The calls that requests make, each request by the names of its buckets. A `~` in front marks a request that
    /// waits.
    fn calls(texts: &[&str], max_take_all: usize) -> String {
        let rule = || Rule::Quota(Quota::per_second(1).build().unwrap());
        let take = |names: &&str| {
            let waits = names.starts_with('~');
            let mut keys = names.trim_start_matches('~').split('+').map(|name| Key::try_from(name).unwrap());
            let first = Take::from(keys.next().unwrap()).rule(rule());
            let take = keys.fold(first, |take, key| take.and(key, rule()));
            if waits { take.max_wait(Duration::from_secs(1)) } else { take }
        };
        let takes: Vec<Take> = texts.iter().map(take).collect();
        let (groups, _) = split_into_calls(Checked::all(&takes).unwrap(), max_take_all);
        let places = groups.iter().map(|group| match group {
            CallGroup::Each(requests) | CallGroup::All(requests) => {
                requests.iter().map(|(place, _)| texts[*place]).collect::<Vec<_>>().join(" ")
            }
            CallGroup::Window(place, _) => texts[*place].to_owned(),
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
        let takes = [take().rule(window.into()), take().rule(Quota::unlimited().into())];
        let (groups, outcomes) = split_into_calls(Checked::all(&takes).unwrap(), 8);
        assert!(matches!(groups[..], [CallGroup::Window(0, _)]));
        assert_eq!(outcomes.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    }

    fn batch(takes: &[(&str, u64, u64)]) -> (Vec<(String, i64, i64)>, Vec<usize>) {
        let request = |&(key, cost, min_remaining): &(&str, u64, u64)| {
            let take = Take::from(Key::try_from(key).unwrap()).cost(cost).min_remaining(min_remaining);
            SqlRequest::from(Checked::try_from(&take).unwrap())
        };
        let TakeBatch { requests, places } = TakeBatch::of(takes.iter().map(request).enumerate().collect());
        (
            requests.iter().map(|request| (request.key().to_string(), request.amounts.cost, request.times)).collect(),
            places,
        )
    }

    #[test]
    fn equal_requests_become_one_entry_and_others_keep_order() {
        let (requests, places) = batch(&[("b", 1, 0), ("a", 2, 0), ("b", 1, 0), ("a", 1, 0), ("a", 1, 0), ("b", 1, 5)]);
        let expected = [("a", 2, 1), ("a", 1, 2), ("b", 1, 2), ("b", 1, 1)];
        assert_eq!(requests, expected.map(|(key, cost, times)| (key.to_owned(), cost, times)));
        assert_eq!(places, [1, 3, 4, 0, 2, 5]);
    }
}
