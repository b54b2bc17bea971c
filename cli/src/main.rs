//! The CLI `tollgate`: operates the buckets of a database from a shell.

mod answer;
mod apply;
mod blockers;
mod clock;
mod commands;
mod completions;
mod create;
mod database;
mod delete;
mod denied;
mod doctor;
mod each;
mod exit;
mod explain;
mod json_schema;
mod levels;
mod list;
mod man;
mod migrate;
mod mode;
mod next;
mod output;
mod overrides;
mod pages;
mod peek;
mod plan;
mod quota_args;
mod redact;
mod request;
mod reset;
mod run;
#[cfg(unix)]
mod sidecars;
mod signals;
mod simulate;
mod sweep;
mod take;
mod times;
mod url;
mod wait;
mod watch;
mod windows;

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match commands::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return exit::misused::<commands::Arguments>(&error),
    };
    match arguments.run().await {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<signals::EndingSignal>() {
            Some(ended) => ended.end(),
            None => exit::failed(&error),
        },
    }
}
