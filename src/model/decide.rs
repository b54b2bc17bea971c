//! What rules a bucket and what a request makes of it, for the stores that decide in this process. Pure: the stores read
//! and write, under a lock of theirs.

use crate::model::answer::{Answer, Word};
use crate::model::bucket::{Bucket, Hold, LONGEST_WAIT_NS, MOST_TOKENS, NEVER_NS, Receipt, Request, Terms};
use crate::model::receipt::AdjustmentKind;
use crate::model::{Adjusted, Adjustment, Decision, Key, Mode, Quota, Rule};

/// A bucket as a store keeps it. What few have is boxed: a store in memory waits for each of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its own terms, or those that its plan or its last request had.
    pub(crate) own: Quota,
    /// The override's terms that the state was written under, if so.
    pub(crate) over: Option<Box<Quota>>,
    pub(crate) plan: Option<Box<Key>>,
    pub(crate) provisioned: bool,
    pub(crate) bucket: Bucket,
}

/// What rules a key, as far as somebody chose.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) all: Setting,
    /// The plan that the request or the bucket names, if there is one.
    pub(crate) plan: Option<Plan>,
    pub(crate) over: Option<Override>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) quota: Quota,
    pub(crate) setting: Setting,
}

/// A mode, until an instant in nanoseconds since 1970 if it has an end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setting {
    pub(crate) mode: Option<Mode>,
    pub(crate) until: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Override {
    pub(crate) quota: Option<Quota>,
    pub(crate) setting: Setting,
}

/// A bucket that is under the terms that rule now, and the mode.
#[derive(Clone, Debug)]
pub(crate) struct Ruled {
    /// `None` if the mode is [`Mode::Off`] and the bucket does not exist.
    pub(crate) row: Option<Row>,
    pub(crate) mode: Mode,
    pub(crate) until: Option<i64>,
    /// Of the terms that rule.
    pub(crate) capacity: Option<i64>,
}

impl Rules {
    /// The mode that holds now, and until when: the nearest to the key that says one.
    pub(crate) fn mode(&self, plan: Option<&Plan>, now: i64) -> (Mode, Option<i64>) {
        let nearest = [self.over.map(|over| over.setting), plan.map(|plan| plan.setting), Some(self.all)];
        let setting = nearest.into_iter().flatten().find(|setting| setting.mode.is_some() && setting.holds(now));
        let Setting { mode, until } = setting.unwrap_or_default();
        (mode.unwrap_or(Mode::Enforce), until)
    }
}

impl Setting {
    pub(crate) fn holds(&self, now: i64) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// Makes the bucket if its first request may, and settles it under the terms that rule now.
pub(crate) fn rule(row: Option<Row>, rule: &Rule, rules: &Rules, now: i64) -> Result<Ruled, Word> {
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
        (Some(_), None) => return Err(Word::Unplanned),
        (Some(_), Some(plan)) => Some(plan),
    };
    let over = rules.over.filter(|over| over.setting.holds(now));
    let (mode, until) = rules.mode(plan, now);

    let asked = quota.or_else(|| plan.map(|plan| plan.quota));
    let in_force = over.and_then(|over| over.quota).or(asked).or_else(|| row.as_ref().map(|row| row.own));
    let capacity = in_force.map(|quota| quota.capacity_i64());
    if mode == Mode::Off {
        return Ok(Ruled { row, mode, until, capacity });
    }
    let mut row = match (row, asked) {
        (None, None) => return Err(Word::Unknown),
        (None, Some(own)) => {
            Row { own, over: None, plan: named.clone().map(Box::new), provisioned: false, bucket: Bucket::default() }
        }
        (Some(row), _) => row,
    };
    let other_terms = quota.is_some_and(|quota| quota != row.own);
    let other_plan = matches!(rule, Rule::Plan(_)) && named.as_ref() != row.plan.as_deref();
    if row.provisioned && (other_terms || other_plan) {
        return Err(Word::Conflict);
    }
    row.follow(asked, over.and_then(|over| over.quota), now);
    if asked.is_some() && !row.provisioned {
        row.plan = named.map(Box::new);
    }
    Ok(Ruled { row: Some(row), mode, until, capacity })
}

/// Makes a bucket full under the terms that rule it now.
pub(crate) fn reset(row: &mut Row, rules: &Rules, now: i64) {
    // What no plan rules any more keeps its terms.
    if let Ok(Ruled { row: Some(brought), .. }) = rule(Some(row.clone()), &Rule::Provisioned, rules, now) {
        *row = brought;
    }
    row.bucket.reset(&row.terms(), now);
}

impl Ruled {
    /// The bucket if a request takes nothing of it: as it is, unless the clock was set back. Then it is empty, for any request
    /// that is possible and weighed.
    pub(crate) fn untaken(&self, request: Request, now: i64) -> Option<Row> {
        let mut row = self.row.clone()?;
        let capacity = row.terms().capacity;
        let weighed = !matches!(self.mode, Mode::Off | Mode::Block) && request.cost <= capacity - request.keep;
        if weighed {
            row.step_back(now);
        }
        Some(row)
    }
}

impl Row {
    /// A bucket that is provisioned at `now`.
    pub(crate) fn provisioned(quota: Quota, now: i64) -> Self {
        let bucket = Bucket::full(&Terms::from(&quota), now);
        Self { own: quota, over: None, plan: None, provisioned: true, bucket }
    }

    /// Decides a request that is possible, if nothing rules the bucket but its tokens.
    #[expect(
        clippy::inline_always,
        reason = "what it answers would be written as words and read as vectors, which stalls"
    )]
    #[inline(always)]
    pub(crate) fn take(&mut self, request: Request, now: i64) -> Option<Decision> {
        let terms = self.terms();
        if request.cost > terms.capacity - request.keep {
            return None;
        }
        let verdict = self.bucket.take(&terms, now, request);
        let acts_at = now.saturating_add(verdict.wait);
        let receipt = Receipt { cost: request.cost, granted: self.bucket.granted, acts_at };
        Some(Decision::of(verdict, verdict.granted.then_some(receipt)).of_terms(&terms))
    }

    /// Gives it terms of its own, as its owner's; while an override rules, they wait.
    pub(crate) fn provision(&mut self, quota: Quota, now: i64) {
        self.provisioned = true;
        self.plan = None;
        if self.over.is_some() {
            self.own = quota;
        } else {
            self.follow(Some(quota), None, now);
        }
    }

    /// The terms that the state was written under.
    #[inline]
    pub(crate) fn terms(&self) -> Terms {
        Terms::from(self.over.as_deref().unwrap_or(&self.own))
    }

    /// Empties it if the clock was set back.
    pub(crate) fn step_back(&mut self, now: i64) {
        let terms = self.terms();
        if self.bucket.stepped_back(&terms, now) {
            self.bucket.settle(&terms, &terms, now);
        }
    }

    /// Whether it says nothing any more: it was not provisioned, and is full.
    pub(crate) fn is_idle(&self, now: i64) -> bool {
        !self.provisioned && self.bucket.full_at <= self.terms().clock(self.bucket.anchor, now)
    }

    /// Brings the bucket to an override's terms, or else to those asked for, if any, as its own.
    ///
    /// While an override rules, its own terms are left as they are, so that they need no second settling.
    pub(crate) fn follow(&mut self, asked: Option<Quota>, over: Option<Quota>, now: i64) {
        let old = self.terms();
        if over.is_none() {
            self.own = asked.unwrap_or(self.own);
        }
        self.over = over.map(Box::new);
        let new = self.terms();
        if old != new {
            self.bucket.settle(&old, &new, now);
        }
    }
}

/// A bucket as it is.
pub(crate) fn look(Ruled { row, mode, capacity, .. }: &Ruled, now: i64) -> Answer {
    let state = row.as_ref().map(|row| (row.terms(), row.bucket));
    Answer { word: Word::Granted, mode: *mode, now, acts_at: Some(now), capacity: *capacity, state }
}

/// Decides a request for a bucket that nothing rules but its tokens.
pub(crate) fn take_row(row: &mut Row, request: Request, now: i64) -> Answer {
    let terms = row.terms();
    let answer = |word, row: &Row| Answer { word, state: Some((terms, row.bucket)), ..Answer::refused(word, now) };
    if request.cost > terms.capacity - request.keep {
        return answer(Word::Never, row);
    }
    let verdict = row.bucket.take(&terms, now, request);
    let word = if verdict.granted { Word::Granted } else { Word::Denied };
    Answer { acts_at: Some(now.saturating_add(verdict.wait)), ..answer(word, row) }
}

/// Decides a request for a bucket. It is changed if tokens were taken, and only then.
pub(crate) fn take(ruled: &mut Ruled, request: Request, now: i64) -> Answer {
    let answer = look(ruled, now);
    let Some(row) = &mut ruled.row else {
        return answer;
    };
    match ruled.mode {
        Mode::Off => answer,
        Mode::Block => Answer { word: Word::Denied, acts_at: ruled.until, ..answer },
        Mode::Enforce => take_row(row, request, now),
        // Nobody waits for what would not be denied.
        Mode::Shadow => match take_row(row, Request { max_wait: 0, ..request }, now) {
            denied @ Answer { word: Word::Denied, .. } => {
                Answer { word: Word::Granted, mode: Mode::Shadow, acts_at: Some(now), ..denied }
            }
            decided => decided,
        },
    }
}

/// Lowers a bucket, and says whether it held more; `None` if it would never have a token again.
pub(crate) fn hold_back(ruled: &mut Ruled, hold: Hold, now: i64) -> Option<bool> {
    let Some(row) = ruled.row.as_mut().filter(|_| ruled.mode != Mode::Off) else {
        return Some(false);
    };
    let terms = row.terms();
    (hold.wait == 0 || terms.step_ns != NEVER_NS).then(|| row.bucket.hold_back(&terms, now, hold))
}

/// What is remembered of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) receipt: Receipt,
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

impl Held {
    /// What a request comes to that was granted before under its id.
    pub(crate) fn again(&self, request: Request, answer: Answer) -> Answer {
        let same = self.receipt.cost == request.cost && self.state != State::Cancelled;
        let state = answer.state.map(|(terms, bucket)| (terms, Bucket { granted: self.receipt.granted, ..bucket }));
        Answer {
            word: if same { Word::Granted } else { Word::Reused },
            mode: Mode::Enforce,
            acts_at: Some(self.receipt.acts_at.max(answer.now)),
            state,
            ..answer
        }
    }
}

/// What grants were taken from.
pub(crate) trait Account {
    /// The most that one request can have used.
    const MOST: i64;

    /// Gives back what will not be used; says how many tokens, unless it is too late.
    fn cancel(&mut self, receipt: &Receipt, now: i64) -> Option<i64>;

    /// Gives back what was not used.
    fn refund(&mut self, receipt: &Receipt, tokens: i64);

    /// Takes what was used beyond the grant. A bucket's next token then comes within `max_debt`.
    fn charge(&mut self, now: i64, tokens: i64, max_debt: i64);
}

impl Account for Row {
    const MOST: i64 = MOST_TOKENS;

    fn cancel(&mut self, receipt: &Receipt, now: i64) -> Option<i64> {
        let terms = self.terms();
        (self.bucket.granted >= receipt.granted).then(|| self.bucket.cancel(&terms, now, receipt))
    }

    fn refund(&mut self, _: &Receipt, tokens: i64) {
        let terms = self.terms();
        self.bucket.refund(&terms, tokens);
    }

    fn charge(&mut self, now: i64, tokens: i64, max_debt: i64) {
        let terms = self.terms();
        self.bucket.charge(&terms, now, tokens, max_debt);
    }
}

/// Gives back, or pays for, what a grant took, and says what to remember of it from now on.
pub(crate) fn adjust<A: Account>(
    &Adjustment { ref receipt, kind, max_debt, .. }: &Adjustment,
    held: Option<Held>,
    account: Option<&mut A>,
    now: i64,
) -> (Result<Adjusted, Word>, Option<Held>) {
    // What was remembered counts, whatever the caller says.
    let receipt = held.map_or(receipt.taken, |held| Receipt { cost: receipt.taken.cost, ..held.receipt });
    if kind == AdjustmentKind::Cancel && now > receipt.acts_at {
        return (Ok(Adjusted::Late), None);
    }
    let held = match (held, kind) {
        (Some(held), AdjustmentKind::Settle(_)) if held.expires_at <= now => return (Ok(Adjusted::Late), None),
        (Some(held), _) if held.state != State::Open || held.receipt.cost != receipt.cost => {
            return (Ok(Adjusted::Repeated), None);
        }
        (Some(held), _) => held,
        (None, AdjustmentKind::Settle(_)) => return (Ok(Adjusted::Late), None),
        (None, _) => Held { receipt, state: State::Open, expires_at: remembered_until(receipt, now) },
    };
    let Some(account) = account else {
        return (Err(Word::Unknown), None);
    };
    let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(A::MOST);
    let (given_back, state) = match kind {
        AdjustmentKind::Cancel => match account.cancel(&receipt, now) {
            None => return (Ok(Adjusted::Late), None),
            Some(given_back) => (given_back, State::Cancelled),
        },
        AdjustmentKind::Refund(unused) => (tokens(unused).min(receipt.cost), State::Refunded),
        AdjustmentKind::Settle(used) => (receipt.cost - tokens(used), State::Settled),
    };
    match kind {
        AdjustmentKind::Cancel => {}
        _ if given_back < 0 => account.charge(now, -given_back, max_debt),
        _ => account.refund(&receipt, given_back),
    }
    let expires_at = held.expires_at.max(remembered_until(held.receipt, now));
    (Ok(Adjusted::Done(given_back)), Some(Held { state, expires_at, ..held }))
}

/// How long an adjustment is remembered: as long as it could be asked for again, and no longer than the longest wait, whatever a
/// receipt of the caller's says.
fn remembered_until(receipt: Receipt, now: i64) -> i64 {
    receipt.acts_at.max(now + DAY_NS).min(now + LONGEST_WAIT_NS)
}

const DAY_NS: i64 = 86_400_000_000_000;
