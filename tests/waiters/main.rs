//! Waits in one process. Tokio's time advances only by sleeps.

use tokio::task::yield_now;

mod deadline;
mod order;
mod pace;
mod resting;
mod runtimes;
mod several;

/// Runs other tasks until a condition holds. No time passes meanwhile.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        yield_now().await;
    }
    panic!("the condition never holds");
}
