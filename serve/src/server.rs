//! The endpoints of the server, as services that a host can mount.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::extract::State as Extracted;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use parking_lot::Mutex;
use tollgate::admin::Explanation;
use tollgate::{Admin, Error, Key, Limiter};
use tonic::Status;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::check::{self, Checks};
use crate::gate::Gate;
use crate::limiters::Limiters;
use crate::problem::Problem;
use crate::proto::DESCRIPTORS;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use crate::rls::Rls;
use crate::{Config, ConfigError, ServeError, json, v1};

/// A rate limit server over a limiter: Envoy's rate limit service, forward authentication and JSON.
///
/// Clones are the same server. A host mounts the routes, or calls [`run`](crate::run).
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{AnyStore, Limiter, MemoryStore, Rule};
/// use tollgate_serve::{Config, Server};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemoryStore::new()); // or PgStore, MySqlStore, SqliteStore
/// let limiter = Limiter::new(AnyStore::new(Arc::clone(&store)), Rule::Provisioned)?;
/// let config = Config::parse("checks: { login: { key: ['{client_ip}'], limits: ['10/min'] } }")?;
/// let routes = Server::new(&limiter, store, config)?.routes();
/// # let _ = routes;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Server {
    pub(crate) state: Arc<State>,
}

/// The state that the endpoints share.
pub(crate) struct State {
    pub(crate) gate: Arc<Gate>,
    pub(crate) checks: ArcSwap<Checks>,
    pub(crate) operator: Arc<dyn Operator>,
    pub(crate) limiter: Limiter,
    /// Whether new requests are welcome.
    pub(crate) is_ready: AtomicBool,
    /// Why the configuration on the disk is not in force.
    config_error: Mutex<Option<String>>,
    /// Why the certificate on the disk is not in use.
    certificate_error: Mutex<Option<String>>,
    /// When the configuration in force was loaded.
    pub(crate) loaded_at: Mutex<SystemTime>,
    health: HealthReporter,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl State {
    /// Why a file on the disk is not in force.
    pub(crate) fn load_error(&self) -> Option<String> {
        let of_config = self.config_error.lock().clone();
        of_config.or_else(|| self.certificate_error.lock().clone())
    }
}

impl Server {
    /// Creates a server. `operator` reads for `/v1/explain`; its role must be allowed to read the plans and the buckets.
    ///
    /// # Errors
    ///
    /// Returns an error if a check of the configuration cannot be built.
    pub fn new(limiter: &Limiter, operator: impl Admin, config: Config) -> Result<Self, Error> {
        let limiters = Limiters::new(limiter);
        let checks = check::layers(&config, &limiters)?;
        let operator: Arc<dyn Operator> = Arc::new(operator);
        let state = State {
            gate: Arc::new(Gate::new(Arc::clone(&operator), config, limiters)),
            checks: ArcSwap::from_pointee(checks),
            operator,
            limiter: limiter.clone(),
            is_ready: AtomicBool::new(true),
            config_error: Mutex::new(None),
            certificate_error: Mutex::new(None),
            loaded_at: Mutex::new(SystemTime::now()),
            health: HealthReporter::new(),
        };
        Ok(Self { state: Arc::new(state) })
    }

    /// Decides by another configuration from the next request on. Buckets keep their tokens, up to the new capacity.
    ///
    /// # Errors
    ///
    /// Returns an error if a check cannot be built. The previous configuration stays then.
    pub fn set_config(&self, config: Config) -> Result<(), Error> {
        let checks = check::layers(&config, &self.state.gate.limiters)?;
        self.state.gate.config.store(Arc::new(config));
        self.state.checks.store(Arc::new(checks));
        *self.state.config_error.lock() = None;
        *self.state.loaded_at.lock() = SystemTime::now();
        Ok(())
    }

    /// Records that the configuration on the disk is not in force.
    pub(crate) fn config_failed(&self, error: &ConfigError) {
        *self.state.config_error.lock() = Some(error.to_string());
    }

    /// Records whether the certificate on the disk is in use.
    pub(crate) fn certificate_loaded(&self, loaded: &Result<(), ServeError>) {
        *self.state.certificate_error.lock() = loaded.as_ref().err().map(ToString::to_string);
    }

    /// Returns the files of the configuration in force.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.state.gate.config.load().files.clone()
    }

    /// Returns all endpoints for clients, over HTTP/1.1 and HTTP/2.
    pub fn routes(&self) -> Router {
        let grpc = RateLimitServiceServer::new(Rls(Arc::clone(&self.state.gate)));
        let health = tonic_health::pb::health_server::HealthServer::new(
            tonic_health::server::HealthService::from_health_reporter(self.state.health.clone()),
        );
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let mut routes = Routes::builder();
        routes.add_service(grpc).add_service(health);
        if let (Ok(v1), Ok(v1alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
            routes.add_service(v1).add_service(v1alpha);
        }
        let state = Arc::clone(&self.state);
        let json = Router::new().route("/json", routing::post(json::decide)).with_state(Arc::clone(&state.gate));
        let check = routing::get(check::decide).head(check::decide).post(check::decide);
        let others = Router::new()
            .route("/check/{name}", check)
            .nest("/v1", v1::routes())
            .route("/openapi.json", routing::get(openapi))
            .route("/livez", routing::get(async || "ok\n"))
            .route("/readyz", routing::get(is_ready))
            .route("/healthcheck", routing::get(is_ready))
            .with_state(state);
        routes.routes().into_axum_router().merge(json).merge(others).fallback(not_found)
    }

    /// Tells that the service answers, or that it ends.
    pub(crate) async fn set_ready(&self, ready: bool) {
        self.state.is_ready.store(ready, Ordering::Relaxed);
        let health = &self.state.health;
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        // The whole server has the empty name, and probes for envoyproxy/ratelimit ask for `ratelimit`.
        for service in ["", "ratelimit", <RateLimitServiceServer<Rls> as NamedService>::NAME] {
            health.set_service_status(service, status).await;
        }
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.state.limiter
    }
}

/// The description of the JSON endpoints.
async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], include_str!("../openapi.json"))
}

/// Answers paths that do not exist. Otherwise a proxy that asks a mistyped one would let every request pass.
async fn not_found(request: Request<Body>) -> Response {
    let is_grpc =
        request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        return Status::unimplemented("this server has no such method").into_http();
    }
    Problem::new(StatusCode::NOT_FOUND, "there is no such path: GET /openapi.json lists them").into_response()
}

async fn is_ready(Extracted(state): Extracted<Arc<State>>) -> impl IntoResponse {
    if state.is_ready.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the server ends\n")
    }
}

/// The reads of operators, over a store whose type is erased.
pub(crate) trait Operator: Send + Sync {
    fn explain<'a>(&'a self, key: &'a Key, plan: Option<&'a Key>) -> Reading<'a, Explanation>;
}

pub(crate) type Reading<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

impl<S: Admin> Operator for S {
    fn explain<'a>(&'a self, key: &'a Key, plan: Option<&'a Key>) -> Reading<'a, Explanation> {
        Box::pin(Admin::explain(self, key, plan))
    }
}
