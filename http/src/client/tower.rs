use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::{ClientLimit, OutgoingRequest, UpstreamResponse};
use tollgate::Store;

impl<S: Store, C> Layer<C> for ClientLimit<S> {
    type Service = LimitedClient<S, C>;

    fn layer(&self, inner: C) -> LimitedClient<S, C> {
        LimitedClient { limit: self.clone(), inner }
    }
}

/// HTTP client under a [`ClientLimit`], which is its layer.
///
/// If no token becomes available within [`max_wait`](ClientLimit::max_wait), the request fails with
/// [`ClientLimitError::Limited`](crate::ClientLimitError::Limited).
///
/// It retries nothing. Put tower's `retry` above it: each attempt then takes its own tokens.
///
/// # Cancel safety
///
/// A request that is dropped before its scheduled time gives its tokens back, as in
/// [`Limiter::wait_n`](tollgate::Limiter::wait_n). With several limits, it gives back those that it still had to wait
/// for. A request that was sent has used its tokens.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MemoryStore, Quota};
/// use tollgate_http::ClientLimit;
/// use tower::{Layer, Service, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // PgStore, MySqlStore or SqliteStore, where processes share the limit.
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(2))?;
/// // Or hyper_util's client.
/// let http = tower::service_fn(async |_: http::Request<()>| Ok::<_, std::io::Error>(http::Response::new(())));
/// let mut client = ClientLimit::new(limiter).layer(http);
/// client.ready().await?.call(http::Request::get("https://api.example.com/").body(())?).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LimitedClient<S: Store, C> {
    limit: ClientLimit<S>,
    inner: C,
}

impl<S: Store, C: Clone> Clone for LimitedClient<S, C> {
    fn clone(&self) -> Self {
        Self { limit: self.limit.clone(), inner: self.inner.clone() }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<S, C, B, R> Service<Request<B>> for LimitedClient<S, C>
where
    S: Store,
    C: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        ready!(self.inner.poll_ready(context)).map_err(Into::into).into()
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let price = self.limit.price(&OutgoingRequest::from(&parts));
        let request = Request::from_parts(parts, body);
        let limit = self.limit.clone();
        // The ready service sends this request. It stays ready while the request waits.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let Some(priced) = price? else {
                return inner.call(request).await.map_err(Into::into);
            };
            let ticket = limit.admit(priced).await?;
            let mut response = inner.call(request).await.map_err(Into::into)?;
            let (status, headers, extensions) = (response.status(), response.headers(), response.extensions());
            let (_, estimate) = limit.observe(ticket, &UpstreamResponse { status, headers, extensions }).await;
            if let Some(estimate) = estimate {
                response.extensions_mut().insert(estimate);
            }
            Ok(response)
        })
    }
}
