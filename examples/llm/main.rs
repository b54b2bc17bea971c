//! Thirty workers that share a language model's account: so many requests and so many tokens in a time, for all of them.
//!
//! Each call pays an estimate first and what it cost in the end. Somebody else uses the account too, of which only the
//! provider's headers tell: they hold the bucket back for every worker. The provider is a server that the example starts; it
//! enforces both limits, and counts requests that came too early.
//!
//! ```text
//! cargo run --example llm                             # on SQLite, in memory
//! cargo run --example llm -- postgres://localhost/app # or on a database of yours; also mysql:// and sqlite://
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate::{HoldBack, Key, Limiter, Preset, Reservation, Rule, Store, Take};
use uuid::Uuid;

use provider::Provider;

#[path = "../common/mod.rs"]
mod common;
mod provider;

const WORKERS: u64 = 30;
const CALLS: u64 = 4;
const ESTIMATE: u64 = 500;

/// What is below the provider's limits, and what is left to requests that are on their way.
const REQUESTS: &str = "60/s burst 30";
const TOKENS: &str = "12000/s burst 9000";
const KEEP: u64 = 2000;

/// The headers that the provider sends.
const PRESETS: &[Preset] = &[Preset::OpenAiTokens];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let provider = Provider::start().await?;
    println!("{WORKERS} workers with {CALLS} calls each; {REQUESTS}, {TOKENS}");
    let account = Arc::new(Account {
        limiter: Limiter::new(database.clone(), REQUESTS)?,
        requests: database.key("requests")?,
        tokens: database.key("tokens")?,
        rule: Rule::try_from(TOKENS)?,
        held_back: AtomicU64::new(0),
        http: reqwest::Client::new(),
        url: provider.url(),
    });
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let account = Arc::clone(&account);
            tokio::spawn(async move {
                for _ in 0..CALLS {
                    account.call().await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        timeout(Duration::from_mins(1), worker).await???;
    }
    println!("held back by the provider's headers: {}", account.held_back.load(Ordering::Relaxed) > 0);
    println!("the provider answered {} calls", provider.answered());
    println!("violations: {}", provider.violations());
    Ok(())
}

/// An account as all workers see it.
struct Account<S: Store> {
    limiter: Limiter<S>,
    requests: Key,
    tokens: Key,
    rule: Rule,
    held_back: AtomicU64,
    http: reqwest::Client,
    url: String,
}

impl<S: Store> Account<S> {
    /// Calls until there is an answer.
    async fn call(&self) -> anyhow::Result<()> {
        loop {
            let tokens = self.reserve_tokens().await?;
            let request = self.limiter.reserve(&self.requests).await?;
            anyhow::ensure!(request.is_granted(), "its turn would come in {:?}", request.decision().retry_after());
            sleep(tokens.delay().max(request.delay())).await;

            let answer = self.http.post(&self.url).body(ESTIMATE.to_string()).send().await?;
            let (status, hold) = (answer.status(), HoldBack::from_answer(answer.status(), answer.headers(), PRESETS));
            let used = if status.is_success() { answer.text().await?.parse()? } else { 0 };
            // First what it cost, then what the provider says is left: that knows of it.
            tokens.settle(used).await?;
            if let Some(hold) = hold {
                let lowered = self.limiter.hold_back_under(&self.tokens, &self.rule, hold).await?;
                self.held_back.fetch_add(u64::from(lowered), Ordering::Relaxed);
            }
            if status.is_success() {
                return Ok(());
            }
        }
    }

    /// Who waits has tokens promised already, of which the headers know nothing: so nobody waits for long in line.
    async fn reserve_tokens(&self) -> anyhow::Result<Reservation<S>> {
        const LONGEST: Duration = Duration::from_millis(50);

        loop {
            let take = Take::from(self.tokens.clone()).rule(self.rule.clone()).cost(ESTIMATE).keep(KEEP);
            let take = take.max_wait(LONGEST).id(Uuid::new_v4(), Duration::from_hours(1));
            let reservation = self.limiter.reserve_all(&take).await?;
            if reservation.is_granted() {
                return Ok(reservation);
            }
            sleep(reservation.decision().retry_after().saturating_sub(LONGEST)).await;
        }
    }
}
