//! Limits per API key in axum, with plans from the database: see `docs/api-keys.md`.
//!
//! ```text
//! cargo run -p tollgate-http --example http_api_keys -- postgres://localhost/app                # at http://127.0.0.1:3000
//! cargo run -p tollgate-http --example http_api_keys -- postgres://localhost/app 127.0.0.1:3001 # and a second one beside it
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Extension, Request, State};
use axum::http::{StatusCode, request::Parts};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tollgate::{Fallback, Key, Limiter, MemoryStore, PgStore, Quota, Rule};
use tollgate_http::{RateLimitHeaders, RateLimitLayer, extension, respond};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: &str| {
        arguments.next().unwrap_or_else(|| default.to_owned())
    };
    let url = argument("postgres://localhost/app");
    let address = argument("127.0.0.1:3000");
    let pool = PgPool::connect(&url).await?;
    tollgate::migrate(&pool).await?;
    sqlx::raw_sql(SETUP).execute(&pool).await?;

    // Without the database: for each client, in each process.
    let fallback = Fallback::Local(Quota::per_second(5).build()?);
    let limiter = Limiter::builder(PgStore::from(pool.clone()))
        .deadline(Duration::from_millis(100))
        .fallback(fallback)
        .build(Rule::Plan(Key::try_from("free")?))?;
    let by_client = RateLimitLayer::new(limiter)
        .key(extension(|client: &Client| client.id.clone()))
        .plan(plan)
        .headers(RateLimitHeaders::Always)
        .respond(respond::message);
    // Invented keys: each address can try 200, and then one a second.
    let guesses = Limiter::new(MemoryStore::new(), "1/s burst 200")?;
    let by_address = RateLimitLayer::new(guesses)
        .name("unknown keys")
        .refund(|answer, cost| {
            if answer.status == StatusCode::UNAUTHORIZED { 0 } else { cost }
        });

    // The last layer is the outermost, and runs first.
    let keys = Arc::new(ApiKeys::new(pool));
    let router = Router::new()
        .route("/", get(hello))
        .layer(by_client)
        .layer(from_fn_with_state(keys, authenticate))
        .layer(by_address);
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service =
        router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

async fn hello(Extension(client): Extension<Client>) -> String {
    format!("hello {}\n", client.id)
}

/// The owner of an API key. `authenticate` inserts it into the request.
#[derive(Clone)]
struct Client {
    id: String,
    plan: String,
}

fn plan(request: &Parts) -> String {
    let client = request.extensions.get::<Client>();
    client.map_or_else(|| "free".to_owned(), |client| client.plan.clone())
}

/// Lets only known keys pass. An invented key gets 401 and no bucket.
async fn authenticate(
    State(keys): State<Arc<ApiKeys>>,
    mut request: Request,
    next: Next,
) -> Response {
    let key = request.headers().get("x-api-key");
    let key = key.and_then(|key| key.to_str().ok());
    let key = key.unwrap_or_default().to_owned();
    match keys.client(&key).await {
        Ok(Some(client)) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        Ok(None) => {
            let hint = "send a valid key in X-Api-Key\n";
            (StatusCode::UNAUTHORIZED, hint).into_response()
        }
        Err(error) => {
            (StatusCode::SERVICE_UNAVAILABLE, error).into_response()
        }
    }
}

/// The table of keys, with a cache of the known ones.
struct ApiKeys {
    pool: PgPool,
    known: Mutex<HashMap<String, (Client, Instant)>>,
}

impl ApiKeys {
    fn new(pool: PgPool) -> Self {
        Self { pool, known: Mutex::default() }
    }

    async fn client(
        &self,
        key: &str,
    ) -> Result<Option<Client>, &'static str> {
        let known = self.known.lock().expect("no panic").get(key).cloned();
        if let Some((client, since)) = &known
            && since.elapsed() < MAX_AGE
        {
            return Ok(Some(client.clone()));
        }
        let found = sqlx::query_as(FIND)
            .bind(key.as_bytes())
            .fetch_optional(&self.pool);
        let found = match timeout(TIMEOUT, found).await {
            Ok(Ok(found)) => found.map(|(id, plan)| Client { id, plan }),
            // An outage: a client that was known is still known.
            _ => Some(known.ok_or("the database does not answer\n")?.0),
        };
        let mut known = self.known.lock().expect("no panic");
        known.remove(key);
        if let Some(client) = &found {
            known.insert(key.to_owned(), (client.clone(), Instant::now()));
        }
        Ok(found)
    }
}

/// How long a process does not notice a revoked key or a new plan.
const MAX_AGE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_millis(500);

const FIND: &str =
    "select client, plan from api_keys where hash = sha256($1)";

/// Belongs in your migrations. The table has the hashes of the keys, so a
/// leaked copy of it opens nothing.
const SETUP: &str = "
    create table if not exists api_keys (
      hash   bytea primary key,
      client text not null,
      plan   text not null
    );
    insert into api_keys values
      (sha256('key-of-ada'), 'ada', 'free'),
      (sha256('key-of-bob'), 'bob', 'paid')
      on conflict do nothing;
    insert into tollgate.token_plans (name, capacity, refill_seconds)
      values ('free', 10, 1), ('paid', 100, 1)
      on conflict do nothing;
";
