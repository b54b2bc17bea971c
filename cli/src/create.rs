use std::process::ExitCode;

use tollgate::{
    Admin, Key, Quota,
    admin::{BucketLevel, Explanation, Origin},
};

use crate::levels::BucketJson;
use crate::output::say_change;
use crate::quota_args::{QuotaArgs, key};
use crate::text::{operand, plain};

/// Provision a bucket, full
///
/// If the bucket exists, changes its limits and keeps its tokens.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tollgate create third-party-api --capacity 2 --per 1h\n  tollgate create uploads --quota '10/s burst 20'"
)]
pub(crate) struct Args {
    /// The key that requests name
    #[arg(value_name = "KEY", value_parser = key)]
    name: Key,
    #[command(flatten)]
    quota: QuotaArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let quota = self.quota.required()?;
        let (explanation, level) = (store.explain(&self.name, None).await?, store.peek(&self.name).await?);
        store.create_bucket(&self.name, quota).await?;
        let after = if self.json { store.peek(&self.name).await? } else { None };
        let change = (level.as_ref().map(BucketJson::from), after.as_ref().map(BucketJson::from));
        say_change(self.json, change, || {
            let changed =
                level.as_ref().map_or_else(String::new, |level| format!("; {}", changed(&explanation, level, quota)));
            let (name, take) = (plain(self.name.as_str()), operand(self.name.as_str()));
            format!("bucket {name}: {quota}{changed}\ntry it: tollgate take {}", plain(&take))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Describes what changed in a bucket that existed.
fn changed(explanation: &Explanation, level: &BucketLevel, quota: Quota) -> String {
    let cause = match (level.plan(), explanation.quota, explanation.quota_from) {
        (Some(plan), ..) => format!("it followed plan {}", plain(plan.as_str())),
        // `explain` reports the override's limits, and not the bucket's own.
        (None, Some(over), Some(Origin::Override)) => format!("an override still holds, {over}"),
        (None, Some(was), _) if was != quota => format!("it was {was}"),
        (None, ..) if !level.is_provisioned() => "its first request had made it".to_owned(),
        (None, ..) => return "unchanged".to_owned(),
    };
    format!("{cause}; it keeps its tokens")
}
