//! Thirty workers that share a language model's account: so many requests and so many tokens in a time, for all of them.
//!
//! Each call takes one request and an estimate of its tokens together, and pays in the end what it cost. Another process uses
//! the account too, which only the provider's headers tell: they throttle both buckets for every worker. The provider is a
//! server that the example starts; it enforces both limits, and counts requests that came too early. Providers state theirs by
//! the minute: here a minute is a second long, so that the demonstration is over in some.
//!
//! ```text
//! cargo run -p tollgate-http --example llm                             # on SQLite, in memory
//! cargo run -p tollgate-http --example llm -- postgres://localhost/app # or on a database of yours; also mysql:// and sqlite://
//! ```

use std::time::Duration;

use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error};
use tokio::time::{sleep, timeout};
use tollgate::{Limit, Limiter, Rule};
use tollgate_http::{ClientLimit, ClientLimitError, Estimate, HeaderPreset};

use provider::Provider;

#[path = "../../../examples/common/mod.rs"]
mod common;
mod provider;

const WORKERS: u64 = 30;
/// What each worker's calls may cost: the short ones use up the requests, and the long ones the tokens.
const ESTIMATES: [u64; 5] = [100, 100, 100, 800, 800];

/// What is below the provider's limits, and what is left to requests that are on their way.
const REQUESTS: Terms = Terms { quota: "60/s burst 30", min_remaining: 14 };
const TOKENS: Terms = Terms { quota: "12000/s burst 9000", min_remaining: 4000 };

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

struct Terms {
    quota: &'static str,
    /// Left in the bucket.
    min_remaining: u64,
}

/// What a call may cost, among the extensions of its request.
#[derive(Clone, Copy)]
struct Estimated(u64);

/// Calls until there is an answer.
async fn call(http: &ClientWithMiddleware, url: &str, estimate: u64) -> anyhow::Result<()> {
    loop {
        let request = http.post(url).body(estimate.to_string()).with_extension(Estimated(estimate));
        let answer = match request.send().await {
            Ok(answer) if answer.status().is_success() => answer,
            // Refused: nothing was used, and the limits know it.
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

/// After which time its turn would come soon enough, if that is why a request was not sent.
fn later(error: &Error) -> Option<Duration> {
    match error {
        Error::Middleware(error) => match error.downcast_ref()? {
            ClientLimitError::Limited { retry_after, .. } => Some(retry_after.saturating_sub(LONGEST)),
            _ => None,
        },
        Error::Reqwest(_) => None,
    }
}

/// Who waits has something promised already, of which the headers know nothing: so nobody waits for long in line.
const LONGEST: Duration = Duration::from_millis(50);
