//! Two servers on one database of each server engine: waits and refunds.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::request::Parts;
use axum::http::{StatusCode, response};
use axum::routing::get;
use sqlx::Pool;
use sqlx::pool::PoolOptions;
use tollgate::{AnyStore, Key, Limiter, MySqlStore, PgStore, Quota, Rule, Store, admin::BucketLevel, store::Migrate};
use tollgate_http::{GlobalKey, RateLimitLayer, is_success};

use super::exact::{ask_all, count};
use super::process::{OwnDatabase, SERVERS};
use super::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn request_scheduled_within_the_wait_is_served() -> anyhow::Result<()> {
    for variable in SERVERS {
        let database = OwnDatabase::create_on(variable).await?;
        // Eight requests get their tokens at once. The others get theirs within a second, or none within seven minutes.
        for (quota, served) in [("8/s", 16), ("8/h", 8)] {
            let wait = Duration::from_mins(5);
            let layer = |store| {
                let layer = RateLimitLayer::new(Limiter::new(store, quota)?);
                anyhow::Ok(layer.key(move |_: &Parts| Some(quota)).wait(wait))
            };
            let calls = Arc::new(AtomicU64::new(0));
            let handler = counting(&calls, |_| StatusCode::OK);
            let (one, two) = (open(&database).await?, open(&database).await?);
            let router = Router::new().route("/", get(handler));
            let one = Server::start(router.clone().layer(layer(one)?)).await?;
            let two = Server::start(router.layer(layer(two)?)).await?;
            let statuses = ask_all(&[one.address, two.address], 8, 1).await?;
            assert_eq!(count(&statuses), (served, 16 - served), "{variable}: {quota}");
            assert_eq!(calls.load(Ordering::SeqCst), served as u64, "{variable}: {quota}");
            let level = level(open(&database).await?, quota, Rule::try_from(quota)?).await?;
            assert_eq!(level.granted(), served as u64, "{variable}: a denied request takes nothing of {quota}");
        }
        database.drop().await.context(variable)?;
    }
    Ok(())
}

async fn level(store: AnyStore, key: &str, rule: Rule) -> anyhow::Result<BucketLevel> {
    let store = store.maintenance().context("a database keeps buckets")?;
    Ok(store.level(&Key::try_from(key)?, &rule).await?)
}

/// Every other request fails and gets no refund. The bucket is never empty.
#[tokio::test(flavor = "multi_thread")]
async fn on_every_server_only_failures_are_counted() -> anyhow::Result<()> {
    for variable in SERVERS {
        let database = OwnDatabase::create_on(variable).await?;
        let quota = Quota::once(100)?;
        let calls = Arc::new(AtomicU64::new(0));
        let fails = |call| call % 2 == 0 || call >= 160;
        let handler = counting(&calls, move |call| if fails(call) { StatusCode::UNAUTHORIZED } else { StatusCode::OK });
        let router = Router::new().route("/", get(handler));
        let refund = |answer: &response::Parts, cost| if is_success(answer) { cost } else { 0 };
        let layer = |store| anyhow::Ok(RateLimitLayer::new(Limiter::new(store, quota)?).key(GlobalKey).refund(refund));
        let (one, two) = (open(&database).await?, open(&database).await?);
        let one = Server::start(router.clone().layer(layer(one)?)).await?;
        let two = Server::start(router.layer(layer(two)?)).await?;
        let left = async || {
            let level = level(open(&database).await?, "everybody", quota.into()).await?;
            anyhow::Ok(level.available())
        };
        // Eighty requests fail. The tokens of the others return before their answers.
        let statuses = ask_all(&[one.address, two.address], 8, 10).await?;
        let failed = statuses.iter().filter(|status| **status == StatusCode::UNAUTHORIZED).count();
        assert_eq!((failed, count(&statuses)), (80, (80, 0)), "{variable}");
        assert_eq!(left().await?, 20, "{variable}");
        // All further requests fail, until the bucket is empty.
        let statuses = ask_all(&[one.address, two.address], 8, 10).await?;
        let failed = statuses.iter().filter(|status| **status == StatusCode::UNAUTHORIZED).count();
        assert_eq!((failed, count(&statuses)), (20, (0, 140)), "{variable}");
        assert_eq!((left().await?, calls.load(Ordering::SeqCst)), (0, 180), "{variable}");
        database.drop().await.context(variable)?;
    }
    Ok(())
}

/// Returns a handler that counts its calls from 0, and answers by their number.
fn counting(
    calls: &Arc<AtomicU64>,
    status: impl Fn(u64) -> StatusCode + Clone + Send + Sync + 'static,
) -> impl Fn() -> Ready<StatusCode> + Clone + Send + Sync + 'static {
    let calls = Arc::clone(calls);
    move || ready(status(calls.fetch_add(1, Ordering::SeqCst)))
}

/// Opens the database's store, over its own pool.
pub async fn open(database: &OwnDatabase) -> anyhow::Result<AnyStore> {
    Ok(if database.url.starts_with("postgres") {
        AnyStore::new(PgStore::from(connect(&database.url).await?))
    } else {
        AnyStore::new(MySqlStore::from(connect(&database.url).await?))
    })
}

async fn connect<DB: Migrate>(url: &str) -> anyhow::Result<Pool<DB>> {
    let pool = PoolOptions::new().max_connections(4).idle_timeout(None).max_lifetime(None).connect(url).await?;
    tollgate::migrate(&pool).await?;
    Ok(pool)
}
