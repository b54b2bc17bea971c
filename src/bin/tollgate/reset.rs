use std::process::ExitCode;

use tollgate::{Admin, Key};

use crate::exit;
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
        let mut absent = false;
        for key in &self.keys {
            let was_there = store.reset(key).await?;
            absent |= !was_there;
            say(format!("{}: {}", plain(key.as_str()), if was_there { "full" } else { "no such bucket" }))?;
        }
        Ok(ExitCode::from(if absent { exit::ABSENT } else { 0 }))
    }
}
