//! The live screen: looks, keys and signals go to the board, and the board to the terminal.

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tollgate::{Admin, Error, Key};

use super::board::Board;
use super::reader::BoardReader;
use super::screen;
use super::snapshot::Snapshot;
use crate::command_effect::CommandEffect;
use crate::exit::CliError;
use crate::signals::Signals;
use crate::{exit, failure};

/// Shows the board until a key or a signal ends it. The terminal is as it was before, however that comes about.
pub(crate) async fn live<S: Admin>(
    mut board: Board,
    mut reader: BoardReader<S>,
    every: Duration,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let (snapshots, mut received) = mpsc::channel(1);
    let (requests, requested) = watch::channel(ReadRequest::of(&board));
    let mut reading = pin!(read(&mut reader, every, snapshots, requested));
    let mut terminal = Terminal::take()?;
    let mut events = events();
    loop {
        terminal.0.draw(|frame| screen::draw(frame, &board, every))?;
        tokio::select! {
            () = &mut reading => bail!("nothing is read any more"),
            Some(snapshot) = received.recv() => match snapshot {
                Ok(snapshot) => board.apply(snapshot),
                // It may be back at the next look.
                Err(error) => board.read_error = Some(failure::message(&CommandEffect::Read.explain_error(error.into(), ""))),
            },
            event = events.recv() => {
                if let Event::Key(key) = event.context("the terminal is gone")??
                    && board.press(key).is_break()
                {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            ended = signals.next() => return Err(ended.into()),
        }
        requests.send_replace(ReadRequest::of(&board));
    }
}

/// The board's request for the next read.
struct ReadRequest {
    paused: bool,
    required_keys: Vec<Key>,
}

impl ReadRequest {
    fn of(board: &Board) -> Self {
        Self { paused: board.paused, required_keys: board.required_keys() }
    }
}

/// Looks again and again, with a pause in between, and not at all while paused.
async fn read<S: Admin>(
    reader: &mut BoardReader<S>,
    every: Duration,
    snapshots: mpsc::Sender<Result<Snapshot, Error>>,
    mut requested: watch::Receiver<ReadRequest>,
) {
    let mut ticks = interval(every);
    // A slow database is not asked faster to make up for it.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Ok(required_keys) =
            requested.wait_for(|request| !request.paused).await.map(|request| request.required_keys.clone())
        else {
            return;
        };
        if snapshots.send(reader.read(&required_keys).await).await.is_err() {
            return;
        }
    }
}

/// Receives keys and changes of size. A thread waits in the terminal for the next one, and ends with the process.
fn events() -> mpsc::Receiver<std::io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// The terminal as it is while the screen is shown: given back when dropped, and by ratatui's hook before a panic is told.
struct Terminal(DefaultTerminal);

impl Terminal {
    fn take() -> anyhow::Result<Self> {
        ratatui::try_init().map(Self).map_err(|error| {
            ratatui::restore();
            CliError {
                code: exit::INTERNAL,
                message: format!("this terminal cannot show the screen: {error}"),
                hint: "use --once".to_owned(),
            }
            .into()
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
