//! Waits for a turn; whoever stops waiting gives the tokens back.

use std::process::ExitCode;
use std::time::Duration;

use tollgate::{Reservation, Store};

use crate::output::progress;
use crate::times;

/// Returns when the tokens may be used, or with the code to end with if a signal came before.
pub(crate) async fn turn<S: Store>(reservation: Reservation<S>, whose: &str) -> anyhow::Result<Option<ExitCode>> {
    let delay = reservation.delay();
    if delay.is_zero() {
        return Ok(None);
    }
    let bar = progress(format!("{whose}: a token in {}", times::span(delay)));
    let code = tokio::select! {
        () = tokio::time::sleep(delay) => None,
        code = signal() => Some(code?),
    };
    bar.finish_and_clear();
    let Some(code) = code else { return Ok(None) };
    // Bounded: whoever interrupts wants to be rid of this program, even if the database is slow.
    if let Ok(cancelled) = tokio::time::timeout(Duration::from_secs(2), reservation.cancel()).await {
        cancelled?;
    }
    Ok(Some(ExitCode::from(code)))
}

#[cfg(unix)]
async fn signal() -> std::io::Result<u8> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
    })
}

#[cfg(not(unix))]
async fn signal() -> std::io::Result<u8> {
    tokio::signal::ctrl_c().await.map(|()| 130)
}
