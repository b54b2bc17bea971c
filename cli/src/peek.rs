use std::process::ExitCode;

use serde_json::Value;
use tollgate::{Admin, Key};

use crate::exit::CliError;
use crate::output::{operand, say, say_json};
use crate::quota_args::{distinct, key};
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

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        distinct(&self.keys, "name each key once")?;
        let (mut buckets, mut sliding, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        for key in self.keys {
            // A bucket and a window can have the same key.
            let (bucket, window) = (store.peek(&key).await?, store.peek_window(&key).await?);
            if bucket.is_none() && window.is_none() {
                absent.push(key);
            }
            buckets.extend(bucket);
            sliding.extend(window);
        }
        if self.json {
            let found = buckets.iter().map(levels::json).chain(sliding.iter().map(windows::json));
            say_json(&Value::Array(found.collect()))?;
        } else {
            if !buckets.is_empty() {
                say(levels::table(&buckets).render())?;
            }
            if !sliding.is_empty() {
                say(windows::table(&sliding).render())?;
            }
        }
        let Some(key) = absent.first() else { return Ok(ExitCode::SUCCESS) };
        let hint = format!("its first request may make it: see `tollgate explain {}`", operand(key.as_str()));
        Err(CliError::no_buckets(&absent, hint).into())
    }
}
