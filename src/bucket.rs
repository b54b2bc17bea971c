//! The arithmetic of a token bucket, as pure functions: the oracle that every SQL routine is tested against.
//!
//! A bucket is one number, `full_at`: the instant, on the bucket's own clock, at which it is full again.
//! That clock counts *ticks*. For a continuous quota a tick is a nanosecond of database time and a token
//! takes `c` of them; for an interval quota a tick is a token, and the clock jumps by the capacity when a
//! period ends. So one comparison serves both, and nothing is ever rounded in the caller's favour:
//!
//! ```text
//! due  = max(full_at, clock(now)) + (cost + keep) × c − capacity × c     the tick at which the tokens are there
//! granted if and only if due ≤ clock(now + max_wait)
//! full_at ← max(full_at, clock(now)) + cost × c                          and only then
//! ```
//!
//! This is the generic cell rate algorithm (ITU-T I.371) in its virtual scheduling form, with a wait.

use crate::quota::{Quota, Refill, SECOND_NS};

/// What a bucket's row holds beside its terms. Times are database time, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// When the bucket is full again, in ticks. It only grows, except by settling.
    pub full_at: i64,
    /// All tokens that were ever granted.
    pub granted: i64,
    /// The longest wait granted since the bucket was last full, in nanoseconds.
    pub longest_wait: i64,
    /// Where the grid of an interval quota begins, in nanoseconds.
    pub anchor: i64,
}

/// One request, in tokens and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many tokens to take.
    pub cost: i64,
    /// How long the caller would wait for them.
    pub max_wait: i64,
    /// How many tokens must remain.
    pub keep: i64,
}

/// What a request came to. Times are in nanoseconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the tokens were taken.
    pub granted: bool,
    /// The whole tokens left.
    pub remaining: i64,
    /// When the tokens taken may be used.
    pub wait: i64,
    /// When the next request like this one could be granted.
    pub retry_after: i64,
    /// When the bucket is full again.
    pub reset_after: i64,
}

impl Bucket {
    /// A full bucket whose grid begins at `anchor`.
    #[must_use]
    pub fn full(anchor: i64) -> Self {
        Self { anchor, ..Self::default() }
    }

    /// Decides a request at `now`, and takes its tokens if it is granted; a denial changes nothing.
    ///
    /// The state must be settled (see [`stepped_back`](Self::stepped_back)) and `cost + keep` at most the capacity.
    pub fn take(&mut self, quota: &Quota, now: i64, request: Request) -> Verdict {
        let clock = quota.clock(self.anchor, now);
        let due = self.due(quota, clock, request);
        let granted = due <= quota.clock(self.anchor, now + request.max_wait.min(LONGEST_WAIT_NS));
        let wait = if granted { (quota.instant(self.anchor, due) - now).max(0) } else { 0 };
        if granted {
            let pending = if self.full_at > clock { self.longest_wait } else { 0 };
            self.longest_wait = pending.max(wait);
            self.full_at = self.full_at.max(clock) + request.cost * quota.ticks_per_token();
            self.granted += request.cost;
        }
        let next = self.due(quota, clock, request);
        Verdict {
            granted,
            remaining: self.available(quota, clock).max(0) / quota.ticks_per_token(),
            wait,
            retry_after: (quota.instant(self.anchor, next) - now).max(0),
            reset_after: (quota.instant(self.anchor, self.full_at) - now).max(0),
        }
    }

    /// Whether `full_at` is further ahead than any grant can have put it: the clock was set back since.
    #[must_use]
    pub fn stepped_back(&self, quota: &Quota, now: i64) -> bool {
        let ahead = quota.instant(self.anchor, self.full_at) - now;
        ahead > quota.span() + self.longest_wait + SECOND_NS
    }

    /// Brings the state from the terms it was written under to `new` ones, and mends a clock that was set back.
    ///
    /// Tokens that are there stay, fractions too, up to the new capacity; after a step of the clock the
    /// bucket is empty, so nobody is locked out for longer than a refill.
    pub fn settle(&mut self, old: &Quota, new: &Quota, now: i64) {
        let available = if self.stepped_back(old, now) {
            0
        } else {
            i128::from(self.available(old, old.clock(self.anchor, now)))
        };
        let kept = (available * i128::from(new.ticks_per_token())).div_euclid(i128::from(old.ticks_per_token()));
        let clock = new.clock(self.anchor, now);
        let latest = new.clock(self.anchor, now + LONGEST_WAIT_NS) + new.burst();
        let full_at = i128::from(clock) + i128::from(new.burst()) - kept.min(i128::from(new.burst()));
        self.full_at = i64::try_from(full_at).unwrap_or(latest).min(latest);
        self.longest_wait = (new.instant(self.anchor, self.full_at) - now - new.span()).max(0);
    }

    /// The tokens that are there, in ticks; negative while granted requests still wait for theirs.
    fn available(&self, quota: &Quota, clock: i64) -> i64 {
        quota.burst() - (self.full_at - clock).max(0)
    }

    /// The tick at which the request's tokens are there, and those that it keeps.
    fn due(&self, quota: &Quota, clock: i64, request: Request) -> i64 {
        self.full_at.max(clock) + (request.cost + request.keep) * quota.ticks_per_token() - quota.burst()
    }
}

impl Quota {
    /// How far the bucket's clock advances for one token. Rounded up: a quota is never exceeded.
    #[must_use]
    pub(crate) fn ticks_per_token(&self) -> i64 {
        match self.refill() {
            Refill::Continuous => ceil_div(self.refill_ns(), self.capacity_i64()),
            Refill::Interval => 1,
        }
    }

    /// The ticks from empty to full.
    fn burst(&self) -> i64 {
        self.capacity_i64() * self.ticks_per_token()
    }

    /// The nanoseconds from empty to full.
    fn span(&self) -> i64 {
        match self.refill() {
            Refill::Continuous => self.burst(),
            Refill::Interval => self.refill_ns(),
        }
    }

    /// The bucket's clock at `now`.
    fn clock(&self, anchor: i64, now: i64) -> i64 {
        match self.refill() {
            Refill::Continuous => now,
            Refill::Interval => (now - anchor).div_euclid(self.refill_ns()) * self.capacity_i64(),
        }
    }

    /// The first instant at which the bucket's clock shows `tick`.
    fn instant(&self, anchor: i64, tick: i64) -> i64 {
        match self.refill() {
            Refill::Continuous => tick,
            Refill::Interval => anchor + ceil_div(tick, self.capacity_i64()) * self.refill_ns(),
        }
    }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

/// No request waits longer than this, a year: with a burst of at most a century, no sum overflows before 2160.
pub const LONGEST_WAIT_NS: i64 = 366 * 86_400 * SECOND_NS;
