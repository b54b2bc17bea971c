//! Processes of the suite's own program: callers that share buckets through the crate.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::task::JoinSet;
use tollgate::model::bucket::BucketQuota;
use tollgate::{
    Admin, Key, Limiter, Quota, Rule, Store, Take,
    clock::{Clock, SystemClock},
    model::Source,
};

use crate::checker::{Call, Fault, Limit};
use crate::engines::{ENGINES, Engine, sqlite};
use crate::layers::Layers;
use crate::matrix::Time;
use crate::processes::{self, Processes};
use crate::rig::{AnyPool, Rig};
use crate::store::AnyStore;
use crate::worker;

/// What is done in a process that this variable is set in, instead of the tests.
const ROLE: &str = "TOLLGATE_TEST_WORKER";

/// Works, if this process was started for that.
pub fn work() -> Option<anyhow::Result<()>> {
    let role = std::env::var(ROLE).ok()?;
    let runtime = match role.as_str() {
        // One thread runs tasks in the order in which they are woken.
        WAITERS => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        _ => tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    };
    Some(runtime.map_err(Into::into).and_then(|runtime| match role.as_str() {
        CALLERS => runtime.block_on(call()),
        WAITERS => runtime.block_on(wait()),
        SERVICES => runtime.block_on(serve()),
        HOLDERS => runtime.block_on(hold()),
        _ => runtime.block_on(worker::work()),
    }))
}

/// This program, in a role.
pub fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test runs from a file"));
    command.env(ROLE, role);
    command
}

pub const CALLERS: &str = "callers";
pub const WAITERS: &str = "waiters";
pub const SERVICES: &str = "services";
pub const HOLDERS: &str = "holders";
pub const FLEET: &str = "fleet";

/// Callers in processes of their own, and the buckets that they share.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Callers {
    engine: String,
    /// Which of the engine's levels.
    level: usize,
    layers: Layers,
    /// Of an engine without a server.
    file: Option<PathBuf>,
    keys: Vec<String>,
    capacity: u64,
    period: Duration,
    /// Whether the first request makes a bucket, or it is there.
    first_use: bool,
    /// How many requests go in one call, at most.
    batch: usize,
}

/// What holds for the run: where the grid of periods starts, and that a bucket is done with when it denies after `end`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Course {
    pub anchor: i64,
    pub end: i64,
}

/// What happened to each bucket, by the place of its key.
pub type Histories = BTreeMap<usize, Vec<Call>>;

impl Callers {
    pub fn new(rig: &Rig, keys: &[Key], quota: Quota) -> Self {
        let level = rig.engine.levels.iter().position(|level| *level == rig.level);
        Self {
            engine: rig.engine.name.to_owned(),
            level: level.expect("a case runs at a level of its engine"),
            layers: rig.layers,
            file: rig.directory.as_ref().map(|directory| directory.path().join("buckets.db")),
            keys: keys.iter().map(Key::to_string).collect(),
            capacity: quota.capacity(),
            period: quota.refill_time(),
            first_use: false,
            batch: 1,
        }
    }

    pub fn first_use(self) -> Self {
        Self { first_use: true, ..self }
    }

    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Eight processes that are ready to begin.
    pub async fn start(&self) -> anyhow::Result<Processes> {
        // Else it could not be told in which period a call was decided.
        anyhow::ensure!(LONGEST_CALL < self.period, "a period of {:?} is too short", self.period);
        Processes::start(&vec![self.clone(); PROCESSES], || command(CALLERS)).await
    }

    /// Eight processes, in each of which [`IN_LINE`] are ready to wait for a token of the first bucket.
    pub async fn start_waiters(&self) -> anyhow::Result<Processes> {
        Processes::start(&vec![self.clone(); PROCESSES], || command(WAITERS)).await
    }

    /// A process for each of them, which asks every ten milliseconds under the quota of its own, until the end.
    pub async fn start_services(services: &[Self]) -> anyhow::Result<Processes> {
        Processes::start(services, || command(SERVICES)).await
    }

    /// A process that holds three reservations, the last one for later, and has somebody who waits behind it.
    pub async fn start_holder(&self) -> anyhow::Result<Processes> {
        Processes::start(std::slice::from_ref(self), || command(HOLDERS)).await
    }

    fn continuous(&self) -> Result<Quota, tollgate::model::QuotaError> {
        Quota::continuous(self.capacity, self.period)
    }

    fn quota(&self) -> Result<Quota, tollgate::model::QuotaError> {
        Quota::interval(self.capacity, self.period)
    }

    async fn store(&self) -> anyhow::Result<AnyStore> {
        let engine: &'static Engine =
            ENGINES.iter().find(|engine| engine.name == self.engine).expect("it is one of them");
        let mut rig = Rig::new(engine, engine.levels[self.level], self.layers, Time::Real).await?;
        if let Some(file) = &self.file {
            rig = rig.on(AnyPool::Sqlite(sqlite::pool(file, TASKS).await?));
        }
        // However often they are in each other's way, each has its answer.
        Ok(rig.store().max_attempts(u32::MAX).deadline(LONGEST_CALL))
    }
}

/// The part of a process: four tasks, each of which asks until every bucket has denied it after the end.
async fn call() -> anyhow::Result<()> {
    let callers: Callers = processes::told()?;
    let store = callers.store().await?;
    let course: Course = processes::ready()?;

    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(ask(callers.clone(), store.clone(), course));
    }
    let mut histories = Histories::new();
    while let Some(task) = tasks.join_next().await {
        merge(&mut histories, task??);
    }
    processes::report(&histories)
}

/// The part of a process: a line of waiters for one token each. Reports them in the order in which they came.
async fn wait() -> anyhow::Result<()> {
    let callers: Callers = processes::told()?;
    let limiter = Limiter::builder(callers.store().await?).max_wait(MAX_WAIT).build(Rule::Provisioned)?;
    let limiter = limiter.bind(&callers.keys[0])?;
    let _: Course = processes::ready()?;

    // A task each, so that whoever is woken first is seen first.
    let mut waiters = Vec::new();
    for _ in 0..IN_LINE {
        let limiter = limiter.clone();
        waiters.push(tokio::spawn(async move {
            let sent = SystemClock.now();
            let granted = limiter.wait().await?.is_granted();
            anyhow::Ok(Call { sent, done: SystemClock.now(), at: None, cost: 1, granted })
        }));
    }
    let mut calls = Vec::new();
    for waiter in waiters {
        calls.push(waiter.await??);
    }
    processes::report(&calls)
}

/// The part of a process: three requests every ten milliseconds.
async fn serve() -> anyhow::Result<()> {
    let callers: Callers = processes::told()?;
    let take = Take::from(Key::try_from(&*callers.keys[0])?).rule(Rule::Quota(callers.continuous()?));
    let store = callers.store().await?;
    let course: Course = processes::ready()?;

    let (mut calls, mut every) = (Vec::new(), tokio::time::interval(Duration::from_millis(10)));
    while SystemClock.now() < course.end {
        every.tick().await;
        for _ in 0..3 {
            let sent = SystemClock.now();
            let granted = store.take_one(&take).await??.is_granted();
            calls.push(Call { sent, done: SystemClock.now(), at: None, cost: 1, granted });
        }
    }
    processes::report(&calls)
}

/// The part of a process: it is ready when its reservations are made, and waits to be killed.
async fn hold() -> anyhow::Result<()> {
    let callers: Callers = processes::told()?;
    let store = callers.store().await?;
    let limiter = Limiter::builder(store.clone()).max_wait(callers.period * 4).build(Rule::Provisioned)?;
    let limiter = limiter.bind(&callers.keys[0])?;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(limiter.reserve().await?);
    }
    anyhow::ensure!(
        held.iter().all(tollgate::Reservation::is_granted) && !held[2].delay().is_zero(),
        "not all are held"
    );
    let waiter = tokio::spawn(async move { limiter.wait().await });
    while store.peek(&Key::try_from(&*callers.keys[0])?).await?.is_none_or(|level| level.granted < 4) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    processes::ready::<Course>()?;
    waiter.abort();
    anyhow::bail!("it was to be killed with its {} reservations", held.len())
}

async fn ask(callers: Callers, store: AnyStore, course: Course) -> anyhow::Result<Histories> {
    let quota = callers.quota()?;
    let rule = if callers.first_use { Rule::Quota(quota) } else { Rule::Provisioned };
    let takes = callers.keys.iter().map(|key| Ok(Take::from(Key::try_from(key)?).rule(rule.clone())));
    let takes = takes.collect::<anyhow::Result<Vec<Take>>>()?;
    let mut open: Vec<usize> = (0..takes.len()).collect();
    let mut histories = Histories::new();
    while let Some(&next) = open.first() {
        let mut places = vec![next];
        // New buckets are gone through in their order, so that many come to each at once.
        if !callers.first_use {
            places = (0..fastrand::usize(1..=callers.batch)).map(|_| open[fastrand::usize(..open.len())]).collect();
        }
        let batch: Vec<Take> = places.iter().map(|&place| takes[place].clone()).collect();
        let sent = SystemClock.now();
        let outcomes = store.take(&batch).await?;
        let done = SystemClock.now();
        let mut all_denied = true;
        for (place, outcome) in places.into_iter().zip(outcomes) {
            let decision = outcome?;
            let at = decided_at(done, decision.reset_after(), callers.period, course.anchor);
            // What was denied before is denied again from memory, as of some time between.
            let was_asked = decision.source() != Source::DenyCache;
            anyhow::ensure!(!was_asked || sent - STRAY <= at, "decided at {at} and asked at {sent}");
            let granted = decision.is_granted();
            histories.entry(place).or_default().push(Call { sent, done, at: Some(at), cost: 1, granted });
            all_denied &= !granted;
            if !granted && at >= course.end {
                open.retain(|&open| open != place);
            }
        }
        if all_denied && course.end > done {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..100))).await;
        }
    }
    Ok(histories)
}

/// When the database decided, from what is left of the period then: exact, as no call lasts as long as a period.
fn decided_at(done: i64, reset_after: Duration, period: Duration, anchor: i64) -> i64 {
    let (reset_after, period) = (nanoseconds(reset_after), nanoseconds(period));
    let latest = done + STRAY;
    latest - (latest - anchor + reset_after).rem_euclid(period)
}

pub fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).expect("less than a century")
}

/// All that several tasks or processes saw.
pub fn merge(all: &mut Histories, more: Histories) {
    for (place, calls) in more {
        all.entry(place).or_default().extend(calls);
    }
}

/// What the checker finds in one history.
pub fn faults(quota: &Quota, anchor: i64, calls: &[Call]) -> Vec<Fault> {
    Limit { terms: BucketQuota::from(quota), anchor }.faults(calls)
}

/// How far two clocks of one host may be apart: its own, and a server's, which may count in coarser units.
const STRAY: i64 = 1_000_000;
const LONGEST_CALL: Duration = Duration::from_secs(30);
pub const PROCESSES: usize = 8;
const TASKS: u32 = 4;
/// How many wait in each process, and for how long at most.
pub const IN_LINE: usize = 25;
pub const MAX_WAIT: Duration = Duration::from_secs(100);
