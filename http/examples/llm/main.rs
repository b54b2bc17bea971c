//! Thirty workers share the request limit and the token limit of a language model's account.
//!
//! Each call takes one request and an estimate of its tokens, and settles the estimate afterwards. Another process uses
//! the account too. Only the provider's headers report its use, and throttle both buckets for all workers. The provider
//! is a server that the example starts. It enforces both limits, and counts requests that came too early. Real
//! providers state limits per minute. Here they are per second, so that the example ends soon.
//!
//! ```text
//! cargo run -p tollgate-http --example llm                             # on SQLite, in memory
//! cargo run -p tollgate-http --example llm -- postgres://localhost/app # or on a database of yours; also mysql:// and sqlite://
//! ```
//!
//! ```text
//! $ cargo run -p tollgate-http --example llm
//! 30 workers with 5 calls each; 60/s burst 30, 12000/s burst 9000
//! answers that the limits do not know of: 0
//! the provider answered 150 calls
//! violations: 0
//! ```

use std::time::Duration;

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error};
use tokio::time::{sleep, timeout};
use tollgate::{Limit, Limiter, Rule};
use tollgate_http::{ClientLimit, ClientLimitError, Estimate, HeaderPreset};

use provider::Provider;

mod provider;

const WORKERS: u64 = 30;
/// The estimate of each call. Short calls use up the requests, and long calls use up the tokens.
const ESTIMATES: [u64; 5] = [100, 100, 100, 800, 800];

/// The quotas are below the provider's limits. The minimum remaining covers requests that the headers do not include
/// yet.
const REQUESTS: Limits = Limits { quota: "60/s burst 30", min_remaining: 14 };
const TOKENS: Limits = Limits { quota: "12000/s burst 9000", min_remaining: 4000 };

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let provider = Provider::start().await?;
    println!("{WORKERS} workers with {} calls each; {}, {}", ESTIMATES.len(), REQUESTS.quota, TOKENS.quota);
    let requests = database.key("requests")?;
    let tokens = Limit::new(database.key("tokens")?, Rule::try_from(TOKENS.quota)?);
    let limiter = Limiter::builder(database.store()).min_remaining(REQUESTS.min_remaining).build(REQUESTS.quota)?;
    let limit = ClientLimit::new(limiter)
        .max_wait(LONGEST)
        .key(move |_| Some(requests.clone()))
        .read(HeaderPreset::OpenAiRequests)
        .and(move |request| {
            let Estimated(estimate) = request.extensions().get()?;
            Some(tokens.clone().cost(*estimate).min_remaining(TOKENS.min_remaining))
        })
        .read(HeaderPreset::OpenAiTokens)
        .settle_later();
    let http = ClientBuilder::new(reqwest::Client::new()).with(limit.clone().middleware()).build();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (http, url) = (http.clone(), provider.url());
            tokio::spawn(async move {
                for estimate in ESTIMATES {
                    call(&http, &url, estimate).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        timeout(Duration::from_mins(1), worker).await???;
    }
    println!("answers that the limits do not know of: {}", limit.unreported());
    println!("the provider answered {} calls", provider.answered());
    println!("violations: {}", provider.violations());
    Ok(())
}

struct Limits {
    quota: &'static str,
    /// Tokens that stay in the bucket.
    min_remaining: u64,
}

/// The estimated cost of a call, in the extensions of its request.
#[derive(Clone, Copy)]
struct Estimated(u64);

/// Repeats the call until it gets an answer.
async fn call(http: &ClientWithMiddleware, url: &str, estimate: u64) -> anyhow::Result<()> {
    loop {
        let request = http.post(url).body(estimate.to_string()).with_extension(Estimated(estimate));
        let answer = match request.send().await {
            Ok(answer) if answer.status().is_success() => answer,
            // A refused request used nothing, and has throttled the limits.
            Ok(_) => continue,
            Err(error) => {
                sleep(later(&error).ok_or(error)?).await;
                continue;
            }
        };
        let estimate = answer.extensions().get::<Estimate>().cloned();
        let used = answer.text().await?.parse()?;
        if let Some(estimate) = estimate {
            estimate.settle(used).await?;
        }
        return Ok(());
    }
}

/// Returns when a retry would be scheduled soon enough, if the limit is why a request was not sent.
fn later(error: &Error) -> Option<Duration> {
    match error {
        Error::Middleware(error) => match error.downcast_ref()? {
            ClientLimitError::Limited { retry_after, .. } => Some((*retry_after)?.saturating_sub(LONGEST)),
            _ => None,
        },
        Error::Reqwest(_) => None,
    }
}

/// A waiting request has taken tokens that the headers still report as left, so no request waits for long.
const LONGEST: Duration = Duration::from_millis(50);
