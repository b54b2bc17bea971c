use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use tokio::time::sleep;
use tollgate::{Error, Key, Store};

use crate::exit::{self, CliError, RequestKind};
use crate::output::plain;
use crate::quota_args::key;
use crate::request::{RequestArgs, limiter};
use crate::signals::{EndingSignal, Signals};
use crate::wait::{self, WaitOutcome, complain};
use crate::{take, times};

mod command;

use command::become_command;

/// Wait for a token, then run a command: a limit that many machines share
///
/// It becomes the command: its exit code, signals, standard input and output are the command's. Machines that share a
/// database share the limit, as processes share a lock of flock(1). Who is interrupted while it waits gives its token back,
/// unless others queue behind it, which it then says; once the command runs, the token is used.
#[derive(clap::Args)]
#[command(override_usage = "tollgate run [OPTIONS] <KEY> -- <COMMAND>...")]
#[command(after_help = "Examples:\n\
\x20 tollgate run third-party-api -- curl https://api.example.com/\n\
\x20 tollgate run --no-wait nightly-mail --quota '100 per 1h' -- ./send-mail\n\
\x20 tollgate run --max-wait 30s builds -- make; test $? -eq 75 && echo busy\n\
\x20 tollgate run --if-unavailable run mail -- ./send-mail   # better unlimited than not at all")]
pub(crate) struct Args {
    /// The bucket
    #[arg(value_name = "KEY", value_parser = key, required_unless_present = "dashed", conflicts_with = "dashed")]
    name: Option<Key>,
    /// The bucket, if its key begins with a dash: what comes after -- is the command
    #[arg(id = "dashed", long = "key", value_name = "KEY", value_parser = key, allow_hyphen_values = true)]
    dashed: Option<Key>,
    #[command(flatten)]
    request: RequestArgs,
    /// Give up at once if there is no token
    #[arg(long, conflicts_with = "max_wait")]
    no_wait: bool,
    /// Give up at once if there will be no token within this time [default: wait as long as it takes]
    #[arg(long, value_name = "SPAN", value_parser = times::parse)]
    max_wait: Option<Duration>,
    /// The exit code when there is no token
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::DENIED)]
    denied_exit_code: u8,
    /// What becomes of the command if the database cannot be reached, or the connection breaks before it answers
    #[arg(long, value_enum, value_name = "WHAT", default_value = "fail")]
    if_unavailable: IfUnavailable,
    /// Leave `DATABASE_URL` in the command's environment: without this, the command does not inherit it
    #[arg(long)]
    keep_database_url: bool,
    /// The command, after --, and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IfUnavailable {
    /// It does not run
    Fail,
    /// It runs without a token
    Run,
}

impl Args {
    /// Whether there is a command to wait for.
    pub(crate) fn finds_its_command(&self) -> Result<(), CliError> {
        command::refuse_absent(&self.command[0])
    }

    /// Once its turn has come, or there is no answer, it leaves the database.
    pub(crate) async fn run<S: Store>(
        self,
        store: S,
        resting: impl Future<Output = ()>,
        leaving: impl Future<Output = ()>,
    ) -> anyhow::Result<ExitCode> {
        let max_wait = if self.no_wait { Duration::ZERO } else { self.max_wait.unwrap_or(Duration::MAX) };
        let name = self.name.as_ref().or(self.dashed.as_ref()).expect("one of them is required");
        let take = self.request.take(std::slice::from_ref(name)).max_wait(max_wait);
        let mut signals = Signals::new()?;
        match wait::turn(&limiter(store)?, &take, &mut signals, resting).await {
            Ok(WaitOutcome::Decided(decision)) if decision.is_granted() => match leave(leaving, &mut signals).await {
                Some(ended) => {
                    complain("its turn had come, so that it is too late to give tokens back: they count as used");
                    Err(ended.into())
                }
                None => match become_command(&self.command, self.keep_database_url)? {},
            },
            Ok(WaitOutcome::Decided(decision)) => {
                complain(&take::words(&take, &decision));
                Ok(ExitCode::from(self.denied_exit_code))
            }
            Ok(WaitOutcome::Interrupted(ended)) => Err(ended.into()),
            Err(error) => match leave(leaving, &mut signals).await {
                Some(ended) => Err(ended.into()),
                None => self.unanswered(error),
            },
        }
    }

    /// What becomes of the command without an answer.
    pub(crate) fn unanswered(&self, error: anyhow::Error) -> anyhow::Result<ExitCode> {
        if self.if_unavailable == IfUnavailable::Fail || !is_unavailable(&error) {
            return Err(error);
        }
        let why = plain(&exit::message(&RequestKind::ToRun.told(error, "")));
        complain(&format!("the command runs without a token: {why}"));
        match become_command(&self.command, self.keep_database_url)? {}
    }
}

/// Whether nothing was reached, or nothing is known of what became of the request: any other answer is one.
fn is_unavailable(error: &anyhow::Error) -> bool {
    if let Some(refusal) = error.downcast_ref::<CliError>() {
        return refusal.code == exit::DATABASE;
    }
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|error| {
        matches!(error, Error::CircuitOpen { .. } | Error::Unavailable(_)) || error.is_outcome_unknown()
    })
}

/// Says goodbye to the database. A signal meanwhile still ends this program: the command would not hear of it.
async fn leave(leaving: impl Future<Output = ()>, signals: &mut Signals) -> Option<EndingSignal> {
    let leaving = async {
        leaving.await;
        sleep(SIGNAL_GRACE).await;
    };
    tokio::select! {
        biased;
        ended = signals.next() => Some(ended),
        () = leaving => None,
    }
}

/// By the time that a timer goes off, the runtime has handed out the signals that came before.
const SIGNAL_GRACE: Duration = Duration::from_millis(1);

#[cfg(all(test, unix))]
mod tests {
    use std::io;
    use std::process::Command;
    use std::sync::Arc;

    use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

    use super::*;
    use crate::database::close;

    #[test]
    fn contended_bucket_is_an_answer_and_unknown_outcome_is_not() {
        let cause = || Arc::new(io::Error::other("broken"));
        for (error, expected) in [
            (Error::Contended { attempts: 9, source: cause() }, false),
            (Error::NotMigrated(cause()), false),
            (Error::NotPermitted(cause()), false),
            (Error::ReadOnly(cause()), false),
            (Error::Unavailable(cause()), true),
            (Error::CircuitOpen { retry_after: Duration::ZERO, source: cause() }, true),
            (Error::DeadlineExceeded(Duration::from_secs(5)), true),
            (Error::OutcomeUnknown(cause()), true),
        ] {
            assert_eq!(is_unavailable(&error.clone().into()), expected, "{error:?}");
        }
        assert!(is_unavailable(&CliError::database("no", "").into()));
        assert!(!is_unavailable(&CliError::arguments("no", "").into()));
    }

    #[tokio::test]
    async fn a_signal_after_its_turn_has_come_is_heard() {
        let pool = SqlitePoolOptions::new().idle_timeout(None).max_lifetime(None).max_connections(1);
        let pool = pool.connect_with(SqliteConnectOptions::new()).await.expect("it connects");
        // While it is in use, the pool is not closed.
        let connection = pool.acquire().await.expect("a connection");
        let mut signals = Signals::new().expect("signals");
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill").success());
        assert!(leave(close(&pool), &mut signals).await.is_some());
        drop(connection);
        assert!(leave(close(&pool), &mut signals).await.is_none(), "it came once");
    }
}
