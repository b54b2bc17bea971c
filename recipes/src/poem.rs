use std::sync::Arc;

use poem::http::{self, StatusCode};
use poem::{Endpoint, Error, IntoResponse, Request, Response, Result};
use tollgate::Limiter;
use tollgate_http::{ClientAddr, KeyExtractor, Refusal};

/// Takes a token of the client's address, or answers 429.
pub async fn rate_limit<E: Endpoint>(
    next: Arc<E>,
    request: Request,
) -> Result<Response> {
    let limiter = request.data::<Limiter>().ok_or_else(|| {
        Error::from_status(StatusCode::INTERNAL_SERVER_ERROR)
    })?;
    if let Err(refusal) = take(limiter, &request).await {
        let (head, body) = http::Response::from(refusal).into_parts();
        return Ok((head.status, head.headers, body).into_response());
    }
    Ok(next.call(request).await?.into_response())
}

async fn take(limiter: &Limiter, request: &Request) -> Result<(), Refusal> {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.headers = request.headers().clone();
    if let Some(peer) = request.remote_addr().as_socket_addr() {
        head.extensions.insert(*peer);
    }
    let key =
        ClientAddr::peer().extract(&head).map_err(Refusal::MissingKey)?;
    Refusal::unless_granted(&limiter.allow(key).await?, "default")
}
