//! Waits in a runtime that ends.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout};
use tollgate::Limiter;

use super::order::Counting;

#[test]
fn ended_runtime_delays_no_caller_of_another() -> anyhow::Result<()> {
    let limiter = Limiter::builder(Arc::new(Counting::new(Instant::now()))).build("1000/s")?;
    // This wait is polled once. Its runtime ends before the task of its call runs.
    let mut gone = Box::pin(limiter.wait("one"));
    let polled = runtime()?.block_on(poll_fn(|context| Poll::Ready(gone.as_mut().poll(context))));
    assert!(polled.is_pending());
    let waited = runtime()?.block_on(async { timeout(Duration::from_secs(20), limiter.wait("one")).await });
    assert!(waited.context("no task makes the call")??.is_granted());
    Ok(())
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}
