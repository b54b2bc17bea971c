//! Random operations: of every verb, under every kind of rule, with figures that hit the edges.

use std::time::Duration;

use fastrand::Rng;
use tollgate::bucket::MOST_TOKENS;
use tollgate::{Adjustment, HoldBack, Key, Mode, Override, Quota, Receipt, Rule, Take};
use uuid::Uuid;

/// What is done to a store.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Take(Take),
    Batch(Vec<Take>),
    Adjust(Vec<Change>),
    HoldBack(Key, Rule, HoldBack),
    Create(Key, Quota),
    Plan(Key, Quota, Option<Mode>),
    /// The mode of every key, until so many nanoseconds later.
    Mode(Mode, Option<i64>),
    /// The same for one key; its end is the one beside it.
    Override(Key, Override, Option<i64>),
    ClearOverride(Key),
    /// So many nanoseconds forwards, or backwards.
    Clock(i64),
}

/// A change to what an earlier operation took, if it took anything.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) operation: usize,
    /// Of which of its buckets.
    pub(super) bucket: usize,
    /// Not that receipt, but one made up of its id for another bucket, or with another cost.
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

/// The keys and plans of a run, the last of which nobody makes.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    /// Two that are provisioned, two with a quota of the request's, two with a plan, one that nobody makes.
    pub(super) keys: Vec<Key>,
    pub(super) plans: Vec<Key>,
}

/// The operations that a seed stands for.
pub(super) fn operations(seed: u64, cast: &Cast, count: usize, ruled: bool) -> Vec<Operation> {
    let mut author = Author {
        random: Rng::with_seed(seed),
        cast,
        quotas: Vec::new(),
        ids: Vec::new(),
        takes: Vec::new(),
        hold: Duration::MAX,
        ruled: false,
    };
    author.quotas = cast.keys.iter().map(|_| author.quota()).collect();
    let mut operations: Vec<Operation> = (0..2).map(|place| author.create(place)).collect();
    operations.extend((0..2).map(|plan| author.plan(plan)));
    author.ruled = ruled;
    while operations.len() < count {
        operations.push(author.operation(operations.len()));
    }
    operations
}

struct Author<'a> {
    random: Rng,
    cast: &'a Cast,
    /// What each key is under, as far as the author knows.
    quotas: Vec<Quota>,
    /// Requests with ids.
    ids: Vec<(Take, Duration)>,
    /// The places of requests, of which there may be receipts, and for how long these are held.
    takes: Vec<(usize, Duration)>,
    /// For how long the latest request's id is held; without an id, its receipt does not expire.
    hold: Duration,
    /// Whether the mode of every key and overrides are set.
    ruled: bool,
}

impl Author<'_> {
    fn operation(&mut self, place: usize) -> Operation {
        if self.ruled && self.one_in(8) {
            return self.ruling();
        }
        match self.random.u32(0..100) {
            0..=3 => {
                let place = self.random.usize(..self.cast.keys.len());
                Operation::HoldBack(self.cast.keys[place].clone(), self.rule(place), self.hold_back(place))
            }
            4..=44 => {
                let take = self.take();
                self.takes.push((place, self.hold));
                Operation::Take(take)
            }
            45..=54 => Operation::Batch((0..self.random.usize(2..7)).map(|_| self.take()).collect()),
            55..=71 if !self.takes.is_empty() => {
                Operation::Adjust((0..self.random.usize(1..4)).map(|_| self.change()).collect())
            }
            72..=75 => {
                let places = if self.one_in(4) { 5 } else { 2 };
                let place = self.random.usize(..places);
                self.create(place)
            }
            76..=82 => {
                let plan = self.random.usize(..2);
                self.plan(plan)
            }
            83..=85 => {
                // Ids that have expired are known again if they were not forgotten yet.
                self.ids.retain(|(_, held)| *held == Duration::MAX);
                // While a key is off, no request empties its bucket after the clock was set back by more than a second.
                let most = if self.ruled { SECOND } else { YEAR };
                Operation::Clock(-self.back().min(most))
            }
            _ => {
                let step = self.forward();
                if step > YEAR / 2 {
                    self.ids.clear();
                }
                // A receipt that has expired may be forgotten, and with it that it was adjusted: after a day, or when its
                // id's time is over.
                self.takes.retain(|(_, held)| step < HOUR * 20 && held.as_nanos() > step.unsigned_abs().into());
                Operation::Clock(step)
            }
        }
    }

    fn ruling(&mut self) -> Operation {
        let modes = [Mode::Enforce, Mode::Shadow, Mode::Off, Mode::Block];
        let mode = modes[self.random.usize(..modes.len())];
        let end = self.random.bool().then(|| self.forward());
        let key = self.cast.keys[self.random.usize(..self.cast.keys.len())].clone();
        match self.random.u32(0..8) {
            0 => Operation::Mode(mode, end),
            1 => Operation::Mode(Mode::Enforce, None),
            2 => Operation::ClearOverride(key),
            kind => {
                let quota = (kind > 3).then(|| self.quota());
                let mode = (kind < 5 || self.one_in(4)).then_some(mode);
                Operation::Override(key, Override { quota, mode, ..Override::default() }, end)
            }
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
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
        Operation::Plan(self.cast.plans[plan].clone(), self.quotas[4 + plan], mode)
    }

    fn take(&mut self) -> Take {
        self.hold = Duration::MAX;
        if !self.ids.is_empty() && self.one_in(5) {
            return self.again();
        }
        let nobodys = usize::from(self.one_in(8));
        let mut places = vec![self.random.usize(..self.cast.keys.len() - 1 + nobodys)];
        while self.one_in(3) && places.len() < 4 {
            places.push(self.random.usize(..self.cast.keys.len() - 1));
        }
        let first = places[0];
        let mut take = Take::from(self.cast.keys[first].clone()).rule(self.rule(first));
        for &place in &places[1..] {
            take = take.and(self.cast.keys[place].clone(), self.rule(place));
        }
        let least = places.iter().map(|&place| self.quotas[place].capacity()).min().unwrap_or(1);
        take = take.cost(self.cost(least)).keep(self.keep(least)).max_wait(self.max_wait(first));
        if self.one_in(3) {
            take = self.identified(take);
        }
        take
    }

    fn identified(&mut self, take: Take) -> Take {
        let holds = [Duration::from_millis(1), Duration::from_hours(1), Duration::from_hours(48), Duration::MAX];
        self.hold = holds[self.random.usize(..holds.len())];
        let take = take.id(Uuid::from_u128(self.random.u128(..)), self.hold);
        self.ids.push((take.clone(), self.hold));
        take
    }

    /// A request whose id was there before: as it was, or at another cost, or for other buckets.
    fn again(&mut self) -> Take {
        let (take, hold) = self.ids[self.random.usize(..self.ids.len())].clone();
        self.hold = hold;
        let other = self.random.usize(..self.cast.keys.len() - 1);
        match self.random.u32(0..8) {
            0 => take.cost(1 + self.random.u64(..3)),
            1 | 2 => take.and(self.cast.keys[other].clone(), self.rule(other)),
            3 => take.max_wait(self.max_wait(other)),
            _ => take,
        }
    }

    fn rule(&mut self, place: usize) -> Rule {
        let kind = if self.one_in(12) { self.random.usize(..4) } else { place / 2 };
        if kind == 1 && self.one_in(8) {
            self.quotas[place] = self.quota();
        }
        match kind {
            1 if self.one_in(25) => Rule::Quota(Quota::unlimited()),
            1 => Rule::Quota(self.quotas[place]),
            2 => Rule::Plan(self.cast.plans[if place / 2 == 2 { place - 4 } else { self.random.usize(..3) }].clone()),
            _ => Rule::Provisioned,
        }
    }

    fn cost(&mut self, capacity: u64) -> u64 {
        match self.random.u32(0..24) {
            0..=11 => 1,
            12..=16 => self.random.u64(1..=capacity),
            17..=19 => capacity,
            20 => capacity.saturating_add(1),
            21 => [0, u64::MAX, u64::MAX / 2, u64::MAX / 4, MOST_TOKENS.unsigned_abs()][self.random.usize(..5)],
            _ => 1 + self.random.u64(..capacity.min(5)),
        }
    }

    fn keep(&mut self, capacity: u64) -> u64 {
        match self.random.u32(0..24) {
            0..=17 => 0,
            18..=20 => self.random.u64(..capacity),
            21 => capacity - 1,
            22 => capacity,
            _ => [u64::MAX, u64::MAX / 2, MOST_TOKENS.unsigned_abs()][self.random.usize(..3)],
        }
    }

    fn max_wait(&mut self, place: usize) -> Duration {
        let quota = self.quotas[place];
        let token = quota.refill_time() / u32::try_from(quota.capacity()).unwrap_or(u32::MAX);
        match self.random.u32(0..24) {
            0..=11 => Duration::ZERO,
            12..=16 => token * self.random.u32(1..4),
            17..=18 => quota.refill_time(),
            19 => Duration::from_nanos(1),
            20 | 21 => Duration::from_hours(1),
            22 => Duration::from_hours(366 * 24),
            _ => Duration::MAX,
        }
    }

    fn hold_back(&mut self, place: usize) -> HoldBack {
        let capacity = self.quotas[place].capacity();
        let remaining = HoldBack::remaining([0, 1, capacity / 2, capacity, u64::MAX][self.random.usize(..5)]);
        let retry_after = HoldBack::retry_after(self.max_wait(place)).longest(Duration::MAX);
        match self.random.u32(0..4) {
            0 => remaining,
            1 => remaining.and(retry_after),
            _ => retry_after,
        }
    }

    fn change(&mut self) -> Change {
        let latest = self.takes.len() - 1;
        let place =
            if self.one_in(3) { self.random.usize(..=latest) } else { latest.saturating_sub(self.random.usize(..3)) };
        let tokens = match self.random.u32(0..8) {
            0 => 0,
            1 => [u64::MAX, MOST_TOKENS.unsigned_abs(), u64::MAX / 4][self.random.usize(..3)],
            _ => self.random.u64(1..12),
        };
        let forged = self.one_in(10).then(|| {
            let key = self.cast.keys[self.random.usize(..self.cast.keys.len())].clone();
            (key, self.random.u64(1..4))
        });
        let kind = [Kind::Cancel, Kind::Cancel, Kind::Refund(tokens), Kind::Settle(tokens)][self.random.usize(..4)];
        Change { operation: self.takes[place].0, bucket: self.random.usize(..2), forged, kind }
    }

    fn back(&mut self) -> i64 {
        match self.random.u32(0..4) {
            0 => self.random.i64(1..1_000),
            1 => self.random.i64(1_000_000..2_000_000_000),
            2 => HOUR,
            _ => 24 * HOUR,
        }
    }

    fn forward(&mut self) -> i64 {
        let quota = self.quotas[self.random.usize(..6)];
        let refill = i64::try_from(quota.refill_time().as_nanos()).unwrap_or(HOUR).min(1 << 61);
        let token = refill / i64::try_from(quota.capacity()).unwrap_or(i64::MAX);
        match self.random.u32(0..16) {
            0 => 1,
            1..=6 => token * self.random.i64(1..4) + self.random.i64(-1..2),
            7..=9 => refill.min(20 * YEAR) + self.random.i64(-1..2),
            10..=12 => self.random.i64(1..HOUR / 60),
            13 => HOUR,
            14 => 30 * 24 * HOUR,
            _ => 5 * YEAR,
        }
        .max(0)
    }

    fn quota(&mut self) -> Quota {
        const QUOTAS: [&str; 19] = [
            "10/s",
            "3/s burst 7",
            "10/s",
            "1/h",
            "100/min burst 5",
            "1000000000/s",
            "1000/d burst 3",
            "1/36525d",
            "3155760000000000000/36525d",
            "3 per 1s",
            "7 per 999999937ns",
            "5 per 1h",
            "1 per 36525d",
            "3155760000000000000 per 36525d",
            "4 per calendar 1h",
            "2 per calendar 1d",
            "3 once",
            "10 once",
            "3155760000000000000 once",
        ];
        QUOTAS[self.random.usize(..QUOTAS.len())].parse().expect("each is a quota")
    }
}

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3_600_000_000_000;
const YEAR: i64 = 366 * 24 * HOUR;
