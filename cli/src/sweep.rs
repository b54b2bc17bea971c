use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::store::Maintenance;

use crate::output::{progress, say, say_json};
use crate::text::counted;

/// Delete expired rows, in short steps that do not block requests
///
/// Deletes buckets that a first request created and that have been full for a minute, sliding windows that have been empty
/// for a minute, and expired receipts and overrides. Continues where the last sweep stopped. Does nothing while another session sweeps. Limiters of the Rust crate sweep by themselves,
/// in the same steps.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many rows each step reads
    #[arg(long, value_name = "ROWS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    step: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of a sweep.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SweepJson {
    /// The number of deleted rows.
    deleted: u64,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Maintenance) -> anyhow::Result<ExitCode> {
        let bar = progress("looking");
        let (mut deleted, mut steps) = (0, 0_u64);
        loop {
            let swept = store.sweep(self.step).await?;
            deleted += swept.deleted;
            steps += 1;
            bar.set_message(format!(
                "{} deleted, {} rows looked at",
                counted(deleted, "row"),
                steps * u64::from(self.step)
            ));
            if swept.finished {
                break;
            }
        }
        bar.finish_and_clear();
        if self.json {
            say_json(&SweepJson { deleted })?;
        } else {
            say(format!("{} deleted", counted(deleted, "row")))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
