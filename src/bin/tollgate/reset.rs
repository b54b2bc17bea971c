use std::process::ExitCode;

use tollgate::{Admin, Key};

use crate::exit::Refusal;
use crate::output::{plain, say};
use crate::terms::key;

/// Make buckets full again, and forget what sliding windows have counted
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(required = true, value_parser = key)]
    keys: Vec<Key>,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let mut absent = Vec::new();
        for key in self.keys {
            if store.reset(&key).await? {
                say(format!("{}: full", plain(key.as_str())))?;
            } else {
                absent.push(key);
            }
        }
        if absent.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(Refusal::no_buckets(&absent, "`tollgate list` shows those that there are").into())
    }
}
