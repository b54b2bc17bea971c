//! Shows the buckets on a live screen, or reads them once and prints a table.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use tollgate::{Admin, Key};

use crate::exit::CliError;
use crate::quota_args::prefix;
use crate::{output, paging, text, times};

pub(crate) mod board;
mod columns;
mod denials;
mod keys;
pub(crate) mod order;
mod plain_table;
pub(crate) mod reader;
pub(crate) mod row;
mod scan;
mod screen;
mod snapshot;
mod terminal;

use board::Board;
use order::WatchOrder;
use reader::BoardReader;

/// Show the buckets live: the hottest, emptiest or most denied, grants and denials per second, a sparkline of each
///
/// Each interval, reads at most --limit buckets in pages, and about two hundred that are on the screen. So ten million keys
/// cost the database no more than ten thousand. Beyond --limit, watch cycles through the buckets: a million take some minutes,
/// unless --prefix selects fewer. The fifty first buckets stay on the screen. Nothing is locked or written. Sliding windows are
/// not shown: see `list --windows`.
///
/// --once reads all buckets in pages, and prints the first of the order.
///
/// Grants per second come from the buckets' counts of granted tokens. Tokens that leases prefetch count as granted, and a reset
/// counts as a grant of the capacity.
///
/// Denials appear if services count them (`LimiterBuilder::count_denials`). Watch reads the thousand most-denied keys. Services
/// report every ten seconds, so denials per second cover the last 30 seconds.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Args {
    /// Only show keys that start with PREFIX
    #[arg(long, value_parser = prefix)]
    prefix: Option<Key>,
    /// The time between two reads
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = times::parse)]
    interval: Duration,
    /// How many buckets are read at once at most, and printed by --once
    #[arg(long, value_name = "BUCKETS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// The order of the buckets
    #[arg(long, value_enum, default_value_t)]
    sort: WatchOrder,
    /// Read once and print a table; the default if the output is not a terminal
    #[arg(long)]
    once: bool,
}

impl Args {
    pub(crate) async fn run<S: Admin>(self, store: S, database: String) -> anyhow::Result<ExitCode> {
        if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&self.interval) {
            let message = format!("out of range: --interval {}", times::span(self.interval));
            return Err(CliError::arguments(message, "give a time from 100ms to 1h").into());
        }
        let prefix = self.prefix.clone();
        let mut reader = BoardReader::new(store, self.prefix, self.limit);
        let mut board = Board::new(self.sort);
        board.database = database;
        if let Some(prefix) = &prefix {
            board.empty_text = format!("no bucket's key begins with '{}'", text::plain(prefix.as_str()));
        }
        if self.once || !std::io::stdout().is_terminal() {
            board.max_rows = self.limit as usize;
            let bar = output::progress("reading");
            let read_all =
                reader.read_all(self.sort, |read| bar.set_message(text::counted(read as u64, "bucket"))).await;
            bar.finish_and_clear();
            board.apply(read_all?);
            output::say(plain_table::table(&board, output::width_to_fit(false)))?;
            paging::warn_unreadable(board.unreadable);
            return Ok(ExitCode::SUCCESS);
        }
        // Reads before the screen opens, so that an error is printed as by other commands.
        board.apply(reader.read(&[]).await?);
        terminal::live(board, reader, self.interval).await
    }
}

const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

const KEYS: &str = "\
Keys:
  s            the next order      h, e, d, k   hottest, emptiest, most denied, by key
  /            type a filter: keys that contain it; Enter keeps it, Esc drops it
  Esc          clear the filter; quit if there is none
  p or space   pause, without reads
  arrows, Page Up, Page Down, Home   scroll
  q or Ctrl-C  quit";
