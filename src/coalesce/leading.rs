use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::runtime::Handle;

type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call that the task of its first caller makes: no other task has to be woken for it.
///
/// Nobody else depends on that task. Whoever comes next [hands the call over](Leading::hand_over) to a task of its own, and so
/// does a caller that gives up: one that is only no longer polled would keep the others waiting for ever.
#[derive(Clone, Default)]
pub(super) struct Leading(Arc<Mutex<Option<Rest>>>);

impl Leading {
    /// Makes the call, or returns when it was handed over.
    pub(super) fn make(&self, call: impl Future<Output = ()> + Send + 'static) -> Making {
        // Of no particular type, or those of the futures that await it would be too deep for the compiler to look through.
        *self.0.lock() = Some(Box::pin(call));
        Making(self.clone())
    }

    /// Goes on with the call in a task of its own.
    pub(super) fn hand_over(&self) {
        let rest = self.0.lock().take();
        // No runtime any more: the process is ending, and its connections with it.
        if let (Some(rest), Ok(runtime)) = (rest, Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}

impl std::fmt::Debug for Leading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Leading")
    }
}

/// Polls the call for as long as nobody else does.
pub(super) struct Making(Leading);

impl Future for Making {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut slot = self.0.0.lock();
        // Taken out meanwhile, so that what panics is gone.
        let Some(mut rest) = slot.take() else { return Poll::Ready(()) };
        if rest.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        *slot = Some(rest);
        Poll::Pending
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.0.hand_over();
    }
}
