//! Processes of the test executable: callers that share buckets through the crate.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use common::fleet::checker::{Call, Fault, Limit};
use common::fleet::worker;
use common::processes::{self, Processes};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::task::JoinSet;
use tollgate::model::bucket::BucketQuota;
use tollgate::{
    Admin, Key, Limiter, Quota, Rule, Store, Take,
    clock::{Clock, SystemClock},
    model::Source,
};

use crate::engines::{ENGINES, Engine, sqlite};
use crate::layers::Layers;
use crate::matrix::Time;
use crate::store::AnyStore;
use crate::test_db::{AnyPool, TestDb};

/// If the variable is set, the process runs a role instead of the tests.
const ROLE: &str = "TOLLGATE_TEST_WORKER";

/// Runs the role of this process, if it has one.
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

/// The command that starts this executable in a role.
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

/// Callers in separate processes, and the buckets that they share.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Callers {
    engine: String,
    /// The index of the engine's isolation level.
    level: usize,
    layers: Layers,
    /// The file of an engine without a server.
    file: Option<PathBuf>,
    keys: Vec<String>,
    capacity: u64,
    period: Duration,
    /// Whether the first request creates the bucket.
    first_use: bool,
    /// The largest number of requests in one call.
    batch: usize,
}

/// The course of a run: the start of the grid of periods, and the end, after which a bucket is done with its first denial.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Course {
    pub anchor: i64,
    pub end: i64,
}

/// The calls for each bucket, by the position of its key.
pub type Histories = BTreeMap<usize, Vec<Call>>;

impl Callers {
    pub fn new(db: &TestDb, keys: &[Key], quota: Quota) -> Self {
        let level = db.engine.levels.iter().position(|level| *level == db.level);
        Self {
            engine: db.engine.name.to_owned(),
            level: level.expect("a case runs at a level of its engine"),
            layers: db.layers,
            file: db.directory.as_ref().map(|directory| directory.path().join("buckets.db")),
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

    /// Starts eight processes that are ready to begin.
    pub async fn start(&self) -> anyhow::Result<Processes> {
        // Otherwise the period of a decision would be unknown.
        anyhow::ensure!(LONGEST_CALL < self.period, "a period of {:?} is too short", self.period);
        Processes::start(&vec![self.clone(); PROCESSES], || command(CALLERS)).await
    }

    /// Starts eight processes, each with [`WAITERS_PER_PROCESS`] tasks that are ready to wait for a token of the first bucket.
    pub async fn start_waiters(&self) -> anyhow::Result<Processes> {
        Processes::start(&vec![self.clone(); PROCESSES], || command(WAITERS)).await
    }

    /// Starts a process for each service, which sends requests with its own quota every ten milliseconds, until the end.
    pub async fn start_services(services: &[Self]) -> anyhow::Result<Processes> {
        Processes::start(services, || command(SERVICES)).await
    }

    /// Starts a process with three reservations, the last one scheduled later, and a waiter queued behind it.
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
        let mut db = TestDb::new(engine, engine.levels[self.level], self.layers, Time::Real).await?;
        if let Some(file) = &self.file {
            db = db.on(AnyPool::Sqlite(sqlite::create(file, TASKS).await?));
        }
        // Each call is answered, after any number of conflicts.
        Ok(db.store().max_attempts(u32::MAX).deadline(LONGEST_CALL))
    }
}

/// The callers' role: four tasks, each of which sends requests until every bucket has denied one after the end.
async fn call() -> anyhow::Result<()> {
    let callers: Callers = processes::receive()?;
    let store = callers.store().await?;
    let course: Course = processes::ready()?;

    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(send_requests(callers.clone(), store.clone(), course));
    }
    let mut histories = Histories::new();
    while let Some(task) = tasks.join_next().await {
        merge(&mut histories, task??);
    }
    processes::report(&histories)
}

/// The waiters' role: a queue of waiters for one token each, reported in the order of arrival.
async fn wait() -> anyhow::Result<()> {
    let callers: Callers = processes::receive()?;
    let limiter = Limiter::builder(callers.store().await?).max_wait(MAX_WAIT).build(Rule::Provisioned)?;
    let limiter = limiter.bind(&callers.keys[0])?;
    let _: Course = processes::ready()?;

    // One task per waiter, so that the order of wake-ups shows.
    let mut waiters = Vec::new();
    for _ in 0..WAITERS_PER_PROCESS {
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

/// The services' role: three requests every ten milliseconds.
async fn serve() -> anyhow::Result<()> {
    let callers: Callers = processes::receive()?;
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

/// The holder's role: ready when its reservations are made, it waits to be killed.
async fn hold() -> anyhow::Result<()> {
    let callers: Callers = processes::receive()?;
    let store = callers.store().await?;
    let limiter = Limiter::builder(store.clone()).max_wait(callers.period * 4).build(Rule::Provisioned)?;
    let limiter = limiter.bind(&callers.keys[0])?;
    let mut reservations = Vec::new();
    for _ in 0..3 {
        reservations.push(limiter.reserve().await?);
    }
    anyhow::ensure!(
        reservations.iter().all(tollgate::Reservation::is_granted)
            && reservations[2].delay().is_some_and(|delay| !delay.is_zero()),
        "not all are held"
    );
    let waiter = tokio::spawn(async move { limiter.wait().await });
    while store.peek(&Key::try_from(&*callers.keys[0])?).await?.is_none_or(|level| level.granted() < 4) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    processes::ready::<Course>()?;
    waiter.abort();
    anyhow::bail!("it was to be killed with its {} reservations", reservations.len())
}

async fn send_requests(callers: Callers, store: AnyStore, course: Course) -> anyhow::Result<Histories> {
    let quota = callers.quota()?;
    let rule = if callers.first_use { Rule::Quota(quota) } else { Rule::Provisioned };
    let takes = callers.keys.iter().map(|key| Ok(Take::from(Key::try_from(key)?).rule(rule.clone())));
    let takes = takes.collect::<anyhow::Result<Vec<Take>>>()?;
    let mut open: Vec<usize> = (0..takes.len()).collect();
    let mut histories = Histories::new();
    while let Some(&next) = open.first() {
        let mut places = vec![next];
        // New buckets are requested in order, so that many callers request each at once.
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
            let reset_after = decision.reset_after().context("the bucket refills")?;
            let at = decided_at(done, reset_after, callers.period, course.anchor);
            // A cached denial is as of some time in between.
            let is_from_store = decision.source() != Source::DenyCache;
            anyhow::ensure!(!is_from_store || sent - CLOCK_SKEW <= at, "decided at {at} and sent at {sent}");
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

/// The time of the decision, from the rest of the period: exact, because no call lasts as long as a period.
fn decided_at(done: i64, reset_after: Duration, period: Duration, anchor: i64) -> i64 {
    let (reset_after, period) = (nanoseconds(reset_after), nanoseconds(period));
    let latest = done + CLOCK_SKEW;
    latest - (latest - anchor + reset_after).rem_euclid(period)
}

pub fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).expect("less than a century")
}

/// Merges the histories of tasks or processes.
pub fn merge(all: &mut Histories, more: Histories) {
    for (place, calls) in more {
        all.entry(place).or_default().extend(calls);
    }
}

/// The faults that the checker finds in one history.
pub fn faults(quota: &Quota, anchor: i64, calls: &[Call]) -> Vec<Fault> {
    Limit { quota: BucketQuota::at(quota, 0), anchor }.faults(calls)
}

/// The largest difference between two clocks of one host: its own, and a server's, which can have a coarser resolution.
const CLOCK_SKEW: i64 = 1_000_000;
const LONGEST_CALL: Duration = Duration::from_secs(30);
pub const PROCESSES: usize = 8;
const TASKS: u32 = 4;
/// The number of waiters in each process, and their longest wait.
pub const WAITERS_PER_PROCESS: usize = 25;
pub const MAX_WAIT: Duration = Duration::from_secs(100);
