use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use common::fleet::checker::Call;
use hdrhistogram::Histogram;
use tokio::task::{JoinSet, spawn_blocking, yield_now};

use crate::cpu;
use crate::peer::Peer;
use crate::sample::{Sample, histogram};
use crate::tally::Tally;

/// How to call a peer.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) tasks: usize,
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    /// The sequence of keys. Each task starts at a different place in it.
    pub(crate) sequence: Arc<[u32]>,
    /// The number of keys.
    pub(crate) keys: u32,
    /// The process whose processor time counts as the server's.
    pub(crate) server: Option<u32>,
    /// Whether to record the time of each grant, so that every window can be checked.
    pub(crate) noted: bool,
}

/// Calls a peer in a closed loop: each task makes its next call when it has its answer. Decisions of the warm-up are
/// checked but not counted.
pub(crate) async fn drive<P: Peer>(peer: Arc<P>, plan: Plan) -> anyhow::Result<Sample> {
    let tally = Arc::new(Tally::new(plan.keys, thread::available_parallelism()?.get()));
    let start = Instant::now();
    let from = start + plan.warm_up;
    let window = Window { start, from, to: from + plan.time, noted: plan.noted };
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        let at = task * plan.sequence.len() / plan.tasks;
        tasks.spawn(ask(Arc::clone(&peer), Arc::clone(&plan.sequence), at, window, Arc::clone(&tally)));
    }
    // Uses its own thread, because the runtime's timers are late if no task ever waits.
    let used = spawn_blocking(move || {
        thread::sleep(window.from.saturating_duration_since(Instant::now()));
        let before = (cpu::own()?, plan.server.and_then(cpu::of_server));
        thread::sleep(window.to.saturating_duration_since(Instant::now()));
        let after = (cpu::own()?, plan.server.and_then(cpu::of_server));
        anyhow::Ok((after.0 - before.0, after.1.zip(before.1).map(|(after, before)| after - before)))
    });

    let mut sample = Sample { seconds: plan.time.as_secs_f64(), ..Sample::default() };
    while let Some(task) = tasks.join_next().await {
        let task = task.context("a task panicked")??;
        sample.decisions += task.latencies.len();
        sample.granted += task.granted;
        sample.denied += task.denied;
        for (key, call) in task.calls {
            sample.calls.entry(key).or_default().push(call);
        }
        for latency in task.latencies.iter_recorded() {
            *sample.latencies.entry(latency.value_iterated_to()).or_default() += u64::from(latency.count_at_value());
        }
    }
    (sample.client, sample.server) = used.await??;
    sample.by_process = vec![sample.decisions];
    sample.grants = tally.grants();
    Ok(sample)
}

/// The measured time.
#[derive(Clone, Copy)]
struct Window {
    /// Time of the first calls.
    start: Instant,
    from: Instant,
    to: Instant,
    noted: bool,
}

impl Window {
    /// Returns the nanoseconds since the start.
    fn since(&self, at: Instant) -> anyhow::Result<i64> {
        Ok(i64::try_from(at.saturating_duration_since(self.start).as_nanos())?)
    }
}

/// The measurements of one task.
struct Seen {
    latencies: Histogram<u32>,
    granted: u64,
    denied: u64,
    /// The grants of each key, if they are recorded.
    calls: Vec<(u32, Call)>,
}

async fn ask<P: Peer>(
    peer: Arc<P>,
    sequence: Arc<[u32]>,
    at: usize,
    window: Window,
    tally: Arc<Tally>,
) -> anyhow::Result<Seen> {
    let mut seen = Seen { latencies: histogram(), granted: 0, denied: 0, calls: Vec::new() };
    let mut requested = Instant::now();
    for (count, &key) in (1_u64..).zip(sequence.iter().cycle().skip(at)) {
        let granted = peer.ask(key).await?;
        // Reads the clock once per decision: the end of one is the beginning of the next.
        let answered = Instant::now();
        if granted {
            seen.granted += 1;
            tally.count(key);
            if window.noted {
                let (sent, done) = (window.since(requested)?, window.since(answered)?);
                seen.calls.push((key, Call { sent, done, at: None, cost: 1, granted }));
            }
        } else {
            seen.denied += 1;
        }
        if answered >= window.from && answered < window.to {
            let latency = u64::try_from((answered - requested).as_nanos())?;
            seen.latencies.saturating_record(latency);
        } else if answered >= window.to {
            break;
        }
        requested = answered;
        // A peer that never waits would keep the other tasks from running.
        if count % 1024 == 0 {
            yield_now().await;
        }
    }
    Ok(seen)
}
