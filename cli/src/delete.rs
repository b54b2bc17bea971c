use std::process::ExitCode;

use tollgate::{Admin, Key, model::LimitName, store::Maintenance};

use crate::exit::CliError;
use crate::quota_args::{key, limit_name};
use crate::{each_key, limit_option, overrides};

/// Forget buckets and sliding windows
///
/// Later requests for a provisioned bucket fail. Requests with a quota or a plan create the bucket again, full. The override of a
/// key stays.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(required = true, value_name = "KEY", value_parser = key)]
    keys: Vec<Key>,
    /// One limit of the keys' plan [default: the first]
    #[arg(long, value_name = "NAME", value_parser = limit_name)]
    limit: Option<LimitName>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self, store: &(impl Admin + Maintenance)) -> anyhow::Result<ExitCode> {
        let keys = limit_option::buckets(store, self.keys, self.limit.as_ref()).await?;
        let deleted = each_key::for_each_key(&keys, self.json, "deleted", async |key| store.delete(key).await).await;
        // Also if some of the buckets do not exist.
        if deleted.as_ref().err().is_none_or(anyhow::Error::is::<CliError>) {
            for key in &keys {
                overrides::note_remaining(store, key).await?;
            }
        }
        deleted
    }
}
