//! The difference between the clock that decides and this host's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::report::DoctorReport;

/// Compares a reading of the server's clock, in microseconds since 1970, with readings of the host's before and after it.
pub(super) fn compare(before: SystemTime, server: i64, after: SystemTime, report: &mut DoctorReport) {
    let [before, after] = [before, after]
        .map(|time| i64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()).unwrap_or(i64::MAX));
    // Between the two readings everything agrees.
    let ahead = if server < before { server - before } else { (server - after).max(0) };
    let by = Duration::from_micros(ahead.unsigned_abs());
    if by < MAX_CLOCK_SKEW {
        report.ok("clock", "the server's agrees with this host's");
    } else {
        let which = if ahead < 0 { "behind" } else { "ahead of" };
        report.warn(
            "clock",
            format!("the server's is {by:.1?} {which} this host's"),
            "limits and `--for` use the server's clock, but ends that services on this host set are off by this much: run NTP on both",
        );
    }
}

const MAX_CLOCK_SKEW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_skew_beyond_round_trip_is_a_warning() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        for (server, status) in [(100, "ok"), (105, "ok"), (110, "ok"), (98, "warn"), (112, "warn")] {
            let mut report = DoctorReport::default();
            compare(at(100), server * 1_000_000, at(110), &mut report);
            assert_eq!(report.status(), status, "at {server}");
        }
    }
}
