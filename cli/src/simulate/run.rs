//! What the crate answers to traffic: each request is decided by the library itself, in memory, on a clock that is set to
//! the instant of its arrival.

use std::time::Duration;

use tollgate::{Admin, Key, MemoryStore, Rule, Take, TakeError, clock::ManualClock, store::SharedWindows};

use super::traffic::{Arrival, Traffic};

/// Under what the traffic is put.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedLimit {
    pub(crate) rule: Rule,
    /// Whether the bucket is there before the first request.
    pub(crate) provisioned: bool,
    /// How long each request would wait.
    pub(crate) max_wait: Duration,
}

/// A request, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedRequest {
    pub(crate) arrival: Arrival,
    pub(crate) answer: RequestOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// Its tokens may be used at an instant, in nanoseconds since 1970.
    Granted(i64),
    Denied,
    /// It costs more than there ever is.
    Never,
}

/// What became of all of it.
pub(crate) struct Run {
    pub(crate) asked: Vec<SimulatedRequest>,
    /// The tokens left at one instant after another; negative: promised to requests that wait for them.
    pub(crate) tokens: Vec<(i64, i64)>,
    buckets: Buckets,
}

impl SimulatedLimit {
    /// Sends the traffic through, and looks at what is left meanwhile.
    pub(crate) async fn run(&self, traffic: &Traffic) -> anyhow::Result<Run> {
        let buckets = Buckets::new(self, &traffic.clients, traffic.begin).await?;
        let mut asked = Vec::with_capacity(traffic.arrivals.len());
        let mut tokens = Vec::new();
        let mut arrivals = traffic.arrivals.iter().peekable();
        for look in instants(traffic.begin, traffic.end) {
            while let Some(&arrival) = arrivals.next_if(|arrival| arrival.at <= look) {
                asked.push(SimulatedRequest { arrival, answer: buckets.ask(arrival)? });
            }
            // Of many buckets there is no one level to look at.
            if traffic.clients.is_empty() {
                tokens.push((look, buckets.left(look).await?));
            }
        }
        Ok(Run { asked, tokens, buckets })
    }
}

impl Run {
    /// Looks on when nobody comes any more.
    pub(crate) async fn idle_until(&mut self, until: i64) -> anyhow::Result<()> {
        let seen = self.tokens.last().map_or(until, |(at, _)| *at);
        for look in instants(seen, until.max(seen)).skip(1) {
            self.tokens.push((look, self.buckets.left(look).await?));
        }
        Ok(())
    }

    /// When the last tokens are used.
    pub(crate) fn last_use(&self) -> Option<i64> {
        self.asked.iter().filter_map(SimulatedRequest::used_at).max()
    }
}

impl SimulatedRequest {
    /// When its tokens may be used, if it was granted.
    pub(crate) fn used_at(&self) -> Option<i64> {
        match self.answer {
            RequestOutcome::Granted(at) => Some(at),
            RequestOutcome::Denied | RequestOutcome::Never => None,
        }
    }
}

/// When to look at what is left: as often as a picture has points from left to right.
fn instants(begin: i64, end: i64) -> impl Iterator<Item = i64> {
    let lasts = i128::from(end - begin);
    (0..=SAMPLES).map(move |n| begin + i64::try_from(lasts * n / SAMPLES).expect("a part of the span"))
}

const SAMPLES: i128 = 480;

/// One for all, or one for each client.
struct Buckets {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    keys: Vec<Key>,
    rule: Rule,
    /// Whether a request has to say the terms.
    named: bool,
    max_wait: Duration,
}

impl Buckets {
    async fn new(limit: &SimulatedLimit, clients: &[Key], now: i64) -> anyhow::Result<Self> {
        let clock = ManualClock::default();
        clock.set(now);
        let keys = if clients.is_empty() { vec![Key::try_from("simulated")?] } else { clients.to_vec() };
        // The store is in parts, of which none may be full.
        let store = MemoryStore::with_clock(clock.clone()).max_keys(keys.len().saturating_mul(4).max(100_000));
        let rule = limit.rule.clone();
        let mut named = true;
        if let (Rule::Quota(quota), true) = (&rule, limit.provisioned) {
            for key in &keys {
                store.create_bucket(key, *quota).await?;
            }
            named = false;
        }
        Ok(Self { store, clock, keys, rule, named, max_wait: limit.max_wait })
    }

    fn ask(&self, Arrival { at, cost, client }: Arrival) -> anyhow::Result<RequestOutcome> {
        self.clock.set(at);
        let take = Take::from(self.keys[client as usize].clone()).cost(cost).max_wait(self.max_wait);
        let take = if self.named { take.rule(self.rule.clone()) } else { take };
        match self.store.decide(&take) {
            Ok(decision) if decision.is_granted() => {
                Ok(RequestOutcome::Granted(at + i64::try_from(decision.wait().as_nanos())?))
            }
            Ok(_) => Ok(RequestOutcome::Denied),
            Err(TakeError::ExceedsCapacity { .. }) => Ok(RequestOutcome::Never),
            Err(error) => Err(error.into()),
        }
    }

    /// The tokens left. A bucket that its first request is to make is full until then.
    async fn left(&self, at: i64) -> anyhow::Result<i64> {
        self.clock.set(at);
        match &self.rule {
            Rule::Window(window) => Ok(self.store.count(&self.keys[0], window, 0).await?.available(window)),
            Rule::Quota(quota) => {
                let level = self.store.peek(&self.keys[0]).await?;
                Ok(level.map_or_else(|| quota.capacity().cast_signed(), |level| level.available))
            }
            rule => anyhow::bail!("{rule:?} needs a database"),
        }
    }
}
