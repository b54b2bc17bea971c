use std::process::ExitCode;

use tollgate::Store;

use crate::output::{counted, progress, say};

/// Clear away what says nothing any more, in short steps beside the requests
///
/// That is buckets made on first use that are full again, windows in which nothing counts, and receipts and overrides that
/// have expired. Limiters of the Rust crate do so by themselves. By hand it is an operator's: connect as tollgate_operator.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many rows each step looks at
    #[arg(long, value_name = "ROWS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    step: u32,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Store) -> anyhow::Result<ExitCode> {
        let bar = progress("looking");
        let (mut deleted, mut steps, mut after) = (0, 0_u64, None);
        loop {
            let swept = store.sweep(after.as_ref(), self.step).await?;
            deleted += swept.deleted;
            steps += 1;
            bar.set_message(format!(
                "{} deleted, {} rows looked at",
                counted(deleted, "row"),
                steps * u64::from(self.step)
            ));
            after = swept.next;
            if after.is_none() {
                break;
            }
        }
        bar.finish_and_clear();
        say(format!("{} deleted", counted(deleted, "row")))?;
        Ok(ExitCode::SUCCESS)
    }
}
