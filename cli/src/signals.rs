//! Who else ends the program.

use std::process::ExitCode;
#[cfg(unix)]
use std::sync::atomic::{AtomicU64, Ordering};

/// Waits for a signal that asks the program to end. One that it was started to ignore, as `nohup` does, stays ignored.
#[cfg(unix)]
pub(crate) struct Signals(Vec<(u8, tokio::signal::unix::Signal)>);

#[cfg(unix)]
impl Signals {
    /// From now on they end nothing by themselves.
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

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
        let heard = heard.filter(|(number, _)| !was_ignored(*number));
        heard.map(|(number, kind)| Ok((number, signal(kind)?))).collect::<std::io::Result<_>>().map(Self)
    }

    /// The one that is to end the program, once it has come.
    pub(crate) async fn next(&mut self) -> EndingSignal {
        std::future::poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(EndingSignal(*number));
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// The signal that ends the program, once everything else is done: it passes through a command as its error.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("ended by signal {0}")]
pub(crate) struct EndingSignal(u8);

impl EndingSignal {
    /// Dies of it: a shell's loop ends with a program that Ctrl-C ends, and goes on after one that heard it and merely exits.
    #[cfg(unix)]
    pub(crate) fn end(self) -> ExitCode {
        // The first process of a container does not die of what it raises itself.
        if std::process::id() != 1 {
            // What fails leaves the code that shells say it by.
            let _ = signal_hook::low_level::emulate_default_handler(self.0.into());
        }
        ExitCode::from(128 + self.0)
    }

    #[cfg(not(unix))]
    pub(crate) fn end(self) -> ExitCode {
        ExitCode::from(128 + self.0)
    }
}

/// Whether the program was started to ignore a signal. Only Linux tells.
#[cfg(unix)]
pub(crate) fn was_ignored(number: u8) -> bool {
    IGNORED.load(Ordering::Relaxed) >> (number - 1) & 1 == 1
}

/// A bit for each signal that the program was started to ignore.
#[cfg(unix)]
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Reads them before `main`: from then on Rust's runtime ignores SIGPIPE in any case.
#[cfg(target_os = "linux")]
#[used]
#[expect(unsafe_code, reason = "the loader runs what is in this section, and what it runs is safe")]
#[unsafe(link_section = ".init_array")]
static READ_IGNORED: extern "C" fn() = read_ignored;

#[cfg(target_os = "linux")]
extern "C" fn read_ignored() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    IGNORED.store(mask.unwrap_or(0), Ordering::Relaxed);
}

/// Where there are no signals, there is Ctrl-C; `watch` reads it as a key.
#[cfg(not(unix))]
pub(crate) struct Signals(std::pin::Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>);

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(Box::pin(tokio::signal::ctrl_c())))
    }

    pub(crate) async fn next(&mut self) -> EndingSignal {
        match self.0.as_mut().await {
            // That of an interrupt elsewhere.
            Ok(()) => EndingSignal(2),
            Err(_) => std::future::pending().await,
        }
    }
}
