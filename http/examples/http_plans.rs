//! An axum service with a plan for each client, and a bucket for each client and route.
//!
//! Plans are rows, which one SQL statement changes at run time. Processes on one database share the limits.
//!
//! ```text
//! cargo run -p tollgate-http --example http_plans                                            # on SQLite, in memory
//! cargo run -p tollgate-http --example http_plans -- postgres://localhost/app                # or on a database of yours
//! cargo run -p tollgate-http --example http_plans -- postgres://localhost/app 127.0.0.1:3001 # and a second one beside it
//! ```

use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use tollgate::{Admin, Decision, Key, Limiter, Rule, SqlStore};
use tollgate_http::{ClientAddr, MatchedRoute, RateLimitHeaders, RateLimitLayer, respond};

use common::Engine;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match common::open().await?.engine() {
        Engine::MySql(pool) => serve(SqlStore::from(pool.clone())).await,
        Engine::Postgres(pool) => serve(SqlStore::from(pool.clone())).await,
        Engine::Sqlite(pool) => serve(SqlStore::from(pool.clone())).await,
    }
}

async fn serve<S: Admin>(store: S) -> anyhow::Result<()> {
    for (plan, quota) in [(FREE, "10/s"), (PAID, "100/s")] {
        // Keeps an existing plan, which an operator can have changed.
        if store.plan(&Key::try_from(plan)?).await?.is_none() {
            store.create_plan(&Key::try_from(plan)?, quota.parse()?).await?;
        }
    }
    let limit = RateLimitLayer::new(Limiter::new(store, Rule::Plan(Key::try_from(FREE)?))?)
        // Clients of two plans need two keys, even at the same address.
        .key((ClientAddr::peer(), MatchedRoute, |request: &Parts| Some(plan(request))))
        .plan(plan)
        .respond(respond::message)
        .headers(RateLimitHeaders::Always);
    let router =
        Router::new().route("/", get(left)).route("/report", get(left)).layer(limit).layer(from_fn(authenticate)); // the last one is the outermost, and runs first
    common::http::serve(router, 2).await
}

/// Runs only for requests with a token.
async fn left(Extension(decision): Extension<Decision>) -> String {
    match decision.remaining() {
        Some(tokens) => format!("{tokens} left\n"),
        None => "no limit\n".to_owned(),
    }
}

/// Determines the client's plan. Your service would check a session or a signature here.
async fn authenticate(mut request: Request, next: Next) -> Response {
    if request.headers().get("x-api-key").is_some_and(|key| key == "of-a-paying-client") {
        request.extensions_mut().insert(Plan(PAID));
    }
    next.run(request).await
}

fn plan(request: &Parts) -> &'static str {
    request.extensions.get::<Plan>().map_or(FREE, |plan| plan.0)
}

#[derive(Clone)]
struct Plan(&'static str);

const FREE: &str = "free";
const PAID: &str = "paid";
