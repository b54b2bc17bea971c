//! What happens in the buckets, while it happens: a live screen, or one look as a table.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use tollgate::{Admin, Key};

use crate::exit::CliError;
use crate::quota_args::key;
use crate::{output, times};

mod board;
mod columns;
mod denials;
mod keys;
mod look;
mod once;
mod order;
mod screen;
mod terminal;
mod tour;

use board::Board;
use look::BoardReader;
use order::WatchOrder;

/// Show the buckets live: the hottest, emptiest or most denied, grants and denials per second, a sparkline of each
///
/// It reads the buckets in pages, in the order of their keys, and no more than --limit of them at each look, and some two hundred that are shown: a table of
/// ten million keys costs the database no more than one of ten thousand. Beyond that, they are read in turn, each twice: half
/// of --limit at a look, so a million of them take some minutes, or choose by --prefix. The fifty that come first stay on the
/// screen, and are read at each look. Nothing is locked or written. Sliding windows are not shown: see `list --windows`.
///
/// --once reads all of them, in pages, and prints those that come first.
///
/// Grants per second are what a bucket's count of granted tokens grew by from one look to the next; tokens taken ahead by
/// leases are granted when they are taken, and a reset counts as a grant of the capacity.
///
/// Denials write nothing: they are shown as far as services count them (`LimiterBuilder::count_denials`), of the thousand
/// keys that were denied most. Services tell every ten seconds, so denials per second are those of the last 30 seconds.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Args {
    /// Only buckets whose key begins so; read by the key's index
    #[arg(long, value_parser = key)]
    prefix: Option<Key>,
    /// The time between two looks
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = times::parse)]
    interval: Duration,
    /// How many buckets each look reads at most, and --once prints
    #[arg(long, value_name = "BUCKETS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Which buckets come first
    #[arg(long, value_enum, default_value_t)]
    sort: WatchOrder,
    /// Print one look as a table, and end; so it does where there is no terminal
    #[arg(long)]
    once: bool,
}

impl Args {
    pub(crate) async fn run<S: Admin>(self, store: S) -> anyhow::Result<ExitCode> {
        if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&self.interval) {
            let message = format!("--interval {} is too short or too long", times::span(self.interval));
            return Err(CliError::arguments(message, "give a time from 100ms to 1h").into());
        }
        let mut reader = BoardReader::new(store, self.prefix, self.limit);
        let mut board = Board::new(self.sort);
        if self.once || !std::io::stdout().is_terminal() {
            board.most = self.limit as usize;
            let bar = output::progress("reading");
            let look = reader.survey(self.sort, |read| bar.set_message(output::counted(read as u64, "bucket"))).await;
            bar.finish_and_clear();
            board.see(look?);
            output::say(once::table(&board))?;
            output::warn_unreadable(board.unreadable);
            return Ok(ExitCode::SUCCESS);
        }
        // Before the screen is taken: what fails here is told as by any other command.
        board.see(reader.look(&[]).await?);
        terminal::live(board, reader, self.interval).await
    }
}

const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

const KEYS: &str = "\
Keys:
  s            the next order      h, e, d, k   hottest, emptiest, most denied, by key
  /            type a filter: keys that contain it; Enter keeps it, Esc drops it
  p or space   pause: nothing is read meanwhile
  arrows, Page Up, Page Down, Home   scroll
  q, Esc or Ctrl-C   quit";
