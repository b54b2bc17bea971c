//! A bound on the time until a connection's first request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection that ends if its first request does not come in time. Later requests have bounds of their own.
pub(crate) struct FirstRequest<S> {
    stream: S,
    has_begun: Arc<AtomicBool>,
    too_late: Pin<Box<Sleep>>,
}

impl<S> FirstRequest<S> {
    /// `has_begun` becomes true with the first request.
    pub(crate) fn within(time: Duration, stream: S, has_begun: Arc<AtomicBool>) -> Self {
        Self { stream, has_begun, too_late: Box::pin(sleep(time)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstRequest<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            return Poll::Ready(read);
        }
        if self.has_begun.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        ready!(self.too_late.as_mut().poll(context));
        // The first request can have come meanwhile.
        if self.has_begun.load(Ordering::Relaxed) {
            Poll::Pending
        } else {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        }
    }
}

/// Not vectored: HTTP/2 then sends answers of up to 1 KiB together, and otherwise only those of up to 256 bytes.
impl<S: AsyncWrite + Unpin> AsyncWrite for FirstRequest<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_connection_ends_unless_a_request_has_begun() {
        for (begun, ends) in [(false, true), (true, false)] {
            let (stream, _client) = tokio::io::duplex(64);
            let has_begun = Arc::new(AtomicBool::new(begun));
            let mut connection = FirstRequest::within(Duration::from_secs(10), stream, has_begun);
            let read = tokio::time::timeout(Duration::from_secs(60), connection.read_u8()).await;
            assert_eq!(read.is_ok_and(|read| read.is_err()), ends);
        }
    }
}
