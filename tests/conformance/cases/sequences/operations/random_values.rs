//! Values at the edges.

use std::time::Duration;

use tollgate::model::bucket::MAX_TOKENS;
use tollgate::{Quota, Window};

use super::Author;

impl Author<'_> {
    pub(super) fn cost(&mut self, capacity: u64) -> u64 {
        match self.random.u32(0..24) {
            0..=11 => 1,
            12..=16 => self.random.u64(1..=capacity),
            17..=19 => capacity,
            20 => capacity.saturating_add(1),
            21 => [0, u64::MAX, u64::MAX / 2, u64::MAX / 4, MAX_TOKENS.unsigned_abs()][self.random.usize(..5)],
            _ => 1 + self.random.u64(..capacity.min(5)),
        }
    }

    pub(super) fn min_remaining(&mut self, capacity: u64) -> u64 {
        match self.random.u32(0..24) {
            0..=17 => 0,
            18..=20 => self.random.u64(..capacity),
            21 => capacity - 1,
            22 => capacity,
            _ => [u64::MAX, u64::MAX / 2, MAX_TOKENS.unsigned_abs()][self.random.usize(..3)],
        }
    }

    pub(super) fn max_wait(&mut self, place: usize) -> Duration {
        let quota = self.quotas[place];
        let token = quota.refill_time() / u32::try_from(quota.capacity()).unwrap_or(u32::MAX);
        match self.random.u32(0..24) {
            0..=11 => Duration::ZERO,
            12..=16 => token * self.random.u32(1..4),
            17..=18 => quota.refill_time(),
            19 => Duration::from_nanos(1),
            20 | 21 => Duration::from_hours(1),
            22 => Duration::from_hours(366 * 24),
            _ => Duration::MAX,
        }
    }

    pub(super) fn back(&mut self) -> i64 {
        match self.random.u32(0..4) {
            0 => self.random.i64(1..1_000),
            1 => self.random.i64(1_000_000..2_000_000_000),
            2 => HOUR,
            _ => 24 * HOUR,
        }
    }

    pub(super) fn forward(&mut self) -> i64 {
        if self.one_in(4) {
            let place = self.windowed();
            let window = self.windows[place];
            let span = [window.interval(), window.resolution()][self.random.usize(..2)];
            return (ns(span) * self.random.i64(1..3) + self.random.i64(-1..2)).max(0);
        }
        let quota = self.quotas[self.random.usize(..6)];
        let refill = i64::try_from(quota.refill_time().as_nanos()).unwrap_or(HOUR).min(1 << 61);
        let token = refill / i64::try_from(quota.capacity()).unwrap_or(i64::MAX);
        match self.random.u32(0..16) {
            0 => 1,
            1..=6 => token * self.random.i64(1..4) + self.random.i64(-1..2),
            7..=9 => refill.min(20 * YEAR) + self.random.i64(-1..2),
            10..=12 => self.random.i64(1..HOUR / 60),
            13 => HOUR,
            14 => 30 * 24 * HOUR,
            _ => 5 * YEAR,
        }
        .max(0)
    }

    pub(super) fn quota(&mut self) -> Quota {
        const QUOTAS: [&str; 19] = [
            "10/s",
            "3/s burst 7",
            "10/s",
            "1/h",
            "100/min burst 5",
            "1000000000/s",
            "1000/d burst 3",
            "1/36525d",
            "3155760000000000000/36525d",
            "3 per 1s",
            "7 per 999999937ns",
            "5 per 1h",
            "1 per 36525d",
            "3155760000000000000 per 36525d",
            "4 per calendar 1h",
            "2 per calendar 1d",
            "3 once",
            "10 once",
            "3155760000000000000 once",
        ];
        QUOTAS[self.random.usize(..QUOTAS.len())].parse().expect("each is a quota")
    }

    /// Often equals the key's own quota, now or later: the override applies anyway.
    pub(super) fn overriding(&mut self, place: usize) -> Quota {
        const QUOTAS: [&str; 8] = [
            "20/s",
            "3/s burst 8",
            "2/h",
            "2000000/s burst 7",
            "4 per 1s",
            "6 per calendar 1h",
            "5 once",
            "9 per 36525d",
        ];
        match self.random.u32(0..4) {
            0 => self.quotas[place],
            1 => self.quota(),
            _ => QUOTAS[self.random.usize(..QUOTAS.len())].parse().expect("each is a quota"),
        }
    }

    pub(super) fn window(&mut self) -> Window {
        const WINDOWS: [&str; 11] = [
            "10 in 1s at 100ms",
            "10 in 1s at 100ms",
            "3 in 1s at 1s",
            "7 in 400ms at 130ms",
            "5 in 60s at 5s",
            "100 in 1h at 1min",
            "2 in 1ms at 1us",
            "4 in 1001ns at 1000ns",
            "1 in 1d at 1d",
            "6 in 366d at 366d",
            "1000000000000 in 366d at 1d",
        ];
        WINDOWS[self.random.usize(..WINDOWS.len())].parse().expect("each is a window")
    }

    /// The number of requests to count in a window: 0 only reads.
    pub(super) fn count(&mut self, window: &Window) -> u64 {
        match self.random.u32(0..8) {
            0 => 0,
            1 => window.max_requests() + 1,
            2 => u64::MAX,
            _ => 1 + self.random.u64(..window.max_requests().min(5)),
        }
    }

    pub(super) fn wait_in(&mut self, window: &Window) -> Duration {
        match self.random.u32(0..8) {
            0..=3 => Duration::ZERO,
            4 => window.resolution() * self.random.u32(1..4),
            5 => window.interval(),
            _ => window.interval() + window.resolution(),
        }
    }
}

fn ns(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX / 4)
}

pub(super) const SECOND: i64 = 1_000_000_000;
pub(super) const HOUR: i64 = 3_600_000_000_000;
pub(super) const YEAR: i64 = 366 * 24 * HOUR;
