//! A `tracing` subscriber that records events.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Once;

use tracing_subscriber::fmt::format::FmtSpan;

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Records the events of each test's thread. All tests share one subscriber, because subscribers of single threads disturb each
/// other.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(|| Taken)
            .init();
    });
}

/// Returns the recorded events of this thread, as text.
pub fn text() -> String {
    LOG.with_borrow(|log| String::from_utf8_lossy(log).into_owned())
}

struct Taken;

impl Write for Taken {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
