use std::process::ExitCode;

use serde_json::Value;
use tollgate::{Admin, Key};

use crate::exit::Refusal;
use crate::levels;
use crate::output::{operand, say, say_json};
use crate::terms::key;

/// Look at buckets without taking anything, and without a lock
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(required = true, value_parser = key)]
    keys: Vec<Key>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let (mut found, mut absent) = (Vec::new(), Vec::new());
        for key in self.keys {
            match store.peek(&key).await? {
                Some(level) => found.push(level),
                None => absent.push(key),
            }
        }
        if self.json {
            say_json(&Value::Array(found.iter().map(levels::json).collect()))?;
        } else if !found.is_empty() {
            say(levels::table(&found))?;
        }
        let Some(key) = absent.first() else { return Ok(ExitCode::SUCCESS) };
        let hint = format!("its first request may make it: see `tollgate explain {}`", operand(key.as_str()));
        Err(Refusal::no_buckets(&absent, hint).into())
    }
}
