//! The dashboard: one page, and the events that keep it up to date.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{Stream, stream};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tollgate::Error;
use tollgate::chrono::{DateTime, SecondsFormat, Utc};

use crate::counts::Answer;
use crate::server::State as ServerState;

/// Reads what the dashboard shows of the database: a JSON object with the members `database`, `totals`, `hottest`, `most_denied`,
/// `emptiest`, `plans`, `modes`, `unreadable` and `note`, as `tollgate serve` has them.
pub trait BoardSource: Send + Sync + 'static {
    /// Reads the database once.
    fn read(&self) -> Pin<Box<dyn Future<Output = Result<Value, Error>> + Send + '_>>;
}

/// The latest events, which all pages share.
#[derive(Clone)]
struct Boards {
    latest: watch::Sender<Option<Arc<str>>>,
    /// Whether the server ends, which ends the events.
    ended: watch::Receiver<bool>,
}

/// The page and its events. Reads the database every two seconds while a page is open.
pub(crate) fn routes(state: Arc<ServerState>, source: Arc<dyn BoardSource>, ended: watch::Receiver<bool>) -> Router {
    let boards = Boards { latest: watch::Sender::new(None), ended };
    tokio::spawn(read(state, source, boards.clone()));
    Router::new()
        .route("/", get(async || page("text/html; charset=utf-8", include_str!("dashboard/dashboard.html"))))
        .route("/dashboard.css", get(async || page("text/css", include_str!("dashboard/dashboard.css"))))
        .route("/dashboard.js", get(async || page("text/javascript", include_str!("dashboard/dashboard.js"))))
        .route("/events", get(events))
        .with_state(boards)
}

fn page(content_type: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

async fn events(State(boards): State<Boards>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut receiver = boards.latest.subscribe();
    receiver.mark_changed();
    let events = stream::unfold((receiver, boards.ended.clone()), |(mut receiver, mut ended)| async {
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return None,
                changed = receiver.changed() => changed.ok()?,
            }
            let latest = receiver.borrow_and_update().clone();
            if let Some(data) = latest {
                return Some((Ok(Event::default().event("board").data(&*data)), (receiver, ended)));
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// Reads while a page is open. If the database gives no answer, the page shows the last one, and the server's own numbers.
async fn read(state: Arc<ServerState>, source: Arc<dyn BoardSource>, boards: Boards) {
    let mut last = json!({ "database": {} });
    loop {
        sleep(INTERVAL).await;
        if boards.latest.receiver_count() == 0 {
            continue;
        }
        let error = match source.read().await {
            Ok(board) => {
                last = board;
                None
            }
            Err(error) => Some(error.to_string()),
        };
        let data = complete(&state, last.clone(), error);
        boards.latest.send_replace(Some(data.to_string().into()));
    }
}

/// Adds what the server knows to what was read.
fn complete(state: &ServerState, mut board: Value, error: Option<String>) -> Value {
    let counts = state.gate.counts.all().into_iter().map(|(domain, rule, counts)| {
        let of = |answer: Answer| counts[answer as usize];
        json!({
            "domain": domain, "rule": rule, "granted": of(Answer::Granted), "denied": of(Answer::Denied),
            "shadow": of(Answer::Shadow), "failed": of(Answer::Failed),
        })
    });
    board["rules"] = counts.take(MAX_ROWS).collect();
    board["at"] = timestamp(SystemTime::now()).into();
    board["version"] = env!("CARGO_PKG_VERSION").into();
    board["mode"] = state.limiter.mode().as_str().into();
    board["database"]["answers"] = error.is_none().into();
    board["database"]["error"] = error.into();
    board["database"]["fallbacks"] = state.gate.limiters.fallbacks().into();
    let files = state.gate.config.load().files.len();
    board["config"] = json!({
        "loaded_at": timestamp(*state.loaded_at.lock()), "files": files, "error": state.load_error(),
    });
    board
}

fn timestamp(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The page has no other sources, and no page frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const INTERVAL: Duration = Duration::from_secs(2);
const MAX_ROWS: usize = 200;
