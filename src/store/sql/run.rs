use super::ask::Ask;
use crate::model::{Decision, Outcome, Take};

/// Requests that go in one call, each with its place in the caller's order.
#[derive(Debug)]
pub(super) enum Run {
    /// For one bucket each.
    Each(Vec<(usize, Ask)>),
    /// For several buckets each.
    All(Vec<(usize, Ask)>),
    /// Under a sliding window.
    Window(usize, Ask),
}

/// The calls that decide requests, as few as keep the order of those for the same bucket, with at most so many requests
/// for several buckets each in one; and what needs no call.
pub(super) fn runs(takes: &[Take], most_together: usize) -> (Vec<Run>, Vec<Option<Outcome>>) {
    let mut runs: Vec<Run> = Vec::new();
    let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(takes.len());
    for (place, take) in takes.iter().enumerate() {
        outcomes.push(match Ask::try_from(take) {
            Err(error) => Some(Err(error)),
            Ok(_) if take.is_unlimited() => Some(Ok(Decision::grant(u64::MAX))),
            Ok(ask) if take.window().is_some() => {
                runs.push(Run::Window(place, ask));
                None
            }
            Ok(ask) => {
                let last = runs.len().saturating_sub(1);
                let joins_last = runs.last().is_some_and(|run| run.may_hold(take, most_together));
                let first =
                    if joins_last { last } else { runs.iter().rposition(|run| run.holds_up(take)).unwrap_or(0) };
                match runs[first..].iter_mut().find(|run| run.may_hold(take, most_together)) {
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
    /// Whether a request must not be decided before these are.
    fn holds_up(&self, take: &Take) -> bool {
        let takes_from =
            |asks: &[(usize, Ask)], key| asks.iter().any(|(_, ask)| ask.take.keys().any(|other| other == key));
        match self {
            Self::Each(asks) | Self::All(asks) => take.keys().any(|key| takes_from(asks, key)),
            // Windows and buckets are of different keys.
            Self::Window(..) => false,
        }
    }

    /// Whether a request may be among these.
    fn may_hold(&self, take: &Take, most_together: usize) -> bool {
        let is_for_one = take.limits.len() == 1;
        match self {
            Self::Each(_) => is_for_one,
            Self::All(asks) => {
                let momentary = take.is_momentary() && asks.iter().take(1).all(|(_, ask)| ask.take.is_momentary());
                !is_for_one && momentary && asks.len() < most_together
            }
            Self::Window(..) => false,
        }
    }

    fn push(&mut self, place: usize, ask: Ask) {
        match self {
            Self::Each(asks) | Self::All(asks) => asks.push((place, ask)),
            Self::Window(..) => *self = Self::Window(place, ask),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Run, runs};
    use crate::model::{Key, Quota, Rule, Take, Window};

    /// The calls that requests make, each request by the names of its buckets; a `~` in front: it waits.
    fn calls(requests: &[&str], most_together: usize) -> String {
        let rule = || Rule::Quota(Quota::per_second(1).build().unwrap());
        let take = |names: &&str| {
            let waits = names.starts_with('~');
            let mut keys = names.trim_start_matches('~').split('+').map(|name| Key::try_from(name).unwrap());
            let first = Take::from(keys.next().unwrap()).rule(rule());
            let take = keys.fold(first, |take, key| take.and(key, rule()));
            if waits { take.max_wait(Duration::from_secs(1)) } else { take }
        };
        let takes: Vec<Take> = requests.iter().map(take).collect();
        let (runs, _) = runs(&takes, most_together);
        let places = runs.iter().map(|run| match run {
            Run::Each(asks) | Run::All(asks) => {
                asks.iter().map(|(place, _)| requests[*place]).collect::<Vec<_>>().join(" ")
            }
            Run::Window(place, _) => requests[*place].to_owned(),
        });
        places.collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn requests_of_a_kind_go_in_one_call_whatever_is_between_them() {
        assert_eq!(calls(&["a", "b+c", "d", "e+f", "a"], 8), "a d a | b+c e+f");
    }

    #[test]
    fn requests_for_the_same_bucket_keep_their_order() {
        assert_eq!(calls(&["a", "a+b", "a", "c", "b+c"], 8), "a | a+b | a c | b+c");
        assert_eq!(calls(&["a+b", "b", "c", "b+d"], 8), "a+b | b c | b+d");
    }

    #[test]
    fn a_call_for_several_buckets_each_has_an_end_and_no_one_who_waits() {
        assert_eq!(calls(&["a+b", "c+d", "e+f"], 2), "a+b c+d | e+f");
        assert_eq!(calls(&["a+b", "c+d"], 1), "a+b | c+d");
        assert_eq!(calls(&["a+b", "~c+d", "~e+f", "g+h"], 8), "a+b g+h | ~c+d | ~e+f");
    }

    #[test]
    fn a_window_is_a_call_and_what_needs_none_has_its_answer() {
        let window = Window::new(1, Duration::from_secs(2), Duration::from_secs(1)).unwrap();
        let take = || Take::from(Key::try_from("a").unwrap());
        let (runs, outcomes) =
            runs(&[take().rule(window.into()), take().rule(Quota::unlimited().into()), take().cost(0)], 8);
        assert!(matches!(runs[..], [Run::Window(0, _)]));
        assert_eq!(outcomes.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
    }
}
