//! Who else ends the program.

use std::process::ExitCode;

/// Waits for a signal that asks the program to end.
#[cfg(unix)]
pub(crate) struct Signals([(u8, tokio::signal::unix::Signal); 3]);

#[cfg(unix)]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self([
            (1, signal(SignalKind::hangup())?),
            (2, signal(SignalKind::interrupt())?),
            (15, signal(SignalKind::terminate())?),
        ]))
    }

    /// What the program ends with, once one has come: 128 and its number, as shells say it.
    pub(crate) async fn next(&mut self) -> ExitCode {
        let number = std::future::poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        });
        ExitCode::from(128 + number.await)
    }
}

/// Where there are no signals, Ctrl-C is a key.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    pub(crate) async fn next(&mut self) -> ExitCode {
        std::future::pending().await
    }
}
