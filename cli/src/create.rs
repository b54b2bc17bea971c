use std::process::ExitCode;

use tollgate::{
    Admin, Key, Quota,
    admin::{BucketLevel, Explanation, Origin},
};

use crate::output::{operand, plain, say};
use crate::quota_args::{QuotaArgs, key};

/// Provision a bucket, full
///
/// For an existing bucket, changes its limit and keeps its tokens.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tollgate create third-party-api --capacity 2 --per 1h\n  tollgate create uploads --quota '10/s burst 20'"
)]
pub(crate) struct Args {
    /// The key of the bucket
    #[arg(value_name = "KEY", value_parser = key)]
    name: Key,
    #[command(flatten)]
    terms: QuotaArgs,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let quota = self.terms.required()?;
        let (why, level) = (store.explain(&self.name, None).await?, store.peek(&self.name).await?);
        store.create_bucket(&self.name, quota).await?;
        let changed = level.map_or_else(String::new, |level| format!("; {}", changed(&why, &level, quota)));
        let (name, take) = (plain(self.name.as_str()), operand(self.name.as_str()));
        say(format!("bucket {name}: {quota}{changed}\ntry it: tollgate take {}", plain(&take)))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Describes the change to an existing bucket.
fn changed(why: &Explanation, level: &BucketLevel, quota: Quota) -> String {
    let what = match (&level.plan, why.quota, why.quota_from) {
        (Some(plan), ..) => format!("it followed plan {}", plain(plan.as_str())),
        // The override hides the bucket's own limit.
        (None, Some(over), Some(Origin::Override)) => format!("an override still holds, {over}"),
        (None, Some(was), _) if was != quota => format!("it was {was}"),
        (None, ..) if !level.provisioned => "its first request had made it".to_owned(),
        (None, ..) => return "unchanged".to_owned(),
    };
    format!("{what}; it keeps its tokens")
}
