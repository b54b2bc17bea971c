//! Buckets in this process: shards under locks, with the arithmetic of the SQL routines.

use std::convert::Infallible;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use self::admin::Stats;
use self::receipts::ReceiptRoom;
use self::rules::OperatorSettings;
use self::shard::{Guards, Shard};
use crate::admin::{AdminError, BucketLevel, SweepResult};
use crate::clock::{Clock, ProcessClock};
use crate::model::answer::{BucketAnswer, OutcomeCode, throttled};
use crate::model::decide;
use crate::model::id::IdOf;
use crate::model::receipt::AdjustmentKind;
use crate::model::window;
use crate::model::{
    Adjusted, Adjustment, Checked, Decision, Error, Key, Limit, Limits, Mode, Outcome, Quota, Rule, Take, TakeError,
    TakeInParts, Throttle, Window, WindowLevel, WindowUsage,
};
use crate::store::admin::{level_under, window_level_under};
use crate::store::{CallOptions, Capabilities, Maintenance, MaintenanceFuture, SharedWindows, Store, sealed};

mod admin;
mod receipts;
mod rules;
mod shard;

/// A store of buckets in this process, with the same arithmetic as the buckets in a database.
///
/// When a bucket is empty, the store denies requests at once.
///
/// The store holds a million keys by default. Beyond that it forgets full buckets, and never others: if no bucket is
/// full, a new key is an error ([`TakeError::TooManyKeys`]). A forgotten bucket changes no decision, unless a request
/// that used more than its estimate is settled later.
///
/// The store also remembers the ids of a million requests until they expire. It has no room for more of them, or for
/// more than half a million of one key: then it takes and refunds nothing ([`TakeError::TooManyIds`]).
///
/// Refunds of requests without an id, and settlements of [fresh ids](Take::fresh_id), need none of that room. Each shard
/// remembers the latest of them, half as many as it holds keys: some 7,800 of one key. For as long, a repeated
/// [`adjust`](Store::adjust) counts once.
///
/// ```
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1).burst(2))?;
/// assert!(limiter.allow("user:42").await?.is_granted());
/// assert!(limiter.allow("user:42").await?.is_granted());
/// assert!(!limiter.allow("user:42").await?.is_granted());
/// assert!(limiter.allow("user:43").await?.is_granted());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryStore<C = ProcessClock> {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    rules: OperatorSettings,
    stats: Mutex<Stats>,
    /// The shard at which the next step of a sweep begins.
    sweeps_from: AtomicUsize,
    clock: C,
}

impl MemoryStore {
    /// Creates a store on the host's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(ProcessClock::default())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Creates a store on the caller's clock: for tests.
    pub fn with_clock(clock: C) -> Self {
        let hasher = RandomState::default();
        let (keys, room) = (MAX_KEYS / SHARDS, ReceiptRoom::new(MAX_KEYS / SHARDS, SHARDS));
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(keys, hasher.clone(), Arc::clone(&room)))).collect();
        Self {
            shards,
            hasher,
            rules: OperatorSettings::default(),
            stats: Mutex::default(),
            sweeps_from: AtomicUsize::new(0),
            clock,
        }
    }

    /// Sets how many keys the store holds at most, and of how many requests it remembers the ids. Each number is
    /// rounded up to a multiple of 64, the number of shards. Default: a million.
    ///
    /// Each shard holds its part of the keys. A shard without a full bucket refuses a new key as
    /// [`TooManyKeys`](crate::TakeError::TooManyKeys), even while other shards have room. For a small store, set
    /// several times as many keys as are in use at once.
    ///
    /// Half of the room for ids belongs to the shards, and half is shared by those that need more. So the requests for
    /// one key have a little more than half of it. Refunds of requests without an id are remembered separately: each
    /// shard keeps half as many as it holds keys, and forgets the oldest when there are more.
    #[must_use]
    pub fn max_keys(self, keys: usize) -> Self {
        let keys = keys.div_ceil(SHARDS).max(1);
        let room = ReceiptRoom::new(keys, SHARDS);
        for shard in &self.shards {
            shard.lock().hold_at_most(keys, Arc::clone(&room));
        }
        self
    }

    /// Returns how many keys the store holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Returns whether the store holds no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Decides one request at once.
    ///
    /// # Errors
    ///
    /// Returns an error if the request can never be granted.
    pub fn decide(&self, take: &Take) -> Outcome {
        match take.expanded(|plan| Some(self.plan_limits(plan))) {
            None => self.decide_expanded(take),
            Some(take) => self.decide_expanded(&take),
        }
    }

    fn decide_expanded(&self, take: &Take) -> Outcome {
        let take = Checked::try_from(take)?;
        let Some(mut parts) = TakeInParts::<Infallible>::of(take) else { return self.decide_checked(take) };
        while let Some(part) = parts.next_part() {
            let outcome = self.decide_checked(part.take.as_ref());
            parts.record(&part, Ok(outcome));
        }
        let Ok(outcome) = parts.into_answer();
        outcome
    }

    #[inline]
    fn decide_checked(&self, take: Checked<&Take>) -> Outcome {
        // The usual case: one limit, whose bucket is already under the limits that apply.
        if let (Some(Limit { key, rule, .. }), true) = (take.plain(), take.indices.is_empty()) {
            let request = take.request_at(0);
            let hash = self.hasher.hash_one(key);
            let mut shard = self.shards[shard_of(hash)].lock();
            if let Some(row) = shard.hashed(hash, key) {
                // Read under the lock: a clock read before would be as old as the wait for it.
                let now = self.clock.now();
                if self.rules.leaves_to_tokens(key, rule, row, now)
                    && let Some((limits, verdict)) = row.take(request, now)
                {
                    return Ok(row.decision(&limits, verdict, request, now));
                }
            }
        }
        self.decide_other(take)
    }

    /// Decides all other requests. A function of its own, so that the usual case needs little of the stack.
    #[inline(never)]
    fn decide_other(&self, take: Checked<&Take>) -> Outcome {
        if take.is_unlimited() {
            return Ok(Decision::without_limit());
        }
        if let Some(window) = take.window() {
            return self.decide_window(&take, window);
        }
        if let Some((limited, places)) = take.limited() {
            return self.decide_checked(limited.as_ref()).map(|decision| decision.at_places(&places));
        }
        self.decide_with_settings(&take)
    }

    /// Decides with plans, overrides, modes and ids, while the shards of all buckets are locked.
    fn decide_with_settings(&self, take: &Take) -> Outcome {
        let mut guards = self.lock_all(take.keys());
        let now = self.clock.now();
        if let Some(id) = take.id {
            for key in take.keys() {
                guards.shard(self.shard_of(key)).receipts.make_room(id, key, now)?;
            }
        }
        let (mut changed, mut answers) = (Vec::new(), Vec::new());
        for (place, Limit { key, rule, .. }) in take.limits.iter().enumerate() {
            let request = take.request_at(place);
            let row = guards.row(self.shard_of(key), key).cloned();
            let settings = self.rules.key_settings(key, rule, row.as_ref());
            let mut effective = match decide::effective_bucket(row, rule, &settings, now) {
                Ok(effective) => effective,
                // Spares the other buckets and brings them to their effective limits, as after a denial.
                Err(code) => {
                    answers.push(BucketAnswer::refused(code, now));
                    changed.push((key, None, None, false));
                    continue;
                }
            };
            let before = effective.unchanged_by(request, now);
            let stored = take
                .id
                .filter(|_| effective.mode != Mode::Off)
                .and_then(|id| guards.shard(self.shard_of(key)).receipts.get(id, key, now));
            let answer = match stored {
                Some(stored) => stored.repeated_answer(request, decide::unchanged(&effective, now)),
                None => decide::take(&mut effective, request, now),
            };
            answers.push(answer);
            changed.push((key, before, effective.row, stored.is_some()));
        }
        let kept = changed.iter().filter(|(_, _, row, _)| row.is_some());
        guards.make_room(&kept.map(|(key, ..)| (self.shard_of(key), *key)), now)?;
        let all = answers.iter().all(|answer| answer.code == OutcomeCode::Granted);
        for (place, (answer, (key, before, after, stored))) in answers.iter_mut().zip(changed).enumerate() {
            let spared = !all && answer.code == OutcomeCode::Granted;
            if spared {
                answer.spare(before.as_ref().map(|row| row.bucket));
            }
            if let Some(row) = if spared || stored { before } else { after } {
                guards.write(self.shard_of(key), key, row, now)?;
            }
            if let (Some(id), Some(grant), false) = (take.id, answer.grant(take.request_at(place)), stored) {
                let receipts = &mut guards.shard(self.shard_of(key)).receipts;
                receipts.grant(id, key, grant, take.id_of, now.saturating_add(take.remember_for_ns()));
            }
        }
        let decisions = answers
            .into_iter()
            .enumerate()
            .map(|(place, answer)| answer.outcome(take, place).map(|decision| (place, decision)));
        let decisions = decisions.collect::<Result<Vec<_>, TakeError>>()?;
        Ok(Decision::combine(decisions, take).expect("a request names a bucket"))
    }

    /// Decides a request under a sliding window.
    fn decide_window(&self, take: &Take, window: &Window) -> Outcome {
        let request = take.request_at(0);
        let key = take.key();
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let mode = self.rules.key_settings(key, &take.limits[0].rule, None).mode(None, now);
        let receipt_key = key.window_receipt_key();
        if let Some(id) = take.id {
            shard.receipts.make_room(id, &receipt_key, now)?;
        }
        let stored = take.id.and_then(|id| shard.receipts.get(id, &receipt_key, now));
        let counted = if mode.0 == Mode::Off {
            window::decide(&mut shard.known_window(key, window, now), window, request, mode, stored, now)
        } else {
            window::decide(shard.window(key, window, now)?, window, request, mode, stored, now)
        };
        let outcome = counted.outcome(take, window, request);
        if let (Some(id), Ok(decision), None) = (take.id, &outcome, stored)
            && let Some((_, grant)) = decision.grants().next()
        {
            shard.receipts.grant(id, &receipt_key, grant, take.id_of, now.saturating_add(take.remember_for_ns()));
        }
        outcome
    }

    fn adjust_one(&self, adjustment: &Adjustment) -> Result<Adjusted, TakeError> {
        let Adjustment { receipt, kind, .. } = adjustment;
        let mut shard = self.shard(&receipt.key).lock();
        let now = self.clock.now();
        let receipt_key = if receipt.window { receipt.key.window_receipt_key() } else { receipt.key.clone() };
        let stored = shard.receipts.find(receipt.id, &receipt_key);
        let may_be_repeated = receipt.id_of == IdOf::Caller && !matches!(kind, AdjustmentKind::Settle(_));
        if stored.is_none() && may_be_repeated {
            shard.receipts.make_room(receipt.id, &receipt_key, now)?;
        }
        let (adjusted, stored) = if receipt.window {
            decide::adjust(adjustment, stored, shard.window_of(&receipt.key), now)
        } else {
            decide::adjust(adjustment, stored, shard.row(&receipt.key), now)
        };
        shard.given_back(&receipt.key);
        if let Some(stored) = stored {
            shard.receipts.write(receipt.id, &receipt_key, stored, receipt.id_of);
        }
        adjusted.map_err(|code| match code {
            OutcomeCode::Reused => TakeError::IdReused(receipt.id),
            _ => TakeError::UnknownBucket(receipt.key.clone()),
        })
    }

    pub(crate) fn lower(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        let level = throttle.of(key, rule)?;
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let row = shard.row(key).cloned();
        let settings = self.rules.key_settings(key, rule, row.as_ref());
        let lowered = match decide::effective_bucket(row, rule, &settings, now) {
            Err(code) => Err(code),
            Ok(mut effective) => {
                let lowered = decide::throttle(&mut effective, level, now);
                if let Some(row) = effective.row {
                    shard.insert(key.clone(), row, now)?;
                }
                Ok(lowered)
            }
        };
        throttled(lowered, key, rule)
    }

    /// Sweeps whole shards, one after the other, until they had `limit` rows.
    fn sweep_step(&self, limit: u32) -> SweepResult {
        let mut swept = SweepResult::default();
        let (mut seen, limit) = (0, limit as usize);
        for place in self.sweeps_from.load(Ordering::Relaxed)..SHARDS {
            let mut shard = self.shards[place].lock();
            let before = shard.len() + shard.receipts.len();
            let now = self.clock.now();
            shard.sweep(now, false);
            shard.receipts.sweep(now);
            swept.deleted += (before - shard.len() - shard.receipts.len()) as u64;
            seen += before;
            if seen >= limit && place + 1 < SHARDS {
                self.sweeps_from.store(place + 1, Ordering::Relaxed);
                swept.finished = false;
                return swept;
            }
        }
        self.sweeps_from.store(0, Ordering::Relaxed);
        let denials = self.stats.lock().forget(self.clock.now());
        swept.deleted += (self.forget_overrides() + denials) as u64;
        swept
    }

    fn forget_overrides(&self) -> usize {
        let now = self.clock.now();
        self.rules.change(|choices| {
            let before = choices.overrides.len();
            choices.overrides.retain(|_, over| decide::OverrideSettings::from(&*over).setting.holds(now));
            before - choices.overrides.len()
        })
    }

    /// The limits of a plan. One that does not exist has one limit.
    fn plan_limits(&self, plan: &Key) -> Limits {
        let limits = self.rules.read(|settings| settings.limits.get(plan).cloned());
        limits.unwrap_or_else(|| Quota::unlimited().into())
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[self.shard_of(key)]
    }

    fn shard_of(&self, key: &Key) -> usize {
        shard_of(self.hasher.hash_one(key))
    }

    /// Locks the shards of keys, each once, in their order, so that two requests cannot deadlock.
    fn lock_all<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Guards<'_> {
        let mut places: Vec<usize> = keys.map(|key| self.shard_of(key)).collect();
        places.sort_unstable();
        places.dedup();
        Guards(places.into_iter().map(|place| (place, self.shards[place].lock())).collect())
    }
}

impl<C: Clock> sealed::Sealed for MemoryStore<C> {}

impl<C: Clock> Store for MemoryStore<C> {
    #[inline]
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().in_process()
    }

    async fn take_checked(&self, takes: Checked<&[Take]>, _: CallOptions) -> Result<Vec<Outcome>, Error> {
        Ok(takes.iter().map(|take| self.decide_checked(take)).collect())
    }

    #[inline]
    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        Some(self.decide_checked(take))
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        _: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Ok(adjustments.iter().map(|adjustment| self.adjust_one(adjustment)).collect())
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.lower(key, rule, throttle)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }
}

impl<C: Clock> SharedWindows for MemoryStore<C> {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<WindowUsage, Error> {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let mode = self.rules.key_settings(key, &Rule::Window(*window), None).mode(None, now);
        if mode.0 == Mode::Off {
            return Ok(shard.known_window(key, window, now).count_now(window, mode, cost, now));
        }
        Ok(shard.window(key, window, now)?.count_now(window, mode, cost, now))
    }
}

impl<C: Clock> Maintenance for MemoryStore<C> {
    fn level<'a>(&'a self, key: &'a Key, rule: &'a Rule) -> MaintenanceFuture<'a, BucketLevel, AdminError> {
        Box::pin(level_under(self, key, rule))
    }

    fn window_level<'a>(&'a self, key: &'a Key, window: &'a Window) -> MaintenanceFuture<'a, WindowLevel, AdminError> {
        Box::pin(async move { Ok(window_level_under(self, key, window).await?) })
    }

    fn known_plan(&self, plan: &Key) -> Option<Limits> {
        Some(self.plan_limits(plan))
    }

    /// Sweeps whole shards in a step: at least a 64th of the keys.
    fn sweep(&self, limit: u32) -> MaintenanceFuture<'_, SweepResult> {
        Box::pin(async move { Ok(self.sweep_step(limit)) })
    }

    fn count_denials<'a>(&'a self, denials: &'a [(Key, u64)]) -> MaintenanceFuture<'a, ()> {
        Box::pin(async {
            self.stats.lock().count(denials, self.clock.now());
            Ok(())
        })
    }
}

/// Chooses a shard by bits of the hash that the shard's table does not use: the table uses the lowest and the seven
/// highest bits.
#[inline]
fn shard_of(hash: u64) -> usize {
    usize::from((hash >> 48) as u16) % SHARDS
}

const SHARDS: usize = 64;
const MAX_KEYS: usize = 1_000_000;
