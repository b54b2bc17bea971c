//! The effect of a request on a sliding window, for the stores that decide in this process.

use super::{MAX_REQUESTS, Ring, Window, WindowUsage};
use crate::model::Mode;
use crate::model::answer::OutcomeCode;
use crate::model::bucket::{BucketRequest, GrantRecord};
use crate::model::decide::{Account, State, StoredReceipt};

/// A sliding window as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowRow {
    /// The limits that it was last counted under.
    pub(crate) window: Window,
    pub(crate) ring: Ring,
}

/// Decides a request in a mode that holds until an instant. A denial changes nothing.
pub(crate) fn decide(
    row: &mut WindowRow,
    window: &Window,
    request: BucketRequest,
    (mode, until): (Mode, Option<i64>),
    stored: Option<StoredReceipt>,
    now: i64,
) -> WindowUsage {
    let answer = |code, row: &WindowRow| WindowUsage { mode, ..WindowUsage::new(code, now, now, &row.ring) };
    if mode == Mode::Off {
        return answer(OutcomeCode::Granted, row);
    }
    row.ring.step_back(now);
    if let Some(stored) = stored {
        let same = stored.grant.cost == request.cost && stored.state != State::Cancelled;
        let code = if same { OutcomeCode::Granted } else { OutcomeCode::Reused };
        return WindowUsage::new(code, now, stored.grant.scheduled_at.max(now), &row.ring);
    }
    if mode == Mode::Block {
        return WindowUsage { scheduled_at: until, ..answer(OutcomeCode::Denied, row) };
    }
    if request.cost > window.signed_max_requests() - request.min_remaining {
        return answer(OutcomeCode::Never, row);
    }
    // No request waits in shadow mode.
    let max_wait = if mode == Mode::Shadow { 0 } else { request.max_wait };
    match row.ring.take(window, now, BucketRequest { max_wait, ..request }) {
        Some(scheduled_at) => {
            row.window = *window;
            WindowUsage::new(OutcomeCode::Granted, now, scheduled_at, &row.ring)
        }
        None if mode == Mode::Shadow => answer(OutcomeCode::Granted, row),
        None => answer(OutcomeCode::Denied, row),
    }
}

impl WindowRow {
    /// An unused window.
    pub(crate) fn new(window: Window, now: i64) -> Self {
        let (resolution_ns, retention_ns) = (window.resolution_ns, window.interval_ns);
        Self { window, ring: Ring { resolution_ns, retention_ns, since: now, ..Ring::default() } }
    }

    /// The limits that the SQL stores know: the longest interval since it was empty, and the newest sub-interval's resolution.
    pub(crate) fn limits(&self) -> Window {
        Window::stored(self.window.max_requests, self.ring.retention_ns, self.ring.resolution_ns)
    }

    /// Whether no request counts any more.
    pub(crate) fn is_empty(&self, now: i64) -> bool {
        self.ring.empty_at(&self.window) <= now
    }

    /// Counts requests now, regardless of the maximum, unless the mode is off or block.
    pub(crate) fn count_now(
        &mut self,
        window: &Window,
        (mode, until): (Mode, Option<i64>),
        cost: i64,
        now: i64,
    ) -> WindowUsage {
        if mode != Mode::Off {
            self.ring.step_back(now);
        }
        let counts = matches!(mode, Mode::Enforce | Mode::Shadow);
        if counts && cost > 0 {
            self.ring.count(window, now, self.next(now), cost.min(MAX_REQUESTS));
            self.window = *window;
        }
        let counted = WindowUsage { mode, ..WindowUsage::new(OutcomeCode::Granted, now, now, &self.ring) };
        if mode == Mode::Block {
            WindowUsage { code: OutcomeCode::Denied, scheduled_at: until, ..counted }
        } else {
            counted
        }
    }

    /// Now, or the later instant at which the last granted requests act.
    fn next(&self, now: i64) -> i64 {
        self.ring.counts.last().map_or(now, |(end, _)| now.max(end - self.ring.resolution_ns))
    }
}

impl Account for WindowRow {
    const MAX_USED: i64 = MAX_REQUESTS;

    fn cancel(&mut self, receipt: &GrantRecord, _: i64) -> Option<i64> {
        Some(self.ring.give_back(receipt.scheduled_at, receipt.cost))
    }

    fn refund(&mut self, receipt: &GrantRecord, tokens: i64) {
        self.ring.give_back(receipt.scheduled_at, tokens);
    }

    fn charge(&mut self, now: i64, tokens: i64, _: i64) {
        let window = self.limits();
        self.ring.step_back(now);
        self.ring.count(&window, now, self.next(now), tokens);
    }
}
