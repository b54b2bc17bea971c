//! Who else ends the program.

use std::process::ExitCode;

/// Waits for a signal that asks the program to end. One that it was started to ignore, as `nohup` does, stays ignored.
#[cfg(unix)]
pub(crate) struct Signals(Vec<(u8, tokio::signal::unix::Signal)>);

#[cfg(unix)]
impl Signals {
    /// From now on they end nothing by themselves.
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let ignored = ignored();
        let heard = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ];
        // Users' have other numbers on other systems.
        let heard = heard.into_iter().filter_map(|kind| Some((u8::try_from(kind.as_raw_value()).ok()?, kind)));
        let heard = heard.filter(|(number, _)| ignored >> (number - 1) & 1 == 0);
        heard.map(|(number, kind)| Ok((number, signal(kind)?))).collect::<std::io::Result<_>>().map(Self)
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

/// A bit for each signal that is ignored. Only Linux tells without unsafe code.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Where there are no signals, there is Ctrl-C; `watch` reads it as a key.
#[cfg(not(unix))]
pub(crate) struct Signals(std::pin::Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>);

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(Box::pin(tokio::signal::ctrl_c())))
    }

    pub(crate) async fn next(&mut self) -> ExitCode {
        match self.0.as_mut().await {
            Ok(()) => ExitCode::from(130),
            Err(_) => std::future::pending().await,
        }
    }
}
