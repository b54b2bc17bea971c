//! The bearer token, the host and the time limit of every request, before an endpoint.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{HeaderValue, Request, StatusCode, Version};
use tokio::time::timeout;

use crate::problem::Problem;
use crate::warning_interval::WarningInterval;

/// The conditions of the endpoints for clients.
#[derive(Clone)]
pub(crate) struct Guard {
    /// The token that requests must have.
    token: Option<Arc<str>>,
    /// Whether the endpoints that programs call by this host's address refuse the names of other hosts.
    requires_address: bool,
    warnings: Arc<Warnings>,
}

/// The warnings of refused requests.
#[derive(Debug, Default)]
struct Warnings {
    unauthorized: WarningInterval,
    without_http2: WarningInterval,
}

impl Guard {
    pub(crate) fn new(token: Option<Arc<str>>, requires_address: bool) -> Self {
        Self { token, requires_address, warnings: Arc::default() }
    }

    /// Refuses requests without the token, requests for another host, gRPC without HTTP/2, and requests that take too long, such
    /// as a body that never ends.
    pub(crate) async fn check(State(guard): State<Self>, request: Request<Body>, next: Next) -> Response {
        let path = request.uri().path();
        if let Some(token) = &guard.token
            && !PROBES.contains(&path)
            && !has_token(&request, token)
        {
            metrics::counter!(UNAUTHORIZED).increment(1);
            if guard.warnings.unauthorized.is_due() {
                tracing::warn!("requests without the token are refused");
            }
            let detail = "the request has no valid token: send `authorization: Bearer TOKEN`";
            let mut answer = Problem::new(StatusCode::UNAUTHORIZED, detail).into_response();
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        }
        // A page of a browser cannot send gRPC, and a proxy that speaks HTTP/1.1 would not understand its answer.
        if GRPC.iter().any(|service| path.starts_with(service)) && !is_grpc(&request) {
            if guard.warnings.without_http2.is_due() {
                tracing::warn!("gRPC without HTTP/2 is refused: in Envoy, set http2_protocol_options for this cluster");
            }
            let detail = "this is not a gRPC request: use HTTP/2 and `content-type: application/grpc`";
            return Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).into_response();
        }
        // Proxies state the client's host at the other endpoints.
        let is_called_by_address = path == "/json" || path.starts_with("/v1/");
        // A socket has no address, and no page of a browser can connect to it.
        let has_address = request.extensions().get::<SocketAddr>().is_some();
        if guard.requires_address && is_called_by_address && has_address && !names_address(&request) {
            return misdirected();
        }
        let too_slow = || {
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "the request took longer than 45 s: send its body at once, or ask again",
            )
        };
        timeout(LONGEST, next.run(request)).await.unwrap_or_else(|_| too_slow().into_response())
    }
}

/// Refuses the names of other hosts.
pub(crate) async fn require_address(request: Request<Body>, next: Next) -> Response {
    if names_address(&request) { next.run(request).await } else { misdirected() }
}

/// Whether a request names the server by an address: a page of a browser can have its own name lead here.
fn names_address(request: &Request<Body>) -> bool {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(Authority::as_str).or(host).unwrap_or_default();
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host });
    name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

fn misdirected() -> Response {
    Problem::new(StatusCode::MISDIRECTED_REQUEST, "this server has an address and no name: use it in the URL")
        .into_response()
}

fn is_grpc(request: &Request<Body>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    request.version() == Version::HTTP_2 && kind.starts_with(b"application/grpc")
}

fn has_token(request: &Request<Body>, token: &str) -> bool {
    let sent = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let Some((scheme, sent)) = sent.split_at_checked("Bearer ".len()) else { return false };
    // Takes as long for each wrong token of this length, so that the time tells nothing.
    let differs = sent.iter().zip(token.as_bytes()).fold(0, |differs, (one, other)| differs | (one ^ other));
    scheme.eq_ignore_ascii_case(b"bearer ") && sent.len() == token.len() && differs == 0
}

const UNAUTHORIZED: &str = "tollgate_serve_unauthorized_total";
/// The beginnings of the paths of gRPC.
const GRPC: [&str; 2] = ["/envoy.service.", "/grpc."];
/// Endpoints that tell a load balancer only whether the server answers.
const PROBES: [&str; 5] =
    ["/livez", "/readyz", "/healthcheck", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];
/// Longer than the longest wait.
const LONGEST: Duration = Duration::from_secs(45);
