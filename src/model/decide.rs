//! The effective limit and mode of a bucket, and the effect of a request on it, for the stores that decide in this
//! process. Pure: the stores read and write under their own locks.

use crate::model::answer::{BucketAnswer, OutcomeCode};
use crate::model::bucket::{
    Bucket, BucketQuota, BucketRequest, GrantRecord, MAX_TOKENS, MAX_WAIT_NS, NEVER_NS, ThrottleLevel, Verdict,
};
use crate::model::id::IdOf;
use crate::model::receipt::AdjustmentKind;
use crate::model::{Adjusted, Adjustment, Decision, Key, Mode, Quota, Rule};

/// A bucket as a store keeps it. Rare fields are boxed, because each byte of a row slows down a store in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketRow {
    /// The quota of the bucket itself, of its plan, or of its last request.
    pub(crate) own_quota: Quota,
    /// The override's quota, if the state was written under one.
    pub(crate) over: Option<Box<Quota>>,
    pub(crate) plan: Option<Box<Key>>,
    pub(crate) provisioned: bool,
    pub(crate) bucket: Bucket,
}

/// The settings of an operator that apply to a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySettings {
    pub(crate) all: TimedMode,
    /// The plan that the request or the bucket names, if there is one.
    pub(crate) plan: Option<PlanSettings>,
    pub(crate) over: Option<OverrideSettings>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanSettings {
    pub(crate) quota: Quota,
    pub(crate) setting: TimedMode,
}

/// A mode, and its end in nanoseconds since 1970, if it has one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimedMode {
    pub(crate) mode: Option<Mode>,
    pub(crate) until: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OverrideSettings {
    pub(crate) quota: Option<Quota>,
    pub(crate) setting: TimedMode,
}

/// A bucket under its effective quota, with its effective mode.
#[derive(Clone, Debug)]
pub(crate) struct EffectiveBucket {
    /// `None` if the mode is [`Mode::Off`] and the bucket does not exist.
    pub(crate) row: Option<BucketRow>,
    pub(crate) mode: Mode,
    pub(crate) until: Option<i64>,
    /// The capacity of the effective quota.
    pub(crate) capacity: Option<i64>,
}

impl KeySettings {
    /// The effective mode and its end: the override's before the plan's before the mode of every key.
    pub(crate) fn mode(&self, plan: Option<&PlanSettings>, now: i64) -> (Mode, Option<i64>) {
        let nearest = [self.over.map(|over| over.setting), plan.map(|plan| plan.setting), Some(self.all)];
        let setting = nearest.into_iter().flatten().find(|setting| setting.mode.is_some() && setting.holds(now));
        let TimedMode { mode, until } = setting.unwrap_or_default();
        (mode.unwrap_or(Mode::Enforce), until)
    }
}

impl TimedMode {
    pub(crate) fn holds(&self, now: i64) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// Creates the bucket if the rule can create it, and converts it to the effective quota.
pub(crate) fn effective_bucket(
    row: Option<BucketRow>,
    rule: &Rule,
    rules: &KeySettings,
    now: i64,
) -> Result<EffectiveBucket, OutcomeCode> {
    let quota = match rule {
        Rule::Quota(quota) => Some(*quota),
        _ => None,
    };
    let named = match (rule, &row) {
        (Rule::Plan(plan), _) => Some(plan.clone()),
        (Rule::Provisioned, Some(row)) => row.plan.as_deref().cloned(),
        _ => None,
    };
    let plan = match (&named, &rules.plan) {
        (None, _) => None,
        (Some(_), None) => return Err(OutcomeCode::Unplanned),
        (Some(_), Some(plan)) => Some(plan),
    };
    let over = rules.over.filter(|over| over.setting.holds(now));
    let (mode, until) = rules.mode(plan, now);

    let requested = quota.or_else(|| plan.map(|plan| plan.quota));
    let effective_quota =
        over.and_then(|over| over.quota).or(requested).or_else(|| row.as_ref().map(|row| row.own_quota));
    let capacity = effective_quota.map(|quota| quota.capacity_i64());
    if mode == Mode::Off {
        return Ok(EffectiveBucket { row, mode, until, capacity });
    }
    let mut row = match (row, requested) {
        (None, None) => return Err(OutcomeCode::Unknown),
        (None, Some(own_quota)) => BucketRow {
            own_quota,
            over: None,
            plan: named.clone().map(Box::new),
            provisioned: false,
            bucket: Bucket { anchor: BucketQuota::at(&own_quota, now).start.unwrap_or(0), ..Bucket::default() },
        },
        (Some(row), _) => row,
    };
    let has_other_quota = quota.is_some_and(|quota| quota != row.own_quota);
    let other_plan = matches!(rule, Rule::Plan(_)) && named.as_ref() != row.plan.as_deref();
    if row.provisioned && (has_other_quota || other_plan) {
        return Err(OutcomeCode::Conflict);
    }
    row.follow(requested, over.and_then(|over| over.quota), now);
    if requested.is_some() && !row.provisioned {
        row.plan = named.map(Box::new);
    }
    Ok(EffectiveBucket { row: Some(row), mode, until, capacity })
}

/// Makes a bucket full under its effective quota.
pub(crate) fn reset(row: &mut BucketRow, rules: &KeySettings, now: i64) {
    // A bucket whose plan was deleted keeps its quota.
    if let Ok(EffectiveBucket { row: Some(converted), .. }) =
        effective_bucket(Some(row.clone()), &Rule::Provisioned, rules, now)
    {
        *row = converted;
    }
    let limits = row.settle(now);
    row.bucket.reset(&limits, now);
}

impl EffectiveBucket {
    /// The bucket after a request that takes nothing. If the clock was set back, the bucket is empty, provided that the mode
    /// evaluates tokens and the request fits the capacity. Otherwise it is unchanged.
    pub(crate) fn unchanged_by(&self, request: BucketRequest, now: i64) -> Option<BucketRow> {
        let mut row = self.row.clone()?;
        let capacity = row.limits().capacity;
        let evaluated =
            !matches!(self.mode, Mode::Off | Mode::Block) && request.cost <= capacity - request.min_remaining;
        if evaluated {
            row.step_back(now);
        }
        Some(row)
    }
}

impl BucketRow {
    /// A bucket that is provisioned at `now`.
    pub(crate) fn provisioned(quota: Quota, now: i64) -> Self {
        let bucket = Bucket::full(&BucketQuota::at(&quota, now), now);
        Self { own_quota: quota, over: None, plan: None, provisioned: true, bucket }
    }

    /// Decides a request by the tokens alone, regardless of the mode. `None` if the request exceeds the capacity.
    #[expect(
        clippy::inline_always,
        reason = "what it answers would be written as words and read as vectors, which stalls"
    )]
    #[inline(always)]
    pub(crate) fn take(&mut self, request: BucketRequest, now: i64) -> Option<(BucketQuota, Verdict)> {
        let mut limits = self.limits();
        if request.cost > limits.capacity - request.min_remaining {
            return None;
        }
        if limits.period_end != NEVER_NS {
            self.step_back(now);
            limits = self.limits();
        }
        Some((limits, self.bucket.take(&limits, now, request)))
    }

    /// The decision of a request that [`take`](Self::take) has just decided.
    #[expect(clippy::inline_always, reason = "as `take`")]
    #[inline(always)]
    pub(crate) fn decision(
        &self,
        limits: &BucketQuota,
        verdict: Verdict,
        request: BucketRequest,
        now: i64,
    ) -> Decision {
        let scheduled_at = now.saturating_add(verdict.wait);
        let grant = GrantRecord { cost: request.cost, granted: self.bucket.granted, scheduled_at };
        Decision::of(verdict, verdict.granted.then_some(grant)).with_limits(limits)
    }

    /// Provisions the bucket with a quota of its own. While an override has a quota, the override stays in effect.
    pub(crate) fn provision(&mut self, quota: Quota, now: i64) {
        self.provisioned = true;
        self.plan = None;
        if self.over.is_some() {
            self.own_quota = quota;
        } else if self.own_quota != quota {
            self.follow(Some(quota), None, now);
        }
    }

    /// The quota that the state was written under.
    #[inline]
    fn quota(&self) -> &Quota {
        self.over.as_deref().unwrap_or(&self.own_quota)
    }

    /// The limits that the state was written under: of a calendar period, those of the period at the bucket's anchor.
    #[inline]
    pub(crate) fn limits(&self) -> BucketQuota {
        BucketQuota::at(self.quota(), self.bucket.anchor)
    }

    /// Brings the bucket to the calendar period that contains `now`, if the period of its state has ended. Returns the limits of
    /// the state.
    ///
    /// Waits and debts reach into the period that follows, and no further.
    #[inline]
    pub(crate) fn settle(&mut self, now: i64) -> BucketQuota {
        let limits = self.limits();
        if now < limits.period_end { limits } else { self.start_period(&limits, now) }
    }

    /// Starts the period that contains `now`, under the current quota, after a period of the same kind has `ended`.
    #[cold]
    fn start_period(&mut self, ended: &BucketQuota, now: i64) -> BucketQuota {
        let limits = BucketQuota::at(self.quota(), now);
        let passed = if limits.start > Some(ended.period_end) { 2 } else { 1 };
        let owed = (self.bucket.full_at - passed * ended.step_ticks).clamp(0, 2 * limits.capacity);
        self.bucket = Bucket {
            full_at: owed,
            max_granted_wait: (owed - limits.capacity).max(0),
            granted: self.bucket.granted,
            ..Bucket::full(&limits, now)
        };
        limits
    }

    /// Empties the bucket if the clock was set back.
    pub(crate) fn step_back(&mut self, now: i64) {
        let limits = self.settle(now);
        if self.bucket.stepped_back(&limits, now) {
            let current = if limits.period_end == NEVER_NS { limits } else { BucketQuota::at(self.quota(), now) };
            self.bucket.convert_limits(&limits, &current, now);
        }
    }

    /// Whether the bucket is expired: it is full and was not provisioned.
    pub(crate) fn is_idle(&self, now: i64) -> bool {
        if self.provisioned {
            return false;
        }
        let limits = self.limits();
        // After the end of a calendar period, the clock does not know how long the next one lasts: debt in it counts for a period
        // more.
        let has_debt = limits.period_end != NEVER_NS && self.bucket.full_at > limits.step_ticks;
        let more = if has_debt { limits.step_ticks } else { 0 };
        self.bucket.full_at + more <= limits.clock(self.bucket.anchor, now)
    }

    /// Converts the bucket to the quota of an override. Without an override, to the requested quota, if there is one.
    ///
    /// An override leaves the bucket's own quota unchanged, so that only one change needs a conversion.
    pub(crate) fn follow(&mut self, requested: Option<Quota>, over: Option<Quota>, now: i64) {
        let (old_quota, old) = (*self.quota(), self.limits());
        let new_quota = over.or(requested).unwrap_or(self.own_quota);
        if over.is_none() {
            self.own_quota = new_quota;
        }
        self.over = over.map(Box::new);
        if now >= old.period_end && old_quota.refill() == new_quota.refill() {
            self.start_period(&old, now);
            return;
        } else if old_quota == new_quota {
            return;
        }
        // A clock that was set back over the start of a period stays in the period, unless it was set back far.
        let within = if self.bucket.stepped_back(&old, now) { now } else { now.max(self.bucket.anchor) };
        let new = BucketQuota::at(&new_quota, within);
        if old != new {
            self.bucket.convert_limits(&old, &new, now);
        }
    }
}

/// The answer for a bucket from which nothing is taken.
pub(crate) fn unchanged(EffectiveBucket { row, mode, capacity, .. }: &EffectiveBucket, now: i64) -> BucketAnswer {
    let state = row.as_ref().map(|row| (row.limits(), row.bucket));
    BucketAnswer { code: OutcomeCode::Granted, mode: *mode, now, scheduled_at: Some(now), capacity: *capacity, state }
}

/// The answer to a request that the tokens alone decide, regardless of the mode.
pub(crate) fn take_by_tokens(row: &mut BucketRow, request: BucketRequest, now: i64) -> BucketAnswer {
    let (code, wait) = match row.take(request, now) {
        None => (OutcomeCode::Never, None),
        Some((_, verdict)) if verdict.granted => (OutcomeCode::Granted, Some(verdict.wait)),
        Some((_, verdict)) => (OutcomeCode::Denied, Some(verdict.wait)),
    };
    BucketAnswer {
        scheduled_at: wait.map(|wait| now.saturating_add(wait)),
        state: Some((row.limits(), row.bucket)),
        ..BucketAnswer::refused(code, now)
    }
}

/// Decides a request for a bucket.
pub(crate) fn take(effective: &mut EffectiveBucket, request: BucketRequest, now: i64) -> BucketAnswer {
    let answer = unchanged(effective, now);
    let Some(row) = &mut effective.row else {
        return answer;
    };
    match effective.mode {
        Mode::Off => answer,
        Mode::Block => BucketAnswer { code: OutcomeCode::Denied, scheduled_at: effective.until, ..answer },
        Mode::Enforce => take_by_tokens(row, request, now),
        // No request waits in shadow mode.
        Mode::Shadow => match take_by_tokens(row, BucketRequest { max_wait: 0, ..request }, now) {
            denied @ BucketAnswer { code: OutcomeCode::Denied, .. } => {
                BucketAnswer { code: OutcomeCode::Granted, mode: Mode::Shadow, scheduled_at: Some(now), ..denied }
            }
            decided => decided,
        },
    }
}

/// Lowers a bucket, and returns whether it held more. `None` if the bucket would never have a token again.
pub(crate) fn throttle(effective: &mut EffectiveBucket, level: ThrottleLevel, now: i64) -> Option<bool> {
    let Some(row) = effective.row.as_mut().filter(|_| effective.mode != Mode::Off) else {
        return Some(false);
    };
    let limits = row.settle(now);
    (level.wait == 0 || limits.step_ns != NEVER_NS).then(|| row.bucket.throttle(&limits, now, level))
}

/// A receipt as a store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredReceipt {
    pub(crate) grant: GrantRecord,
    pub(crate) state: State,
    /// In nanoseconds since 1970.
    pub(crate) expires_at: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    Cancelled,
    Refunded,
    Settled,
}

impl State {
    #[cfg(feature = "sqlite")]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Cancelled => "cancelled",
            Self::Refunded => "refunded",
            Self::Settled => "settled",
        }
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Open, Self::Cancelled, Self::Refunded, Self::Settled].into_iter().find(|state| state.as_str() == word)
    }
}

impl StoredReceipt {
    /// The answer to a repeated request whose id was granted before.
    pub(crate) fn repeated_answer(&self, request: BucketRequest, answer: BucketAnswer) -> BucketAnswer {
        let same = self.grant.cost == request.cost && self.state != State::Cancelled;
        let state = answer.state.map(|(limits, bucket)| (limits, Bucket { granted: self.grant.granted, ..bucket }));
        BucketAnswer {
            code: if same { OutcomeCode::Granted } else { OutcomeCode::Reused },
            mode: Mode::Enforce,
            scheduled_at: Some(self.grant.scheduled_at.max(answer.now)),
            state,
            ..answer
        }
    }
}

/// A bucket or window that grants take from.
pub(crate) trait Account {
    /// The most that one request can have used.
    const MAX_USED: i64;

    /// Gives back tokens that will not be used, and returns how many. `None` if it is too late.
    fn cancel(&mut self, grant: &GrantRecord, now: i64) -> Option<i64>;

    /// Gives back tokens that were not used.
    fn refund(&mut self, grant: &GrantRecord, tokens: i64);

    /// Takes tokens that were used beyond the grant. A bucket's next token then comes within `max_debt`.
    fn charge(&mut self, now: i64, tokens: i64, max_debt: i64);
}

impl Account for BucketRow {
    const MAX_USED: i64 = MAX_TOKENS;

    fn cancel(&mut self, grant: &GrantRecord, now: i64) -> Option<i64> {
        let limits = self.limits();
        (self.bucket.granted >= grant.granted).then(|| self.bucket.cancel(&limits, now, grant))
    }

    fn refund(&mut self, _: &GrantRecord, tokens: i64) {
        let limits = self.limits();
        self.bucket.refund(&limits, tokens);
    }

    fn charge(&mut self, now: i64, tokens: i64, max_debt: i64) {
        let limits = self.settle(now);
        self.bucket.charge(&limits, now, tokens, max_debt);
    }
}

/// Refunds or charges a grant, and returns the receipt to keep, if it changes.
pub(crate) fn adjust<A: Account>(
    &Adjustment { ref receipt, kind, max_debt, .. }: &Adjustment,
    stored: Option<StoredReceipt>,
    account: Option<&mut A>,
    now: i64,
) -> (Result<Adjusted, OutcomeCode>, Option<StoredReceipt>) {
    // The stored receipt overrides the caller's, except for the cost.
    let grant = stored.map_or(receipt.grant, |stored| GrantRecord { cost: receipt.grant.cost, ..stored.grant });
    if kind == AdjustmentKind::Cancel && now > grant.scheduled_at {
        return (Ok(Adjusted::Late), None);
    }
    let stored = match (stored, kind) {
        (Some(stored), AdjustmentKind::Settle(_)) if stored.expires_at <= now => return (Ok(Adjusted::Late), None),
        (Some(stored), AdjustmentKind::Charge(_)) if stored.grant.granted != 0 => {
            return (Err(OutcomeCode::Reused), None);
        }
        (Some(_), AdjustmentKind::Charge(_)) => return (Ok(Adjusted::Repeated), None),
        (Some(stored), _) if stored.state != State::Open || stored.grant.cost != grant.cost => {
            return (Ok(Adjusted::Repeated), None);
        }
        (Some(stored), _) => stored,
        (None, AdjustmentKind::Settle(_)) => return (Ok(Adjusted::Late), None),
        (None, _) => StoredReceipt { grant, state: State::Open, expires_at: remembered_until(grant, now) },
    };
    let Some(account) = account else {
        return (Err(OutcomeCode::Unknown), None);
    };
    let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(A::MAX_USED);
    let (given_back, state) = match kind {
        AdjustmentKind::Cancel => match account.cancel(&grant, now) {
            None => return (Ok(Adjusted::Late), None),
            Some(given_back) => (given_back, State::Cancelled),
        },
        AdjustmentKind::Refund(unused) => (tokens(unused).min(grant.cost), State::Refunded),
        AdjustmentKind::Settle(used) => (grant.cost - tokens(used), State::Settled),
        AdjustmentKind::Charge(charged) => (-tokens(charged), State::Settled),
    };
    match kind {
        AdjustmentKind::Cancel => {}
        _ if given_back < 0 => account.charge(now, -given_back, max_debt),
        _ => account.refund(&grant, given_back),
    }
    let expires_at = stored.expires_at.max(remembered_until(stored.grant, now));
    let is_remembered = receipt.id_of == IdOf::Caller || !matches!(kind, AdjustmentKind::Charge(_));
    (Ok(Adjusted::Done(given_back)), is_remembered.then_some(StoredReceipt { state, expires_at, ..stored }))
}

/// How long an adjustment is remembered: until a day after it or until the scheduled time, whichever is later. Bounded by the
/// longest wait, because the receipt comes from the caller.
fn remembered_until(grant: GrantRecord, now: i64) -> i64 {
    grant.scheduled_at.max(now + DAY_NS).min(now + MAX_WAIT_NS)
}

const DAY_NS: i64 = 86_400_000_000_000;
