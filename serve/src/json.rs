//! `POST /json`: the rate limit service in the JSON of protocol buffers.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};

use crate::gate::Gate;
use crate::problem::{Problem, read_json};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// Answers 200, or 429 if a descriptor is over its limit.
pub(crate) async fn decide(State(gate): State<Arc<Gate>>, request: Request<Body>) -> Result<Response, Problem> {
    let request: RateLimitRequest = read_json(request).await?;
    let verdict = gate.decide(request, None).await?;
    let status = if verdict.is_denied { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let body = serde_json::to_string(&RateLimitResponse::from(verdict))
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok((status, [(CONTENT_TYPE, "application/json")], body).into_response())
}
