//! Thirty workers that share a language model's account: so many requests and so many tokens in a time, for all of them.
//!
//! Each call takes one request and an estimate of its tokens together, and pays in the end what it cost. Somebody else uses the
//! account too, of which only the provider's headers tell: they hold both buckets back for every worker. The provider is a
//! server that the example starts; it enforces both limits, and counts requests that came too early. Providers state theirs by
//! the minute: here a minute is a second long, so that the demonstration is over in some.
//!
//! ```text
//! cargo run --example llm                             # on SQLite, in memory
//! cargo run --example llm -- postgres://localhost/app # or on a database of yours; also mysql:// and sqlite://
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use tokio::time::{sleep, timeout};
use tokio::try_join;
use tollgate::{HoldBack, Limit, Limiter, Preset, Reservation, Rule, Store, Take};
use uuid::Uuid;

use provider::Provider;

#[path = "../common/mod.rs"]
mod common;
mod provider;

const WORKERS: u64 = 30;
/// What each worker's calls may cost: the short ones use up the requests, and the long ones the tokens.
const ESTIMATES: [u64; 5] = [100, 100, 100, 800, 800];

/// What is below the provider's limits, and what is left to requests that are on their way.
const REQUESTS: Terms = Terms { quota: "60/s burst 30", keep: 14, headers: &[Preset::OpenAiRequests] };
const TOKENS: Terms = Terms { quota: "12000/s burst 9000", keep: 4000, headers: &[Preset::OpenAiTokens] };

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let provider = Provider::start().await?;
    println!("{WORKERS} workers with {} calls each; {}, {}", ESTIMATES.len(), REQUESTS.quota, TOKENS.quota);
    let side = |name, terms: Terms| {
        let limit = Limit::new(database.key(name)?, Rule::try_from(terms.quota)?).keep(terms.keep);
        anyhow::Ok(Side { limit, headers: terms.headers, held_back: AtomicU64::new(0) })
    };
    let (requests, tokens) = (side("requests", REQUESTS)?, side("tokens", TOKENS)?);
    let limiter = Limiter::new(database.store(), "unlimited")?; // each request names its own
    let account = Arc::new(Account { limiter, requests, tokens, http: reqwest::Client::new(), url: provider.url() });
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let account = Arc::clone(&account);
            tokio::spawn(async move {
                for estimate in ESTIMATES {
                    account.call(estimate).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        timeout(Duration::from_mins(1), worker).await???;
    }
    for (side, name) in [(&account.requests, "requests"), (&account.tokens, "tokens")] {
        println!("{name} held back by the provider's headers: {}", side.held_back.load(Ordering::Relaxed) > 0);
    }
    println!("the provider answered {} calls", provider.answered());
    println!("violations: {}", provider.violations());
    Ok(())
}

struct Terms {
    quota: &'static str,
    /// Left in the bucket.
    keep: u64,
    /// In which the provider says what is left.
    headers: &'static [Preset],
}

/// One of the limits of an account.
struct Side {
    limit: Limit,
    headers: &'static [Preset],
    held_back: AtomicU64,
}

impl Side {
    /// Passes on what the provider says is left of it, at once: what others take meanwhile is known to nobody here.
    async fn hold_back<S: Store>(
        &self,
        limiter: &Limiter<S>,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> anyhow::Result<()> {
        if let Some(hold) = HoldBack::from_answer(status, headers, self.headers) {
            let lowered = limiter.hold_back_under(self.limit.key(), self.limit.rule(), hold).await?;
            self.held_back.fetch_add(u64::from(lowered), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// An account as all workers see it.
struct Account<S: Store> {
    limiter: Limiter<S>,
    requests: Side,
    tokens: Side,
    http: reqwest::Client,
    url: String,
}

impl<S: Store> Account<S> {
    /// Calls until there is an answer.
    async fn call(&self, estimate: u64) -> anyhow::Result<()> {
        loop {
            let call = self.reserve(estimate).await?;
            sleep(call.delay()).await;

            let answer = self.http.post(&self.url).body(estimate.to_string()).send().await?;
            let (status, headers) = (answer.status(), answer.headers().clone());
            let used = if status.is_success() { answer.text().await?.parse()? } else { 0 };
            // Of the tokens first what they were, then what the provider says is left: that knows of it.
            let tokens = async {
                let key = self.tokens.limit.key();
                call.settle_each(|receipt| (receipt.key() == key).then_some(used)).await?;
                self.tokens.hold_back(&self.limiter, status, &headers).await
            };
            try_join!(self.requests.hold_back(&self.limiter, status, &headers), tokens)?;
            if status.is_success() {
                return Ok(());
            }
        }
    }

    /// A request and its tokens: both or none, in one call. Who waits has something promised already, of which the headers know
    /// nothing: so nobody waits for long in line.
    async fn reserve(&self, estimate: u64) -> anyhow::Result<Reservation<S>> {
        let tokens = self.tokens.limit.clone().cost(estimate);
        let take = Take::from(self.requests.limit.clone().cost(1)).and_limit(tokens).max_wait(LONGEST);
        loop {
            let call = self.limiter.reserve_all(&take.clone().id(Uuid::new_v4(), Duration::from_hours(1))).await?;
            if call.is_granted() {
                return Ok(call);
            }
            sleep(call.decision().retry_after().saturating_sub(LONGEST)).await;
        }
    }
}

const LONGEST: Duration = Duration::from_millis(50);
