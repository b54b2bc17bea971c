use std::process::ExitCode;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{Decision, Key, Mode, Store, Take};
use uuid::Uuid;

use crate::modes::ModeArg;
use crate::output::{say, say_json};
use crate::quota_args::{distinct, key};
use crate::request::{RequestArgs, limiter};
use crate::signals::Signals;
use crate::text::{GREEN, RED, plain};
use crate::wait::WaitOutcome;
use crate::{exit, times, wait};

/// Take tokens: exit code 0 if they were granted, 75 if not
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate take third-party-api && curl …\n\
\x20 tollgate take user:42 --quota '10/s burst 20' --cost 3\n\
\x20 tollgate take tenant:7 user:42 --plan free --max-wait 5s   # of both or none\n\
\x20 id=$(uuidgen); until tollgate take mail --id $id; test $? -ne 69; do sleep 1; done   # taken once")]
pub(crate) struct Args {
    /// The buckets; with several, all grant the tokens or none does
    #[arg(required = true, value_name = "KEY", value_parser = key)]
    keys: Vec<Key>,
    #[command(flatten)]
    request: RequestArgs,
    /// Wait for the tokens, at most this long
    #[arg(long, value_name = "SPAN", value_parser = times::parse, default_value = "0s", hide_default_value = true)]
    max_wait: Duration,
    /// The request's id, to repeat a request whose outcome is unknown without taking tokens twice
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,
    /// How long the database keeps the id
    #[arg(long, value_name = "SPAN", value_parser = times::parse, default_value = "1d", requires = "id")]
    remember: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run<S: Store>(self, store: S, resting: impl Future<Output = ()>) -> anyhow::Result<ExitCode> {
        distinct(&self.keys, "name each bucket once; `--cost` says how many tokens each gives")?;
        let take = self.request.take(&self.keys).max_wait(self.max_wait);
        let take = self.id.into_iter().fold(take, |take, id| take.id(id, self.remember));
        let outcome = wait::reserve_and_wait(&limiter(store)?, &take, &mut Signals::new()?, resting).await;
        let decision = match outcome.map_err(|error| self.request.explain_error(error))? {
            WaitOutcome::Decided(decision) => decision,
            WaitOutcome::Interrupted(ended) => return Err(ended.into()),
        };
        if self.json {
            say_json(&TakeJson {
                granted: decision.is_granted(),
                key: decided_by(&take, &decision).to_string(),
                remaining: decision.remaining(),
                waited_ms: times::milliseconds(decision.wait()),
                retry_after_ms: decision.retry_after().and_then(times::milliseconds),
                reset_after_ms: decision.reset_after().and_then(times::milliseconds),
                mode: decision.mode().as_str(),
            })?;
        } else {
            say(describe(&take, &decision))?;
        }
        Ok(ExitCode::from(if decision.is_granted() { 0 } else { exit::DENIED }))
    }
}

/// The decision of a request.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TakeJson {
    /// Whether you can use the tokens.
    granted: bool,
    /// The bucket that decided: the one that denies for longest, or has tokens left for the fewest such requests. That of a further
    /// limit is the key, U+0001 and the name of the limit.
    key: String,
    /// The tokens left in the bucket. Null: no limit.
    remaining: Option<u64>,
    /// The time that the request waited until its scheduled time.
    waited_ms: Option<u64>,
    /// The time until the same request can be granted. Null: never.
    retry_after_ms: Option<u64>,
    /// The time until the bucket is full. Null: never.
    reset_after_ms: Option<u64>,
    /// The effective mode.
    #[schemars(with = "ModeArg")]
    mode: &'static str,
}

/// The deciding bucket: with several buckets, the one with the longest retry time, or with tokens for the fewest such requests.
fn decided_by<'t>(take: &'t Take, decision: &'t Decision) -> &'t Key {
    decision.bucket().or_else(|| take.keys().nth(decision.limit_index())).unwrap_or_else(|| take.key())
}

/// The answer as one line of text.
pub(crate) fn describe(take: &Take, decision: &Decision) -> String {
    let key = plain(decided_by(take, decision).as_str());
    let mode = match decision.mode() {
        Mode::Enforce => String::new(),
        mode => format!(" (mode {mode})"),
    };
    if decision.is_granted() {
        let wait =
            if decision.wait().is_zero() { String::new() } else { format!(" after {}", times::span(decision.wait())) };
        let left = decision.remaining().map_or_else(|| "no limit for".to_owned(), |tokens| format!("{tokens} left in"));
        return format!("{GREEN}granted{GREEN:#}{wait}{mode}: {left} {key}");
    }
    let when = match decision.retry_after() {
        None if decision.mode() == Mode::Block => "until another mode is set".to_owned(),
        None => "no token will come back by itself".to_owned(),
        Some(span) => format!("try again in {}", times::span(span)),
    };
    format!("{RED}denied{RED:#} by {key}{mode}: {when}")
}
