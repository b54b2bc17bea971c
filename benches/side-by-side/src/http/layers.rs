use std::sync::Arc;

use anyhow::{Context, bail};
use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use sqlx::{MySql, Postgres, Sqlite};
use tollgate::{Limiter, SqlStore, Store};
use tollgate_http::RateLimitLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

use super::key_of;
use crate::engine::{CONNECTIONS, Engine};
use crate::peer::Peer;
use crate::peers::{redis, tollgate as ours};
use crate::scene::Scene;
use crate::server::Server;
use crate::system::{Kind, System};

/// Puts the limit of a system under test in front of a router.
pub(super) async fn limit(router: Router, system: System, scene: &Scene) -> anyhow::Result<Router> {
    let server = system.server.context("it needs a server");
    let kind = system.kind;
    Ok(match kind {
        Kind::Unlimited => router,
        Kind::Governor => governor(router, scene)?,
        Kind::Redis => behind(router, redis::AsUsersRunIt::open(server?, scene).await?),
        Kind::Memory => router.layer(layer(ours::limiter(ours::memory_store(scene).await?, scene, kind)?, scene)),
        Kind::Tollgate | Kind::Leased => match server? {
            server @ (Server::Postgres | Server::Postgres15) => on_sql::<Postgres>(router, server, scene, kind).await?,
            server @ (Server::Mysql | Server::Mariadb) => on_sql::<MySql>(router, server, scene, kind).await?,
            server => on_sql::<Sqlite>(router, server, scene, kind).await?,
        },
        _ => bail!("{system} is behind no HTTP server"),
    })
}

async fn on_sql<E: Engine>(router: Router, server: Server, scene: &Scene, kind: Kind) -> anyhow::Result<Router> {
    let pool = E::open(&server.database(&scene.run)?, CONNECTIONS, scene.workload.durable).await?;
    Ok(router.layer(layer(ours::limiter(SqlStore::from(pool), scene, kind)?, scene)))
}

/// The default layer, with the key that a request names.
fn layer<S: Store>(limiter: Limiter<S>, scene: &Scene) -> RateLimitLayer {
    let names = Arc::clone(&scene.names);
    RateLimitLayer::new(limiter).key(move |request: &Parts| names.get(key_of(&request.headers)? as usize).cloned())
}

/// The `tower_governor` crate, with the same key.
fn governor(router: Router, scene: &Scene) -> anyhow::Result<Router> {
    let bucket_limits = scene.workload.bucket_limits;
    let mut builder = GovernorConfigBuilder::default().key_extractor(ByHeader(Arc::clone(&scene.names)));
    builder.period(bucket_limits.token).burst_size(u32::try_from(bucket_limits.capacity)?);
    let config = builder.finish().context("tower_governor takes no such terms")?;
    Ok(router.layer(GovernorLayer::new(config)))
}

#[derive(Clone)]
struct ByHeader(Arc<[String]>);

impl KeyExtractor for ByHeader {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let name = key_of(request.headers()).and_then(|key| self.0.get(key as usize));
        name.cloned().ok_or(GovernorError::UnableToExtractKey)
    }
}

/// A layer of the same form over another limiter.
fn behind<P: Peer>(router: Router, peer: P) -> Router {
    let peer = Arc::new(peer);
    router.layer(from_fn(move |request: Request<Body>, next: Next| {
        let peer = Arc::clone(&peer);
        async move {
            let Some(key) = key_of(request.headers()) else { return StatusCode::BAD_REQUEST.into_response() };
            match peer.ask(key).await {
                Ok(true) => next.run(request).await,
                Ok(false) => StatusCode::TOO_MANY_REQUESTS.into_response(),
                Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            }
        }
    }))
}
