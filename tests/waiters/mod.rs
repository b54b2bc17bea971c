//! Those who wait, in one process. Time is tokio's, and stands still but for those who sleep.

use tokio::task::yield_now;

mod deadline;
mod order;
mod pace;
mod resting;
mod runtimes;
mod several;

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
