use std::process::ExitCode;

use tollgate::{Admin, Key};

use crate::exit::CliError;
use crate::quota_args::key;
use crate::{each_key, overrides};

/// Forget buckets and sliding windows
///
/// Later requests for a provisioned bucket fail. Requests with a quota or a plan create the bucket again, full. The override of a
/// key stays.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(required = true, value_name = "KEY", value_parser = key)]
    keys: Vec<Key>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let deleted =
            each_key::for_each_key(&self.keys, self.json, "deleted", async |key| store.delete(key).await).await;
        // Also if some of the buckets do not exist.
        if deleted.as_ref().err().is_none_or(anyhow::Error::is::<CliError>) {
            for key in &self.keys {
                overrides::note_remaining(store, key).await?;
            }
        }
        deleted
    }
}
