//! Simulates limits under traffic. The library decides each request in memory, without a database and without waiting.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ArgGroup;
use tollgate::{Quota, Rule, Window, model::Refill};

use crate::exit::CliError;
use crate::{output, quota_args, times};

mod clients;
mod draw;
mod file;
#[cfg(test)]
mod gallery;
mod pattern;
mod report;
mod run;
mod statistics;
mod traffic;

use clients::Tally;
use file::TrafficOptions;
use pattern::Pattern;
pub(crate) use report::SimulationJson;
use report::SimulationReport;
use run::{Run, SimulatedLimit};
use statistics::Statistics;
use traffic::Traffic;

/// Simulate one or two limits under traffic, as a table and a picture
///
/// The library decides each request in memory, on a simulated clock. Needs no database, does not wait, and repeats the same
/// result. Windows aligned to the calendar follow the times in the traffic; a pattern begins at the start of one.
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag by itself")]
#[command(after_help = EXAMPLES, group = ArgGroup::new("source").required(true))]
pub(crate) struct Args {
    /// One limit, or two to compare: a quota such as '10/s burst 20', '1000 per calendar 1d' or '100 once', a sliding window
    /// such as '100 in 60s at 5s', or several limits of one key such as '10/s burst 20; day: 1000/day'
    #[arg(value_name = "LIMIT", required = true, num_args = 1..=2, value_parser = limit)]
    limits: Vec<Rule>,
    /// A file with one arrival per line, `-` for standard input: seconds or an RFC 3339 timestamp, then optionally a cost and
    /// a client. Also reads an access log in the common or combined format
    #[arg(long, value_name = "FILE", group = "source")]
    traffic: Option<PathBuf>,
    /// Limit each client by itself: the first field of an access log or the third column names the client
    #[arg(long, conflicts_with_all = ["pattern", "svg"])]
    by_client: bool,
    /// Skip invalid lines of the file, and print their number
    #[arg(long, conflicts_with = "pattern")]
    skip_unreadable: bool,
    /// Traffic as a pattern: 'steady:50/s', 'poisson:50/s', 'burst:20 every 5s', 'sine:50/s every 30s' (from nothing to twice
    /// the rate), 'on-off:50/s on 5s off 10s', or several with + between them
    #[arg(long, group = "source")]
    pattern: Option<Pattern>,
    /// How long the pattern lasts
    #[arg(long = "for", value_name = "SPAN", default_value = "60s", value_parser = times::parse)]
    #[arg(conflicts_with = "traffic")]
    duration: Duration,
    /// The seed of the pattern's random numbers
    #[arg(long, default_value_t = 1, conflicts_with = "traffic")]
    seed: u64,
    /// Let requests wait, at most this long; requests that would wait longer are denied at once
    #[arg(long, value_name = "SPAN", value_parser = times::parse)]
    max_wait: Option<Duration>,
    /// Create the bucket before the first request; fixed windows are then aligned to the start of the traffic instead of the
    /// calendar
    #[arg(long)]
    provisioned: bool,
    /// The length of the busiest window to show [default: the longest refill time of the limits]
    #[arg(long, value_name = "SPAN", value_parser = times::parse)]
    window: Option<Duration>,
    /// Draw arrivals, grants, denials and tokens over time into this file; `-`: to standard output instead of the table
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        if self.window.is_some_and(|window| window.is_zero()) {
            return Err(CliError::arguments("--window 0s holds nothing", "give it a length, such as 1m").into());
        }
        if self.provisioned && self.limits.iter().any(|rule| matches!(rule, Rule::Limits(_))) {
            let message = "--provisioned creates one bucket, and a key with several limits has several";
            return Err(CliError::arguments(message, "leave out --provisioned").into());
        }
        if self.json && self.svg.as_deref() == Some(Path::new("-")) {
            let message = "--json and --svg - both write to standard output";
            return Err(CliError::arguments(message, "draw into a file: --svg limits.svg").into());
        }
        let traffic = match (&self.traffic, &self.pattern) {
            (Some(file), _) => file::read(file, self.options()).map_err(|error| {
                let is_absent = error.is::<io::Error>();
                let hint = if is_absent { "name an existing file, or - for standard input" } else { file::FORMS };
                CliError::unreadable(format!("{error:#}"), hint)
            })?,
            (None, Some(_)) if !pattern::can_last(self.duration) => {
                let message = "a simulation must last longer than 0 s and less than a century";
                return Err(CliError::arguments(message, "give it a length, such as --for 5m").into());
            }
            (None, pattern) => pattern
                .as_ref()
                .context("give --traffic or --pattern")?
                .traffic(self.duration, self.seed)
                .map_err(|error| CliError::arguments(format!("{error:#}"), "give a lower rate or a shorter time"))?,
        };
        let window = self.window.unwrap_or_else(|| self.limits.iter().map(refill_time).max().unwrap_or(SECOND));
        let progress = output::progress(format!("{} arrivals", traffic.arrivals.len()));
        let SimulationOutcome { limits, tallies, mut runs } = self.outcome(&traffic, window).await?;
        let mut drawn = None;
        if let Some(file) = &self.svg {
            progress.set_message("drawing");
            drawn = Some((file, draw::svg(&traffic, &mut runs).await?));
        }
        progress.finish_and_clear();
        if let Some((file, svg)) = drawn {
            if file == Path::new("-") {
                output::say(svg.trim_end())?;
                return Ok(ExitCode::SUCCESS);
            }
            std::fs::write(file, svg).map_err(|error| {
                CliError::unwritable(
                    format!("cannot write {}: {error}", file.display()),
                    "name a file in an existing directory",
                )
            })?;
        }
        let length = Duration::from_nanos((traffic.end - traffic.begin).unsigned_abs());
        let report = SimulationReport {
            limits: &limits,
            length,
            window,
            max_wait: self.max_wait,
            skipped: traffic.skipped,
            clients: &traffic.clients,
            tallies: &tallies,
        };
        if self.json {
            output::say_json(&report.json())?;
        } else {
            output::say(report.table())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs the traffic against each limit.
    async fn outcome(&self, traffic: &Traffic, window: Duration) -> anyhow::Result<SimulationOutcome> {
        let mut outcome = SimulationOutcome::default();
        for rule in &self.limits {
            let run = self.limit(rule).run(traffic).await?;
            if self.by_client {
                outcome.tallies.push(clients::tallies(traffic.clients.len(), &run.requests));
                outcome.limits.push((text(rule), Statistics::per_client(run.requests, window)));
            } else {
                outcome.limits.push((text(rule), Statistics::of(&run.requests, window)));
                // Kept only for a picture, because each run is larger than the traffic.
                outcome.runs.extend(self.svg.is_some().then(|| (self.title(rule), run)));
            }
        }
        Ok(outcome)
    }

    fn options(&self) -> TrafficOptions {
        TrafficOptions { by_client: self.by_client, skip_unreadable: self.skip_unreadable }
    }

    fn limit(&self, rule: &Rule) -> SimulatedLimit {
        let max_wait = self.max_wait.unwrap_or_default();
        SimulatedLimit { rule: rule.clone(), provisioned: self.provisioned, max_wait }
    }

    fn title(&self, rule: &Rule) -> String {
        match self.max_wait {
            None => text(rule),
            Some(longest) => format!("{}, waiting for up to {}", text(rule), report::format_span(longest)),
        }
    }
}

/// The outcome of the traffic under each limit.
#[derive(Default)]
struct SimulationOutcome {
    limits: Vec<(String, Statistics)>,
    /// The counts of each client with `--by-client`, else empty.
    tallies: Vec<Vec<Tally>>,
    /// The runs to draw, with their titles. Empty without `--svg`.
    runs: Vec<(String, Run)>,
}

fn limit(text: &str) -> Result<Rule, CliError> {
    match quota_args::rule(text)? {
        Rule::Quota(quota) if quota == Quota::unlimited() => {
            Err(CliError::arguments("cannot simulate an unlimited quota", ""))
        }
        Rule::Limits(limits) if limits.iter().any(|limit| limit.get_cost().is_some()) => {
            Err(CliError::arguments("cannot simulate a named cost", "leave out 'cost NAME': each arrival has one cost"))
        }
        rule => Ok(rule),
    }
}

fn text(rule: &Rule) -> String {
    match rule {
        Rule::Quota(quota) => quota.to_string(),
        Rule::Window(window) => window.to_string(),
        Rule::Limits(limits) => limits.to_string(),
        _ => unreachable!("a text states limits"),
    }
}

fn refill_time(rule: &Rule) -> Duration {
    match rule {
        Rule::Quota(quota) if quota.refill() != Refill::Once => quota.refill_time(),
        Rule::Window(window) => Window::interval(window),
        Rule::Limits(limits) => limits.iter().map(|limit| refill_time(&limit.quota().into())).max().unwrap_or(SECOND),
        _ => SECOND,
    }
}

const SECOND: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  tollgate simulate '10/s burst 20' --pattern 'poisson:12/s' --for 5m
  tollgate simulate '10/s burst 50' --traffic access.log --by-client   # whom would it deny?
  tollgate simulate '100/m' '100 in 60s at 5s' --traffic access.log --svg limits.svg
  tollgate simulate '10/s' '10/s burst 20' --pattern 'on-off:30/s on 5s off 10s' --max-wait 2s";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test]
    async fn request_outcomes_are_kept_only_for_a_picture() {
        for (more, kept) in [(&[][..], 0), (&["--svg", "limits.svg"], 2)] {
            let words = ["simulate", "10/s", "20/s", "--pattern", "steady:5/s"].iter().chain(more);
            let args = Line::try_parse_from(words).expect("arguments").args;
            let traffic = args.pattern.as_ref().expect("a pattern").traffic(args.duration, args.seed).expect("traffic");
            let outcome = args.outcome(&traffic, SECOND).await.expect("an outcome");
            assert_eq!((outcome.limits.len(), outcome.runs.len()), (2, kept), "{more:?}");
        }
    }
}
