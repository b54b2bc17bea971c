use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::lanes::{Callers, see_through};

/// A call that the task of its caller makes: no other task has to be woken for it.
///
/// Nobody else depends on that task, which may not be polled any more. Whoever comes next and has to wait for the call
/// [hands it over](Leading::hand_over) to a task of its own, and so does a caller that gives up.
#[derive(Clone)]
pub(super) struct Leading(Arc<Mutex<Option<Led>>>);

struct Led {
    call: Call,
    /// The task that makes it, once it waits.
    maker: Option<Waker>,
    /// It is one of theirs.
    all: Weak<dyn Callers>,
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Leading {
    pub(super) fn new(call: impl Future<Output = ()> + Send + 'static, all: Weak<dyn Callers>) -> Self {
        // Of no particular type, or those of the futures that await it would be too deep for the compiler to look through.
        Self(Arc::new(Mutex::new(Some(Led { call: Box::pin(call), maker: None, all }))))
    }

    /// Makes the call, until it is handed over, and waits for the caller's answer.
    pub(super) fn make<T>(self, answered: oneshot::Receiver<T>) -> Making<T> {
        Making { call: self, answered }
    }

    /// Goes on with the call in a task of its own, if it has not ended.
    pub(super) fn hand_over(&self) {
        let Some(Led { call, maker, all }) = self.0.lock().take() else { return };
        // Out of a runtime it can only be dropped: most often the process is ending, and its connections with it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { see_through(&all, call).await });
        }
        // From now on it is the answer that it waits for.
        maker.into_iter().for_each(Waker::wake);
    }
}

impl std::fmt::Debug for Leading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Leading")
    }
}

/// The answer to the caller who makes a call: it is there at the latest when the call has ended.
pub(super) struct Making<T> {
    call: Leading,
    answered: oneshot::Receiver<T>,
}

impl<T> Future for Making<T> {
    type Output = Result<T, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        {
            let mut slot = self.call.0.lock();
            // Taken out meanwhile, so that what panics is gone.
            if let Some(mut led) = slot.take()
                && led.call.as_mut().poll(context).is_pending()
            {
                led.maker.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
                *slot = Some(led);
                return Poll::Pending;
            }
        }
        // Only now: an answer that is waited for would wake this task while it runs, to run once more for nothing.
        Pin::new(&mut self.answered).poll(context)
    }
}

impl<T> Drop for Making<T> {
    fn drop(&mut self) {
        self.call.hand_over();
    }
}
