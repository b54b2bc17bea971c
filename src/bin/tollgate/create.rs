use std::process::ExitCode;

use tollgate::{Admin, Key};

use crate::output::{operand, plain, say};
use crate::terms::{Terms, key};

/// Provision a bucket, full
///
/// Again with other terms, it changes them, and keeps the tokens that are there.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tollgate create third-party-api --capacity 2 --per 1h\n  tollgate create uploads --quota '10/s burst 20'"
)]
pub(crate) struct Args {
    /// What requests call it
    #[arg(value_parser = key)]
    name: Key,
    #[command(flatten)]
    terms: Terms,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let quota = self.terms.required()?;
        store.create_bucket(&self.name, quota).await?;
        let (name, take) = (plain(self.name.as_str()), operand(self.name.as_str()));
        say(format!("bucket {name}: {quota}\ntry it: tollgate take {}", plain(&take)))?;
        Ok(ExitCode::SUCCESS)
    }
}
