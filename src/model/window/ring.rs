//! The arithmetic of a sliding window, as pure functions: the oracle that every SQL routine is tested against.
//!
//! A grant at the instant `t` is counted in the sub-interval that `t` lies in, and from then on in every window until an
//! interval after the sub-interval's end. With `room = max − cost − keep`, a request acts at the earliest instant, not
//! before any that was granted, from which on the requests that still count are at most `room`.

use std::cmp::Reverse;

use super::Window;
use crate::model::bucket::Request;

/// How many were granted in each sub-interval, oldest first: its end, in nanoseconds since 1970, and the count.
pub(crate) type Counts = Vec<(i64, i64)>;

/// What a window's row holds beside its terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) counts: Counts,
    /// The resolution that the newest sub-interval was counted in.
    pub(crate) resolution_ns: i64,
    /// All that were ever granted.
    pub(crate) granted: i64,
    /// For how long counts are kept: the longest interval that any of them was granted in, or longer.
    pub(crate) kept_ns: i64,
    /// Since when it remembers: what acted before is perhaps not counted any more.
    pub(crate) since: i64,
    /// The wait of the request that was counted last, in nanoseconds: no other acts later.
    pub(crate) last_wait: i64,
}

impl Ring {
    /// When a request that leaves `room` for others may act.
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

    /// Decides a request for at most the maximum by a clock that was not set back, and counts it if it is granted; says when
    /// it acts.
    pub(crate) fn take(&mut self, window: &Window, now: i64, request: Request) -> Option<i64> {
        let acts_at = self.earliest(window, window.most - request.cost - request.keep, now);
        if acts_at > now + request.max_wait || !self.may_promise(window, now, acts_at) {
            return None;
        }
        self.count(window, now, acts_at, request.cost);
        Some(acts_at)
    }

    /// Whether a turn may be promised: none begins a sub-interval beyond the thousandth ahead.
    fn may_promise(&self, window: &Window, now: i64, acts_at: i64) -> bool {
        let begun = self.counts.last().is_some_and(|(newest, _)| *newest >= end(window, acts_at));
        let has_room = self.counts.iter().rev().nth(MOST_AHEAD - 1).is_none_or(|(end, _)| *end <= now);
        acts_at == now || begun || has_room
    }

    /// Counts requests at an instant, whatever the maximum, and forgets those that count no more.
    pub(crate) fn count(&mut self, window: &Window, now: i64, at: i64, cost: i64) {
        let end = end(window, at);
        let kept = window.interval_ns.max(self.kept_ns);
        let forgotten = self.counts.partition_point(|(end, _)| *end <= now - kept);
        let until = self.counts.drain(..forgotten).next_back().map_or(i64::MIN, |(end, _)| end);
        self.since = self.since.max(until);
        // Who asks by a longer interval finds its counts, until there are none but this one's.
        self.kept_ns = if self.counts.is_empty() { window.interval_ns } else { kept };
        match self.counts.last_mut() {
            Some((newest, count)) if *newest >= end => *count = count.saturating_add(cost),
            _ => {
                self.counts.push((end, cost));
                self.resolution_ns = window.resolution_ns;
            }
        }
        if self.counts.len() > MOST_COUNTS {
            self.join(now);
        }
        self.granted = self.granted.saturating_add(cost).min(i64::MAX / 2);
        self.last_wait = at - now;
    }

    /// Counts a sub-interval as the next one, so that its requests count for longer: of those that have passed the one
    /// which that delays least for its age. What still counts is never forgotten, nor is a promise moved.
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

    /// After a step of the clock backwards, what was counted since counts as of now: nobody is locked out for longer
    /// than an interval.
    pub(crate) fn step_back(&mut self, now: i64) {
        let Some(&(newest, _)) = self.counts.last() else {
            return;
        };
        if newest - now > self.last_wait + self.resolution_ns + SECOND_NS {
            // What acted by the clock as it was gives nothing back by this one.
            self.since = self.since.max(newest);
            let by = newest - now - self.resolution_ns;
            for (end, _) in &mut self.counts {
                *end -= by;
            }
        }
    }

    /// Gives back requests that were to act at an instant, and says how many.
    pub(crate) fn give_back(&mut self, acts_at: i64, tokens: i64) -> i64 {
        // Those of a sub-interval that is gone cannot be given back in another. Where none is, theirs is the first that ends
        // after they act, or a later one: to give them back in the first raises what no interval sees.
        let theirs = self.counts.iter_mut().find(|(end, _)| *end > acts_at).filter(|_| acts_at >= self.since);
        let Some((_, count)) = theirs else {
            return 0;
        };
        let given_back = tokens.min(*count);
        *count -= given_back;
        self.granted -= given_back;
        // Nobody queues behind what is not there.
        self.counts.retain(|(_, count)| *count > 0);
        given_back
    }

    /// How many count in the window that ends now, or are promised.
    pub(crate) fn counted(&self, window: &Window, now: i64) -> i64 {
        let counts = self.counts.iter().filter(|(end, _)| *end > now - window.interval_ns);
        counts.fold(0, |counted: i64, (_, count)| counted.saturating_add(*count))
    }

    /// How many the window that ends now has seen, if requests were spread evenly over the sub-interval that it has in
    /// part.
    pub(crate) fn estimate(&self, window: &Window, now: i64) -> i64 {
        let begins = now - window.interval_ns;
        let inside = |&(end, count): &(i64, i64)| {
            let part = (end - begins).clamp(0, window.resolution_ns);
            i128::from(count) * i128::from(part) / i128::from(window.resolution_ns)
        };
        let parts = self.counts.iter().map(|entry| i64::try_from(inside(entry)).unwrap_or(i64::MAX));
        parts.fold(0, i64::saturating_add)
    }

    /// When nothing counts any more, for anybody.
    pub(crate) fn empty_at(&self, window: &Window) -> i64 {
        self.counts.last().map_or(0, |(end, _)| end + window.interval_ns.max(self.kept_ns))
    }
}

/// The end of the sub-interval that an instant lies in.
fn end(window: &Window, at: i64) -> i64 {
    (at / window.resolution_ns + 1) * window.resolution_ns
}

/// As many sub-intervals as any window has, and as many ahead. Other terms for the same key may need more.
const MOST_COUNTS: usize = 2 * MOST_AHEAD;
const MOST_AHEAD: usize = 1000;

const SECOND_NS: i64 = 1_000_000_000;

#[cfg(test)]
mod tests;
