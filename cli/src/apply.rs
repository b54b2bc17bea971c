//! Applies a file of plans, buckets and overrides, entry by entry.

use std::path::PathBuf;
use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{SqlStore, store::Migrate};

use crate::clock;
use crate::doctor::Examine;
use crate::exit::{CHECK_FAILED, CliError};
use crate::output::{note, say, say_json};

mod change;
mod file;

use change::{Change, EntryJson, Status};
use file::Entry;

/// Apply a file of plans, buckets and overrides
///
/// Creates the entries that are missing, and changes those that differ, one after the other. Deletes nothing: entries that are not
/// in the file stay, and so do the fields that an entry leaves out. You can repeat it: then it changes nothing.
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag by itself")]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// A TOML file; `-`: standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the changes, and make none
    #[arg(long)]
    dry_run: bool,
    /// As --dry-run, with exit code 1 if the file differs from the database
    #[arg(long)]
    check: bool,
    /// Print the entries that stay unchanged, too
    #[arg(long, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[arg(skip)]
    entries: Vec<Entry>,
}

/// The entries of a file, and their effect.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ApplyJson<'a> {
    /// Whether `--dry-run` or `--check` was set, so that nothing was changed.
    dry_run: bool,
    /// The entries. If an entry fails, the ones before it.
    entries: Vec<EntryJson<'a>>,
}

impl Args {
    pub(crate) fn is_read_only(&self) -> bool {
        self.dry_run || self.check
    }

    /// Reads the whole file, so that an invalid entry stops the command before it connects.
    pub(crate) fn read(&mut self) -> Result<(), CliError> {
        self.entries = file::read(&self.file)?;
        Ok(())
    }

    pub(crate) async fn run<DB: Migrate + Examine>(self, store: &SqlStore<DB>) -> anyhow::Result<ExitCode> {
        let now = clock::now(store.pool()).await?;
        // Compares all entries first, so that a database that cannot be read stops the command before it writes.
        let mut changes = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            changes.push(Change::find(store, entry, now).await?);
        }
        for (done, entry) in self.entries.iter().enumerate() {
            if !self.is_read_only() {
                match Change::apply(store, entry, now).await {
                    Ok(change) => changes[done] = change,
                    Err(error) => {
                        note(&format!("stopped at {}: {}", changes[done], applied(done, changes.len())));
                        if self.json {
                            say_json(&self.report(&changes[..done]))?;
                        }
                        return Err(error);
                    }
                }
            }
            if !self.json && (self.verbose || changes[done].status != Status::Unchanged) {
                let printed = say(changes[done].line(self.is_read_only()));
                printed.inspect_err(|_| self.note_progress(done + 1))?;
            }
            if changes[done].provisions() {
                let what = "requests that name another quota or plan fail from now on";
                note(&format!("{} provisions the bucket: {what}", changes[done]));
            }
        }
        let printed = if self.json { say_json(&self.report(&changes)) } else { say(self.summary(&changes)) };
        printed.inspect_err(|_| self.note_progress(changes.len()))?;
        let differs = self.check && changes.iter().any(|change| change.status.writes());
        Ok(ExitCode::from(if differs { CHECK_FAILED } else { 0 }))
    }

    /// Prints how far the command came if its output cannot be written.
    fn note_progress(&self, done: usize) {
        if !self.is_read_only() {
            note(&applied(done, self.entries.len()));
        }
    }

    fn summary(&self, changes: &[Change]) -> String {
        let number = |status: Status| changes.iter().filter(|change| change.status == status).count();
        let parts = Status::ALL.into_iter().filter_map(|status| match number(status) {
            0 if status.is_rare() => None,
            number if self.is_read_only() && status.writes() => Some(format!("{number} to {}", status.planned())),
            number => Some(format!("{number} {}", status.name())),
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    fn report<'a>(&self, changes: &'a [Change]) -> ApplyJson<'a> {
        let dry_run = self.is_read_only();
        ApplyJson { dry_run, entries: changes.iter().map(|change| change.json(dry_run)).collect() }
    }
}

/// How far the command came, for a note above the error.
fn applied(done: usize, all: usize) -> String {
    format!("{done} of {all} entries are applied. You can repeat the command")
}

const HELP: &str = "\
A file, with every field that an entry can have:
  [plans.free]
  quota = \"10/s burst 20\"
  mode = \"shadow\"                  # optional: enforce, shadow, off or block

  [buckets.third-party-api]
  quota = \"2 per 1h\"

  [overrides.\"user:42\"]
  quota = \"1000/s\"                 # quota, mode, or both
  mode = \"enforce\"
  reason = \"ticket 7\"              # optional
  until = 2027-01-31T12:00:00Z     # optional

Examples:
  tollgate apply limits.toml --dry-run
  tollgate apply limits.toml
  tollgate apply limits.toml --check   # in a pipeline: has the database drifted from the file?";
