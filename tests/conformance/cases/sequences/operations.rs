//! Random operations: every method, with every kind of limit and mode, and with values at the edges.

use std::time::Duration;

use fastrand::Rng;
use tollgate::model::{LimitName, Limits, NamedLimit};
use tollgate::{Adjustment, Key, Mode, Quota, Receipt, Rule, Take, Throttle, Window, admin::Override};

use random_values::{SECOND, YEAR};

mod random_values;
mod requests;

/// A call of a store, or a change of its clock.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Take(Take),
    Batch(Vec<Take>),
    /// Counts requests in a window, even beyond its maximum.
    Count(Key, Window, u64),
    /// Starts a request that waits if necessary. Its receipt is kept for the duration.
    Wait(Take, Duration),
    /// Cancels the wait that this operation started, if it is still waiting.
    Leave(usize),
    Adjust(Vec<Change>),
    /// Charges keys, whatever their buckets hold.
    Charge(Vec<(Key, u64)>),
    Throttle(Key, Rule, Throttle),
    Create(Key, Quota),
    Plan(Key, Limits, Option<Mode>),
    DeletePlan(Key),
    /// Sets the mode of every key, with an end after so many nanoseconds.
    Mode(Mode, Option<i64>),
    /// Sets an override for one key, with the end beside it instead of its own.
    Override(Key, Override, Option<i64>),
    ClearOverride(Key),
    /// Resets a key's bucket and window.
    Reset(Key),
    Delete(Key),
    /// Runs all steps of a sweep, of about so many rows each.
    Sweep(u32),
    /// Reads a key's bucket and window, and the effective limits with the plan of a request.
    Read(Key, Option<Key>),
    /// Moves the clock by so many nanoseconds, forward or back.
    Clock(i64),
}

/// An adjustment of an earlier operation, if it took tokens.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) operation: usize,
    /// The index of the bucket in the request.
    pub(super) bucket: usize,
    /// Replaces the receipt by one with its id for another bucket or with another cost.
    pub(super) forged: Option<(Key, u64)>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Cancel,
    Refund(u64),
    Settle(u64),
}

impl Change {
    pub(super) fn of(&self, receipt: &Receipt) -> Adjustment {
        let receipt = match &self.forged {
            Some((key, cost)) => Receipt::new(receipt.id(), key.clone(), *cost),
            None => receipt.clone(),
        };
        match self.kind {
            Kind::Cancel => receipt.cancel(),
            Kind::Refund(unused) => receipt.refund(unused),
            Kind::Settle(used) => receipt.settle(used),
        }
    }
}

/// The keys and plans of a run. No operation creates the last ones.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    /// Two that are provisioned, two with a quota of the request, two with a plan, and one that no operation creates. Each also
    /// has a sliding window.
    pub(super) keys: Vec<Key>,
    pub(super) plans: Vec<Key>,
}

/// The operations of a seed.
pub(super) fn operations(seed: u64, cast: &Cast, count: usize, sets_modes: bool) -> Vec<Operation> {
    let mut author = Author {
        random: Rng::with_seed(seed),
        cast,
        quotas: Vec::new(),
        windows: Vec::new(),
        ids: Vec::new(),
        takes: Vec::new(),
        waits: Vec::new(),
        before: None,
        hold: Duration::MAX,
        passed: 0,
        latest: 0,
        sets_modes: false,
    };
    author.quotas = cast.keys.iter().map(|_| author.quota()).collect();
    author.windows = cast.keys.iter().map(|_| author.window()).collect();
    let mut operations: Vec<Operation> = (0..2).map(|place| author.create(place)).collect();
    operations.extend((0..2).map(|plan| author.plan(plan)));
    author.sets_modes = sets_modes;
    while operations.len() < count {
        operations.push(author.operation(operations.len()));
    }
    operations
}

struct Author<'a> {
    random: Rng,
    cast: &'a Cast,
    /// The quota of each key, as far as the author knows.
    quotas: Vec<Quota>,
    windows: Vec<Window>,
    /// Requests with ids.
    ids: Vec<(Take, Duration)>,
    takes: Vec<Taken>,
    /// The operations that started a wait.
    waits: Vec<usize>,
    /// The wait that the next operations queue behind.
    before: Option<Take>,
    /// The time for which the latest request's id is kept. Without an id, its receipt does not expire.
    hold: Duration,
    /// How many nanoseconds have passed.
    passed: i64,
    /// The largest value of `passed` before the clock was set back.
    latest: i64,
    /// Whether the mode of every key and overrides are set.
    sets_modes: bool,
}

/// A request that can have receipts.
#[derive(Clone, Copy)]
struct Taken {
    place: usize,
    at: i64,
    hold: Duration,
}

impl Taken {
    /// Whether the store can have deleted the receipt, and with it the adjustment: after a day, or when the id's time has
    /// ended. A later settlement is too late in any case.
    fn has_expired(self, now: i64) -> bool {
        let age = now.saturating_sub(self.at);
        self.hold.min(KNOWN).as_nanos() <= age.unsigned_abs().into()
    }
}

impl Author<'_> {
    fn operation(&mut self, place: usize) -> Operation {
        if self.sets_modes && self.one_in(8) {
            return self.mode_change();
        }
        if let Some(before) = self.before.take()
            && !self.one_in(3)
        {
            return self.queue_wait(place, before);
        }
        match self.random.u32(0..100) {
            0..=3 => {
                let place = self.key();
                Operation::Throttle(self.cast.keys[place].clone(), self.rule(place), self.throttle(place))
            }
            4..=29 => {
                let take = self.take();
                self.takes.push(Taken { place, at: self.passed, hold: self.hold });
                Operation::Take(take)
            }
            30..=33 => {
                let take = self.take();
                self.wait(place, take)
            }
            34..=39 => {
                let take = self.whole();
                self.queue_wait(place, take)
            }
            40..=44 if !self.waits.is_empty() => {
                Operation::Leave(self.waits[self.random.usize(self.waits.len().saturating_sub(4)..self.waits.len())])
            }
            45..=52 => Operation::Batch((0..self.random.usize(2..7)).map(|_| self.take()).collect()),
            53..=54 => {
                let place = self.windowed();
                let window = self.windows[place];
                Operation::Count(self.cast.keys[place].clone(), window, self.count(&window))
            }
            55..=71 if !self.takes.is_empty() => {
                Operation::Adjust((0..self.random.usize(1..4)).map(|_| self.change()).collect())
            }
            72 => Operation::Charge((0..self.random.usize(1..4)).map(|_| self.charge()).collect()),
            73..=75 => {
                let places = if self.one_in(4) { 5 } else { 2 };
                let place = self.random.usize(..places);
                self.create(place)
            }
            76..=80 => {
                let plan = self.random.usize(..2);
                if self.one_in(6) { Operation::DeletePlan(self.cast.plans[plan].clone()) } else { self.plan(plan) }
            }
            81..=83 => self.clearing(),
            84..=85 => self.read(),
            86..=88 => self.set_back(),
            _ => self.pass_time(),
        }
    }

    fn mode_change(&mut self) -> Operation {
        let modes = [Mode::Enforce, Mode::Shadow, Mode::Off, Mode::Block];
        let mode = modes[self.random.usize(..modes.len())];
        let end = self.random.bool().then(|| self.forward());
        let place = self.key();
        let key = self.cast.keys[place].clone();
        match self.random.u32(0..8) {
            0 => Operation::Mode(mode, end),
            1 => Operation::Mode(Mode::Enforce, None),
            2 => Operation::ClearOverride(key),
            kind => {
                let quota = (kind > 3).then(|| self.overriding(place));
                let mode = (kind < 5 || self.one_in(4)).then_some(mode);
                Operation::Override(key, Override { quota, mode, ..Override::default() }, end)
            }
        }
    }

    fn clearing(&mut self) -> Operation {
        let place = if self.one_in(2) { self.windowed() } else { self.key() };
        let key = self.cast.keys[place].clone();
        match self.random.u32(0..3) {
            0 => Operation::Reset(key),
            1 => Operation::Delete(key),
            _ => Operation::Sweep([5, 100, 1000][self.random.usize(..3)]),
        }
    }

    fn read(&mut self) -> Operation {
        let place = self.key();
        let plan = self.one_in(3).then(|| self.cast.plans[self.random.usize(..3)].clone());
        Operation::Read(self.cast.keys[place].clone(), plan)
    }

    fn set_back(&mut self) -> Operation {
        // An expired id can still be stored, and would count as a repeated one.
        self.ids.retain(|(_, hold_time)| *hold_time == Duration::MAX);
        let now = self.passed;
        self.takes.retain(|taken| !taken.has_expired(now));
        // While the mode of a key is off, no request empties its bucket after the clock was set back by more than a second, at
        // once or in steps.
        let longest = if self.sets_modes { SECOND - (self.latest - self.passed) } else { YEAR };
        let step = self.back().min(longest);
        self.passed -= step;
        Operation::Clock(-step)
    }

    fn pass_time(&mut self) -> Operation {
        let step = self.forward();
        if step > YEAR / 2 {
            self.ids.clear();
        }
        self.passed = self.passed.saturating_add(step);
        self.latest = self.latest.max(self.passed);
        Operation::Clock(step)
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    fn key(&mut self) -> usize {
        self.random.usize(..self.cast.keys.len())
    }

    /// A key whose sliding window is in use. There are fewer than keys, so that requests meet in a window.
    fn windowed(&mut self) -> usize {
        self.random.usize(..3)
    }

    fn create(&mut self, place: usize) -> Operation {
        if self.one_in(2) {
            self.quotas[place] = self.quota();
        }
        Operation::Create(self.cast.keys[place].clone(), self.quotas[place])
    }

    fn plan(&mut self, plan: usize) -> Operation {
        let modes = [None, None, None, Some(Mode::Enforce), Some(Mode::Shadow), Some(Mode::Off), Some(Mode::Block)];
        let mode = modes[self.random.usize(..modes.len())];
        if self.one_in(2) {
            self.quotas[4 + plan] = self.quota();
        }
        // The second plan has a further limit at times.
        let first = NamedLimit::from(self.quotas[4 + plan]);
        let further = (plan == 1 && self.one_in(2)).then(|| NamedLimit::from(self.quota()).name(further_limit()));
        let limits = Limits::new(std::iter::once(first).chain(further)).expect("two limits, one with a name");
        Operation::Plan(self.cast.plans[plan].clone(), limits, mode)
    }

    fn charge(&mut self) -> (Key, u64) {
        let place = self.key();
        (self.cast.keys[place].clone(), self.random.u64(1..=2 * self.quotas[place].capacity()))
    }
}

/// The name of a plan's further limit.
pub(super) fn further_limit() -> LimitName {
    LimitName::try_from("further").expect("a name")
}

/// A little less than a day, the shortest time for which an adjustment is remembered.
const KNOWN: Duration = Duration::from_hours(20);
