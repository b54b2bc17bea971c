use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::{Command, ExitCode};
use std::time::Duration;

use sqlx::{Database, Pool};
use tokio::time::sleep;
use tollgate::{Dialect, Key, SqlStore};

use crate::database::close;
use crate::exit::{self, Refusal};
use crate::request::{Request, limiter};
use crate::signals::Signals;
use crate::terms::key;
use crate::wait::{self, Turn};
use crate::{take, times};

/// Wait for a token, then run a command: a limit that many machines share
///
/// It becomes the command: its exit code, signals, standard input and output are the command's. Machines that share a
/// database share the limit, as processes share a lock of flock(1). Who is interrupted while it waits gives its token back;
/// once the command runs, the token is used.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate run third-party-api -- curl https://api.example.com/\n\
\x20 tollgate run --no-wait nightly-mail --quota '100 per 1h' -- ./send-mail\n\
\x20 tollgate run --wait 30s builds -- make; test $? -eq 75 && echo busy")]
pub(crate) struct Args {
    /// The bucket
    #[arg(value_parser = key)]
    name: Key,
    #[command(flatten)]
    request: Request,
    /// Give up at once if there is no token
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Give up at once if there will be no token within this time [default: wait as long as it takes]
    #[arg(long, value_name = "SPAN", value_parser = times::parse)]
    wait: Option<Duration>,
    /// The exit code when there is no token
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::DENIED)]
    denied_exit_code: u8,
    /// The command, after --, and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    pub(crate) async fn run<DB: Dialect>(self, store: SqlStore<DB>) -> anyhow::Result<ExitCode> {
        let longest = if self.no_wait { Duration::ZERO } else { self.wait.unwrap_or(Duration::MAX) };
        let pool = store.pool().clone();
        let take = self.request.take(std::slice::from_ref(&self.name)).max_wait(longest);
        let mut signals = Signals::new()?;
        let turn = wait::turn(&limiter(store)?, &take, &mut signals).await;
        match turn? {
            Turn::Decided(decision) if decision.is_granted() => match leave(&pool, &mut signals).await {
                Some(code) => Ok(code),
                None => become_command(&self.command),
            },
            Turn::Decided(decision) => {
                // What cannot be written, nobody reads.
                let _ = writeln!(anstream::stderr(), "tollgate: {}", take::words(&take, &decision));
                Ok(ExitCode::from(self.denied_exit_code))
            }
            Turn::Interrupted(code) => Ok(code),
        }
    }
}

/// Says goodbye to the database. A signal meanwhile still ends this program, with this code: the command would not hear
/// of it.
async fn leave<DB: Database>(pool: &Pool<DB>, signals: &mut Signals) -> Option<ExitCode> {
    let leaving = async {
        close(pool).await;
        sleep(LAST_LOOK).await;
    };
    let code = tokio::select! {
        biased;
        code = signals.next() => code,
        () = leaving => return None,
    };
    let text = "tollgate: its turn had come, so that it is too late to give tokens back: they count as used";
    // What cannot be written, nobody reads.
    let _ = writeln!(anstream::stderr(), "{text}");
    Some(code)
}

/// What could pass on a signal or an exit code less than exactly is not there any more.
#[cfg(unix)]
fn become_command(command: &[OsString]) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt;

    Err(cannot_start(&command[0], &Command::new(&command[0]).args(&command[1..]).exec()).into())
}

#[cfg(not(unix))]
fn become_command(command: &[OsString]) -> anyhow::Result<ExitCode> {
    let status = Command::new(&command[0]).args(&command[1..]).status();
    let status = status.map_err(|error| cannot_start(&command[0], &error))?;
    std::process::exit(status.code().unwrap_or(1));
}

fn cannot_start(program: &OsString, error: &io::Error) -> Refusal {
    Refusal {
        code: if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 },
        message: format!("cannot start '{}': {error}", program.display()),
        hint: "give a program and its arguments after --; its token is used".to_owned(),
    }
}

/// By the time that a timer goes off, the runtime has handed out the signals that came before.
const LAST_LOOK: Duration = Duration::from_millis(1);

#[cfg(all(test, unix))]
mod tests {
    use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

    use super::*;

    #[tokio::test]
    async fn a_signal_after_its_turn_has_come_is_heard() {
        let pool = SqlitePoolOptions::new().idle_timeout(None).max_lifetime(None).max_connections(1);
        let pool = pool.connect_with(SqliteConnectOptions::new()).await.expect("it connects");
        // While it is in use, the pool is not closed.
        let connection = pool.acquire().await.expect("a connection");
        let mut signals = Signals::new().expect("signals");
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill").success());
        assert!(leave(&pool, &mut signals).await.is_some());
        drop(connection);
        assert!(leave(&pool, &mut signals).await.is_none(), "it came once");
    }
}
