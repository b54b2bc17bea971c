use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that goes on in a task of its own when it is dropped before its end.
///
/// Of no particular type, or those of the futures that await it would be too deep for the compiler to look through.
pub(crate) struct Handover<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> Handover<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)) }
    }
}

impl<T: Send + 'static> Future for Handover<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out meanwhile, so that what panics is gone.
        let mut future = self.future.take().expect("nobody polls a future that has ended");
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Handover<T> {
    fn drop(&mut self) {
        // No runtime any more: the process is ending, and its connections with it.
        if let (Some(rest), Ok(runtime)) = (self.future.take(), Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}
