//! Services under a sliding window, with the options of a bucket.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use tollgate::{Limiter, MemoryStore, Window, clock::ManualClock};
use tollgate_http::{GlobalKey, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

/// The store's time is paused. The runtime's time advances when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn window_denies_waits_settles_and_refunds_like_a_bucket() -> anyhow::Result<()> {
    type Set = fn(RateLimitLayer) -> RateLimitLayer;
    let layers: [(Set, [u16; 4]); 6] = [
        (|layer| layer, [200, 200, 429, 429]),
        (|layer| layer.cost(|_| 2), [200, 429, 429, 429]),
        (|layer| layer.cost(|_| 3), [400, 400, 400, 400]),
        (|layer| layer.refund(|_, cost| cost), [200, 200, 200, 200]),
        // The third request is scheduled in 65 s.
        (|layer| layer.wait(Duration::from_secs(64)), [200, 200, 429, 429]),
        (|layer| layer.wait(Duration::from_secs(65)), [200, 200, 200, 200]),
    ];
    for (place, (set, expected)) in layers.into_iter().enumerate() {
        let window = Window::new(2, Duration::from_secs(60), Duration::from_secs(5))?;
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), window)?;
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty())));
        let service = set(RateLimitLayer::new(limiter).key(GlobalKey)).layer(inner);
        for (number, status) in expected.into_iter().enumerate() {
            let answer = service.clone().oneshot(Request::new(())).await?;
            assert_eq!(answer.status().as_u16(), status, "request {number} of layer {place}");
        }
    }
    Ok(())
}
