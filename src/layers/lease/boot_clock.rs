//! A clock that advances while the host sleeps, so that prefetched tokens do not outlive a sleep.

#[cfg(any(target_os = "android", target_os = "linux"))]
use nix::time::ClockId;

use crate::clock::Clock;

/// The time since the host started, including sleep: for a [`Lease`](super::Lease), whose tokens must not outlive a sleep of the
/// host.
///
/// Only differences are meaningful. A system without such a clock uses the process's monotonic clock, moved on by what the host's
/// clock gains on it. That misses a sleep if the host's clock is set back by more than the sleep lasted.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

#[cfg(any(target_os = "android", target_os = "linux"))]
impl Clock for BootClock {
    /// Nanoseconds since the host started.
    #[inline]
    fn now(&self) -> i64 {
        crate::clock::read(ClockId::CLOCK_BOOTTIME)
    }
}

#[cfg(not(any(target_os = "android", target_os = "linux")))]
impl Clock for BootClock {
    /// Nanoseconds since the first call.
    fn now(&self) -> i64 {
        slept::now()
    }
}

#[cfg(any(test, not(any(target_os = "android", target_os = "linux"))))]
mod slept {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::{Instant, SystemTime};

    use crate::model::quota::nanoseconds;

    static START: LazyLock<(Instant, SystemTime)> = LazyLock::new(|| (Instant::now(), SystemTime::now()));
    static GAINED: AtomicI64 = AtomicI64::new(0);

    pub(super) fn now() -> i64 {
        let (instant, system) = *START;
        let since = nanoseconds(instant.elapsed());
        advanced(&GAINED, since, nanoseconds(system.elapsed().unwrap_or_default()))
    }

    /// Keeps the largest gain, so that the clock never goes back.
    pub(super) fn advanced(gained: &AtomicI64, since: i64, host: i64) -> i64 {
        let gains = host.saturating_sub(since);
        since.saturating_add(gained.fetch_max(gains, Ordering::Relaxed).max(gains))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use super::*;

    #[test]
    fn boot_clock_advances() {
        let before = BootClock.now();
        assert!(before > 0 && BootClock.now() >= before);
        assert!(slept::now() <= slept::now());
    }

    #[test]
    fn boot_clock_counts_sleep_and_ignores_clock_changes() {
        let gained = AtomicI64::new(0);
        let now = |since, host| slept::advanced(&gained, since, host);
        assert_eq!([now(5, 4), now(6, 100), now(7, 2), now(8, 102)], [5, 100, 101, 102]);
    }
}
