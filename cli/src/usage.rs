use std::process::ExitCode;
use std::time::Duration;

use chrono::{DateTime, Datelike as _, NaiveDate, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Error, Key,
    admin::{Usage, UsageFilter, UsagePeriod, UsageRecording},
    store::Maintenance,
};

use crate::exit::CliError;
use crate::output::{Cell, Column, Table, note, say, say_json, width_to_fit};
use crate::paging::PAGE;
use crate::quota_args::key;
use crate::text::{counted, wrapped};
use crate::times;

mod above;

use above::{QuotaUseJson, Share};

/// Show the tokens that each key used in a month, or the keys that have used most of their quota
///
/// Usage is recorded after `tollgate usage on`, at no cost of a request. Limiters of the Rust crate record it in the background;
/// without one, run `tollgate usage record` every minute. `--above` needs no recording.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate usage on --every 1day          # from now on, by day\n\
\x20 tollgate usage --month 2026-11 --csv    # all keys, for invoices\n\
\x20 tollgate usage --key customer:42\n\
\x20 tollgate usage --above 80%              # whose day, week, month or year is nearly used up")]
pub(crate) struct Args {
    /// Records usage from now on, or no more, or records the period that has ended
    #[arg(value_enum)]
    action: Option<Action>,
    /// With `on`: the length of the periods, 1h or 1day, in UTC [default: as before, or 1h]
    #[arg(long, value_name = "SPAN", value_parser = period, requires = "action")]
    every: Option<UsagePeriod>,
    /// With `on`: how long each period is kept, in days [default: as before, or 400d]
    #[arg(long, value_name = "SPAN", value_parser = days, requires = "action")]
    keep: Option<u32>,
    /// Only this key, with the further limits of its plan
    #[arg(long, value_name = "KEY", value_parser = key, conflicts_with = "action")]
    key: Option<Key>,
    /// Only usage under this plan
    #[arg(long, value_name = "NAME", value_parser = key, conflicts_with = "action")]
    plan: Option<Key>,
    /// The month in UTC, such as 2026-11 [default: the current one]
    #[arg(long, value_name = "MONTH", value_parser = month, conflicts_with_all = ["action", "above"])]
    month: Option<NaiveDate>,
    /// The keys that have used at least this part of their calendar quota, such as 80%
    #[arg(long, value_name = "PERCENT", value_parser = Share::parse, conflicts_with = "action")]
    above: Option<Share>,
    /// How many at most, those that used most first; 0: all [default: 20; with --json and --csv all]
    #[arg(long, value_name = "ROWS", conflicts_with = "action")]
    top: Option<usize>,
    /// Print a JSON array
    #[arg(long, conflicts_with = "action")]
    json: bool,
    /// Print comma-separated values, with a header
    #[arg(long, conflicts_with_all = ["action", "json"])]
    csv: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Action {
    /// Records usage from now on
    On,
    /// Records usage no more, and keeps what was recorded
    Off,
    /// Records the period that has ended, if it is not recorded yet
    Record,
}

impl Args {
    pub(crate) fn is_read_only(&self) -> bool {
        self.action.is_none()
    }

    pub(crate) async fn run(self, store: &(impl Admin + Maintenance)) -> anyhow::Result<ExitCode> {
        if (self.every.is_some() || self.keep.is_some()) && !matches!(self.action, Some(Action::On)) {
            let message = "only `usage on` takes a period or a retention";
            return Err(CliError::arguments(message, "leave out --every and --keep").into());
        }
        match self.action {
            Some(Action::On) => {
                let before = store.usage_recording().await?;
                let every = self.every.or_else(|| before.map(|before| before.period)).unwrap_or(UsagePeriod::Hour);
                let recording = UsageRecording::new(every);
                let keep = self.keep.or_else(|| before.map(|before| before.keep_days)).unwrap_or(recording.keep_days);
                store.set_usage_recording(Some(recording.keep_days(keep))).await?;
                // The first round only begins to count.
                record(store).await?;
                let every = if every == UsagePeriod::Hour { "hour" } else { "day" };
                say(format!("usage is recorded by {every}, and kept for {}", counted(keep, "day")))?;
            }
            Some(Action::Off) => {
                store.set_usage_recording(None).await?;
                record(store).await?;
                say("usage is not recorded any more")?;
            }
            Some(Action::Record) => say(format!("{} recorded", counted(record(store).await?, "bucket")))?,
            None => self.list(store).await?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn list(&self, store: &impl Admin) -> anyhow::Result<()> {
        if let Some(share) = self.above {
            return self.say_rows(&above::rows(store, self.key.as_ref(), self.plan.as_ref(), share).await?);
        }
        let first = self.month.unwrap_or_else(|| first_of_month(Utc::now().date_naive()));
        let mut filter = UsageFilter::between(midnight(first), midnight(next_month(first)));
        filter = self.key.iter().cloned().fold(filter, UsageFilter::key);
        filter = self.plan.iter().cloned().fold(filter, UsageFilter::plan);
        let mut all: Vec<Usage> = Vec::new();
        loop {
            let page = store.usage(&filter, all.last().map(|usage| &usage.key), PAGE).await?;
            if page.is_empty() {
                break;
            }
            all.extend(page);
        }
        all.sort_by(|one, other| other.used().cmp(&one.used()).then_with(|| one.key.cmp(&other.key)));
        if store.usage_recording().await?.is_none() {
            note("usage is not recorded: `tollgate usage on` begins");
        }
        self.say_rows(&all.iter().map(UsageJson::from).collect::<Vec<_>>())
    }

    /// Prints rows as JSON, as CSV or as a table.
    fn say_rows<R: Row>(&self, rows: &[R]) -> anyhow::Result<()> {
        let default = if self.json || self.csv { 0 } else { 20 };
        let top = Some(self.top.unwrap_or(default)).filter(|top| *top > 0).unwrap_or(usize::MAX);
        let shown = &rows[..rows.len().min(top)];
        if self.json {
            say_json(&shown)?;
        } else if self.csv {
            let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
            csv.write_record(R::CSV)?;
            shown.iter().try_for_each(|row| csv.serialize(row))?;
            say(String::from_utf8(csv.into_inner()?)?.trim_end())?;
        } else if rows.is_empty() {
            say(wrapped(R::NONE, width_to_fit(false), 0))?;
        } else {
            say(R::table(shown))?;
            if rows.len() > shown.len() {
                say(format!("… and {} more: `--top 0` lists all", rows.len() - shown.len()))?;
            }
        }
        Ok(())
    }
}

/// The usage of keys, or with --above the keys that have used a part of their quota.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum UsageOutputJson {
    Usage(Vec<UsageJson>),
    /// With --above.
    Above(Vec<QuotaUseJson>),
}

/// A row of the output.
trait Row: Serialize {
    /// The header of comma-separated values.
    const CSV: &'static [&'static str];
    /// The message if there are no rows.
    const NONE: &'static str;

    fn table(rows: &[Self]) -> String
    where
        Self: Sized;
}

/// Records until the end, and returns how many buckets.
async fn record(store: &impl Maintenance) -> Result<u64, Error> {
    let mut buckets = 0;
    loop {
        let recorded = store.record_usage(PAGE).await?;
        buckets += recorded.buckets;
        if recorded.finished {
            return Ok(buckets);
        }
    }
}

/// The tokens that a key used under a plan.
#[derive(Serialize, JsonSchema)]
pub(crate) struct UsageJson {
    /// The key.
    key: String,
    /// The further limit of its plan. Null: the bucket with the key's own id.
    limit: Option<String>,
    /// The plan. Null: none.
    plan: Option<String>,
    /// The tokens that requests took.
    granted: u64,
    /// The tokens that were charged, or settled in addition.
    charged: u64,
    /// The tokens that were given back.
    refunded: u64,
    /// The tokens that were used: granted and charged, without those that were given back.
    used: i64,
    /// The denied requests, as far as services count them.
    denied: u64,
}

impl From<&Usage> for UsageJson {
    fn from(usage: &Usage) -> Self {
        Self {
            key: usage.key.without_limit().to_string(),
            limit: usage.key.limit_name().map(str::to_owned),
            plan: usage.plan.as_ref().map(ToString::to_string),
            granted: usage.granted,
            charged: usage.charged,
            refunded: usage.refunded,
            used: usage.used(),
            denied: usage.denied,
        }
    }
}

impl Row for UsageJson {
    const CSV: &'static [&'static str] = &["key", "limit", "plan", "granted", "charged", "refunded", "used", "denied"];
    const NONE: &'static str = "no usage is recorded for this month";

    fn table(rows: &[Self]) -> String {
        let columns = [
            Column::Left("key"),
            Column::Left("limit"),
            Column::Left("plan"),
            Column::Right("used"),
            Column::Right("granted"),
            Column::Right("charged"),
            Column::Right("refunded"),
            Column::Right("denied"),
        ];
        let mut table = Table::new(columns).drops(&["denied", "refunded", "charged", "granted", "limit"]);
        for row in rows {
            let numbers = [row.granted, row.charged, row.refunded, row.denied].map(|number| number.to_string());
            let [granted, charged, refunded, denied] = numbers.map(Cell::from);
            table.row([
                Cell::from(row.key.as_str()),
                Cell::from(row.limit.as_deref().unwrap_or("-")),
                Cell::from(row.plan.as_deref().unwrap_or("-")),
                Cell::from(row.used.to_string()),
                granted,
                charged,
                refunded,
                denied,
            ]);
        }
        table.fitted()
    }
}

/// Reads `1h` or `1day`.
fn period(text: &str) -> Result<UsagePeriod, CliError> {
    match times::parse(text) {
        Ok(span) if span == Duration::from_hours(1) => Ok(UsagePeriod::Hour),
        Ok(span) if span == Duration::from_hours(24) => Ok(UsagePeriod::Day),
        _ => Err(CliError::arguments("not a period of usage", "give 1h or 1day")),
    }
}

/// Reads a span in whole days.
fn days(text: &str) -> Result<u32, CliError> {
    let span = times::parse(text).ok().filter(|span| span.as_nanos() % DAY.as_nanos() == 0);
    let days = span.map(|span| span.as_secs() / DAY.as_secs()).filter(|days| (1..=36_525).contains(days));
    let wrong = || CliError::arguments("not a number of days", "give 1d to 36525d, such as 400d");
    days.and_then(|days| u32::try_from(days).ok()).ok_or_else(wrong)
}

const DAY: Duration = Duration::from_hours(24);

/// Reads `2026-11`, as the first day of the month.
fn month(text: &str) -> Result<NaiveDate, CliError> {
    let first = NaiveDate::parse_from_str(&format!("{text}-01"), "%Y-%m-%d").ok();
    let wrong = || CliError::arguments("not a month", "write the year and the month: 2026-11");
    first.filter(|first| (1970..=9998).contains(&first.year()) && text.len() == 7).ok_or_else(wrong)
}

fn first_of_month(day: NaiveDate) -> NaiveDate {
    day.with_day(1).expect("each month has a first day")
}

fn next_month(first: NaiveDate) -> NaiveDate {
    first.checked_add_months(chrono::Months::new(1)).expect("before the year 10000")
}

fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(chrono::NaiveTime::MIN).and_utc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_periods_and_days_are_read() {
        assert_eq!(month("2026-12").map(next_month).ok(), NaiveDate::from_ymd_opt(2027, 1, 1));
        for wrong in ["2026", "2026-13", "2026-1", "26-01", "2026-11-02", "", "9999-01"] {
            assert!(month(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            ["1h", "1day", "24h"].map(|text| period(text).ok()),
            [UsagePeriod::Hour, UsagePeriod::Day, UsagePeriod::Day].map(Some)
        );
        assert!(period("2h").is_err() && period("hour").is_err());
        assert_eq!((days("400d").ok(), days("48h").ok()), (Some(400), Some(2)));
        assert!(days("0d").is_err() && days("36h").is_err() && days("40000d").is_err());
    }
}
