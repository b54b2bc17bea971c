//! The bearer token and the time limit of every request, before an endpoint.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use http::uri::Authority;
use http::{HeaderValue, Request, StatusCode};
use tokio::time::timeout;

use crate::problem::Problem;

/// Answers 401 to requests without the token, and 408 to those that take too long, such as a body that never ends.
pub(crate) async fn guard(State(token): State<Option<Arc<str>>>, request: Request<Body>, next: Next) -> Response {
    let is_probe = PROBES.contains(&request.uri().path());
    if let Some(token) = token.filter(|_| !is_probe)
        && !has_token(&request, &token)
    {
        let detail = "the request has no valid token: send `authorization: Bearer TOKEN`";
        let mut answer = Problem::new(StatusCode::UNAUTHORIZED, detail).into_response();
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return answer;
    }
    let too_slow = || {
        Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "the request took longer than 45 s: send its body at once, or ask again",
        )
    };
    timeout(LONGEST, next.run(request)).await.unwrap_or_else(|_| too_slow().into_response())
}

/// Refuses the names of other hosts for the endpoints that programs call by this host's address. Proxies state the client's host.
pub(crate) async fn require_address(request: Request<Body>, next: Next) -> Response {
    let path = request.uri().path();
    let is_called_by_address = path == "/json" || path.starts_with("/v1/");
    // A socket has no address, and no page of a browser can connect to it.
    let has_address = request.extensions().get::<SocketAddr>().is_some();
    if is_called_by_address && has_address {
        require_address_of_all(request, next).await
    } else {
        next.run(request).await
    }
}

/// Refuses the names of other hosts: a page of a browser can have its own name lead here.
pub(crate) async fn require_address_of_all(request: Request<Body>, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(Authority::as_str).or(host).unwrap_or_default();
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host });
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if is_address || name.eq_ignore_ascii_case("localhost") {
        return next.run(request).await;
    }
    Problem::new(StatusCode::MISDIRECTED_REQUEST, "this server has an address and no name: use it in the URL")
        .into_response()
}

fn has_token(request: &Request<Body>, token: &str) -> bool {
    let sent = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let Some((scheme, sent)) = sent.split_at_checked("Bearer ".len()) else { return false };
    // Takes as long for each wrong token of this length, so that the time tells nothing.
    let differs = sent.iter().zip(token.as_bytes()).fold(0, |differs, (one, other)| differs | (one ^ other));
    scheme.eq_ignore_ascii_case(b"bearer ") && sent.len() == token.len() && differs == 0
}

/// Endpoints that tell a load balancer only whether the server answers.
const PROBES: [&str; 5] =
    ["/livez", "/readyz", "/healthcheck", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];
/// Longer than the longest wait.
const LONGEST: Duration = Duration::from_secs(45);
