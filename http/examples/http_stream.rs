//! A service that streams words, and charges each client for the words that it sent.
//!
//! A request takes one token to begin. The other words are charged at the end, also if the client disconnects. A charge is never
//! denied: it can leave the bucket in debt, and the client's next request is denied until the bucket has refilled.
//!
//! ```text
//! cargo run -p tollgate-http --example http_stream                             # on SQLite, in memory
//! cargo run -p tollgate-http --example http_stream -- postgres://localhost/app # or on a database of yours
//! curl -iN -H 'x-api-key: ada' http://127.0.0.1:3000/                          # repeat it, and it is denied for a minute
//! ```

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::request::Parts;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use tokio::time::sleep;
use tollgate::{AnyStore, Limiter};
use tollgate_http::RateLimitLayer;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = Limiter::new(common::open().await?.store(), "20/min")?;
    let limit = RateLimitLayer::new(limiter.clone()).key(|request: &Parts| Some(client(request)));
    common::http::serve(Router::new().route("/", get(words)).layer(limit).with_state(limiter), 2).await
}

/// Runs only for requests with a token.
async fn words(State(limiter): State<Limiter<AnyStore>>, request: Parts) -> Sse<impl Stream<Item = Answer>> {
    let bill = Bill { limiter, client: client(&request), words: 0 };
    let words = stream::unfold((bill, TEXT.split_whitespace()), async |(mut bill, mut rest)| {
        let word = rest.next()?;
        if bill.words > 0 {
            sleep(PAUSE).await;
        }
        bill.words += 1;
        Some((Ok(Event::default().data(word)), (bill, rest)))
    });
    Sse::new(words)
}

/// Lives as long as the response. Charges the words that were sent, whether the response or its client ended first.
struct Bill {
    limiter: Limiter<AnyStore>,
    client: String,
    words: u64,
}

impl Drop for Bill {
    fn drop(&mut self) {
        // The request itself took the token of the first word.
        let more = self.words.saturating_sub(1);
        if more == 0 {
            return;
        }
        let (limiter, client) = (self.limiter.clone(), self.client.clone());
        tokio::spawn(async move {
            if let Err(error) = limiter.charge(client.as_str(), more).await {
                eprintln!("{client} was not charged for {more} words: {error}");
            }
        });
    }
}

/// The client's name. Your service would check a session or a signature here.
fn client(request: &Parts) -> String {
    let key = request.headers.get("x-api-key").and_then(|key| key.to_str().ok());
    key.unwrap_or("anonymous").to_owned()
}

type Answer = Result<Event, Infallible>;

const PAUSE: Duration = Duration::from_millis(20);
const TEXT: &str = "A bucket holds tokens. A request takes one, or is denied. Tokens come back at a steady rate, up to the capacity. A \
                    charge takes tokens that were used already, so the bucket can owe some. It then denies every request, until \
                    the debt is paid.";
