use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

use super::ResponseBody;

/// The future of [`RateLimit`](super::RateLimit).
///
/// # Cancel safety
///
/// See [`RateLimitLayer`](super::RateLimitLayer#cancel-safety).
pub struct ResponseFuture<B, E>(Pin<Box<dyn Future<Output = ServiceResult<B, E>> + Send>>);

type ServiceResult<B, E> = Result<Response<ResponseBody<B>>, E>;

impl<B, E> ResponseFuture<B, E> {
    pub(super) fn new(answer: impl Future<Output = ServiceResult<B, E>> + Send + 'static) -> Self {
        Self(Box::pin(answer))
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = ServiceResult<B, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
