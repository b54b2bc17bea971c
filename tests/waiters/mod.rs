//! Those who wait, in one process. Time is tokio's, and stands still but for those who sleep.

use std::pin::Pin;
use std::task::{Context, Waker};

use tokio::task::yield_now;

mod deadline;
mod order;
mod pace;
mod resting;
mod runtimes;
mod several;

/// Polls somebody once, and says whether they go on.
fn goes_on<T>(waiting: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Lets the others go on, but not the time.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        yield_now().await;
    }
    panic!("it does not come to that");
}
