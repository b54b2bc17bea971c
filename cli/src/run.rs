use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use tokio::time::sleep;
use tollgate::{Error, Key, Store};

use crate::command_effect::CommandEffect;
use crate::exit::CliError;
use crate::output::complain;
use crate::quota_args::key;
use crate::request::{RequestArgs, limiter};
use crate::signals::{EndingSignal, Signals};
use crate::text::plain;
use crate::wait::WaitOutcome;
use crate::{exit, failure, take, times, wait};

mod command;

use command::become_command;

/// Wait for a token, then run a command
///
/// The process becomes the command, with its exit code, signals, standard input and output. Machines that share a database
/// share the limit. If you interrupt the wait, `run` gives the token back, unless other requests queue behind it. The token
/// counts as used when the command starts.
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
    /// The bucket, if its key begins with a dash
    #[arg(id = "dashed", long = "key", value_name = "KEY", value_parser = key, allow_hyphen_values = true)]
    dashed: Option<Key>,
    #[command(flatten)]
    request: RequestArgs,
    /// Exit at once if there is no token
    #[arg(long, conflicts_with = "max_wait")]
    no_wait: bool,
    /// Exit at once if the wait would be longer than this [default: no limit]
    #[arg(long, value_name = "SPAN", value_parser = times::parse)]
    max_wait: Option<Duration>,
    /// The exit code when there is no token
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::DENIED)]
    denied_exit_code: u8,
    /// Whether to run the command if the database is unreachable or does not answer
    #[arg(long, value_enum, value_name = "WHAT", default_value = "fail")]
    if_unavailable: IfUnavailable,
    /// Keep `DATABASE_URL` in the command's environment, which is removed by default
    #[arg(long)]
    keep_database_url: bool,
    /// The command, after --, and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IfUnavailable {
    /// Do not run the command
    Fail,
    /// Run the command without a token
    Run,
}

impl Args {
    /// Refuses a command that does not exist, before a token is taken.
    pub(crate) fn check_command(&self) -> Result<(), CliError> {
        command::refuse_absent(&self.command[0])
    }

    /// Waits for the token, closes the database connections and becomes the command.
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
        match wait::reserve_and_wait(&limiter(store)?, &take, &mut signals, resting).await {
            Ok(WaitOutcome::Decided(decision)) if decision.is_granted() => match leave(leaving, &mut signals).await {
                Some(ended) => {
                    complain("the scheduled time had come: the tokens cannot be given back and count as used");
                    Err(ended.into())
                }
                None => match become_command(&self.command, self.keep_database_url)? {},
            },
            Ok(WaitOutcome::Decided(decision)) => {
                complain(&take::describe(&take, &decision));
                Ok(ExitCode::from(self.denied_exit_code))
            }
            Ok(WaitOutcome::Interrupted(ended)) => Err(ended.into()),
            Err(error) => match leave(leaving, &mut signals).await {
                Some(ended) => Err(ended.into()),
                None => self.run_without_token(self.request.explain_error(error)),
            },
        }
    }

    /// Runs the command without a token if `--if-unavailable run` allows that. Returns the error otherwise.
    pub(crate) fn run_without_token(&self, error: anyhow::Error) -> anyhow::Result<ExitCode> {
        if self.if_unavailable == IfUnavailable::Fail || !is_unavailable(&error) {
            return Err(error);
        }
        let cause = plain(&failure::message(&CommandEffect::Run.explain_error(error, "")));
        complain(&format!("the command runs without a token: {cause}"));
        match become_command(&self.command, self.keep_database_url)? {}
    }
}

/// Whether the database is unreachable or the outcome of the request is unknown. Any other error is an answer.
fn is_unavailable(error: &anyhow::Error) -> bool {
    if let Some(refusal) = error.downcast_ref::<CliError>() {
        return refusal.code == exit::DATABASE;
    }
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|error| {
        matches!(error, Error::CircuitOpen { .. } | Error::Unavailable(_)) || error.is_outcome_unknown()
    })
}

/// Closes the database connections, and returns a signal that arrives meanwhile. The CLI must handle that signal, because
/// the command has not started yet.
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

/// Long enough for the runtime to deliver signals that have already arrived.
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
    async fn signal_after_scheduled_time_is_received() {
        let pool = SqlitePoolOptions::new().idle_timeout(None).max_lifetime(None).max_connections(1);
        let pool = pool.connect_with(SqliteConnectOptions::new()).await.expect("it connects");
        // The pool stays open while a connection is in use.
        let connection = pool.acquire().await.expect("a connection");
        let mut signals = Signals::new().expect("signals");
        let pid = std::process::id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill").success());
        assert!(leave(close(&pool), &mut signals).await.is_some());
        drop(connection);
        assert!(leave(close(&pool), &mut signals).await.is_none(), "it came once");
    }
}
