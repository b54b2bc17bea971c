//! Streams whose items each take a token.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use futures_core::stream::FusedStream;
use pin_project_lite::pin_project;
use tokio::time::sleep;

use super::bound::Bound;
use crate::model::{Decision, Error};
use crate::requester::{LimitError, TokenRequester};
use crate::store::Store;

/// Limits the items of a stream, for instance of a batch job. Each item takes a token before the stream yields it. The order
/// stays the same.
///
/// When no token is available, the stream waits for one. Over a [`Bound`](crate::Bound) limiter, the stream waits in the
/// bucket's queue.
///
/// # Errors
///
/// The stream yields [`LimitError::Denied`] instead of the item if there will never be a token, and [`LimitError::Request`] if
/// there is no answer. The stream keeps the item. If you poll the stream again, it requests the item's token again after a
/// pause: a millisecond, doubled after each further error, up to a second.
///
/// # Cancel safety
///
/// If dropped, the stream has taken the tokens of the items that it yielded. A token for which it waits is given back, as far
/// as the requester supports that. The item that was to be yielded next is dropped.
///
/// ```
/// use std::pin::pin;
/// use tollgate::{stream::limit_stream, Limiter, MemoryStore, Quota};
/// use futures_util::{StreamExt, stream};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(1000).burst(1))?;
/// let mut pages = pin!(limit_stream(limiter.bind("example.com")?, stream::iter(["/a", "/b", "/c"])));
/// while let Some(page) = pages.next().await {
///     println!("fetch {}", page?);
/// }
/// # Ok(())
/// # }
/// ```
pub fn limit_stream<R, T>(requester: R, stream: T) -> LimitedStream<R, T>
where
    R: TokenRequester + 'static,
    T: Stream,
{
    LimitedStream {
        requester: Arc::new(requester),
        request: Box::new(|requester, _| Some(Box::pin(async move { requester.wait_for_token().await }))),
        stream,
        item: None,
        token: None,
        pause: Duration::ZERO,
        ended: false,
    }
}

type TokenFuture = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;

/// Requests the tokens of an item. `None` if the item needs no token.
type RequestToken<R, I> = Box<dyn Fn(Arc<R>, &I) -> Option<TokenFuture> + Send + Sync>;

pin_project! {
    /// A stream behind a limit, made by [`limit_stream`].
    #[must_use = "a stream does nothing unless it is polled"]
    pub struct LimitedStream<R, T: Stream> {
        requester: Arc<R>,
        request: RequestToken<R, T::Item>,
        #[pin]
        stream: T,
        item: Option<T::Item>,
        token: Option<TokenFuture>,
        // The pause before the next request after an error, so that a caller that polls on does not flood the store.
        pause: Duration,
        ended: bool,
    }
}

impl<S: Store, T: Stream> LimitedStream<Bound<S>, T> {
    /// Sets how many tokens an item takes, such as its bytes or rows. Default: 1.
    ///
    /// An item waits for all of its tokens at once. An item of 0 tokens does not wait. An item that takes more than the
    /// bucket's capacity is always an error: [`ExceedsCapacity`](crate::TakeError::ExceedsCapacity).
    ///
    /// ```
    /// use std::pin::pin;
    /// use tollgate::{stream::limit_stream, Limiter, MemoryStore, Quota};
    /// use futures_util::{StreamExt, stream};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Limiter::new(MemoryStore::new(), Quota::per_second(1_000_000))?.bind("uploads")?;
    /// let parts = stream::iter(["a part", "another one"]);
    /// let mut parts = pin!(limit_stream(bytes, parts).cost(|part| part.len() as u64));
    /// while let Some(part) = parts.next().await {
    ///     println!("upload {}", part?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn cost(self, cost: impl Fn(&T::Item) -> u64 + Send + Sync + 'static) -> Self {
        let request = move |bound: Arc<Bound<S>>, item: &T::Item| {
            let cost = Some(cost(item)).filter(|cost| *cost > 0)?;
            Some(Box::pin(async move { bound.wait_for_tokens(cost).await }) as TokenFuture)
        };
        Self { request: Box::new(request), ..self }
    }
}

impl<R: TokenRequester + 'static, T: Stream> Stream for LimitedStream<R, T> {
    type Item = Result<T::Item, LimitError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if this.item.is_none() {
            if *this.ended {
                return Poll::Ready(None);
            }
            // The item comes first, so that the end of the stream takes no token.
            *this.item = ready!(this.stream.poll_next(context));
        }
        let Some(item) = &*this.item else {
            *this.ended = true;
            return Poll::Ready(None);
        };
        if this.token.is_none() {
            let Some(token) = (this.request)(Arc::clone(this.requester), item) else {
                return Poll::Ready(this.item.take().map(Ok));
            };
            *this.token = Some(if this.pause.is_zero() { token } else { Box::pin(after(*this.pause, token)) });
        }
        let token = this.token.as_mut().expect("it is requested");
        let decision = ready!(token.as_mut().poll(context));
        *this.token = None;
        let granted = matches!(&decision, Ok(decision) if decision.is_granted());
        *this.pause = if granted { Duration::ZERO } else { (*this.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE) };
        Poll::Ready(match decision {
            Ok(_) if granted => this.item.take().map(Ok),
            Ok(denied) => Some(Err(LimitError::Denied { retry_after: denied.retry_after() })),
            Err(error) => Some(Err(error.into())),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let kept = usize::from(self.item.is_some());
        let (least, _) = if self.ended { (0, Some(0)) } else { self.stream.size_hint() };
        // The number of errors between the items is unknown.
        (least.saturating_add(kept), None)
    }
}

impl<R: TokenRequester + 'static, T: Stream> FusedStream for LimitedStream<R, T> {
    fn is_terminated(&self) -> bool {
        self.ended && self.item.is_none()
    }
}

async fn after(pause: Duration, token: TokenFuture) -> Result<Decision, Error> {
    sleep(pause).await;
    token.await
}

const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_secs(1);
