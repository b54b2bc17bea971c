use std::sync::Arc;

use poem::http::{self, StatusCode};
use poem::{Endpoint, Error, IntoResponse, Request, Response, Result};
use tollgate::{Decision, Limiter};
use tollgate_http::{ClientAddr, KeyExtractor, Refusal, respond};

/// Takes a token of the client's address, or answers 429.
pub async fn rate_limit<E: Endpoint>(next: Arc<E>, request: Request) -> Result<Response> {
    let limiter = request.data::<Limiter>().ok_or_else(|| Error::from_status(StatusCode::INTERNAL_SERVER_ERROR))?;
    match take(limiter, &request).await {
        Ok(decision) => {
            let mut response = next.call(request).await?.into_response();
            respond::add_headers(response.headers_mut(), "default", &decision);
            Ok(response)
        }
        Err(refusal) => {
            let (head, body) = http::Response::from(refusal).into_parts();
            let mut response = Response::builder().status(head.status).body(body);
            response.headers_mut().extend(head.headers);
            Ok(response)
        }
    }
}

async fn take(limiter: &Limiter, request: &Request) -> Result<Decision, Refusal> {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.headers = request.headers().clone();
    if let Some(peer) = request.remote_addr().as_socket_addr() {
        head.extensions.insert(*peer);
    }
    let key = ClientAddr::peer().extract(&head).map_err(Refusal::MissingKey)?;
    let decision = limiter.allow(key).await?;
    Refusal::unless_granted(&decision, "default")?;
    Ok(decision)
}
