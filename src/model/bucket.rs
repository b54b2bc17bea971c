//! The arithmetic of a token bucket, as pure functions: the oracle that every SQL routine is tested against.
//!
//! The state of a bucket is one number, `full_at`: when it is full again, on the bucket's own clock. The clock starts at the
//! bucket's anchor, in the first period after 1970, and advances by `step_ticks` every `step_ns`. For a continuous quota, a
//! tick is a nanosecond and a token takes `token_ticks` of them. For an interval quota, a tick is a token and a step is the
//! whole period. So one comparison decides both kinds, and rounding never favours the caller:
//!
//! ```text
//! due = full_at + (cost + min_remaining − capacity) × token_ticks        the tick at which the tokens are available
//! granted if and only if due ≤ clock(now + max_wait)
//! full_at ← max(full_at, clock(now), step(due)) + cost × token_ticks     only if granted
//! ```
//!
//! A request that waits acts at `step(due)`, the next step of the clock. All its tokens count from there, so an interval's
//! unused tokens do not carry over to the next interval.
//!
//! This is the generic cell rate algorithm (ITU-T I.371) in its virtual scheduling form, extended by a wait.

use crate::model::quota::{Quota, Refill, SECOND_NS};

/// A quota in the bucket's own units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketQuota {
    /// Tokens that a full bucket holds.
    pub capacity: i64,
    /// Nanoseconds from one step of the bucket's clock to the next.
    pub step_ns: i64,
    /// Ticks by which a step advances the clock.
    pub step_ticks: i64,
    /// Ticks for one token. Rounded up, so that the quota is never exceeded. 0 if the quota is unlimited.
    pub token_ticks: i64,
    /// Where the clock starts regardless of the bucket's anchor: the start of the calendar period, or 1970.
    pub start: Option<i64>,
    /// The end of the calendar period, when the next one has a clock of its own. [`NEVER_NS`] for other quotas.
    pub period_end: i64,
}

impl BucketQuota {
    /// Converts a quota to the bucket's own units. `now` matters to a calendar period alone: the one that contains `now`.
    #[must_use]
    #[inline]
    pub fn at(quota: &Quota, now: i64) -> Self {
        let capacity = quota.capacity_i64();
        let (step_ns, step_ticks, token_ticks, start) = match quota.refill() {
            Refill::Continuous => (1, 1, quota.token_ns(), None),
            Refill::Interval => (quota.refill_ns(), capacity, 1, None),
            Refill::Calendar => (quota.refill_ns(), capacity, 1, Some(0)),
            Refill::Period(period) => return Self::of_period(capacity, period.bounds(now)),
            // The clock never advances.
            Refill::Once => (NEVER_NS, 1, 1, None),
            Refill::Unlimited => (NEVER_NS, 1, 0, None),
        };
        Self { capacity, step_ns, step_ticks, token_ticks, start, period_end: NEVER_NS }
    }

    /// Not inlined, so that decisions of other quotas stay small.
    #[cold]
    #[inline(never)]
    fn of_period(capacity: i64, (start, end): (i64, i64)) -> Self {
        Self {
            capacity,
            step_ns: end - start,
            step_ticks: capacity,
            token_ticks: 1,
            start: Some(start),
            period_end: end,
        }
    }

    /// Whether the clock shows nanoseconds. The methods then avoid the division, which is their slowest step.
    #[inline]
    pub(crate) fn is_continuous(&self) -> bool {
        self.step_ns == 1 && self.step_ticks == 1
    }

    /// Returns the ticks from empty to full.
    #[must_use]
    #[inline]
    pub fn burst(&self) -> i64 {
        self.capacity * self.token_ticks
    }

    /// Returns the nanoseconds from empty to full. For an interval quota, returns its period. [`NEVER_NS`] if the bucket never
    /// refills.
    #[must_use]
    #[inline]
    pub fn refill_ns(&self) -> i64 {
        if self.is_continuous() { self.burst() } else { self.step_ns }
    }

    /// Returns the reading of the bucket's clock at `now`, in ticks.
    #[must_use]
    #[inline]
    pub fn clock(&self, anchor: i64, now: i64) -> i64 {
        if self.is_continuous() { now - anchor } else { (now - anchor) / self.step_ns * self.step_ticks }
    }

    /// Returns the end of a wait. A calendar period reaches no further than the start of the next one, whose end its clock does not
    /// know.
    #[must_use]
    #[inline]
    pub fn reach(&self, now: i64, wait: i64) -> i64 {
        (now + wait).min(self.period_end)
    }

    /// Returns the first tick at or after `tick` that the clock ever shows.
    #[must_use]
    #[inline]
    pub fn step(&self, tick: i64) -> i64 {
        if self.step_ticks == 1 {
            return tick;
        }
        (tick + self.step_ticks - 1) / self.step_ticks * self.step_ticks
    }

    /// Returns the first instant at which the clock shows `tick`, in nanoseconds since 1970. [`NEVER_NS`] if it never does.
    #[must_use]
    #[inline]
    pub fn instant(&self, anchor: i64, tick: i64) -> i64 {
        if self.is_continuous() {
            return tick.saturating_add(anchor);
        }
        let steps = tick / self.step_ticks + i64::from(tick % self.step_ticks > 0);
        steps.saturating_mul(self.step_ns).saturating_add(anchor)
    }

    /// Returns the start of the clock of a bucket that is created at `now`. The clock also steps at `now`, and the start lies
    /// in the first period after 1970 because a host's clock can be set back to before `now`.
    #[must_use]
    pub fn anchor(&self, now: i64) -> i64 {
        self.start.unwrap_or_else(|| now % self.step_ns)
    }
}

/// The state of a bucket, without its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Where the bucket's clock starts, in nanoseconds since 1970.
    pub anchor: i64,
    /// When the bucket is full again, in ticks.
    pub full_at: i64,
    /// All tokens that were ever granted.
    pub granted: i64,
    /// The longest wait that was granted, in ticks.
    pub max_granted_wait: i64,
}

/// One request, in tokens and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRequest {
    /// How many tokens to take.
    pub cost: i64,
    /// The longest wait for the tokens, at most a year.
    pub max_wait: i64,
    /// How many tokens must remain.
    pub min_remaining: i64,
}

/// The level to which an upstream lowers a bucket, in tokens and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleLevel {
    /// The most tokens that remain. `None`: the upstream did not state it.
    pub remaining: Option<i64>,
    /// The time until the next token, at most a year. 0: the upstream did not state it.
    pub wait: i64,
}

/// The result of a request. Times are in nanoseconds from now. [`NEVER_NS`]: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the tokens were taken.
    pub granted: bool,
    /// The whole tokens left.
    pub remaining: i64,
    /// When the tokens taken can be used.
    pub wait: i64,
    /// When an equal request could be granted.
    pub retry_after: i64,
    /// When the bucket is full again.
    pub reset_after: i64,
}

impl Bucket {
    /// Creates a full bucket at `now`.
    #[must_use]
    pub fn full(limits: &BucketQuota, now: i64) -> Self {
        Self { anchor: limits.anchor(now), ..Self::default() }
    }

    /// Decides a request for at most the capacity at `now`, and takes its tokens if it is granted.
    ///
    /// A denial changes nothing, unless the clock was set back: then the bucket becomes empty.
    #[inline]
    pub fn take(&mut self, limits: &BucketQuota, now: i64, request: BucketRequest) -> Verdict {
        if self.stepped_back(limits, now) {
            self.convert_limits(limits, limits, now);
        }
        let clock = limits.clock(self.anchor, now);
        let due = self.full_at + (request.cost + request.min_remaining - limits.capacity) * limits.token_ticks;
        let granted = due <= limits.clock(self.anchor, limits.reach(now, request.max_wait));
        if granted {
            let acts = if due <= clock { clock } else { limits.step(due) };
            self.max_granted_wait = self.max_granted_wait.max(acts - clock);
            self.full_at = self.full_at.max(clock).max(acts) + request.cost * limits.token_ticks;
            self.granted = self.granted.saturating_add(request.cost);
        }
        self.verdict(limits, now, request, granted)
    }

    /// Returns the result of a request that was `granted` or not at `now`, computed from the state after the request.
    #[must_use]
    #[expect(clippy::inline_always, reason = "as a call it is a tenth of a decision in memory")]
    #[inline(always)]
    pub fn verdict(&self, limits: &BucketQuota, now: i64, request: BucketRequest, granted: bool) -> Verdict {
        let clock = limits.clock(self.anchor, now);
        let owed = (self.full_at - clock).max(0);
        let until = |ticks: i64| {
            // Also for a clock that was set back to before its start.
            if ticks <= 0 {
                return 0;
            }
            if limits.is_continuous() {
                return ticks;
            }
            match limits.instant(self.anchor, clock.saturating_add(ticks)) {
                NEVER_NS => NEVER_NS,
                instant => instant.saturating_sub(now).max(0),
            }
        };
        // The bucket can owe more than its capacity, after a change of its limits or a charge. The sum saturates.
        let lacking =
            |tokens: i64| until((tokens - limits.capacity).saturating_mul(limits.token_ticks).saturating_add(owed));
        Verdict {
            granted,
            remaining: (limits.burst() - owed).checked_div(limits.token_ticks).map_or(limits.capacity, |n| n.max(0)),
            wait: if granted { lacking(request.min_remaining) } else { 0 },
            retry_after: lacking(request.cost + request.min_remaining),
            reset_after: until(owed),
        }
    }

    /// Returns whether the clock was set back: `full_at` is later than any grant can have made it. Tolerates clocks that differ
    /// by a second.
    #[must_use]
    #[inline]
    pub fn stepped_back(&self, limits: &BucketQuota, now: i64) -> bool {
        let slack =
            if limits.is_continuous() { SECOND_NS + 1 } else { (SECOND_NS / limits.step_ns + 1) * limits.step_ticks };
        // The sum of a refill time of a century and a long wait is near the end of the integer's range.
        let max_owed = limits.burst().saturating_add(self.max_granted_wait).saturating_add(slack);
        self.full_at - limits.clock(self.anchor, now) > max_owed
    }

    /// Converts the bucket from the limits that it was written under to `new` ones.
    ///
    /// The bucket keeps its tokens and fractions of tokens, up to the new capacity. If the clock was set back, the
    /// bucket becomes empty, so that callers wait for one refill at most.
    ///
    /// If the old limits are those of a calendar period that has ended, the next period counts as the current one.
    pub fn convert_limits(&mut self, old: &BucketQuota, new: &BucketQuota, now: i64) {
        let owed = self.full_at - old.clock(self.anchor, old.reach(now, 0));
        let available = if self.stepped_back(old, now) { 0 } else { i128::from(old.burst() - owed.max(0)) };
        let kept = match old.token_ticks {
            0 => i128::from(new.burst()),
            token => (available * i128::from(new.token_ticks)).div_euclid(i128::from(token)),
        };
        self.anchor = new.start.unwrap_or(self.anchor);
        let clock = new.clock(self.anchor, now);
        let max_debt = new.clock(self.anchor, new.reach(now, MAX_WAIT_NS)) - clock;
        let kept = i64::try_from(kept.max(-i128::from(max_debt))).unwrap_or(i64::MAX).min(new.burst());
        self.full_at = clock + new.burst() - kept;
        self.max_granted_wait = (-kept).max(0);
    }

    /// Gives back a request's tokens before its scheduled time, and returns how many. Tokens that later requests queue
    /// behind are not given back. Cancelling the last request restores the state before it.
    pub fn cancel(&mut self, limits: &BucketQuota, now: i64, grant: &GrantRecord) -> i64 {
        if now > grant.scheduled_at || self.granted < grant.granted {
            return 0;
        }
        let later = self.granted - grant.granted;
        let given_back = (grant.cost - later).max(0);
        if later == 0 {
            self.granted = (self.granted - grant.cost).max(0);
        }
        self.refund(limits, given_back);
        given_back
    }

    /// Gives back tokens that were taken and not used, up to a full bucket. The tokens can be more than the capacity,
    /// because the capacity can have been larger when they were taken.
    pub fn refund(&mut self, limits: &BucketQuota, tokens: i64) {
        // Bounded, so that repeated refunds cannot overflow a sum.
        self.full_at = self.full_at.saturating_sub(tokens.saturating_mul(limits.token_ticks)).max(-limits.burst());
        self.granted = self.granted.min(MAX_COUNTED);
    }

    /// Takes tokens that were used already, even if the bucket does not have them. Later requests wait until the bucket
    /// has refilled.
    ///
    /// The wait for the next token is then at most `max_debt`, or the wait of an empty bucket if that is longer.
    pub fn charge(&mut self, limits: &BucketQuota, now: i64, tokens: i64, max_debt: i64) {
        if self.stepped_back(limits, now) {
            self.convert_limits(limits, limits, now);
        }
        let clock = limits.clock(self.anchor, now);
        let furthest = (clock + limits.burst()).max(self.none_before(limits, now, max_debt));
        let owed = tokens.saturating_mul(limits.token_ticks);
        self.full_at = self.full_at.max(clock).saturating_add(owed).min(furthest.max(self.full_at));
        self.max_granted_wait = self.max_granted_wait.max(self.full_at - clock - limits.burst());
        self.granted = self.granted.saturating_add(tokens).min(MAX_COUNTED);
    }

    /// Lowers the bucket to an upstream's level, and returns whether it held more. Never raises it.
    ///
    /// Tokens come with the steps of the clock, so an interval quota's come with the first period after the wait.
    /// Granted requests keep their scheduled times.
    pub fn throttle(&mut self, limits: &BucketQuota, now: i64, level: ThrottleLevel) -> bool {
        if self.stepped_back(limits, now) {
            self.convert_limits(limits, limits, now);
        }
        let clock = limits.clock(self.anchor, now);
        let left =
            level.remaining.map(|tokens| clock + limits.burst() - tokens.min(limits.capacity) * limits.token_ticks);
        let wait = (level.wait > 0).then(|| self.none_before(limits, now, level.wait));
        let Some(full_at) = left.max(wait).filter(|full_at| *full_at > self.full_at.max(clock)) else {
            return false;
        };
        self.full_at = full_at;
        self.max_granted_wait = self.max_granted_wait.max(full_at - clock - limits.burst());
        true
    }

    /// The `full_at` of a bucket whose next token comes when the wait is over: one tick after the last tick that the clock
    /// shows before the end of the wait.
    fn none_before(&self, limits: &BucketQuota, now: i64, wait: i64) -> i64 {
        limits.clock(self.anchor, limits.reach(now, wait - 1)) + 1 + limits.burst() - limits.token_ticks
    }

    /// Makes the bucket full. Counts as a grant of the capacity, so that no earlier request can give tokens back.
    pub fn reset(&mut self, limits: &BucketQuota, now: i64) {
        self.full_at = limits.clock(self.anchor, now);
        self.max_granted_wait = 0;
        self.granted = self.granted.saturating_add(limits.capacity).min(MAX_COUNTED);
    }
}

/// The record of a grant, with which its tokens can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRecord {
    /// The tokens taken.
    pub cost: i64,
    /// The bucket's `granted` after the grant.
    pub granted: i64,
    /// When the tokens can be used, in nanoseconds since 1970.
    pub scheduled_at: i64,
}

/// The largest capacity in tokens: the nanoseconds of a century.
pub const MAX_TOKENS: i64 = 36_525 * 86_400 * SECOND_NS;

/// The most tokens that count as granted after a refund, charge or reset, so that later grants cannot overflow the sum.
const MAX_COUNTED: i64 = i64::MAX / 2;

/// An instant or a time that never comes.
pub const NEVER_NS: i64 = i64::MAX;

/// The longest wait of a request, a year. With a burst of at most a century, no sum here overflows before 2160.
pub const MAX_WAIT_NS: i64 = 366 * 86_400 * SECOND_NS;
