//! One action on each of several buckets, as `delete` and `reset` do.

use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{Error, Key};

use crate::exit::CliError;
use crate::output::{say, say_json};
use crate::quota_args::distinct;
use crate::text::plain;

/// Whether a command found a key.
#[derive(Serialize, JsonSchema)]
pub(crate) struct FoundJson {
    /// The key that the command was given.
    key: String,
    /// Whether it has a bucket or a sliding window.
    found: bool,
}

/// Acts on each bucket and prints the outcome. Fails if a bucket does not exist, after it has acted on the others.
pub(crate) async fn for_each_key(
    keys: &[Key],
    as_json: bool,
    outcome: &str,
    action: impl AsyncFn(&Key) -> Result<bool, Error>,
) -> anyhow::Result<ExitCode> {
    distinct(keys, "name each bucket once")?;
    let (mut absent, mut found) = (Vec::new(), Vec::new());
    for key in keys {
        let is_found = action(key).await?;
        found.push(FoundJson { key: key.to_string(), found: is_found });
        if is_found && !as_json {
            say(format!("{}: {outcome}", plain(key.as_str())))?;
        } else if !is_found {
            absent.push(key.clone());
        }
    }
    if as_json {
        say_json(&found)?;
    }
    if absent.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::no_buckets(&absent, "`tollgate list` shows those that there are").into())
}
