//! An upstream API, on its own socket.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request, Response};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// Gives the configured answers in order, and then 200.
pub struct Upstream {
    pub address: SocketAddr,
    state: Arc<Mutex<Reported>>,
    serving: AbortHandle,
}

#[derive(Default)]
struct Reported {
    first: Vec<Answer>,
    answers: VecDeque<Answer>,
    /// The paths that were requested.
    paths: Vec<String>,
}

/// A status and headers.
pub type Answer = (u16, Vec<(&'static str, Vec<u8>)>);

pub fn answer(status: u16, headers: &[(&'static str, &str)]) -> Answer {
    (status, headers.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect())
}

impl Upstream {
    pub async fn new(answers: impl IntoIterator<Item = Answer>) -> anyhow::Result<Self> {
        let state = Arc::new(Mutex::new(Reported { first: answers.into_iter().collect(), ..Reported::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().fallback(reply).with_state(Arc::clone(&state));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        let upstream = Self { address, state, serving };
        upstream.again();
        Ok(upstream)
    }

    /// Repeats the first answer once more.
    pub fn again(&self) {
        let mut reported = self.state.lock();
        reported.answers = reported.first.iter().cloned().collect();
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns how many requests arrived.
    pub fn reached(&self) -> usize {
        self.paths().len()
    }

    pub fn paths(&self) -> Vec<String> {
        self.state.lock().paths.clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn reply(State(reported): State<Arc<Mutex<Reported>>>, request: Request<Body>) -> Response<Body> {
    let mut reported = reported.lock();
    reported.paths.push(request.uri().path().to_owned());
    let (status, headers) = reported.answers.pop_front().unwrap_or((200, Vec::new()));
    let mut response = Response::builder().status(status).body(Body::from("an answer")).expect("a status");
    for (name, value) in headers {
        response.headers_mut().append(name, HeaderValue::from_bytes(&value).expect("a value"));
    }
    response
}
