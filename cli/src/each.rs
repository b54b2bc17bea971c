//! Commands that act on each given bucket: `reset` and `delete`.

use std::process::ExitCode;

use tollgate::{Error, Key};

use crate::exit::CliError;
use crate::output::{plain, say};
use crate::quota_args::{distinct, key};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(required = true, value_name = "KEY", value_parser = key)]
    keys: Vec<Key>,
}

impl Args {
    /// Acts on each bucket and prints the result. Fails after the last bucket if one did not exist.
    pub(crate) async fn run(
        self,
        becomes: &str,
        act: impl AsyncFn(&Key) -> Result<bool, Error>,
    ) -> anyhow::Result<ExitCode> {
        distinct(&self.keys, "name each bucket once")?;
        let mut absent = Vec::new();
        for key in self.keys {
            if act(&key).await? {
                say(format!("{}: {becomes}", plain(key.as_str())))?;
            } else {
                absent.push(key);
            }
        }
        if absent.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(CliError::no_buckets(&absent, "`tollgate list` shows the existing buckets").into())
    }
}
