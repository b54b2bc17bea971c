//! Cycles through more buckets than --limit: part after part, each read twice, so that every bucket has a rate.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::{Key, admin::BucketLevel};

use super::row::BoardRow;

/// Totals of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) buckets: usize,
    /// Those with no token left.
    pub(crate) empty: usize,
    /// Tokens granted per second, once any was read twice.
    pub(crate) rate: Option<f64>,
}

impl Totals {
    /// The totals of rows. A row without a bucket counts for nothing.
    pub(crate) fn of<'a>(rows: impl Iterator<Item = &'a BoardRow>) -> Self {
        let mut totals = Self::default();
        for row in rows {
            totals.add(row.level.as_slice());
            totals.rate = totals.rate.map_or(row.rate, |sum| Some(sum + row.rate.unwrap_or(0.0)));
        }
        totals
    }

    pub(crate) fn add(&mut self, levels: &[BucketLevel]) {
        self.buckets += levels.len();
        self.empty += levels.iter().filter(|level| level.available() < 1).count();
    }
}

/// Totals of all buckets in the last cycle. In the first cycle, totals of the buckets so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScanTotals {
    pub(crate) totals: Totals,
    pub(crate) all: bool,
}

/// How far it is.
#[derive(Debug)]
pub(crate) struct FullScan {
    part: Part,
    so_far: Totals,
    last: Option<Totals>,
}

/// The buckets that were read last, and that the next read repeats.
#[derive(Debug)]
struct Part {
    after: Option<Key>,
    end: Option<Key>,
    granted: HashMap<Key, u64>,
    at: Duration,
    /// Whether no bucket comes after it.
    is_last: bool,
}

impl Part {
    fn new(after: Option<Key>, levels: &[BucketLevel], is_last: bool, at: Duration) -> Self {
        let granted = levels.iter().map(|level| (level.key().clone(), level.granted())).collect();
        Self { after, end: levels.last().map(|level| level.key().clone()), granted, at, is_last }
    }
}

impl FullScan {
    /// Begins with the first buckets of all.
    pub(crate) fn begin(first: &[BucketLevel], at: Duration) -> Self {
        let mut so_far = Totals::default();
        so_far.add(first);
        Self { part: Part::new(None, first, false, at), so_far, last: None }
    }

    /// Where the part that is read again begins, and its last key.
    pub(crate) fn again(&self) -> (Option<&Key>, Option<&Key>) {
        (self.part.after.as_ref(), self.part.end.as_ref())
    }

    /// Where the next part begins.
    pub(crate) fn next(&self) -> Option<&Key> {
        self.part.end.as_ref().filter(|_| !self.part.is_last)
    }

    /// Takes in the last part, read again, and the next one. Says how many buckets there are, if it has been through.
    pub(crate) fn step(
        &mut self,
        again: &[BucketLevel],
        next: &[BucketLevel],
        is_last: bool,
        at: Duration,
    ) -> Option<usize> {
        let elapsed = at.saturating_sub(self.part.at).as_secs_f64();
        if elapsed > 0.0 {
            let more = again.iter().map(|level| {
                self.part.granted.get(level.key()).map_or(0, |before| level.granted().saturating_sub(*before))
            });
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let rate = more.sum::<u64>() as f64 / elapsed;
            self.so_far.rate = Some(self.so_far.rate.unwrap_or(0.0) + rate);
        }
        let after = self.next().cloned();
        let is_complete = self.part.is_last;
        if is_complete {
            self.last = Some(std::mem::take(&mut self.so_far));
        }
        self.so_far.add(next);
        self.part = Part::new(after, next, is_last, at);
        is_complete.then(|| self.last.map_or(0, |last| last.buckets))
    }

    pub(crate) fn scan(&self) -> ScanTotals {
        ScanTotals { totals: self.last.unwrap_or(self.so_far), all: self.last.is_some() }
    }
}
