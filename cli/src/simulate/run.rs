//! Runs traffic against a limit. The library decides each request in memory, on a clock set to the arrival.

use std::time::Duration;

use tollgate::{Admin, Key, MemoryStore, Rule, Take, TakeError, clock::ManualClock, store::SharedWindows};

use super::traffic::{Arrival, Traffic};

/// The limit to simulate.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedLimit {
    pub(crate) rule: Rule,
    /// Whether the bucket exists before the first request.
    pub(crate) provisioned: bool,
    /// The longest wait of each request.
    pub(crate) max_wait: Duration,
}

/// A request and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedRequest {
    pub(crate) arrival: Arrival,
    pub(crate) outcome: RequestOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// Granted for this time, in nanoseconds since 1970.
    Granted(i64),
    Denied,
    /// The cost exceeds the capacity.
    Never,
}

/// The outcome of all traffic.
pub(crate) struct Run {
    pub(crate) requests: Vec<SimulatedRequest>,
    /// Samples of the time and the available tokens. Negative while requests wait for tokens.
    pub(crate) tokens: Vec<(i64, i64)>,
    buckets: Buckets,
}

impl SimulatedLimit {
    /// Runs the traffic, and samples the available tokens.
    pub(crate) async fn run(&self, traffic: &Traffic) -> anyhow::Result<Run> {
        let buckets = Buckets::new(self, &traffic.clients, traffic.begin).await?;
        let mut requests = Vec::with_capacity(traffic.arrivals.len());
        let mut tokens = Vec::new();
        let mut arrivals = traffic.arrivals.iter().peekable();
        for sample_at in instants(traffic.begin, traffic.end) {
            while let Some(&arrival) = arrivals.next_if(|arrival| arrival.at <= sample_at) {
                requests.push(SimulatedRequest { arrival, outcome: buckets.request(arrival)? });
            }
            // Many buckets have no single level.
            if traffic.clients.is_empty() {
                tokens.push((sample_at, buckets.available_at(sample_at).await?));
            }
        }
        Ok(Run { requests, tokens, buckets })
    }
}

impl Run {
    /// Continues to sample after the last arrival.
    pub(crate) async fn idle_until(&mut self, until: i64) -> anyhow::Result<()> {
        let seen = self.tokens.last().map_or(until, |(at, _)| *at);
        for sample_at in instants(seen, until.max(seen)).skip(1) {
            self.tokens.push((sample_at, self.buckets.available_at(sample_at).await?));
        }
        Ok(())
    }

    /// The scheduled time of the last granted request.
    pub(crate) fn last_use(&self) -> Option<i64> {
        self.requests.iter().filter_map(SimulatedRequest::used_at).max()
    }
}

impl SimulatedRequest {
    /// The scheduled time of a granted request.
    pub(crate) fn used_at(&self) -> Option<i64> {
        match self.outcome {
            RequestOutcome::Granted(at) => Some(at),
            RequestOutcome::Denied | RequestOutcome::Never => None,
        }
    }
}

/// The times of the samples, as many as a picture has points from left to right.
fn instants(begin: i64, end: i64) -> impl Iterator<Item = i64> {
    let duration = i128::from(end - begin);
    (0..=SAMPLES).map(move |n| begin + i64::try_from(duration * n / SAMPLES).expect("a part of the span"))
}

const SAMPLES: i128 = 480;

/// One bucket for all clients, or one for each.
struct Buckets {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    keys: Vec<Key>,
    rule: Rule,
    /// Whether requests name the limit. They do not for a provisioned bucket.
    sends_rule: bool,
    max_wait: Duration,
}

impl Buckets {
    async fn new(limit: &SimulatedLimit, clients: &[Key], now: i64) -> anyhow::Result<Self> {
        let clock = ManualClock::default();
        clock.set(now);
        let keys = if clients.is_empty() { vec![Key::try_from("simulated")?] } else { clients.to_vec() };
        // The store is partitioned. The reserve keeps every partition from filling up.
        let rule = limit.rule.clone();
        let limits = if let Rule::Limits(limits) = &rule { limits.len() } else { 1 };
        let buckets = keys.len().saturating_mul(limits);
        let store = MemoryStore::with_clock(clock.clone()).max_keys(buckets.saturating_mul(4).max(100_000));
        let mut sends_rule = true;
        if let (Rule::Quota(quota), true) = (&rule, limit.provisioned) {
            for key in &keys {
                store.create_bucket(key, *quota).await?;
            }
            sends_rule = false;
        }
        Ok(Self { store, clock, keys, rule, sends_rule, max_wait: limit.max_wait })
    }

    fn request(&self, Arrival { at, cost, client }: Arrival) -> anyhow::Result<RequestOutcome> {
        self.clock.set(at);
        let take = Take::from(self.keys[client as usize].clone()).cost(cost).max_wait(self.max_wait);
        let take = if self.sends_rule { take.rule(self.rule.clone()) } else { take };
        match self.store.decide(&take) {
            Ok(decision) if decision.is_granted() => {
                Ok(RequestOutcome::Granted(at + i64::try_from(decision.wait().as_nanos())?))
            }
            Ok(_) => Ok(RequestOutcome::Denied),
            Err(TakeError::ExceedsCapacity { .. }) => Ok(RequestOutcome::Never),
            Err(error) => Err(error.into()),
        }
    }

    /// The available tokens, with several limits the least of them. A bucket is full until its first request creates it.
    async fn available_at(&self, at: i64) -> anyhow::Result<i64> {
        self.clock.set(at);
        match &self.rule {
            Rule::Window(window) => Ok(self.store.count(&self.keys[0], window, 0).await?.available(window)),
            Rule::Quota(quota) => {
                let level = self.store.peek(&self.keys[0]).await?;
                Ok(level.map_or_else(|| quota.capacity().cast_signed(), |level| level.available()))
            }
            Rule::Limits(limits) => {
                let mut least = i64::MAX;
                for (key, limit) in limits.buckets(&self.keys[0]) {
                    let level = self.store.peek(&key).await?;
                    let full = limit.quota().capacity().cast_signed();
                    least = least.min(level.map_or(full, |level| level.available()));
                }
                Ok(least)
            }
            rule => anyhow::bail!("{rule:?} needs a database"),
        }
    }
}
