//! The report of a simulation: the results of the limits side by side.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::Key;

use super::clients::{self, Tally};
use super::statistics::{Count, Statistics};
use crate::output::{Cell, Column, Table};
use crate::text::counted;
use crate::times;

/// The data of a report.
pub(crate) struct SimulationReport<'a> {
    /// The limits as text, with their results.
    pub(crate) limits: &'a [(String, Statistics)],
    /// How long the traffic lasted.
    pub(crate) length: Duration,
    /// The length of the busiest window to report.
    pub(crate) window: Duration,
    /// The longest wait. `None` for the method `allow`.
    pub(crate) max_wait: Option<Duration>,
    /// The number of skipped lines of the traffic file.
    pub(crate) skipped: u64,
    /// The clients, and the counts of each under each limit. Empty if one bucket is for all.
    pub(crate) clients: &'a [Key],
    pub(crate) tallies: &'a [Vec<Tally>],
}

/// The results of a simulation.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SimulationJson<'a> {
    /// The duration of the traffic.
    lasted_ms: Option<u64>,
    /// The simulated method: `wait` with `--max-wait`.
    method: MethodName,
    /// The longest wait that `--max-wait` permits.
    max_wait_ms: Option<u64>,
    /// The window of the `…_in_window` fields.
    window_ms: Option<u64>,
    /// The lines that `--skip-unreadable` skipped.
    skipped_lines: u64,
    /// One object for each limit.
    limits: Vec<LimitJson<'a>>,
}

/// The results of a limit.
#[derive(Serialize, JsonSchema)]
struct LimitJson<'a> {
    /// The limit as text.
    limit: &'a str,
    /// All requests.
    arrived: Count,
    /// The granted requests.
    granted: Count,
    /// The denied requests.
    denied: Count,
    /// The requests that cost more than the limit ever holds.
    never_possible: Count,
    /// The granted requests that waited.
    waited: Count,
    /// The mean wait of the granted requests.
    mean_wait_ms: Option<u64>,
    /// The longest wait of the granted requests.
    max_wait_ms: Option<u64>,
    /// The longest time of denials only.
    max_denied_ms: Option<u64>,
    /// The most tokens asked for in any window.
    max_requested_in_window: u64,
    /// The most tokens granted in any window.
    max_granted_in_window: u64,
    /// The number of clients. Null without `--by-client`.
    clients: Option<usize>,
    /// The number of clients with a denial. Null without `--by-client`.
    clients_denied: Option<usize>,
    /// The ten most-denied clients. Null without `--by-client`.
    most_denied: Option<Vec<ClientJson<'a>>>,
}

/// The requests of a client.
#[derive(Serialize, JsonSchema)]
struct ClientJson<'a> {
    /// The name of the client.
    client: &'a str,
    /// The number of requests.
    arrived: u64,
    /// The number of requests that were not granted.
    denied: u64,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum MethodName {
    Allow,
    Wait,
}

impl SimulationReport<'_> {
    pub(crate) fn table(&self) -> String {
        let method = match self.max_wait {
            None => "allow".to_owned(),
            Some(longest) => format!("wait, at most {}", format_span(longest)),
        };
        let skipped = counted(self.skipped, "line");
        let skipped = if self.skipped == 0 { String::new() } else { format!("; {skipped} skipped") };
        let text = format!("{} of traffic; method: {method}{skipped}\n\n", format_span(self.length));
        let mut table = Table::new([Column::Left(""), Column::Right(""), Column::Right("")]);
        let cells = |name: &str, cells: &[String]| {
            // At most two limits. A missing cell is empty.
            [name, cells.first().map_or("", |cell| cell), cells.get(1).map_or("", |cell| cell)].map(Cell::from)
        };
        table.row(cells("", &self.limits.iter().map(|(limit, _)| limit.clone()).collect::<Vec<_>>()));
        for (name, statistics) in self.rows().into_iter().chain(self.rows_of_clients()) {
            table.row(cells(&name, &statistics));
        }
        // Removes the empty headings: the first row replaces them.
        let table = table.render();
        text + table.split_once('\n').map_or("", |(_, rows)| rows)
    }

    pub(crate) fn json(&self) -> SimulationJson<'_> {
        let most_denied = clients::most_denied(self.clients, self.tallies);
        let limits = self.limits.iter().enumerate().map(|(at, (limit, statistics))| {
            let tallies = self.tallies.get(at);
            LimitJson {
                limit,
                arrived: statistics.arrived,
                granted: statistics.granted,
                denied: statistics.denied,
                never_possible: statistics.never,
                waited: statistics.waited,
                mean_wait_ms: times::milliseconds(statistics.mean_wait()),
                max_wait_ms: times::milliseconds(statistics.max_wait),
                max_denied_ms: times::milliseconds(statistics.max_denied_span),
                max_requested_in_window: statistics.max_requested,
                max_granted_in_window: statistics.max_granted,
                clients: tallies.map(Vec::len),
                clients_denied: tallies.map(|tallies| clients::denied(tallies)),
                most_denied: tallies.map(|tallies| {
                    let one = |place: &usize| {
                        let Tally { arrived, denied } = tallies[*place];
                        ClientJson { client: self.clients[*place].as_str(), arrived, denied }
                    };
                    most_denied.iter().map(one).collect()
                }),
            }
        });
        SimulationJson {
            lasted_ms: times::milliseconds(self.length),
            method: if self.max_wait.is_some() { MethodName::Wait } else { MethodName::Allow },
            max_wait_ms: self.max_wait.and_then(times::milliseconds),
            window_ms: times::milliseconds(self.window),
            skipped_lines: self.skipped,
            limits: limits.collect(),
        }
    }

    /// The rows with data for at least one limit.
    fn rows(&self) -> Vec<(String, Vec<String>)> {
        let one = if self.tallies.is_empty() { "" } else { " by one client" };
        let window = format!("{}{one}", format_span(self.window));
        let any = |of: fn(&Statistics) -> bool| self.limits.iter().any(|(_, statistics)| of(statistics));
        let mut rows = Vec::new();
        let mut row = |name: String, cell: fn(&Statistics) -> String| {
            rows.push((name, self.limits.iter().map(|(_, statistics)| cell(statistics)).collect()));
        };
        row("arrivals".to_owned(), |statistics| statistics.arrived.requests.to_string());
        row("granted".to_owned(), |statistics| statistics.share(statistics.granted));
        row("denied".to_owned(), |statistics| statistics.share(statistics.denied));
        if any(|statistics| statistics.never.requests > 0) {
            row("never possible".to_owned(), |statistics| statistics.share(statistics.never));
        }
        if any(|statistics| statistics.arrived.tokens > statistics.arrived.requests) {
            row("tokens asked for".to_owned(), |statistics| statistics.arrived.tokens.to_string());
            row("tokens granted".to_owned(), |statistics| statistics.granted.tokens.to_string());
        }
        if self.max_wait.is_some() {
            row("waited".to_owned(), |statistics| statistics.share(statistics.waited));
            row("mean wait".to_owned(), |statistics| times::span(statistics.mean_wait()));
            row("longest wait".to_owned(), |statistics| times::span(statistics.max_wait));
        }
        row(format!("most asked for in any {window}"), |statistics| statistics.max_requested.to_string());
        row(format!("most granted in any {window}"), |statistics| statistics.max_granted.to_string());
        row("longest time of denials only".to_owned(), |statistics| times::span(statistics.max_denied_span));
        rows
    }

    /// The number of clients, and the most denied clients.
    fn rows_of_clients(&self) -> Vec<(String, Vec<String>)> {
        if self.tallies.is_empty() {
            return Vec::new();
        }
        let row = |name: String, cell: &dyn Fn(&Vec<Tally>) -> String| (name, self.tallies.iter().map(cell).collect());
        let all = self.clients.len();
        let mut rows = vec![
            row("clients".to_owned(), &|_| all.to_string()),
            row("clients denied".to_owned(), &|tallies| share(clients::denied(tallies) as u64, all as u64)),
        ];
        rows.extend(clients::most_denied(self.clients, self.tallies).into_iter().map(|place| {
            let cell = |tallies: &Vec<Tally>| share(tallies[place].denied, tallies[place].arrived);
            row(format!("denied to {}", self.clients[place]), &cell)
        }));
        rows
    }
}

impl Statistics {
    /// A count, and its share of all requests.
    fn share(&self, of: Count) -> String {
        share(of.requests, self.arrived.requests)
    }
}

fn share(part: u64, of: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point")]
    let percent = part as f64 * 100.0 / of.max(1) as f64;
    format!("{part} ({percent:.1} %)")
}

/// Displays a span as it can be typed, to the millisecond: `1m 30s`.
pub(crate) fn format_span(span: Duration) -> String {
    let rounded = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    times::exact(if rounded.is_zero() { span } else { rounded })
}
