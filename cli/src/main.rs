//! The CLI `tollgate`: operates the buckets of a database from a shell.

mod apply;
mod blockers;
mod charge;
mod clock;
mod command_effect;
mod commands;
mod completions;
mod create;
mod database;
mod delete;
mod denied;
mod doctor;
mod each_key;
mod exit;
mod explain;
mod failure;
mod json_schema;
mod levels;
mod limit_option;
mod list;
mod lock_timeout;
mod man;
mod migrate;
mod mode;
mod modes;
mod next_steps;
mod output;
mod overrides;
mod paging;
mod peek;
mod plan;
mod quota_args;
mod redact;
mod request;
mod reset;
mod run;
#[cfg(all(feature = "serve", unix))]
mod serve;
#[cfg(unix)]
mod sidecars;
mod signals;
mod simulate;
mod sweep;
mod take;
mod text;
mod times;
mod url;
mod usage;
mod usage_error;
mod wait;
mod watch;
mod windows;

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match commands::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage_error::report_usage::<commands::Arguments>(&error),
    };
    match arguments.run().await {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<signals::EndingSignal>() {
            Some(ended) => ended.end(),
            None => failure::report(&error),
        },
    }
}
