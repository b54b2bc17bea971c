//! A provider of a language model, on its own socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::time::sleep;
use tollgate::{Admin, Key, Limiter, MemoryStore, Rule, Take};
use uuid::Uuid;

pub(crate) struct Provider {
    address: SocketAddr,
    account: Arc<Account>,
}

struct Account {
    limiter: Limiter<MemoryStore>,
    requests: Take,
    tokens: Take,
    answered: AtomicU64,
    violations: AtomicU64,
}

impl Provider {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let take = |name, quota| anyhow::Ok(Take::from(Key::try_from(name)?).rule(Rule::try_from(quota)?));
        let account = Arc::new(Account {
            limiter: Limiter::new(MemoryStore::new(), "unlimited")?,
            requests: take("requests", "60/s")?,
            tokens: take("tokens", "12000/s")?,
            answered: AtomicU64::new(0),
            violations: AtomicU64::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/v1/complete", post(complete)).with_state(Arc::clone(&account));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, account })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1/complete", self.address)
    }

    pub(crate) fn answered(&self) -> u64 {
        self.account.answered.load(Ordering::SeqCst)
    }

    /// Returns how many requests came too early.
    pub(crate) fn violations(&self) -> u64 {
        self.account.violations.load(Ordering::SeqCst)
    }
}

/// Uses the account as another process would: one request and 300 tokens after every second call.
async fn use_elsewhere(account: &Account, number: u64) -> Result<(), tollgate::Error> {
    if number.is_multiple_of(2) {
        let _ = account.limiter.decide(&account.requests).await?;
        let _ = account.limiter.decide(&account.tokens.clone().cost(300)).await?;
    }
    Ok(())
}

/// Takes the estimate, sleeps, and settles the tokens used.
async fn complete(State(account): State<Arc<Account>>, estimate: String) -> Result<Response, Response> {
    let failed = |error: tollgate::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    let estimate: u64 = estimate.parse().map_err(|_| StatusCode::BAD_REQUEST.into_response())?;
    let request = account.limiter.decide(&account.requests).await.map_err(failed)?;
    let tokens = account.tokens.clone().cost(estimate).id(Uuid::new_v4(), Duration::from_mins(1));
    let tokens = account.limiter.reserve_request(&tokens).await.map_err(failed)?;
    if !request.is_granted() || !tokens.is_granted() {
        account.violations.fetch_add(1, Ordering::SeqCst);
        return Err((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response());
    }
    let number = account.answered.fetch_add(1, Ordering::SeqCst);
    use_elsewhere(&account, number).await.map_err(failed)?;
    sleep(Duration::from_millis(20)).await;
    let used = estimate * 2 / 5 + number * 37 % (estimate * 3 / 5);
    tokens.settle(used).await.map_err(failed)?;
    let left = async |limit: &Take| {
        let level = account.limiter.store().peek(limit.key()).await.map_err(failed)?;
        Ok::<_, Response>(level.map_or(0, |level| level.available().max(0)).to_string())
    };
    let requests = ("x-ratelimit-remaining-requests", left(&account.requests).await?);
    let tokens = ("x-ratelimit-remaining-tokens", left(&account.tokens).await?);
    Ok(([requests, tokens], used.to_string()).into_response())
}
