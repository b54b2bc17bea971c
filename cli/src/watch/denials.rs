//! Denials per second: services tell what they have counted every ten seconds, so looks are put together.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tollgate::Key;

/// How often keys were denied in the last 24 hours, as a read found.
#[derive(Debug, Default)]
pub(crate) struct DenialCounts {
    by_key: HashMap<Key, u64>,
    /// A key that is not among them was denied so often at most.
    lowest_listed: u64,
    /// Why there are none.
    pub(crate) missing_reason: Option<&'static str>,
}

impl DenialCounts {
    /// Of the keys that were denied most, the most denied first; `full` if there may be others.
    pub(crate) fn of(denied: Vec<(Key, u64)>, full: bool) -> Self {
        Self {
            missing_reason: denied.is_empty().then_some(NOT_COUNTED),
            lowest_listed: denied.last().filter(|_| full).map_or(0, |(_, denied)| *denied),
            by_key: denied.into_iter().collect(),
        }
    }

    pub(crate) fn not_permitted() -> Self {
        Self { missing_reason: Some(NOT_PERMITTED), ..Self::default() }
    }

    pub(crate) fn retain(mut self, required_keys: impl Fn(&Key) -> bool) -> Self {
        self.by_key.retain(|key, _| required_keys(key));
        self
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<u64> {
        self.by_key.get(key).copied()
    }
}

/// The growth of the counts from read to read.
#[derive(Debug, Default)]
pub(crate) struct DenialRates {
    /// When the looks were, and by how much counts had grown since the one before.
    history: VecDeque<(Duration, HashMap<Key, u64>)>,
    pub(crate) now: DenialCounts,
}

impl DenialRates {
    pub(crate) fn apply(&mut self, at: Duration, counts: DenialCounts) {
        let before = std::mem::replace(&mut self.now, counts);
        // A count is less than before when an hour is left behind: that tells nothing.
        let increases = self.now.by_key.iter().filter_map(|(key, now)| {
            let increase = now.saturating_sub(before.get(key).unwrap_or(before.lowest_listed));
            (increase > 0).then(|| (key.clone(), increase))
        });
        self.history.push_back((at, increases.collect()));
        while self.history.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= MIN_RATE_SPAN) {
            self.history.pop_front();
        }
    }

    /// Requests of a key denied per second; [`None`] until a service had the time to tell.
    pub(crate) fn of(&self, key: &Key) -> Option<f64> {
        self.per_second(|history| history.get(key).copied().unwrap_or(0))
    }

    /// Those of all keys.
    pub(crate) fn all(&self) -> Option<f64> {
        self.per_second(|history| history.values().sum())
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    fn per_second(&self, denied: impl Fn(&HashMap<Key, u64>) -> u64) -> Option<f64> {
        let ((from, _), (to, _)) = (self.history.front()?, self.history.back()?);
        let elapsed = to.saturating_sub(*from);
        if self.now.missing_reason.is_some() || elapsed < REPORT_INTERVAL {
            return None;
        }
        // Services reported the counts of the first read before it.
        let denied: u64 = self.history.iter().skip(1).map(|(_, history)| denied(history)).sum();
        Some(denied as f64 / elapsed.as_secs_f64())
    }
}

/// As `LimiterBuilder::count_denials` says.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Over less than that, a rate would be nothing, nothing, and then a heap.
const MIN_RATE_SPAN: Duration = Duration::from_secs(30);

const NOT_COUNTED: &str = "no denials counted in 24h: services do so by LimiterBuilder::count_denials";
const NOT_PERMITTED: &str = "this role cannot see denials: run `tollgate migrate --print grants` again";

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Key {
        Key::try_from(key).expect("a key")
    }

    fn counts(denied: &[(&str, u64)], full: bool) -> DenialCounts {
        DenialCounts::of(denied.iter().map(|(id, denied)| (key(id), *denied)).collect(), full)
    }

    /// The rates after reads at these seconds.
    fn seen(received: &[(u64, &[(&str, u64)])]) -> DenialRates {
        let mut rates = DenialRates::default();
        for (at, denied) in received {
            rates.apply(Duration::from_secs(*at), counts(denied, false));
        }
        rates
    }

    #[test]
    fn denial_rate_starts_after_first_reporting_interval() {
        let early = seen(&[(0, &[("a", 70)]), (9, &[("a", 90)])]);
        assert_eq!((early.of(&key("a")), early.all()), (None, None));
        let later = seen(&[(0, &[("a", 70)]), (9, &[("a", 90)]), (10, &[("a", 90), ("b", 5)])]);
        assert_eq!([later.of(&key("a")), later.of(&key("b")), later.of(&key("c"))], [Some(2.0), Some(0.5), Some(0.0)]);
        assert_eq!(later.all(), Some(2.5));
    }

    #[test]
    fn old_denial_reports_expire() {
        let received: [(u64, &[(&str, u64)]); 4] =
            [(0, &[("a", 10)]), (10, &[("a", 310)]), (30, &[("a", 340)]), (40, &[("a", 340)])];
        assert_eq!(seen(&received[..3]).all(), Some(11.0));
        assert_eq!(seen(&received).all(), Some(1.0));
    }

    #[test]
    fn new_hour_makes_no_negative_rate() {
        let rates = seen(&[(0, &[("a", 1000)]), (5, &[("a", 1100)]), (10, &[("a", 300)]), (20, &[("a", 400)])]);
        assert_eq!(rates.all(), Some(10.0));
    }

    #[test]
    fn new_key_had_at_most_the_lowest_listed_denials() {
        let mut rates = DenialRates::default();
        rates.apply(Duration::ZERO, counts(&[("a", 900), ("b", 500)], true));
        rates.apply(Duration::from_secs(10), counts(&[("a", 900), ("c", 600)], true));
        assert_eq!(rates.of(&key("c")), Some(10.0));
    }

    #[test]
    fn missing_denial_counts_show_no_rate_and_a_hint() {
        let missing_reason = seen(&[(0, &[]), (10, &[])]);
        assert_eq!((missing_reason.all(), missing_reason.now.missing_reason), (None, Some(NOT_COUNTED)));
        let other = seen(&[(0, &[("a", 1)]), (10, &[("a", 1)])]);
        assert_eq!((other.all(), other.now.missing_reason), (Some(0.0), None));
    }
}
