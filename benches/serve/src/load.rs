use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};

use crate::client::Client;
use crate::cpu;
use crate::target::Target;

/// The size of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) tasks: usize,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
}

/// The answers of the measured time.
pub(crate) struct Sample {
    /// Nanoseconds.
    pub(crate) latencies: Histogram<u32>,
    pub(crate) granted: u64,
    pub(crate) denied: u64,
    /// Failed requests of the whole run.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Processor time of the server's threads.
    pub(crate) server_seconds: Option<f64>,
}

impl Sample {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, MAX_LATENCY, 2).expect("these bounds are in order");
        Self { latencies, granted: 0, denied: 0, errors: 0, first_error: None, server_seconds: None }
    }

    fn answered(&mut self, granted: bool, latency: Duration) {
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(MAX_LATENCY));
        if granted {
            self.granted += 1;
        } else {
            self.denied += 1;
        }
    }

    fn failed(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = Some(format!("{error:#}"));
        }
    }

    fn add(&mut self, other: Self) -> anyhow::Result<()> {
        ensure!(self.latencies.add(&other.latencies).is_ok(), "histograms have different bounds");
        self.granted += other.granted;
        self.denied += other.denied;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        Ok(())
    }
}

/// The measured time.
#[derive(Clone, Copy)]
struct Span {
    from: Instant,
    to: Instant,
}

impl Span {
    fn starting(now: Instant, load: Load) -> Self {
        let from = now + load.warm_up;
        Self { from, to: from + load.time }
    }
}

/// Sends requests in a closed loop: each task sends its next request when it has its answer.
pub(crate) async fn closed(
    clients: &[Client],
    target: &Arc<Target>,
    load: Load,
    threads: Option<&'static str>,
    seed: u64,
) -> anyhow::Result<Sample> {
    let span = Span::starting(Instant::now(), load);
    let used = server_seconds(span, threads);
    let mut tasks = JoinSet::new();
    for (task, client) in (0_u64..).zip(clients.iter().cycle().take(load.tasks)) {
        let random = fastrand::Rng::with_seed(seed * 1_000_003 + task);
        tasks.spawn(ask(client.clone(), Arc::clone(target), span, random));
    }
    let mut sample = Sample::new();
    while let Some(task) = tasks.join_next().await {
        sample.add(task.context("a task panicked")?)?;
    }
    sample.server_seconds = used.await.context("a task panicked")?;
    Ok(sample)
}

async fn ask(mut client: Client, target: Arc<Target>, span: Span, mut random: fastrand::Rng) -> Sample {
    let mut sample = Sample::new();
    let mut requested = Instant::now();
    loop {
        let answer = target.ask(&mut client, random.usize(..target.len())).await;
        // Reads the clock once per request: the end of one is the beginning of the next.
        let answered = Instant::now();
        match answer {
            Ok(answer) if answered >= span.from && answered < span.to => {
                sample.answered(answer.granted, answered - requested);
            }
            Ok(_) => {}
            Err(error) => {
                sample.failed(&error);
                return sample;
            }
        }
        if answered >= span.to {
            return sample;
        }
        requested = answered;
    }
}

/// Sends requests in an open loop: a fixed number a second, regardless of the answers.
pub(crate) async fn open(
    clients: Vec<Client>,
    target: Arc<Target>,
    load: Load,
    a_second: u32,
    threads: Option<&'static str>,
) -> anyhow::Result<Sample> {
    let start = Instant::now();
    let span = Span::starting(start, load);
    let used = server_seconds(span, threads);
    let mut random = fastrand::Rng::with_seed(1);
    let mut next = 0;
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut calls = JoinSet::new();
    let mut sent: u128 = 0;
    loop {
        ticks.tick().await;
        let now = Instant::now();
        if now >= span.to {
            break;
        }
        let due = (now - start).as_micros() * u128::from(a_second) / 1_000_000;
        while sent < due {
            sent += 1;
            next = (next + 1) % clients.len();
            let mut client = clients[next].clone();
            let (target, key) = (Arc::clone(&target), random.usize(..target.len()));
            calls.spawn(async move {
                let requested = Instant::now();
                let answer = target.ask(&mut client, key).await;
                (requested, requested.elapsed(), answer)
            });
        }
    }
    let mut sample = Sample::new();
    while let Some(call) = calls.join_next().await {
        let (requested, latency, answer) = call.context("a task panicked")?;
        match answer {
            Ok(answer) if requested >= span.from => sample.answered(answer.granted, latency),
            Ok(_) => {}
            Err(error) => sample.failed(&error),
        }
    }
    sample.server_seconds = used.await.context("a task panicked")?;
    Ok(sample)
}

/// Sends one request for each key, so that the buckets exist.
pub(crate) async fn each_once(clients: &[Client], target: &Arc<Target>, tasks: usize) -> anyhow::Result<()> {
    let mut loading = JoinSet::new();
    for (task, client) in clients.iter().cycle().take(tasks).enumerate() {
        let (mut client, target) = (client.clone(), Arc::clone(target));
        loading.spawn(async move {
            for key in (task..target.len()).step_by(tasks) {
                target.ask(&mut client, key).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = loading.join_next().await {
        task.context("a task panicked")??;
    }
    Ok(())
}

/// Sends requests for the first key until each task has a denial.
pub(crate) async fn exhaust(clients: &[Client], target: &Arc<Target>, tasks: usize) -> anyhow::Result<()> {
    let max = u64::from(target.workload.requests_per_day()) + 1;
    let mut exhausting = JoinSet::new();
    for client in clients.iter().cycle().take(tasks) {
        exhausting.spawn(until_denied(client.clone(), Arc::clone(target), max));
    }
    while let Some(task) = exhausting.join_next().await {
        task.context("a task panicked")??;
    }
    Ok(())
}

async fn until_denied(mut client: Client, target: Arc<Target>, max: u64) -> anyhow::Result<()> {
    for _ in 0..max {
        if !target.ask(&mut client, 0).await?.granted {
            return Ok(());
        }
    }
    bail!("{max} requests of one task passed")
}

/// Measures the processor time of threads. Uses its own thread, because the runtime's timers are late under load.
fn server_seconds(span: Span, threads: Option<&'static str>) -> JoinHandle<Option<f64>> {
    spawn_blocking(move || {
        let threads = threads?;
        thread::sleep(span.from.saturating_duration_since(Instant::now()));
        let before = cpu::of_threads(threads);
        thread::sleep(span.to.saturating_duration_since(Instant::now()));
        Some(cpu::of_threads(threads) - before)
    })
}

/// A minute, in nanoseconds.
const MAX_LATENCY: u64 = 60_000_000_000;
