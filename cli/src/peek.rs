use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{Admin, Key, admin::Filter};

use crate::exit::CliError;
use crate::levels::BucketJson;
use crate::output::{say, say_json};
use crate::quota_args::{distinct, key};
use crate::text::operand;
use crate::windows::WindowJson;
use crate::{levels, windows};

/// Show buckets and sliding windows without taking tokens or locks
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(required = true, value_name = "KEY", value_parser = key)]
    keys: Vec<Key>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// A bucket or a sliding window.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum LevelJson {
    Bucket(BucketJson),
    Window(WindowJson),
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        distinct(&self.keys, "name each key once")?;
        let (mut buckets, mut sliding, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        for key in self.keys {
            // A bucket and a window can have the same key.
            let (bucket, window) = (store.peek(&key).await?, store.peek_window(&key).await?);
            if bucket.is_none() && window.is_none() {
                absent.push(key.clone());
            }
            // The buckets of further limits follow that of the key.
            let further = store.list(&Filter::default().prefix(key.clone()), Some(&key), MAX_LIMITS).await?;
            buckets.extend(bucket);
            buckets.extend(further.iter().filter(|level| level.key().without_limit() == key).cloned());
            sliding.extend(window);
        }
        if self.json {
            let buckets = buckets.iter().map(|level| LevelJson::Bucket(level.into()));
            let found = buckets.chain(sliding.iter().map(|level| LevelJson::Window(level.into())));
            say_json(&found.collect::<Vec<_>>())?;
        } else {
            if !buckets.is_empty() {
                say(levels::table(&buckets).fitted())?;
            }
            if !sliding.is_empty() {
                say(windows::table(&sliding).fitted())?;
            }
        }
        let Some(key) = absent.first() else { return Ok(ExitCode::SUCCESS) };
        let hint = format!("its first request may make it: see `tollgate explain {}`", operand(key.as_str()));
        Err(CliError::no_buckets(&absent, hint).into())
    }
}

/// How many limits a plan has at most.
const MAX_LIMITS: u32 = 16;
