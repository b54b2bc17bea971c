//! The arithmetic of a sliding window, as pure functions: the oracle that every SQL routine is tested against.
//!
//! A grant at the instant `t` is counted in the sub-interval that `t` lies in, and from then on in every window until an
//! interval after the sub-interval's end. With `room = max − cost − min_remaining`, a request acts at the earliest instant, not
//! before any that was granted, from which on the requests that still count are at most `room`.

use std::cmp::Reverse;

use super::Window;
use crate::model::bucket::BucketRequest;
use crate::model::quota::SECOND_NS;

/// How many were granted in each sub-interval, oldest first: its end, in nanoseconds since 1970, and the count.
pub(crate) type Counts = Vec<(i64, i64)>;

/// The state of a window, without its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) counts: Counts,
    /// The resolution that the newest sub-interval was counted in.
    pub(crate) resolution_ns: i64,
    /// All requests that were ever granted.
    pub(crate) granted: i64,
    /// How long counts are kept: at least the longest interval that any of them was granted in.
    pub(crate) retention_ns: i64,
    /// The ring may have forgotten requests that acted before this instant.
    pub(crate) since: i64,
    /// The wait of the request that was counted last, in nanoseconds. No other request acts later.
    pub(crate) last_wait: i64,
}

impl Ring {
    /// The earliest instant at which at most `room` requests still count.
    pub(crate) fn earliest(&self, window: &Window, room: i64, now: i64) -> i64 {
        let from = self.counts.last().map_or(now, |(end, _)| now.max(end - self.resolution_ns));
        let mut counted = 0;
        for (end, count) in self.counts.iter().rev() {
            counted = count.saturating_add(counted);
            if counted > room {
                return from.max(end + window.interval_ns);
            }
        }
        from
    }

    /// Counts a request for at most the maximum if it can act within its longest wait, and returns when it acts. The caller has
    /// called [`step_back`](Self::step_back).
    pub(super) fn take(&mut self, window: &Window, now: i64, request: BucketRequest) -> Option<i64> {
        let scheduled_at = self.earliest(window, window.max_requests - request.cost - request.min_remaining, now);
        if scheduled_at > now + request.max_wait || !self.may_promise(window, now, scheduled_at) {
            return None;
        }
        self.count(window, now, scheduled_at, request.cost);
        Some(scheduled_at)
    }

    /// Whether the ring may promise this instant: no wait begins a sub-interval beyond the thousandth ahead.
    fn may_promise(&self, window: &Window, now: i64, scheduled_at: i64) -> bool {
        let begun = self.counts.last().is_some_and(|(newest, _)| *newest >= end(window, scheduled_at));
        let has_room = self.counts.iter().rev().nth(MAX_SUB_INTERVALS_AHEAD - 1).is_none_or(|(end, _)| *end <= now);
        scheduled_at == now || begun || has_room
    }

    /// Counts requests at an instant, regardless of the maximum, and forgets requests that no longer count.
    pub(crate) fn count(&mut self, window: &Window, now: i64, at: i64, cost: i64) {
        let end = end(window, at);
        let kept = window.interval_ns.max(self.retention_ns);
        let forgotten = self.counts.partition_point(|(end, _)| *end <= now - kept);
        let until = self.counts.drain(..forgotten).next_back().map_or(i64::MIN, |(end, _)| end);
        // An unused window has forgotten nothing, even if the clock was set back since the window was created.
        self.since = if self.granted == 0 { now } else { self.since.max(until) };
        // A request with a longer interval still finds its counts, until only the new count is left.
        self.retention_ns = if self.counts.is_empty() { window.interval_ns } else { kept };
        match self.counts.last_mut() {
            Some((newest, count)) if *newest >= end => *count = count.saturating_add(cost),
            _ => {
                self.counts.push((end, cost));
                self.resolution_ns = window.resolution_ns;
            }
        }
        if self.counts.len() > MAX_SUB_INTERVALS_KEPT {
            self.join(now);
        }
        self.granted = self.granted.saturating_add(cost).min(i64::MAX / 2);
        self.last_wait = at - now;
    }

    /// Joins a past sub-interval to the next one, so that its requests count for longer: the sub-interval whose delay is
    /// smallest for its age. A request that still counts is never forgotten, and a promised instant never moves.
    fn join(&mut self, now: i64) {
        let passed = self.counts.partition_point(|(end, _)| *end <= now);
        let threes = self.counts[..passed].windows(3).enumerate();
        let how_well = |three: &[(i64, i64)]| (now - three[0].0) / (three[2].0 - three[0].0);
        if let Some((before, _)) = threes.max_by_key(|(before, three)| (how_well(three), Reverse(*before))) {
            let (_, count) = self.counts.remove(before + 1);
            let next = &mut self.counts[before + 1].1;
            *next = next.saturating_add(count);
        }
    }

    /// After the clock was set back, moves the counts back to now, so that no key is locked out for longer than an interval.
    pub(crate) fn step_back(&mut self, now: i64) {
        let Some(&(newest, _)) = self.counts.last() else {
            return;
        };
        if newest - now > self.last_wait + self.resolution_ns + SECOND_NS {
            // A receipt of the old clock gives nothing back by the new one.
            self.since = self.since.max(newest);
            let by = newest - now - self.resolution_ns;
            for (end, _) in &mut self.counts {
                *end -= by;
            }
        }
    }

    /// Gives back requests that were to act at an instant, and returns how many.
    pub(super) fn give_back(&mut self, scheduled_at: i64, tokens: i64) -> i64 {
        // A forgotten sub-interval gives nothing back in another one. Otherwise the requests are in the first sub-interval
        // that ends after they act, or in a later one. Giving them back in the first raises what no interval sees.
        let theirs = self.counts.iter_mut().find(|(end, _)| *end > scheduled_at).filter(|_| scheduled_at >= self.since);
        let Some((_, count)) = theirs else {
            return 0;
        };
        let given_back = tokens.min(*count);
        *count -= given_back;
        self.granted -= given_back;
        // Later requests must not queue behind an empty sub-interval.
        self.counts.retain(|(_, count)| *count > 0);
        given_back
    }

    /// How many requests count in the window that ends now, or are promised.
    pub(crate) fn counted(&self, window: &Window, now: i64) -> i64 {
        let counts = self.counts.iter().filter(|(end, _)| *end > now - window.interval_ns);
        counts.fold(0, |counted: i64, (_, count)| counted.saturating_add(*count))
    }

    /// How many requests the window that ends now has seen, if the requests of its partial sub-interval were spread evenly.
    pub(crate) fn estimate(&self, window: &Window, now: i64) -> i64 {
        let begins = now - window.interval_ns;
        let inside = |&(end, count): &(i64, i64)| {
            let part = (end - begins).clamp(0, window.resolution_ns);
            i128::from(count) * i128::from(part) / i128::from(window.resolution_ns)
        };
        let parts = self.counts.iter().map(|entry| i64::try_from(inside(entry)).unwrap_or(i64::MAX));
        parts.fold(0, i64::saturating_add)
    }

    /// The instant at which no request counts any more, under any limits.
    pub(crate) fn empty_at(&self, window: &Window) -> i64 {
        self.counts.last().map_or(0, |(end, _)| end + window.interval_ns.max(self.retention_ns))
    }
}

/// The end of the sub-interval that an instant lies in.
fn end(window: &Window, at: i64) -> i64 {
    (at / window.resolution_ns + 1) * window.resolution_ns
}

/// The sub-intervals of the longest window, and as many ahead. Several limits for one key could need more.
const MAX_SUB_INTERVALS_KEPT: usize = 2 * MAX_SUB_INTERVALS_AHEAD;
const MAX_SUB_INTERVALS_AHEAD: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const START: i64 = 1_700_000_000_000_000_000;

    /// A window of `most` requests in `interval` milliseconds, counted in parts of `resolution` milliseconds.
    fn window(most: i64, interval: i64, resolution: i64) -> Window {
        Window::stored(most, interval * MS, resolution * MS)
    }

    fn take(ring: &mut Ring, window: &Window, now: i64, cost: i64, max_wait: i64) -> Option<i64> {
        ring.step_back(now);
        ring.take(window, now, BucketRequest { cost, min_remaining: 0, max_wait })
    }

    /// Checks every grant against a log of the grants that were not given back: regardless of other requests' limits, no
    /// interval has more requests than the maximum.
    #[test]
    fn no_interval_passes_more_than_the_maximum() {
        let mut most_counts = 0;
        for seed in 0..4 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mixed = seed % 2 == 0;
            let [line, fine, long] = [window(2, 20, 1), window(150, 20, 1), window(6000, 60_000, 60)];
            let (mut ring, mut turns, mut now) = (Ring { since: START, ..Ring::default() }, Vec::new(), START);
            for _ in 0..9000 {
                now += if random.u16(..) < 8 { random.i64(0..90_000 * MS) } else { random.i64(0..2 * MS) };
                let window = if !mixed {
                    &line
                } else if random.u8(..) < 8 {
                    &long
                } else {
                    &fine
                };
                let cost = random.i64(1..3);
                let max_wait = [0, 0, 3 * MS, 90_000 * MS][random.usize(..if mixed { 3 } else { 4 })];
                if let Some(at) = take(&mut ring, window, now, cost, max_wait) {
                    let counted =
                        turns.iter().filter(|(other, _)| *other > at - window.interval_ns).map(|(_, cost)| cost);
                    let counted: i64 = counted.sum();
                    assert!(counted + cost <= window.max_requests, "{counted} and {cost} of {window:?}, seed {seed}");
                    turns.push((at, cost));
                }
                if !turns.is_empty() && random.u8(..) < 90 {
                    // Sometimes a request that acted long ago.
                    let recent = 1 << random.u8(..12);
                    let place = turns.len() - 1 - random.usize(..turns.len().min(recent));
                    let (at, cost) = turns.swap_remove(place);
                    let given_back = ring.give_back(at, cost);
                    assert!(given_back <= cost);
                    if given_back < cost {
                        turns.push((at, cost - given_back));
                    }
                }
                turns.retain(|(at, _)| *at > now - 120_000 * MS);
                most_counts = ring.counts.len().max(most_counts);
                assert!(ring.counts.is_sorted_by(|(one, _), (next, _)| one < next));
            }
        }
        assert_eq!(most_counts, MAX_SUB_INTERVALS_KEPT);
    }

    #[test]
    fn reservations_need_at_most_a_thousand_parts() {
        let (window, mut ring) = (window(2, 10, 10), Ring::default());
        let mut turns = Vec::new();
        while let Some(at) = take(&mut ring, &window, START, 1, 3_600_000 * MS) {
            turns.push(at);
        }
        assert_eq!(
            (ring.counts.len(), turns.len()),
            (MAX_SUB_INTERVALS_AHEAD, 2 * MAX_SUB_INTERVALS_AHEAD),
            "the last part is promised in full"
        );
        assert_eq!(take(&mut ring, &window, START + 9 * MS, 1, 3_600_000 * MS), None);
        assert!(take(&mut ring, &window, START + 10 * MS, 1, 3_600_000 * MS).is_some(), "one has passed");
        for at in turns.into_iter().filter(|at| *at > START) {
            assert_eq!(ring.give_back(at, 1), 1);
        }
    }

    #[test]
    fn merged_parts_count_a_sixteenth_longer_at_most() {
        let (long, fine) = (window(i64::MAX, 3_600_000, 60_000), window(1_000_000, 1000, 1));
        let (mut ring, mut turns, mut now) = (Ring::default(), Vec::new(), START);
        assert!(take(&mut ring, &long, now, 1, 0).is_some());
        for _ in 0..15_000 {
            now += 500 * MS;
            assert!(take(&mut ring, &fine, now, 1, 0).is_some());
            turns.push(now);
        }
        assert_eq!(ring.counts.len(), MAX_SUB_INTERVALS_KEPT);
        for interval in [long.interval_ns, 60_000 * MS, fine.interval_ns] {
            let counted = ring.counted(&Window { interval_ns: interval, ..long }, now);
            let acted = |span: i64| i64::try_from(turns.iter().filter(|at| **at > now - span).count()).expect("few");
            assert!(counted >= acted(interval));
            assert!(counted <= acted(interval + interval / 16 + fine.resolution_ns), "{counted} in {interval}");
        }
    }

    #[test]
    fn forgotten_part_gives_nothing_back_in_a_later_part() {
        let (fine, coarse) = (window(10, 10_000, 1000), window(10, 10_000, 10_000));
        let mut ring = Ring::default();
        let first = take(&mut ring, &fine, START + 500 * MS, 1, 0).expect("the first");
        assert!(take(&mut ring, &fine, START + 1500 * MS, 9, 0).is_some());
        assert!(take(&mut ring, &coarse, START + 11_200 * MS, 1, 0).is_some());
        assert_eq!(ring.give_back(first, 1), 0);
        assert_eq!(take(&mut ring, &coarse, START + 11_400 * MS, 1, 0), None);
    }

    #[test]
    fn grants_under_a_coarser_resolution_are_given_back() {
        let (fine, coarse) = (window(10, 10_000, 1000), window(10, 10_000, 10_000));
        let mut ring = Ring::default();
        let first = take(&mut ring, &coarse, START, 4, 0).expect("the first");
        assert!(take(&mut ring, &fine, START + 10_500 * MS, 1, 0).is_some());
        assert_eq!(ring.resolution_ns, fine.resolution_ns);
        assert_eq!(ring.give_back(first, 4), 4);
    }

    #[test]
    fn clock_set_back_drops_long_past_waits() {
        let (window, hour) = (window(1, 1000, 100), 3_600_000 * MS);
        let mut ring = Ring::default();
        for _ in 0..900 {
            assert!(take(&mut ring, &window, START, 1, 2 * hour).is_some());
        }
        let later = START + 1000 * hour;
        assert!(take(&mut ring, &window, later, 1, 0).is_some());
        assert_eq!(take(&mut ring, &window, later - hour / 4, 1, 0), None);
        let next = ring.earliest(&window, 0, later - hour / 4) - (later - hour / 4);
        assert!(next <= 1100 * MS, "{next} ns");
    }

    #[test]
    fn refund_from_before_a_clock_set_back_frees_nothing_later() {
        let window = window(10, 60_000, 1000);
        let mut ring = Ring { since: START, ..Ring::default() };
        let first = take(&mut ring, &window, START, 10, 0).expect("there is room");
        assert_eq!(take(&mut ring, &window, START - 100_000 * MS, 10, 0), None);
        assert!(take(&mut ring, &window, START + 200 * MS, 10, 0).is_some());
        assert_eq!(ring.give_back(first, 10), 0);
        assert_eq!(take(&mut ring, &window, START + 300 * MS, 1, 0), None);
    }

    #[test]
    fn unused_window_gives_back_after_a_clock_set_back() {
        let window = window(10, 60_000, 1000);
        let mut ring = Ring { since: START, ..Ring::default() };
        let first = take(&mut ring, &window, START - 100_000 * MS, 1, 0).expect("there is room");
        assert_eq!(ring.give_back(first, 1), 1);
    }

    #[test]
    fn no_count_or_sum_of_counts_overflows() {
        let (coarse, mut ring) = (window(1, 3_600_000, 1000), Ring::default());
        for second in 0..3 {
            ring.count(&coarse, START, START + second * 1000 * MS, i64::MAX - 1);
            ring.count(&coarse, START, START + second * 1000 * MS, i64::MAX - 1);
        }
        assert_eq!(ring.counted(&coarse, START), i64::MAX);
        assert_eq!(ring.estimate(&coarse, START), i64::MAX);
        assert!(ring.earliest(&coarse, 0, START) > START);
    }
}
