//! The endpoints of operators, which only read: metrics and the configuration.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::middleware;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

use crate::counts::Answer;
use crate::dashboard::{self, BoardSource};
use crate::guard::require_address;
use crate::server::State as ServerState;

/// The routes of operators.
pub(crate) fn routes(
    state: Arc<ServerState>,
    metrics: PrometheusHandle,
    board: Option<Arc<dyn BoardSource>>,
    ended: watch::Receiver<bool>,
) -> Router {
    let dashboard = board.map_or_else(Router::new, |source| dashboard::routes(Arc::clone(&state), source, ended));
    Router::new()
        .route("/config", get(config))
        .with_state(Arc::clone(&state))
        .merge(metrics_route(state, metrics))
        .merge(dashboard)
        .layer(middleware::from_fn(require_address))
}

/// The route of programs that collect the metrics.
pub(crate) fn metrics_route(state: Arc<ServerState>, metrics: PrometheusHandle) -> Router {
    let render = async move || {
        record(&state);
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
    };
    Router::new().route("/metrics", get(render))
}

/// Brings the counters of the answers up to date.
fn record(state: &ServerState) {
    for (domain, rule, counts) in state.gate.counts.all() {
        for answer in Answer::ALL {
            let labels = [("domain", domain.clone()), ("rule", rule.clone()), ("outcome", answer.as_str().to_owned())];
            metrics::counter!("tollgate_serve_decisions_total", &labels).absolute(counts[answer as usize]);
        }
    }
    metrics::counter!("tollgate_serve_fallbacks_total").absolute(state.gate.limiters.fallbacks());
    let has_failed = state.load_error().is_some();
    metrics::gauge!("tollgate_serve_config_load_error").set(if has_failed { 1.0 } else { 0.0 });
}

/// The configuration in force, and why a newer file is not.
async fn config(State(state): State<Arc<ServerState>>) -> String {
    let mut text = String::new();
    if let Some(error) = state.load_error() {
        let _ = writeln!(text, "# not in force: {error}");
    }
    let config = state.gate.config.load();
    for file in &config.files {
        let _ = writeln!(text, "# {}", file.display());
    }
    let _ = write!(text, "{config}");
    text
}
