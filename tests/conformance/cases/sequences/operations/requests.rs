//! Requests, and adjustments of their tokens.

use std::time::Duration;

use tollgate::model::bucket::MAX_TOKENS;
use tollgate::{Limit, Quota, Rule, Take, Throttle};
use uuid::Uuid;

use super::{Author, Change, KNOWN, Kind, Operation, Taken};

impl Author<'_> {
    pub(super) fn take(&mut self) -> Take {
        self.hold = Duration::MAX;
        if !self.ids.is_empty() && self.one_in(5) {
            return self.repeat();
        }
        let take = if self.one_in(4) { self.in_window() } else { self.of_buckets() };
        if self.one_in(3) { self.identified(take) } else { take }
    }

    /// Requests the whole capacity of a bucket.
    pub(super) fn whole(&mut self) -> Take {
        let place = self.random.usize(..self.cast.keys.len() - 1);
        let capacity = self.quotas[place].capacity();
        Take::from(self.cast.keys[place].clone()).rule(self.rule(place)).cost(capacity)
    }

    /// Starts a wait. More often than not, others queue behind it.
    pub(super) fn queue_wait(&mut self, place: usize, take: Take) -> Operation {
        self.hold = Duration::MAX;
        self.before = Some(take.clone());
        let longest = [Duration::from_secs(1), Duration::from_hours(1), Duration::MAX][self.random.usize(..3)];
        let take = if self.one_in(3) { take.cost(1) } else { take }.max_wait(longest);
        let take = if self.one_in(3) { self.identified(take) } else { take };
        self.wait(place, take)
    }

    pub(super) fn wait(&mut self, place: usize, take: Take) -> Operation {
        self.takes.push(Taken { place, at: self.passed, hold: self.hold });
        self.waits.push(place);
        Operation::Wait(take, self.hold.min(KNOWN))
    }

    fn of_buckets(&mut self) -> Take {
        let unknown = usize::from(self.one_in(8));
        let mut places = vec![self.random.usize(..self.cast.keys.len() - 1 + unknown)];
        while self.one_in(3) && places.len() < 4 {
            places.push(self.random.usize(..self.cast.keys.len() - 1));
        }
        let first = places[0];
        let mut take = Take::from(self.cast.keys[first].clone()).rule(self.rule(first));
        for &place in &places[1..] {
            let mut limit = Limit::new(self.cast.keys[place].clone(), self.rule(place));
            if self.one_in(3) {
                limit = limit.cost(self.cost(self.quotas[place].capacity()));
            }
            if self.one_in(6) {
                limit = limit.min_remaining(self.min_remaining(self.quotas[place].capacity()));
            }
            take = take.and_limit(limit);
        }
        let least = places.iter().map(|&place| self.quotas[place].capacity()).min().unwrap_or(1);
        take.cost(self.cost(least)).min_remaining(self.min_remaining(least)).max_wait(self.max_wait(first))
    }

    /// Requests in a sliding window, whose limits change now and then. Rarely combined with other limits, which is an error.
    fn in_window(&mut self) -> Take {
        let place = self.windowed();
        if self.one_in(8) {
            self.windows[place] = self.window();
        }
        let window = self.windows[place];
        let mut take = Take::from(self.cast.keys[place].clone()).rule(window.into());
        if self.one_in(16) {
            let other = self.key();
            take = take.and(self.cast.keys[other].clone(), self.rule(other));
        }
        let max_wait = if self.one_in(4) { self.max_wait(place) } else { self.wait_in(&window) };
        take.cost(self.cost(window.max_requests()))
            .min_remaining(self.min_remaining(window.max_requests()))
            .max_wait(max_wait)
    }

    fn identified(&mut self, take: Take) -> Take {
        let holds = [Duration::from_millis(1), Duration::from_hours(1), Duration::from_hours(48), Duration::MAX];
        self.hold = holds[self.random.usize(..holds.len())];
        let take = take.id(Uuid::from_u128(self.random.u128(..)), self.hold);
        self.ids.push((take.clone(), self.hold));
        take
    }

    /// Repeats a request with its id: unchanged, with another cost, or for other buckets.
    fn repeat(&mut self) -> Take {
        let (take, hold) = self.ids[self.random.usize(..self.ids.len())].clone();
        self.hold = hold;
        let other = self.random.usize(..self.cast.keys.len() - 1);
        match self.random.u32(0..8) {
            0 => take.cost(1 + self.random.u64(..3)),
            1 | 2 => take.and(self.cast.keys[other].clone(), self.rule(other)),
            3 => take.max_wait(self.max_wait(other)),
            4 => take.rule(self.rule(other)),
            _ => take,
        }
    }

    pub(super) fn rule(&mut self, place: usize) -> Rule {
        let kind = if self.one_in(12) { self.random.usize(..5) } else { place / 2 };
        if kind == 1 && self.one_in(8) {
            self.quotas[place] = self.quota();
        }
        match kind {
            1 if self.one_in(25) => Rule::Quota(Quota::unlimited()),
            1 => Rule::Quota(self.quotas[place]),
            2 => Rule::Plan(self.cast.plans[if place / 2 == 2 { place - 4 } else { self.random.usize(..3) }].clone()),
            4 => Rule::Window(self.windows[place]),
            _ => Rule::Provisioned,
        }
    }

    pub(super) fn throttle(&mut self, place: usize) -> Throttle {
        let capacity = self.quotas[place].capacity();
        let remaining = Throttle::remaining([0, 1, capacity / 2, capacity, u64::MAX][self.random.usize(..5)]);
        let retry_after = Throttle::retry_after(self.max_wait(place)).max_wait(Duration::MAX);
        match self.random.u32(0..4) {
            0 => remaining,
            1 => remaining.and(retry_after),
            _ => retry_after,
        }
    }

    /// For an expired receipt, the only certain answer is that a settlement is too late.
    pub(super) fn change(&mut self) -> Change {
        let latest = self.takes.len() - 1;
        let place =
            if self.one_in(3) { self.random.usize(..=latest) } else { latest.saturating_sub(self.random.usize(..3)) };
        let taken = self.takes[place];
        let tokens = match self.random.u32(0..8) {
            0 => 0,
            1 => [u64::MAX, MAX_TOKENS.unsigned_abs(), u64::MAX / 4][self.random.usize(..3)],
            _ => self.random.u64(1..12),
        };
        let forged = self.one_in(10).then(|| {
            let key = self.key();
            (self.cast.keys[key].clone(), self.random.u64(1..4))
        });
        let kinds = [Kind::Settle(tokens), Kind::Cancel, Kind::Cancel, Kind::Refund(tokens)];
        let possible = if taken.has_expired(self.passed) { 1 } else { kinds.len() };
        let kind = kinds[self.random.usize(..possible)];
        Change { operation: taken.place, bucket: self.random.usize(..2), forged, kind }
    }
}
