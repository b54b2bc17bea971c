use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{Admin, admin::DenialCount, model::LimitName};

use crate::output::{Cell, Column, Table, say, say_json, width_to_fit};
use crate::paging::Skipped;
use crate::quota_args::limit_name;
use crate::text::wrapped;
use crate::times;

/// List the most denied keys of the last 24 hours
///
/// Covers the services that count denials with `LimiterBuilder::count_denials`. In shadow mode, requests that the limit would
/// deny count as denied. `tollgate explain` shows the mode.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The maximum number of keys; 0: all
    #[arg(long, value_name = "KEYS", default_value_t = 20)]
    top: u32,
    /// Only denials by this limit of keys with several limits, other than their first
    #[arg(long, value_name = "NAME", value_parser = limit_name)]
    limit: Option<LimitName>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let skipped = Skipped::default();
        let top = if self.top == 0 { u32::MAX } else { self.top };
        let read = if self.limit.is_some() { u32::MAX } else { top };
        let mut most = skipped.rows(store.most_denied(read).await?);
        if let Some(limit) = &self.limit {
            most.retain(|denials| {
                denials.key.as_str().split_once('\u{1}').is_some_and(|(_, name)| name == limit.as_str())
            });
            most.truncate(top as usize);
        }
        skipped.warn();
        if self.json {
            say_json(&most.iter().map(DenialJson::from).collect::<Vec<_>>())?;
        } else if most.is_empty() {
            let none = "no denials are counted; services count them with LimiterBuilder::count_denials";
            say(wrapped(none, width_to_fit(false), 0))?;
        } else {
            let columns = [Column::Left("key"), Column::Right("denied"), Column::Left("last")];
            let mut table = Table::new(columns);
            for denials in &most {
                let (denied, last) = (denials.denied.to_string(), times::instant(denials.last_denied_at));
                table.row([Cell::from(denials.key.as_str()), Cell::from(denied), Cell::from(last)]);
            }
            say(table.fitted())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The denials of a key.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DenialJson {
    /// The denied key.
    key: String,
    /// The denials in the last 24 hours, as far as services count them.
    denied: u64,
    /// The time of the last report by a service.
    #[schemars(extend("format" = "date-time"))]
    last_denied_at: Option<String>,
}

impl From<&DenialCount> for DenialJson {
    fn from(denials: &DenialCount) -> Self {
        Self {
            key: denials.key.to_string(),
            denied: denials.denied,
            last_denied_at: times::timestamp(Some(denials.last_denied_at)),
        }
    }
}
