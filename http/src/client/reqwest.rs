use async_trait::async_trait;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::upstream_response::is_overload;
use super::{ClientLimit, ClientLimitError, OutgoingRequest, UpstreamResponse};
use tollgate::{AnyStore, Store};

impl<S: Store> ClientLimit<S> {
    /// Converts the limit into a middleware for [`reqwest_middleware::ClientWithMiddleware`].
    ///
    /// If no token becomes available within [`max_wait`](Self::max_wait), the request fails with
    /// [`ClientLimitError::Limited`](crate::ClientLimitError::Limited) inside [`Error::Middleware`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota};
    /// use tollgate_http::ClientLimit;
    ///
    /// # fn main() -> Result<(), tollgate::Error> {
    /// // PgStore, MySqlStore or SqliteStore, where processes share the limit.
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(2))?;
    /// let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
    ///     .with(ClientLimit::new(limiter).middleware().retries(2))
    ///     .build();
    /// # let _ = client;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn middleware(self) -> LimitMiddleware<S> {
        LimitMiddleware { limit: self, retries: 0 }
    }
}

/// Middleware for `reqwest` that applies a [`ClientLimit`].
///
/// # Cancel safety
///
/// A request that is dropped before its scheduled time gives its tokens back, as in
/// [`LimitedClient`](crate::LimitedClient#cancel-safety).
#[derive(Debug)]
pub struct LimitMiddleware<S: Store = AnyStore> {
    limit: ClientLimit<S>,
    retries: u32,
}

impl<S: Store> LimitMiddleware<S> {
    /// Sets how often a refused request is sent again. Each retry first takes its own tokens.
    ///
    /// 429 is a refusal, and so are 503 and 529 with `Retry-After`. After 503 or 529, only idempotent requests are sent
    /// again, because the upstream can have begun with the request. Default: 0, no retries.
    ///
    /// The caller gets the refusal if:
    ///
    /// - the tokens of the retry do not come within [`max_wait`](ClientLimit::max_wait),
    /// - the body is a stream,
    /// - the bucket could not be throttled (see [`unreported`](ClientLimit::unreported)),
    /// - the limit's mode is `off` or `shadow`.
    #[must_use]
    pub fn retries(self, retries: u32) -> Self {
        Self { retries, ..self }
    }

    /// Waits for the scheduled time of a request, sends it, and reports the answer to the store. Returns whether the
    /// request was refused and a retry would wait.
    async fn send(&self, request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<(Response, bool)> {
        let Some(priced) = self.limit.price(&outgoing(&request, extensions)).map_err(Error::middleware)? else {
            return Ok((next.run(request, extensions).await?, false));
        };
        let ticket = self.limit.admit(priced).await.map_err(Error::middleware)?;
        let mut response = next.run(request, extensions).await?;
        let (status, headers, extensions) = (response.status(), response.headers(), response.extensions());
        let (refused, estimate) = self.limit.observe(ticket, &UpstreamResponse { status, headers, extensions }).await;
        if let Some(estimate) = estimate {
            response.extensions_mut().insert(estimate);
        }
        Ok((response, refused))
    }
}

impl<S: Store> Clone for LimitMiddleware<S> {
    fn clone(&self) -> Self {
        Self { limit: self.limit.clone(), ..*self }
    }
}

#[async_trait]
impl<S: Store> Middleware for LimitMiddleware<S> {
    async fn handle(&self, request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<Response> {
        let mut retry = if self.retries > 0 { request.try_clone() } else { None };
        let (mut response, mut refused) = self.send(request, extensions, next.clone()).await?;
        for _ in 0..self.retries {
            let Some(request) = retry.take().filter(|request| refused && is_repeatable(request, &response)) else {
                break;
            };
            retry = request.try_clone();
            match self.send(request, extensions, next.clone()).await {
                Ok(answer) => (response, refused) = answer,
                // The retry was not sent.
                Err(Error::Middleware(error)) if error.is::<ClientLimitError>() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(response)
    }
}

/// An overloaded upstream can have begun with the request. An upstream that limits requests has not.
fn is_repeatable(request: &Request, answer: &Response) -> bool {
    !is_overload(answer.status()) || request.method().is_idempotent()
}

fn outgoing<'a>(request: &'a Request, extensions: &'a Extensions) -> OutgoingRequest<'a> {
    let url = request.url();
    OutgoingRequest {
        method: request.method(),
        host: url.host_str(),
        port: url.port(),
        path: url.path(),
        headers: request.headers(),
        extensions,
    }
}
