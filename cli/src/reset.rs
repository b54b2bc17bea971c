use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{Admin, Error, Key, admin::Filter, model::LimitName, store::Maintenance};

use crate::exit::CliError;
use crate::output::{progress, say, say_json};
use crate::paging::{PAGE, Skipped};
use crate::quota_args::{key, limit_name, prefix};
use crate::text::{counted, quoted};
use crate::{each_key, limit_option};

/// Fill buckets, and forget the requests that sliding windows have counted
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate reset user:42\n\
\x20 tollgate reset user:42 --limit month\n\
\x20 tollgate reset --prefix user: --dry-run   # how many it would reset\n\
\x20 tollgate reset --prefix user: --force")]
pub(crate) struct Args {
    #[arg(required_unless_present = "prefix", conflicts_with = "prefix", value_name = "KEY", value_parser = key)]
    keys: Vec<Key>,
    /// One limit of the keys' plan [default: the first]
    #[arg(long, value_name = "NAME", value_parser = limit_name, conflicts_with = "prefix")]
    limit: Option<LimitName>,
    /// Reset every bucket and sliding window whose key starts with PREFIX; needs --force
    #[arg(long, value_parser = prefix)]
    prefix: Option<Key>,
    /// Print how many buckets and windows --prefix selects, and change nothing
    #[arg(long, requires = "prefix", conflicts_with_all = ["force", "keys"])]
    dry_run: bool,
    /// Reset all that --prefix selects
    #[arg(long, requires = "prefix", conflicts_with = "keys")]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn is_read_only(&self) -> bool {
        self.dry_run
    }

    pub(crate) async fn run(self, store: &(impl Admin + Maintenance)) -> anyhow::Result<ExitCode> {
        let Some(prefix) = &self.prefix else {
            let keys = limit_option::buckets(store, self.keys, self.limit.as_ref()).await?;
            return each_key::for_each_key(&keys, self.json, "full", async |key| store.reset(key).await).await;
        };
        let selected = if self.force {
            Selection::of(store, prefix, async |key| store.reset(key).await.map(drop)).await?
        } else {
            Selection::of(store, prefix, async |_| Ok(())).await?
        };
        if !self.force && !self.dry_run && !selected.is_empty() {
            let message = format!("{selected} not reset: --prefix {}", quoted(prefix.as_str()));
            return Err(CliError::arguments(message, "add --force to reset them, or --dry-run to count only").into());
        }
        if self.json {
            let Selection { buckets, windows } = selected;
            say_json(&PrefixResetJson { buckets, windows, dry_run: self.dry_run })?;
        } else if !selected.is_empty() {
            say(format!("{selected} {}", if self.dry_run { "would be reset" } else { "reset" }))?;
        }
        if selected.is_empty() {
            let message = format!("no bucket or sliding window has the prefix: {}", quoted(prefix.as_str()));
            let hint = "`tollgate list` and `tollgate list --windows` show the keys";
            return Err(CliError::absent(message, hint).into());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The result of `reset --prefix`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PrefixResetJson {
    /// The number of buckets whose key has the prefix.
    buckets: u64,
    /// The number of sliding windows whose key has the prefix.
    windows: u64,
    /// Whether `--dry-run` was set, so that nothing was reset.
    dry_run: bool,
}

/// The results of `reset`: for each key, or for a prefix.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ResetJson {
    Keys(Vec<each_key::FoundJson>),
    Prefix(PrefixResetJson),
}

/// How many buckets and sliding windows have a prefix.
struct Selection {
    buckets: u64,
    windows: u64,
}

impl Selection {
    fn is_empty(&self) -> bool {
        self.buckets == 0 && self.windows == 0
    }

    /// Counts the buckets and windows page by page, and acts on each key.
    async fn of(
        store: &impl Admin,
        prefix: &Key,
        act: impl AsyncFn(&Key) -> Result<(), Error>,
    ) -> anyhow::Result<Self> {
        let (bar, skipped) = (progress("reading"), Skipped::default());
        let filter = Filter::default().prefix(prefix.clone());
        let page = async |after: Option<&Key>| {
            let levels = skipped.rows(store.list(&filter, after, PAGE).await?);
            Ok(levels.iter().map(|level| level.key().clone()).collect())
        };
        let buckets = each_page(page, &act, |found| bar.set_message(counted(found, "bucket"))).await?;
        let page = async |after: Option<&Key>| {
            let levels = skipped.rows(store.windows(Some(prefix), after, PAGE).await?);
            Ok(levels.iter().map(|level| level.key().clone()).collect())
        };
        let windows = each_page(page, &act, |found| bar.set_message(counted(found, "sliding window"))).await?;
        bar.finish_and_clear();
        skipped.warn();
        Ok(Self { buckets, windows })
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} and {}", counted(self.buckets, "bucket"), counted(self.windows, "sliding window"))
    }
}

/// Acts on each key of the pages, and returns their number.
async fn each_page(
    page: impl AsyncFn(Option<&Key>) -> Result<Vec<Key>, Error>,
    act: &impl AsyncFn(&Key) -> Result<(), Error>,
    counted: impl Fn(u64),
) -> Result<u64, Error> {
    let (mut last, mut found) = (None, 0);
    loop {
        let keys = page(last.as_ref()).await?;
        for key in &keys {
            act(key).await?;
            found += 1;
        }
        counted(found);
        if keys.len() < PAGE as usize {
            return Ok(found);
        }
        last = keys.into_iter().next_back();
    }
}
