use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::exit::CliError;

/// Write a man page for each command into a directory
#[derive(clap::Args)]
#[command(after_help = "Example: tollgate man /usr/local/share/man/man1")]
pub(crate) struct Args {
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Args {
    pub(crate) fn run<C: CommandFactory>(self) -> anyhow::Result<ExitCode> {
        let written = std::fs::create_dir_all(&self.directory)
            .and_then(|()| clap_mangen::generate_to(C::command(), &self.directory));
        written.map_err(|error| {
            let message = format!("cannot write man pages into {}: {error}", self.directory.display());
            CliError::unwritable(message, "name a directory that you can write")
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
