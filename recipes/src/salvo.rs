use salvo::http::ReqBody;
use salvo::prelude::*;
use tollgate::Limiter;
use tollgate_http::RateLimitLayer;

/// Gives the layer the client's address.
#[handler]
pub async fn peer_address(request: &mut Request) {
    if let Some(peer) = request.remote_addr().clone().into_std() {
        request.extensions_mut().insert(peer);
    }
}

/// Takes a token of the client's address, or answers 429.
pub fn rate_limit(limiter: Limiter) -> impl Handler {
    RateLimitLayer::new(limiter).compat::<ReqBody>()
}
