//! `/check/NAME`: forward authentication for nginx, Traefik, Caddy and HAProxy.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Request, StatusCode};
use tollgate::{Error, Key};
use tollgate_http::{RateLimitHeaders, RateLimitLayer, Refusal, respond};
use tower::{Layer, ServiceExt, service_fn};

use crate::config::{Check, CheckLimit, Config, FailureMode};
use crate::limiters::Limiters;
use crate::problem::Problem;
use crate::server::State as ServerState;

/// The checks of a configuration, ready to decide.
pub(crate) type Checks = HashMap<String, RateLimitLayer>;

/// Builds a layer for each check.
pub(crate) fn layers(config: &Config, limiters: &Limiters) -> Result<Checks, Error> {
    config.checks.iter().map(|(name, check)| Ok((name.clone(), layer(name, check, limiters)?))).collect()
}

fn layer(name: &str, check: &Arc<Check>, limiters: &Limiters) -> Result<RateLimitLayer, Error> {
    let limiter = limiters.get(check.on_failure);
    let limiter = match check.deadline {
        Some(deadline) => limiter.with_deadline(deadline),
        None => limiter.clone(),
    };
    let layer = RateLimitLayer::new(limiter).name(name).key(check.key.clone()).headers(RateLimitHeaders::Always);
    let layer = match &check.limit {
        CheckLimit::Rule(rule) => {
            let rule = rule.clone();
            layer.rule(move |_| rule.clone())
        }
        CheckLimit::PlanOf(header) => {
            let header = header.clone();
            layer.plan(move |request: &Parts| {
                // Without a plan, the key is empty, and the layer answers 500: the proxy is to name one.
                let plan = request.headers.get(&header).and_then(|plan| plan.to_str().ok()).unwrap_or_default();
                PlanName(plan.to_owned())
            })
        }
    };
    let layer = if check.allow_missing_key { layer.allow_missing_key() } else { layer };
    let layer = match check.on_failure {
        FailureMode::Local(quota) => layer.fallback_of(name, quota)?,
        _ => layer,
    };
    let deny_status = check.deny_status;
    let layer = layer.respond(move |refusal, request| {
        let mut answer = respond::problem(refusal, request);
        if matches!(refusal, Refusal::Denied { .. }) && answer.status() != deny_status {
            *answer.status_mut() = deny_status;
            // The body states the status, too.
            if let Ok(mut problem) = serde_json::from_slice::<serde_json::Value>(answer.body()) {
                problem["status"] = deny_status.as_u16().into();
                *answer.body_mut() = problem.to_string().into();
            }
        }
        answer
    });
    layer.mode_of(name, check.mode)
}

struct PlanName(String);

impl TryFrom<PlanName> for Key {
    type Error = tollgate::model::KeyError;

    fn try_from(PlanName(name): PlanName) -> Result<Self, Self::Error> {
        Self::try_from(name)
    }
}

/// Answers 200, or the check's status if it denies.
pub(crate) async fn decide(
    State(state): State<Arc<ServerState>>,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let Ok(Path(name)) = name else { return Problem::invalid("the name of the check is not UTF-8").into_response() };
    let checks = state.checks.load();
    let Some(layer) = checks.get(&name) else {
        let detail = format!("there is no check '{name}' in the configuration: name one of `checks`");
        return Problem::new(StatusCode::NOT_FOUND, detail).into_response();
    };
    // The body is the client's, and no check reads it.
    let (head, _) = request.into_parts();
    let request = Request::from_parts(head, Body::empty());
    let passes = service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    match layer.layer(passes).oneshot(request).await {
        Ok(answer) => answer.map(Body::new),
        Err(never) => match never {},
    }
}
