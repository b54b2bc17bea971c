//! Statistics of a run.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::run::{RequestOutcome, SimulatedRequest};

/// Requests and their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Count {
    /// The number of requests.
    pub(crate) requests: u64,
    /// The tokens of these requests.
    pub(crate) tokens: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    pub(crate) arrived: Count,
    pub(crate) granted: Count,
    pub(crate) denied: Count,
    /// Requests whose cost exceeds the capacity.
    pub(crate) never: Count,
    /// Granted requests that waited.
    pub(crate) waited: Count,
    pub(crate) max_wait: Duration,
    /// The sum of the waits of all granted requests.
    pub(crate) total_wait: Duration,
    /// The longest time between two denials without a grant between them.
    pub(crate) max_denied_span: Duration,
    /// The most tokens requested, and the most tokens used, within any window.
    pub(crate) max_requested: u64,
    pub(crate) max_granted: u64,
}

impl Statistics {
    pub(crate) fn of(requests: &[SimulatedRequest], window: Duration) -> Self {
        let mut statistics = Self::default();
        let mut used = Vec::new();
        let mut denied_since = None;
        for &SimulatedRequest { arrival, outcome } in requests {
            statistics.arrived.add(arrival.cost);
            match outcome {
                RequestOutcome::Granted(granted_at) => {
                    let wait = span(arrival.at, granted_at);
                    statistics.granted.add(arrival.cost);
                    statistics.waited.add_if(!wait.is_zero(), arrival.cost);
                    statistics.max_wait = statistics.max_wait.max(wait);
                    statistics.total_wait += wait;
                    used.push((granted_at, arrival.cost));
                    denied_since = None;
                }
                RequestOutcome::Denied => {
                    statistics.denied.add(arrival.cost);
                    let since = *denied_since.get_or_insert(arrival.at);
                    statistics.max_denied_span = statistics.max_denied_span.max(span(since, arrival.at));
                }
                RequestOutcome::Never => statistics.never.add(arrival.cost),
            }
        }
        used.sort_unstable_by_key(|(granted_at, _)| *granted_at);
        statistics.max_granted = max_within(window, used.iter().copied());
        statistics.max_requested =
            max_within(window, requests.iter().map(|requests| (requests.arrival.at, requests.arrival.cost)));
        statistics
    }

    /// Evaluates each client by itself, and combines the results. The busiest window and the longest time of denials are those of
    /// one client.
    pub(crate) fn per_client(mut requests: Vec<SimulatedRequest>, window: Duration) -> Self {
        requests.sort_by_key(|requests| requests.arrival.client);
        let clients = requests.chunk_by(|one, next| one.arrival.client == next.arrival.client);
        clients.map(|requests| Self::of(requests, window)).fold(Self::default(), |all, one| all.and(&one))
    }

    fn and(self, other: &Self) -> Self {
        Self {
            arrived: self.arrived.and(other.arrived),
            granted: self.granted.and(other.granted),
            denied: self.denied.and(other.denied),
            never: self.never.and(other.never),
            waited: self.waited.and(other.waited),
            max_wait: self.max_wait.max(other.max_wait),
            total_wait: self.total_wait.saturating_add(other.total_wait),
            max_denied_span: self.max_denied_span.max(other.max_denied_span),
            max_requested: self.max_requested.max(other.max_requested),
            max_granted: self.max_granted.max(other.max_granted),
        }
    }

    /// The mean wait of granted requests.
    pub(crate) fn mean_wait(&self) -> Duration {
        self.total_wait.checked_div(u32::try_from(self.granted.requests).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

impl Count {
    fn add(&mut self, tokens: u64) {
        self.add_if(true, tokens);
    }

    fn and(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, tokens: self.tokens.saturating_add(other.tokens) }
    }

    fn add_if(&mut self, counts: bool, tokens: u64) {
        if counts {
            self.requests += 1;
            self.tokens = self.tokens.saturating_add(tokens);
        }
    }
}

/// The most tokens within any half-open window. `tokens` must be in order of time.
fn max_within(window: Duration, tokens: impl Iterator<Item = (i64, u64)> + Clone) -> u64 {
    let mut leaving = tokens.clone();
    let mut begins = leaving.next();
    let (mut within, mut most) = (0_u128, 0);
    for (at, cost) in tokens {
        within += u128::from(cost);
        while let Some((first, available_at)) = begins
            && span(first, at) >= window
        {
            within -= u128::from(available_at);
            begins = leaving.next();
        }
        most = most.max(within);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

fn span(from: i64, to: i64) -> Duration {
    Duration::from_nanos(to.saturating_sub(from).max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::super::traffic::Arrival;
    use super::*;

    const S: i64 = 1_000_000_000;

    fn requests(at: i64, cost: u64, outcome: RequestOutcome) -> SimulatedRequest {
        SimulatedRequest { arrival: Arrival { at, cost, client: 0 }, outcome }
    }

    #[test]
    fn each_request_is_counted_once_with_its_tokens() {
        let requests = [
            requests(0, 2, RequestOutcome::Granted(0)),
            requests(S, 3, RequestOutcome::Granted(4 * S)),
            requests(2 * S, 1, RequestOutcome::Denied),
            requests(3 * S, 9, RequestOutcome::Never),
        ];
        let statistics = Statistics::of(&requests, Duration::from_secs(1));
        let count = |requests, tokens| Count { requests, tokens };
        assert_eq!((statistics.arrived, statistics.granted), (count(4, 15), count(2, 5)));
        assert_eq!((statistics.denied, statistics.never, statistics.waited), (count(1, 1), count(1, 9), count(1, 3)));
        let (longest, mean) = (Duration::from_secs(3), Duration::from_millis(1500));
        assert_eq!((statistics.max_wait, statistics.mean_wait()), (longest, mean));
    }

    #[test]
    fn worst_window_has_most_tokens_at_any_start() {
        let times = [0, 900, 1_100, 1_800, 3_000].map(|ms: i64| (ms * 1_000_000, 1));
        let most = |window_ms| max_within(Duration::from_millis(window_ms), times.into_iter());
        assert_eq!((most(1), most(900), most(901), most(2_000), most(10_000)), (1, 2, 3, 4, 5));
        assert_eq!(max_within(Duration::from_secs(1), std::iter::empty()), 0);
    }

    #[test]
    fn waiting_tokens_count_at_their_scheduled_time() {
        let requests = [requests(0, 1, RequestOutcome::Granted(0)), requests(0, 1, RequestOutcome::Granted(5 * S))];
        let statistics = Statistics::of(&requests, Duration::from_secs(1));
        assert_eq!((statistics.max_requested, statistics.max_granted), (2, 1));
    }

    #[test]
    fn denied_span_runs_from_first_to_last_denial_before_a_grant() {
        let story = |answers: &[RequestOutcome]| {
            let requests: Vec<SimulatedRequest> =
                (0..).zip(answers).map(|(at, outcome)| requests(at * S, 1, *outcome)).collect();
            Statistics::of(&requests, Duration::from_secs(1)).max_denied_span
        };
        let granted = RequestOutcome::Granted(0);
        assert_eq!(
            story(&[granted, RequestOutcome::Denied, RequestOutcome::Denied, granted, granted]),
            Duration::from_secs(1)
        );
        assert_eq!(
            story(&[granted, RequestOutcome::Denied, RequestOutcome::Never, RequestOutcome::Denied]),
            Duration::from_secs(2)
        );
        assert_eq!(story(&[granted, granted]), Duration::ZERO);
    }
}
