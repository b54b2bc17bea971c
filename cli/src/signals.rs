//! Signals that end the CLI.

use std::process::ExitCode;
#[cfg(unix)]
use std::sync::atomic::{AtomicU64, Ordering};

/// Waits for a signal that ends the CLI. A signal that the parent process ignored, as `nohup` does, stays ignored.
#[cfg(unix)]
pub(crate) struct Signals(Vec<(u8, tokio::signal::unix::Signal)>);

#[cfg(unix)]
impl Signals {
    /// Installs the handlers, which replace the default action of each signal.
    pub(crate) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let handled = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ];
        // The numbers of SIGUSR1 and SIGUSR2 differ between systems.
        let handled = handled.into_iter().filter_map(|kind| Some((u8::try_from(kind.as_raw_value()).ok()?, kind)));
        let handled = handled.filter(|(number, _)| !was_ignored(*number));
        handled.map(|(number, kind)| Ok((number, signal(kind)?))).collect::<std::io::Result<_>>().map(Self)
    }

    /// Waits for the next signal.
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

/// The signal that ends the CLI after cleanup. Commands return it as their error.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("ended by signal {0}")]
pub(crate) struct EndingSignal(u8);

impl EndingSignal {
    /// Ends the process by the signal. A shell's loop stops only if Ctrl-C kills its command, not if the command exits normally.
    #[cfg(unix)]
    pub(crate) fn end(self) -> ExitCode {
        // Linux does not deliver a self-raised signal with its default action to the first process of a container.
        if std::process::id() != 1 {
            // If this fails, the exit code below reports the signal.
            let _ = signal_hook::low_level::emulate_default_handler(self.0.into());
        }
        ExitCode::from(128 + self.0)
    }

    #[cfg(not(unix))]
    pub(crate) fn end(self) -> ExitCode {
        ExitCode::from(128 + self.0)
    }
}

/// Whether the parent process ignored a signal. Known on Linux only.
#[cfg(unix)]
pub(crate) fn was_ignored(number: u8) -> bool {
    IGNORED.load(Ordering::Relaxed) >> (number - 1) & 1 == 1
}

/// One bit for each signal that the parent process ignored.
#[cfg(unix)]
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Reads the mask before `main`, because Rust's runtime then ignores SIGPIPE.
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

/// Systems without signals have Ctrl-C only, which `watch` reads as a key.
#[cfg(not(unix))]
pub(crate) struct Signals(std::pin::Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>);

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(Box::pin(tokio::signal::ctrl_c())))
    }

    pub(crate) async fn next(&mut self) -> EndingSignal {
        match self.0.as_mut().await {
            // The number of SIGINT.
            Ok(()) => EndingSignal(2),
            Err(_) => std::future::pending().await,
        }
    }
}
